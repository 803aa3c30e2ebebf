"""What becomes of worker processes when their loader dies, ends or is interrupted."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from asyncloader import system
from tests.eyes import Seen, alive_after
from tests.leaks import descendants
from tests.needs import needs_template_with_imports
from tests.processes.scripts import run_script, running_script

METHODS = [None, "fork", "spawn", "forkserver"]

BUSY = ["idle", "python", "sleeping", "holding the GIL", "stopped", "writing"]

START = """
    import asyncio, sys, time
    from asyncloader.workers.process.start import start_process
    from asyncloader.workers.process.process import ProcessPlan
    from asyncloader.workers.process.process import close_processes

    method = eval(sys.argv[1])

    def plan(main, *args):
        return ProcessPlan("asyncloader worker 0", "tests.processes.mains:" + main, args)

    async def start_busy(states):
        processes = []
        for state in states:
            process = await start_process(plan("be_busy", state), method=method, timeout=200)
            process.sock.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(process.sock, 1) == b"b"
            processes.append(process)
        return processes
"""


def guarded(method: str | None, body: str) -> str:
    """The standard library's spawn and forkserver import the script again; ours do not."""
    if method in ("spawn", "forkserver"):
        body = '\n    if __name__ == "__main__":' + body.replace("\n", "\n    ")
    return START + body


every_method = pytest.mark.parametrize("method", METHODS)


@pytest.mark.sweep
@pytest.mark.soak
@every_method
def test_all_die_with_a_loader_that_is_killed(method: str | None, tmp_path: Path) -> None:
    states = BUSY
    if method is not None and system.PORTABLE:
        # Nobody is left to kill these, whose parent was the loader or a server.
        states = [state for state in BUSY if state not in ("stopped", "holding the GIL")]
    body = f"""
    async def main():
        processes = await start_busy({states!r})
        print("ready", flush=True)
        time.sleep(1000)

    asyncio.run(main())
    """
    with running_script(tmp_path, guarded(method, body), repr(method)) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n", script.communicate()
        family = {Seen.of(pid): what for pid, what in descendants(script.pid).items()}
        assert len(family) >= len(states)
        script.kill()
        assert alive_after(family, 8.0) == []


@pytest.mark.sweep
@pytest.mark.soak
@every_method
def test_all_die_with_a_killed_loader_of_which_a_forked_copy_lives_on(
    method: str | None, tmp_path: Path
) -> None:
    body = """
    import os, warnings

    async def main():
        await start_busy(["idle", "python", "sleeping", "writing"])
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
        if copy:
            print(copy, flush=True)
        time.sleep(1000)

    asyncio.run(main())
    """
    with running_script(tmp_path, guarded(method, body), repr(method)) as script:
        assert script.stdout is not None
        copy = int(script.stdout.readline())
        found = descendants(script.pid)
        del found[copy]
        # The standard library's own servers live as long as the copy.
        ours = {pid: what for pid, what in found.items() if what.startswith("asyncloader")}
        family = {Seen.of(pid): what for pid, what in ours.items()}
        assert len(family) >= 4
        script.kill()
        assert alive_after(family, 8.0) == []
        os.kill(copy, signal.SIGKILL)


@pytest.mark.sweep
@pytest.mark.soak
@every_method
def test_an_interpreter_exits_with_busy_children(method: str | None, tmp_path: Path) -> None:
    body = f"""
    async def main():
        return await start_busy({BUSY!r})

    processes = asyncio.run(main())
    print(time.time(), flush=True)
    sys.exit(7)
    """
    done = run_script(tmp_path, guarded(method, body), repr(method))
    assert (done.returncode, done.stderr) == (7, "")
    assert time.time() - float(done.stdout) < 8.0


@pytest.mark.sweep
@pytest.mark.soak
@every_method
def test_ctrl_c_is_one_traceback_and_a_quick_exit(method: str | None, tmp_path: Path) -> None:
    body = """
    async def main():
        processes = await start_busy(["idle", "python", "sleeping"])
        print("ready", flush=True)
        try:
            await asyncio.sleep(1000)
        finally:
            await close_processes(processes, grace=0.1)

    asyncio.run(main())
    """
    with running_script(tmp_path, guarded(method, body), repr(method)) as script:
        assert script.stdout is not None
        assert script.stdout.readline() == "ready\n", script.communicate()
        begin = time.monotonic()
        os.killpg(script.pid, signal.SIGINT)
        _, stderr = script.communicate(timeout=10)
        assert time.monotonic() - begin < 8.0
    assert stderr.count("Traceback") <= 2, "asyncio.run chains the cancellation"
    assert stderr.rstrip().endswith("KeyboardInterrupt")
    assert "mains.py" not in stderr


def test_ctrl_c_while_starting_is_silent_in_the_children(tmp_path: Path) -> None:
    body = """
    async def main():
        print("ready", flush=True)
        await start_busy(["idle"] * 1000)

    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(5)
    """
    with running_script(tmp_path, guarded(None, body), "None") as script:
        assert script.stdout is not None
        script.stdout.readline()
        os.killpg(script.pid, signal.SIGINT)
        _, stderr = script.communicate(timeout=10)
    assert (script.returncode, stderr) == (5, "")


@pytest.mark.parametrize("method", [None, "fork"])
def test_an_unguarded_script_runs_once(method: str | None, tmp_path: Path) -> None:
    body = """
    async def main():
        process = await start_process(plan("describe"), method=method, timeout=200)
        process.sock.setblocking(False)
        found = await asyncio.get_running_loop().sock_recv(process.sock, 1 << 16)
        await close_processes([process], grace=0)
        return "main_imported\\": true" in found.decode()

    print("imported", asyncio.run(main()))
    """
    done = run_script(tmp_path, guarded(method, body), repr(method))
    assert done.stderr.startswith("to stderr")
    assert done.stdout.count("imported") == 1
    if method is None:
        assert "imported False" in done.stdout


@pytest.mark.soak
@needs_template_with_imports
def test_torch_is_in_a_child_when_it_is_in_the_loader(tmp_path: Path) -> None:
    body = """
    async def start():
        begin = time.perf_counter()
        process = await start_process(plan("describe"), method=method, timeout=200)
        process.sock.setblocking(False)
        found = await asyncio.get_running_loop().sock_recv(process.sock, 1 << 16)
        await close_processes([process], grace=0)
        print("torch\\": true" in found.decode(), time.perf_counter() - begin)

    asyncio.run(start())
    asyncio.run(start())
    import torch
    asyncio.run(start())
    asyncio.run(start())
    """
    done = run_script(tmp_path, guarded(None, body), "None")
    lines = [line.split() for line in done.stdout.splitlines() if not line.startswith("to ")]
    assert [line[0] for line in lines] == ["False", "False", "True", "True"], done.stderr
    kinds = ["first", "warm", "first with torch", "warm with torch"]
    for kind, (_, seconds) in zip(kinds, lines, strict=True):
        print(f"{kind}: {float(seconds) * 1000:.1f} ms")  # noqa: T201


def test_a_forked_copy_of_the_loader_starts_its_own_children(tmp_path: Path) -> None:
    body = """
    import os, warnings

    async def echo():
        process = await start_process(plan("echo"), method=method, timeout=200)
        process.sock.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(process.sock, b"x")
        assert await asyncio.get_running_loop().sock_recv(process.sock, 1) == b"x"
        await close_processes([process], grace=0)

    asyncio.run(echo())
    warnings.simplefilter("ignore", DeprecationWarning)
    copy = os.fork()
    asyncio.run(echo())
    if copy == 0:
        # faulthandler's watchdog thread is missing here, and finalizing waits for it.
        os._exit(0)
    assert os.waitpid(copy, 0)[1] == 0
    """
    done = run_script(tmp_path, guarded(None, body), "None")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("method", [None, "fork", "spawn"])
def test_too_few_descriptors_are_a_startup_error_that_harms_nobody(
    method: str | None, tmp_path: Path
) -> None:
    body = """
    import os, resource
    from asyncloader.errors import WorkerStartupError

    async def echo(process):
        process.sock.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(process.sock, b"x")
        assert await asyncio.get_running_loop().sock_recv(process.sock, 1) == b"x"

    async def start():
        return await start_process(plan("echo"), method=method, timeout=200)

    async def main():
        processes = [await start()]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        for limit in range(24, 48):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            try:
                while True:
                    processes.append(await start())
            except WorkerStartupError as error:
                assert "Too many open files" in str(error), error
        await asyncio.gather(*map(echo, processes))
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        processes.append(await start())
        await echo(processes[-1])
        await close_processes(processes, grace=0)
        print(len(processes) > 4)

    asyncio.run(main())
    """
    done = run_script(tmp_path, guarded(method, body), repr(method))
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


@pytest.mark.parametrize(
    ("method", "refusal"),
    [
        (None, "signal(signal.SIGCHLD, signal.SIG_IGN)"),
        ("forkserver", "pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())"),
    ],
)
def test_a_loader_that_refuses_sigchld_gets_exit_codes_from_whoever_forks(
    method: str | None, refusal: str, tmp_path: Path
) -> None:
    body = f"""
    import signal
    signal.{refusal}

    async def main():
        process = await start_process(plan("leave", "exit", 3), method=method, timeout=200)
        process.sock.sendall(b"!")
        print(await process.wait())

    asyncio.run(main())
    """
    done = run_script(tmp_path, guarded(method, body), repr(method))
    assert (done.returncode, done.stdout, done.stderr) == (0, "3\n", "")


def test_children_have_the_cpus_nice_value_and_limits_of_their_loader_now(tmp_path: Path) -> None:
    body = """
    import os, resource

    from asyncloader import system

    async def hear(method):
        process = await start_process(plan("tell_allotment"), method=method, timeout=200)
        process.sock.setblocking(False)
        heard = await asyncio.get_running_loop().sock_recv(process.sock, 1000)
        await close_processes([process], grace=0)
        return eval(heard)

    async def main():
        methods = [None, "fork", "spawn", "forkserver"]
        for method in methods:
            await hear(method)
        cpu = min(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cpu})
        nice = os.nice(1)
        files, data = (100, 200), (1 << 40, 1 << 41)
        resource.setrlimit(resource.RLIMIT_NOFILE, files)
        resource.setrlimit(resource.RLIMIT_DATA, data)
        for method in methods:
            # Not every system has sets of CPUs for a process.
            heard, begin = await hear(method), 0 if system.allowed_cpus() else 1
            print(method, heard[begin:] == [[cpu], nice, [*files], [*data]][begin:])

    asyncio.run(main())
    """
    done = run_script(tmp_path, guarded("spawn", body), "None")
    lines = "".join(f"{method} True\n" for method in METHODS)
    assert (done.returncode, done.stdout, done.stderr) == (0, lines, "")


@pytest.mark.sweep
@every_method
def test_an_interpreter_exits_while_a_thread_starts_children(
    method: str | None, tmp_path: Path
) -> None:
    body = """
    import threading
    begun = threading.Event()

    async def start_for_ever():
        while True:
            process = await start_process(plan("echo"), method=method, timeout=200)
            begun.set()
            await close_processes([process], grace=0)

    run = lambda: asyncio.run(start_for_ever())
    threading.Thread(target=run, name="asyncloader loop", daemon=True).start()
    begun.wait()
    sys.exit(7)
    """
    done = run_script(tmp_path, guarded(method, body), repr(method))
    assert (done.returncode, done.stdout, done.stderr) == (7, "", "")
