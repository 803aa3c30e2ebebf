from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from asyncloader import system
from asyncloader.deadline import ends_within
from asyncloader.errors import WorkerStartupError
from asyncloader.workers.process import template
from asyncloader.workers.process.process import (
    Process,
    ProcessPlan,
    close_processes,
    kill_processes_now,
)
from asyncloader.workers.process.start import ProcessEngine, _in_spawner, start_process
from asyncloader.workers.process.template import Heritage
from tests.leaks import Belongings, descendants, leaves_nothing, left_since
from tests.needs import LOOPS, needs_deaths_told, needs_prctl, needs_template_with_imports

METHODS = [None, "fork", "spawn", "forkserver"]
MAINS = "tests.processes.mains"

PR_SET_CHILD_SUBREAPER = 36

#: It takes milliseconds, and on a machine that stands still now and then some seconds.
SOON = 10.0

every_method = pytest.mark.parametrize("method", METHODS)


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep torch out of the templates: no child needs it, and its import takes the longest."""
    monkeypatch.setattr(template, "_LIBRARIES", ())


def plan(main: str, *args: Any, name: str = "asyncloader worker 0") -> ProcessPlan:
    return ProcessPlan(name, f"{MAINS}:{main}", args, preload=(MAINS,))


@asynccontextmanager
async def running(main: str, *args: Any, method: str | None = None) -> AsyncIterator[Process]:
    process = await start_process(plan(main, *args), method=method, timeout=60)
    process.sock.setblocking(False)
    try:
        yield process
    finally:
        await close_processes([process], grace=0)


async def tell(process: Process, data: bytes) -> None:
    await asyncio.get_running_loop().sock_sendall(process.sock, data)


async def hear(process: Process, size: int = 100) -> bytes:
    return await asyncio.get_running_loop().sock_recv(process.sock, size)


async def hear_line(process: Process) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        part = await hear(process, 1 << 16)
        assert part, f"end of file after {line!r}"
        line += part
    return line


@pytest.mark.sweep
@pytest.mark.soak
@every_method
async def test_a_child_talks_over_its_socket(method: str | None) -> None:
    async with running("echo", method=method) as process:
        await tell(process, b"hello")
        assert await hear(process) == b"hello"
        assert process.exitcode is None
        process.sock.close()
        assert await process.wait() == 0


@pytest.mark.sweep
@every_method
@pytest.mark.parametrize(
    ("how", "what", "code"),
    [
        ("return", None, 0),
        ("exit", 3, 3),
        ("exit", None, 0),
        ("_exit", 0, 0),
        ("_exit", 7, 7),
        ("signal", signal.SIGKILL, -9),
        ("signal", signal.SIGSEGV, -11),
        ("signal", signal.SIGTERM, -15),
    ],
)
async def test_the_exit_code_says_how_a_child_ended(
    method: str | None, how: str, what: Any, code: int
) -> None:
    async with running("leave", how, what, method=method) as process:
        await tell(process, b"!")
        async with asyncio.timeout(SOON):
            assert await process.wait() == code
        assert process.exitcode == code


@pytest.mark.sweep
@every_method
async def test_an_exception_in_main_is_printed_and_ends_the_child_with_1(
    method: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    if method == "forkserver":
        pytest.skip("the standard library's server keeps the stderr it was started with")
    async with running("leave", "raise", "broken on purpose", method=method) as process:
        await tell(process, b"!")
        assert await process.wait() == 1
    assert "RuntimeError: broken on purpose" in capfd.readouterr().err


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("method", [None, "fork", "spawn"])
async def test_a_main_that_cannot_be_imported_is_named_on_stderr(
    method: str | None, capfd: pytest.CaptureFixture[str]
) -> None:
    wrong = ProcessPlan("asyncloader worker 0", "no.such.module:main")
    process = await start_process(wrong, method=method, timeout=60)
    assert await process.wait() == 1
    await close_processes([process])
    assert "No module named 'no'" in capfd.readouterr().err


@every_method
async def test_a_child_is_clean(method: str | None) -> None:
    async with running("echo", method=method), running("describe", method=method) as process:
        found = json.loads(await hear_line(process))
    assert found["pid"] == process.pid
    assert found["comm"] == "asyncloader w0"
    assert found["threads"] == ["MainThread", "asyncloader lifeline"] or method == "fork"
    assert not found["loop"]
    assert found["gc"]
    assert found["sigint_ignored"]
    assert found["sigterm_default"]
    assert found["mask"] == []
    assert not found["inheritable"]
    assert found["sockets"] == 1, "a sibling's socket would hide its end of file"


@every_method
async def test_a_child_runs_its_own_event_loop(method: str | None) -> None:
    async with running("run_asyncio", method=method) as process:
        assert await hear(process) == b"from a loop"


class Text(str):
    """A text of a class of the loader's own."""


@contextmanager
def set_and_restored(
    setter: Callable[[int], Any], value: int, before: Any = None
) -> Iterator[None]:
    """Set something of the process, which says what it was unless that is known."""
    was = setter(value)
    try:
        yield
    finally:
        setter(was if before is None else before)


async def test_a_template_child_has_the_loaders_surroundings_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running("echo"):
        pass
    monkeypatch.chdir(tmp_path)
    greeting = os.fsdecode("grüß dich".encode())  # in any locale
    monkeypatch.setenv("GREETING", greeting)
    monkeypatch.syspath_prepend("/no/such/folder")
    # Another process has no such class, and the interpreter looks for nothing in a Path.
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path, Text("/nor here")])
    monkeypatch.setattr(sys, "argv", [Text("prog"), "--flag", tmp_path])
    monkeypatch.setenv("TZ", "XYZ-5")
    monkeypatch.setattr(logging.root, "level", 7)
    monkeypatch.setattr(logging.root.manager, "disable", 3)
    with (
        warnings.catch_warnings(),
        set_and_restored(sys.setrecursionlimit, 4321, sys.getrecursionlimit()),
        set_and_restored(os.umask, 0o027),
    ):
        warnings.simplefilter("ignore", UserWarning)
        async with running("describe") as process:
            found = json.loads(await hear_line(process))
    assert found["cwd"] == str(tmp_path)
    assert found["greeting"] == greeting
    assert found["path"][0] == "/no/such/folder"
    assert found["path"][-1] == "/nor here"
    assert found["argv"] == ["prog", "--flag", str(tmp_path)]
    assert found["umask"] == 0o027
    assert found["hour of the epoch"] == 5
    assert found["recursion limit"] == 4321
    assert (found["log level"], found["disabled logs"]) == (7, 3)
    assert found["ignores_user_warnings"]
    printed = capfd.readouterr()
    assert printed.out == f"to stdout {process.pid}\n"
    assert printed.err == f"to stderr {process.pid}\n"


async def test_a_template_is_started_where_the_path_has_what_is_no_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, tmp_path])
    own_template = ProcessPlan("asyncloader worker 0", f"{MAINS}:describe", (), (MAINS, "json"))
    process = await start_process(own_template, timeout=60)
    try:
        process.sock.setblocking(False)
        assert str(tmp_path) not in json.loads(await hear_line(process))["path"]
    finally:
        await close_processes([process], grace=0.0)


@needs_template_with_imports
async def test_children_leave_alone_what_their_template_has_to_remove() -> None:
    module = "tests.processes.heirloom"
    heard = []
    for _ in range(2):
        heir = ProcessPlan("asyncloader worker 0", f"{module}:show", preload=(module,))
        process = await start_process(heir, timeout=60)
        process.sock.setblocking(False)
        heard.append((await hear_line(process)).split())
        process.sock.close()
        assert await process.wait() == 0
        await close_processes([process], grace=0)
    (folder, was_there, own), (again, is_there, other) = heard
    assert folder == again
    assert was_there == is_there == b"True"
    assert own != other
    assert not is_folder(own)


@needs_template_with_imports
async def test_a_template_with_nothing_to_do_imports_what_its_children_may_want() -> None:
    wanted = {name for name in sys.modules if name.startswith(("asyncloader.", "uvloop"))}
    async with asyncio.timeout(60):
        while not wanted <= await modules_of_a_child():  # noqa: ASYNC110 - it tells nobody
            # It takes a moment without a request for the template to have nothing to do.
            await asyncio.sleep(0.5)


@pytest.mark.skipif(system.MAY_FORK_AFTER_IMPORTS, reason="here it imports what it likes")
async def test_where_libraries_do_not_survive_a_fork_a_template_has_imported_none() -> None:
    import torch  # noqa: F401 - as in a program that uses it

    libraries = {"_scproxy", "numpy", "pytest", "torch", "urllib.request", "uvloop"}
    assert not libraries & await modules_of_a_child()


def is_folder(path: bytes) -> bool:
    return os.path.isdir(path)


async def modules_of_a_child() -> set[str]:
    async with running("list_modules") as process:
        return set(json.loads(await hear_line(process)))


def on_a_loop(
    factory: Callable[[], asyncio.AbstractEventLoop], coroutine: Coroutine[Any, Any, None]
) -> None:
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coroutine)


@pytest.mark.sweep
@every_method
@pytest.mark.parametrize("factory", LOOPS)
@pytest.mark.parametrize("thread", ["main", "other"])
def test_a_death_is_seen_soon(
    method: str | None, factory: Callable[[], asyncio.AbstractEventLoop], thread: str
) -> None:
    async def scenario() -> None:
        for number in (signal.SIGKILL, signal.SIGSEGV):
            async with running("echo", method=method) as process:
                await tell(process, b"ready?")
                await hear(process)
                os.kill(process.pid, number)
                async with asyncio.timeout(SOON):
                    assert await process.wait() == -number

    if thread == "main":
        on_a_loop(factory, scenario())
        return
    done: Future[None] = Future()

    def run() -> None:
        try:
            done.set_result(on_a_loop(factory, scenario()))
        except BaseException as error:  # noqa: BLE001  shown in the test's thread
            done.set_exception(error)

    worker = threading.Thread(target=run)
    worker.start()
    worker.join()
    done.result()


@every_method
async def test_a_death_is_seen_though_a_child_of_the_dead_lives_on(method: str | None) -> None:
    async with running("leave_a_child", method=method) as process:
        grandchild = int(await hear_line(process))
        os.kill(process.pid, signal.SIGKILL)
        try:
            async with asyncio.timeout(SOON):
                assert await process.wait() == -signal.SIGKILL
        finally:
            os.kill(grandchild, signal.SIGKILL)


async def test_many_can_watch_one_process_and_some_may_stop() -> None:
    loop = asyncio.get_running_loop()
    seen: list[str] = []
    async with running("echo") as process:
        process.on_death(loop, lambda: seen.append("first"))
        process.on_death(loop, lambda: seen.append("stopped"))()
        process.kill()
        assert await asyncio.gather(process.wait(), process.wait()) == [-9, -9]
        assert seen == ["first"]
        assert await process.wait() == -9
    assert await process.wait() == -9, "also after it was released"


def test_a_process_outlives_the_loop_that_started_it() -> None:
    async def start() -> Process:
        return await start_process(plan("echo"), timeout=60)

    async def end(process: Process) -> None:
        process.on_death(asyncio.get_running_loop(), lambda: None)
        await close_processes([process], grace=0)

    process = asyncio.run(start())
    asyncio.run(end(process))
    assert process.exitcode == -9


async def test_an_unknown_start_method_is_refused_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="None, 'fork', 'spawn', 'forkserver', got 'thread'"):
        await start_process(plan("echo"), method="thread", timeout=60)


async def test_fork_is_refused_while_a_foreign_thread_runs() -> None:
    end = threading.Event()
    foreign = threading.Thread(target=end.wait, name="somebody's thread")
    foreign.start()
    try:
        with pytest.raises(WorkerStartupError, match="somebody's thread"):
            await start_process(plan("echo"), method="fork", timeout=60)
    finally:
        end.set()
        foreign.join()


async def test_fork_is_refused_while_a_thread_of_the_loop_works_and_not_while_it_waits() -> None:
    end = threading.Event()
    working = asyncio.ensure_future(asyncio.to_thread(end.wait))
    await asyncio.sleep(0)
    with pytest.raises(WorkerStartupError, match="asyncio_0"):
        await start_process(plan("echo"), method="fork", timeout=60)
    end.set()
    await working
    async with running("echo", method="fork") as process:
        await settled(process)


async def test_fork_waits_for_a_busy_loop_no_longer_than_it_may() -> None:
    start = asyncio.ensure_future(start_process(plan("echo"), method="fork", timeout=0.2))
    await asyncio.sleep(0)
    time.sleep(0.3)  # noqa: ASYNC251  the loop is busy
    with leaves_nothing(), pytest.raises(WorkerStartupError, match="worker 0"):
        await start


async def test_arguments_that_cannot_be_sent_are_a_startup_error() -> None:
    with pytest.raises(WorkerStartupError, match="asyncloader worker 0 was not started"):
        await start_process(plan("echo", lambda: None), timeout=60)


async def settled(process: Process) -> None:
    """Wait for an echo, which only a child that is no copy of its template any more sends."""
    await tell(process, b"?")
    assert await hear(process) == b"?"


def signal_templates(number: signal.Signals) -> None:
    for pid, what in descendants().items():
        if what.startswith("asyncloader tem"):
            os.kill(pid, number)


async def test_a_template_that_was_killed_is_replaced() -> None:
    async with running("echo") as first:
        await settled(first)
        signal_templates(signal.SIGKILL)
        async with asyncio.timeout(SOON):
            assert await first.wait() == -9, "its children die with it"
    async with running("echo") as second:
        await tell(second, b"again")
        assert await hear(second) == b"again"


@needs_prctl
async def test_who_gets_the_orphans_of_a_template_buries_them() -> None:
    # As the first process of a container does, too.
    with set_and_restored(partial(ctypes.CDLL(None).prctl, PR_SET_CHILD_SUBREAPER), 1, 0):
        async with running("echo") as orphan:
            await settled(orphan)
            signal_templates(signal.SIGKILL)
            async with asyncio.timeout(SOON):
                assert await orphan.wait() == -9
            assert orphan.pid not in descendants()


@pytest.mark.soak
async def test_a_template_that_is_stopped_is_given_up() -> None:
    async with running("echo") as process:
        await settled(process)
    signal_templates(signal.SIGSTOP)
    try:
        with pytest.raises(WorkerStartupError, match="worker 0"):
            await start_process(plan("echo"), timeout=0.2)
    finally:
        # Those that import something else, and are of other tests.
        signal_templates(signal.SIGCONT)
    async with running("echo") as process:
        await tell(process, b"again")
        assert await hear(process) == b"again"


async def test_a_hurried_start_harms_no_other_child() -> None:
    async with running("echo") as process:
        for _ in range(3):
            with pytest.raises(WorkerStartupError, match="worker 0"):
                await start_process(plan("echo"), timeout=0.0)
        await settled(process)
    assert process.exitcode == -9


@needs_deaths_told
async def test_a_death_is_seen_and_told_while_the_template_is_stopped() -> None:
    async with running("echo") as process:
        await settled(process)
        signal_templates(signal.SIGSTOP)
        process.kill()
        async with asyncio.timeout(SOON):
            assert await process.wait() == -9
        signal_templates(signal.SIGCONT)


async def test_who_waits_is_told_when_another_closes() -> None:
    async with running("echo") as process:
        waiters = [asyncio.ensure_future(process.wait()) for _ in range(3)]
        await asyncio.sleep(0)
        kill_processes_now([process])
        assert await asyncio.gather(*waiters) == [-9] * 3


async def test_a_death_that_is_seen_while_another_thread_releases_is_told_and_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
    async with running("echo") as process:
        releasing = threading.Thread(target=process.release)

        def status_fd(of: Process) -> int:
            if releasing.ident is None:
                releasing.start()
                # It gets as far as it may at this moment.
                releasing.join(0.5)
            return of._born.status_fd

        process._born = replace(process._born, find_exitcode=lambda: None)
        monkeypatch.setattr(Process, "status_fd", property(status_fd))
        process.kill()
        await asyncio.wait_for(process.wait(), SOON)
        await asyncio.to_thread(releasing.join)
    assert errors == []


def test_a_close_that_is_torn_down_with_its_loop_kills() -> None:
    async def leave_it_closing() -> Process:
        process = await start_process(plan("be_busy", "sleeping"), timeout=60)
        leave_it_closing.task = asyncio.ensure_future(close_processes([process]))  # type: ignore[attr-defined]
        await asyncio.sleep(0)
        return process

    asyncio.run(running_once())
    with leaves_nothing():
        process = asyncio.run(leave_it_closing())
        assert process.exitcode == -9


async def running_once() -> None:
    async with running("echo"):
        pass


@every_method
@pytest.mark.parametrize("ticks", [0, 1, 2])
async def test_a_cancelled_start_leaves_nothing(method: str | None, ticks: int) -> None:
    async with running("echo", method=method):
        pass
    with leaves_nothing():
        start = asyncio.ensure_future(start_process(plan("echo"), method=method, timeout=60))
        for _ in range(ticks):
            await asyncio.sleep(0)
        start.cancel()
        with pytest.raises(asyncio.CancelledError):
            await start
        # What began may take longer to be undone than the start waits for.
        await asyncio.wrap_future(_in_spawner(int))


@pytest.mark.sweep
@pytest.mark.soak
@every_method
async def test_starts_and_closes_leave_nothing(method: str | None) -> None:
    async with running("echo", method=method):
        pass
    with leaves_nothing():
        # An interpreter for each takes long to start, and what one leaves is seen.
        for _ in range(2 if method == "spawn" else 10):
            starts = (start_process(plan("echo"), method=method, timeout=60) for _ in range(2))
            processes = await asyncio.gather(*starts)
            for process in processes:
                # One that is closed before it is up is killed if that takes long.
                process.sock.setblocking(False)
                await tell(process, b"?")
                assert await hear(process) == b"?"
                process.sock.close()
            await close_processes(processes)
            assert [process.exitcode for process in processes] == [0, 0]


@pytest.mark.sweep
@pytest.mark.soak
@every_method
async def test_stopped_children_are_closed_together(method: str | None) -> None:
    async with running("echo", method=method):
        pass
    with leaves_nothing():
        starts = (
            start_process(plan("be_busy", "stopped"), method=method, timeout=60) for _ in range(4)
        )
        processes = await asyncio.gather(*starts)
        for process in processes:
            process.sock.setblocking(False)
            assert await hear(process) == b"b"
        begin = time.monotonic()
        await close_processes(processes, grace=0.5, total=60.0)
        assert time.monotonic() - begin < 30.0
        assert [process.exitcode for process in processes] == [-9] * 4


async def test_in_the_close_of_a_loader_grace_ends_with_the_time_that_is_left() -> None:
    async with running("echo"):
        pass
    process = await start_process(plan("be_busy", "sleeping"), timeout=60)
    begin = time.monotonic()
    with ends_within(0.7):
        await close_processes([process], grace=60.0, total=60.0)
    assert time.monotonic() - begin < 30.0
    assert process.exitcode == -9


async def test_a_cancelled_close_closes_first() -> None:
    async with running("echo"):
        pass
    with leaves_nothing():
        process = await start_process(plan("be_busy", "sleeping"), timeout=60)
        closing = asyncio.ensure_future(close_processes([process], grace=0.2))
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        assert process.exitcode == -9
        assert process.sock.fileno() == -1


async def test_a_scope_that_cancels_again_and_again_leaves_a_close_waiting() -> None:
    async with running("echo"):
        pass
    with leaves_nothing():
        process = await start_process(plan("be_busy", "sleeping"), timeout=60)
        with anyio.CancelScope() as scope:
            scope.cancel()
            await close_processes([process], grace=0.2)
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
        assert process.exitcode == -9


@every_method
async def test_a_finalizer_kills_without_a_loop(method: str | None) -> None:
    async with running("echo", method=method):
        pass
    with leaves_nothing():
        process = await start_process(plan("be_busy", "stopped"), method=method, timeout=60)
        kill_processes_now([process])
        assert process.exitcode == -9
        kill_processes_now([process])


@every_method
async def test_who_has_no_time_to_see_a_death_leaves_no_zombie(method: str | None) -> None:
    async with running("echo", method=method):
        pass
    with leaves_nothing():
        process = await start_process(plan("be_busy", "stopped"), method=method, timeout=60)
        death_fd = os.dup(process.death_fd)
        kill_processes_now([process], timeout=0)
        assert system.is_readable(death_fd, SOON)
        os.close(death_fd)


@every_method
async def test_a_forked_copy_of_the_loader_leaves_the_children_alone(method: str | None) -> None:
    async with running("echo", method=method) as process:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            copy = os.fork()
        if copy == 0:
            process.kill()
            kill_processes_now([process])
            process.release()
            os._exit(0)
        assert await asyncio.to_thread(os.waitpid, copy, 0) == (copy, 0)
        await tell(process, b"still there?")
        assert await hear(process) == b"still there?"


async def worst_gap_while_starting_two(method: str | None) -> float:
    gaps = [0.0]
    done = asyncio.Event()

    async def heartbeat() -> None:
        last = time.perf_counter()
        while not done.is_set():
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            gaps.append(now - last - 0.001)
            last = now

    beating = asyncio.ensure_future(heartbeat())
    starts = (start_process(plan("echo"), method=method, timeout=60) for _ in range(2))
    processes = await asyncio.gather(*starts)
    await close_processes(processes, grace=0)
    done.set()
    await beating
    return max(gaps)


@every_method
async def test_the_loop_goes_on_while_two_children_start(method: str | None) -> None:
    # The machine is shared, and stops us at times: what we do ourselves is in every attempt.
    gaps = [await worst_gap_while_starting_two(method)]
    # A fork copies the page tables of the whole test process: the promise is that no start
    # is waited for, and the figures are measured elsewhere.
    while min(gaps) >= 1.0 and len(gaps) < 10:
        gaps.append(await worst_gap_while_starting_two(method))
    print(f"worst gaps while starting by {method}: {[f'{gap * 1e3:.1f}' for gap in gaps]} ms")  # noqa: T201
    assert min(gaps) < 1.0


async def test_a_socket_is_one_end_of_a_pair_that_no_exec_inherits() -> None:
    async with running("echo") as process:
        assert process.sock.family == socket.AF_UNIX
        assert not process.sock.get_inheritable()
        assert not os.get_inheritable(process.death_fd)


async def test_belongings_name_what_is_left() -> None:
    before = Belongings.now()
    async with running("echo") as process:
        # Once it answers, it has its name.
        await tell(process, b"hello")
        assert await hear(process) == b"hello"
        left = left_since(before)
        assert any(f"process {process.pid}: asyncloader w0" in line for line in left)
        assert any("pidfd" in line or "pipe" in line for line in left)


async def test_a_close_that_is_cancelled_ends_what_processes_were_to_inherit_all_the_same():
    release, ended = threading.Event(), threading.Event()

    class Noted(Heritage):
        def end(self) -> None:
            super().end()
            ended.set()

    engine = ProcessEngine("fork")
    engine._heritage = Noted()
    _in_spawner(partial(release.wait, 60))
    closing = asyncio.create_task(engine.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    release.set()
    assert await asyncio.to_thread(ended.wait, 60)
