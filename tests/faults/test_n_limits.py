"""Rows N22 and N24: what the system does not allow, or does not have."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.processes.scripts import run_script

needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can be a user that has no other processes"
)

#: One loader after the other may start ever so many threads and processes.
FEW_PROCESSES = """
import resource, sys, time
from asyncloader import DataLoader2, MultiProcessingReadingService, ResourceExhausted
from asyncloader.datapipes.branches.sharding import SHARDING_PRIORITIES
from asyncloader.datapipes.iter import IterableWrapper
from tests.other_user import become_nobody, threads_of


def increment(number):
    return number + 1


def load(method, is_dealt):
    source = IterableWrapper(range(100))
    if is_dealt:
        graph = source.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)
    else:
        graph = source.sharding_filter()
    service = MultiProcessingReadingService(2, method, on_worker_death="restart")
    with DataLoader2(graph.map(increment), reading_service=service) as loader:
        assert list(loader) == list(range(1, 101))


def try_with(limit, method, is_dealt):
    resource.setrlimit(resource.RLIMIT_NPROC, (limit, hard))
    begun = time.monotonic()
    try:
        load(method, is_dealt)
        return True
    except Exception as error:
        exhausted = error if isinstance(error, ResourceExhausted) else error.__cause__
        assert isinstance(exhausted, ResourceExhausted), repr(error)
        assert "process" in str(exhausted) and "`ulimit -u`" in str(exhausted), exhausted
        assert f"{limit} processes and threads" in str(exhausted), exhausted
        assert str(exhausted) in str(error), error
        return False
    finally:
        assert time.monotonic() - begun < 3.0 + 4.0, limit
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


def settled(user):
    # Dead processes are reaped, and threads are gone, a moment later.
    for _ in range(100):
        before = threads_of(user)
        time.sleep(0.02)
        if threads_of(user) == before:
            return before


if __name__ == "__main__":
    user = become_nobody()
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    method = None if sys.argv[1] == "None" else sys.argv[1]
    is_dealt = sys.argv[2] == "dealt"
    used = settled(user)
    worked = [try_with(used + more, method, is_dealt) for more in range(5)]
    # What stays is there now: the template process, say.
    load(method, is_dealt)
    used = settled(user)
    worked += [try_with(used + more, method, is_dealt) for more in range(30)]
    assert not worked[0] and not worked[5], worked
    assert worked[-1], worked
    load(method, is_dealt)
    assert settled(user) <= used + 1, "nothing is left"
    print(worked.index(True))
"""


@needs_root
@pytest.mark.parametrize("how", ["alone", "dealt"])
@pytest.mark.parametrize("method", [None, "fork"])
def test_n22_without_processes_it_is_said_what_ran_out(method, how, tmp_path: Path):
    done = run_script(tmp_path, FEW_PROCESSES, str(method), how)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
