"""What a loader says of its place, and what it makes of that."""

from __future__ import annotations

import gc

import pytest

from asyncloader import DataLoader2, SnapshotError
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.places import states


@pytest.fixture
def collects_by_itself():
    yield
    gc.enable()


@pytest.mark.parametrize("before", [True, False], ids=["collecting", "by hand"])
@pytest.mark.usefixtures("collects_by_itself")
def test_no_garbage_is_collected_while_states_are_read(before, monkeypatch):
    seen = []

    def read(state):
        seen.append(gc.isenabled())
        return rank_snapshots(state)

    rank_snapshots = states.rank_snapshots
    monkeypatch.setattr(states, "rank_snapshots", read)
    loader = DataLoader2(IterableWrapper(range(3)))
    state = loader.state_dict()
    (gc.enable if before else gc.disable)()
    loader.load_state_dict(state)
    assert gc.isenabled() is before
    with pytest.raises(SnapshotError):
        loader.load_state_dict({})
    assert (gc.isenabled(), seen) == (before, [False, False])
