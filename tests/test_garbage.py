"""The garbage collector is stopped for as long as anybody wants it stopped."""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest

from asyncloader import DataLoader2, SnapshotError
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.garbage import collecting_nothing
from asyncloader.places import states


@pytest.fixture(autouse=True)
def collects_by_itself():
    assert gc.isenabled()
    yield
    gc.enable()


def test_it_goes_on_when_the_last_of_several_is_done():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with collecting_nothing():
            inside.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with collecting_nothing():
        thread.start()
        assert inside.wait(60)
        with collecting_nothing():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_a_collector_that_the_program_has_stopped_stays_so():
    gc.disable()
    with collecting_nothing():
        assert not gc.isenabled()
    assert not gc.isenabled()


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_a_child_that_is_forked_meanwhile_collects():
    with collecting_nothing():
        child = os.fork()
        if child == 0:
            was_enabled = gc.isenabled()
            with collecting_nothing():
                pass
            os._exit(0 if was_enabled and gc.isenabled() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert not gc.isenabled()
    assert gc.isenabled()


def test_no_garbage_is_collected_while_states_are_read(monkeypatch):
    seen = []

    def read(state):
        seen.append(gc.isenabled())
        return rank_snapshots(state)

    rank_snapshots = states.rank_snapshots
    monkeypatch.setattr(states, "rank_snapshots", read)
    loader = DataLoader2(IterableWrapper(range(3)))
    loader.load_state_dict(loader.state_dict())
    assert gc.isenabled()
    with pytest.raises(SnapshotError):
        loader.load_state_dict({})
    assert gc.isenabled()
    assert seen == [False, False]
