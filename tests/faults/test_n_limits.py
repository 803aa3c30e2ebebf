"""Rows N22 and N24: what the system does not allow, or does not have."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.faults.test_f_containers import UNSHARE, refusal
from tests.needs import needs_prctl
from tests.processes.scripts import run_script

needs_root = pytest.mark.skipif(
    os.getuid() != 0, reason="only root can be a user that has no other processes"
)

#: One loader after the other may start ever so many threads and processes.
FEW_PROCESSES = """
import resource, sys, time
from multiprocessing import forkserver
from asyncloader import DataLoader2, MultiProcessingReadingService, ResourceExhausted
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
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
        # It would keep the limit that it was started under.
        forkserver._forkserver._stop()
        resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))


def tried(limits, method, is_dealt):
    # Those after three that worked would only work as well.
    worked = []
    for limit in limits:
        worked.append(try_with(limit, method, is_dealt))
        if worked[-3:] == [True] * 3:
            break
    return worked


def settled(user):
    # Dead processes are reaped, and threads are gone, a moment later.
    for _ in range(100):
        before = threads_of(user)
        time.sleep(0.1)
        if threads_of(user) == before:
            return before


def is_left(user, most):
    end = time.monotonic() + 20
    while threads_of(user) > most and time.monotonic() < end:
        time.sleep(0.02)
    return threads_of(user) > most


if __name__ == "__main__":
    user = become_nobody()
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    method = None if sys.argv[1] == "None" else sys.argv[1]
    is_dealt = sys.argv[2] == "dealt"
    used = settled(user)
    # Those that start interpreters take a second for each.
    step = 1 if method in (None, "fork") else 5
    worked = tried(range(used, used + 5, step), method, is_dealt)
    # What stays is there now: the template process, say.
    load(method, is_dealt)
    used = settled(user)
    first = len(worked)
    worked += tried(range(used, used + 31, step), method, is_dealt)
    assert not worked[0] and not worked[first], worked
    assert worked[-1], worked
    load(method, is_dealt)
    assert not is_left(user, used + 1), "nothing is left"
    print(worked.index(True))
"""


@pytest.mark.soak
@pytest.mark.sweep
@needs_root
@needs_prctl
@pytest.mark.parametrize("how", ["alone", "dealt"])
@pytest.mark.parametrize("method", [None, "fork", "spawn", "forkserver"])
def test_n22_without_processes_it_is_said_what_ran_out(method, how, tmp_path: Path):
    done = run_script(tmp_path, FEW_PROCESSES, str(method), how)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr


#: In a mount of its own, where nothing is in /proc, nor behind /dev/fd.
NO_PROC = f"""
import os, signal, sys
from asyncloader import DataLoader2, MultiProcessingReadingService, WorkerDied
from asyncloader.datapipes.iter import IterableWrapper


def with_pid(number):
    return number, os.getpid()


if __name__ == "__main__":
    if not sys.argv[1:]:
        again = [sys.executable, "-W", "error", __file__, "in a mount of its own"]
        unshare = [*{UNSHARE}, 'mount -t tmpfs tmpfs /proc; exec "$@"', "sh", *again]
        os.execvp(unshare[0], unshare)
    assert not os.path.exists("/proc/self") and not os.path.exists("/dev/fd")
    for method in ("fork", None, "spawn", "forkserver"):
        graph = IterableWrapper(range(3000)).sharding_filter().map(with_pid)
        service = MultiProcessingReadingService(2, method, worker_prefetch_cnt=1)
        with DataLoader2(graph, reading_service=service) as loader:
            for _ in range(2):
                assert [number for number, _ in loader] == list(range(3000)), method
            items = iter(loader)
            os.kill(next(items)[1], signal.SIGKILL)
            try:
                print(method, len(list(items)))
            except WorkerDied as error:
                assert error.signal == signal.SIGKILL, method
                print(method)
"""


@pytest.mark.soak
def test_n24_without_proc_workers_start_work_and_die_as_ever(tmp_path: Path):
    if refusal():
        pytest.skip(f"needs a mount of its own: {refusal()}")
    done = run_script(tmp_path, NO_PROC)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.split() == ["fork", "None", "spawn", "forkserver"]


NO_FOLDER = """
import os, sys
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import FileLister, IterableWrapper


def name(error):
    return f"{type(error).__name__} {gone in str(error)}"


if __name__ == "__main__":
    gone = sys.argv[1]
    os.mkdir(gone)
    os.chdir(gone)
    os.rmdir(gone)
    for method in (None, "fork", "spawn", "forkserver"):
        graph = IterableWrapper(range(10)).sharding_filter()
        try:
            with DataLoader2(graph, None, MultiProcessingReadingService(2, method)) as loader:
                assert list(loader) == list(range(10))
            print(method, "works")
        except Exception as error:
            print(method, name(error))
    gone = "'here'"
    for workers in (0, 1):
        files = FileLister("here", abspath=True).sharding_filter()
        try:
            list(DataLoader2(files, None, MultiProcessingReadingService(workers)))
        except FileNotFoundError as error:
            print("list_files", name(error))
"""


@pytest.mark.skipif(
    sys.version_info[:3] == (3, 13, 0), reason="there `import socket` fails in such a directory"
)
def test_n24_where_the_working_directory_was_removed_it_works_or_is_named(tmp_path: Path):
    done = run_script(tmp_path, NO_FOLDER, str(tmp_path / "gone"))
    assert done.returncode == 0, done.stderr
    # What a removed directory was called is in /proc.
    is_known = os.path.exists("/proc/self")
    assert done.stdout.splitlines() == [
        "None works",
        "fork works",
        f"spawn WorkerStartupError {is_known}",
        f"forkserver WorkerStartupError {is_known}",
        "list_files FileNotFoundError True",
        "list_files FileNotFoundError True",
    ]
