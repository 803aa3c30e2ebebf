"""Programs whose workers are forked from them, or are not, for tests.

Each function here is run in a process of its own (tests/processes/stage.py), under -W error.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import multiprocessing
import os
import random
import signal
import socket
import string
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.workers.process import fork_safety
from tests.eyes import Seen, alive_after
from tests.leaks import descendants

#: What a worker sees that was forked from the program, and no other.
MARK = "was_changed_by_the_program"

COUNT = 20


def mark(number: int) -> tuple[int, bool]:
    return number, hasattr(string, MARK)


def loader_of(
    function: Callable[[int], Any] = mark, data: Any = range(COUNT), **settings: Any
) -> DataLoader2[Any]:
    setattr(string, MARK, True)
    graph = IterableWrapper(data).sharding_filter().map(function)
    service = MultiProcessingReadingService(num_workers=2, **settings)
    return DataLoader2(graph, reading_service=service)


def show(items: list[tuple[int, bool]]) -> None:
    """Check that all items have come, and print how workers were started."""
    assert [number for number, _ in items] == list(range(COUNT)), items
    (is_forked,) = {is_forked for _, is_forked in items}
    print("forked" if is_forked else "another interpreter")  # noqa: T201


def scene(name: str) -> None:
    """Run a loader while something is so."""
    with SCENES[name](), loader_of() as loader:
        show(list(loader))
        show(list(loader))
        assert multiprocessing.active_children() == []


@contextlib.contextmanager
def nothing() -> Iterator[None]:
    yield


@contextlib.contextmanager
def a_thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


@contextlib.contextmanager
def a_file_that_is_read() -> Iterator[None]:
    with open(__file__) as file:
        file.read(10)
        yield


@contextlib.contextmanager
def a_log() -> Iterator[None]:
    with open("log", "w") as file:
        file.write("one line\n")
        yield
    with open("log") as file:
        assert file.read() == "one line\n"


@contextlib.contextmanager
def a_lock() -> Iterator[None]:
    with open("lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def a_connection() -> Iterator[None]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()),
        server.accept()[0],
    ):
        yield


@contextlib.contextmanager
def a_named_pipe() -> Iterator[None]:
    os.mkfifo("pipe")
    fd = os.open("pipe", os.O_RDWR)
    yield
    os.close(fd)


@contextlib.contextmanager
def a_server() -> Iterator[None]:
    with socket.create_server(("127.0.0.1", 0)):
        yield


@contextlib.contextmanager
def a_generator() -> Iterator[None]:
    module = sys.modules["a_users_module"] = types.ModuleType("a_users_module")
    module.rng = random.Random()  # type: ignore[attr-defined]
    yield


@contextlib.contextmanager
def a_large_program() -> Iterator[None]:
    fork_safety.MOST_MEMORY = 1 << 20  # type: ignore[misc]
    yield


@contextlib.contextmanager
def an_unsafe_library() -> Iterator[None]:
    sys.modules["jax"] = types.ModuleType("jax")
    yield


@contextlib.contextmanager
def a_device() -> Iterator[None]:
    fork_safety._ACCELERATORS = ("/dev/null",)  # type: ignore[assignment]
    with open(os.devnull):
        yield


SCENES: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    scene.__name__: scene  # type: ignore[attr-defined]
    for scene in (
        nothing,
        a_thread,
        a_file_that_is_read,
        a_log,
        a_lock,
        a_connection,
        a_named_pipe,
        a_server,
        a_generator,
        a_large_program,
        an_unsafe_library,
        a_device,
    )
}


class Large:
    """Data that is most of the memory of a program, in objects that are weighed."""

    def __init__(self) -> None:
        self.rows = [{"number": number, "text": f"row {number}"} for number in range(400_000)]

    def __iter__(self) -> Iterator[int]:
        return iter(range(COUNT))


def a_large_graph() -> None:
    fork_safety.MOST_MEMORY = 1 << 20  # type: ignore[misc]
    with loader_of(data=Large()) as loader:
        show(list(loader))


def a_start_in_a_thread() -> None:
    found: list[Any] = []

    def run() -> None:
        with loader_of() as loader:
            found.extend(loader)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    show(found)


def a_running_loop() -> None:
    async def main() -> None:
        async with loader_of() as loader:
            show([item async for item in loader])
            show([item async for item in loader])

    asyncio.run(main())


def descriptors_are_let_go() -> None:
    """What waits for the end of a pipe, or for a free port, does not wait for the workers."""
    reading, writing = os.pipe()
    server = socket.create_server(("127.0.0.1", 0))
    address = server.getsockname()
    with loader_of() as loader:
        show(list(loader))
        os.close(writing)
        assert os.read(reading, 1) == b""
        server.close()
        with contextlib.suppress(ConnectionRefusedError):
            socket.create_connection(address)
            raise AssertionError("somebody listens")
        show(list(loader))


PIPE: list[int] = []


def use_a_pipe_of_the_program(number: int) -> tuple[int, bool]:
    reading, writing = PIPE
    for use in (lambda: os.read(reading, 1), lambda: os.write(writing, b"lost")):
        with pytest.raises(OSError, match="Bad file descriptor"):
            use()
    return mark(number)


def a_pipe_of_the_program_is_not_open_in_workers() -> None:
    PIPE[:] = os.pipe()
    with loader_of(use_a_pipe_of_the_program) as loader:
        show(list(loader))


def die_once(number: int) -> tuple[int, bool]:
    with contextlib.suppress(FileExistsError):
        if number == COUNT // 2:
            os.close(os.open("has died", os.O_CREAT | os.O_EXCL))
            os.kill(os.getpid(), signal.SIGKILL)
    return mark(number)


def a_worker_is_replaced() -> None:
    # That a worker died is in the log.
    logging.getLogger("asyncloader").setLevel(logging.ERROR)
    with loader_of(die_once, on_worker_death="restart", prefetch_bytes=0) as loader:
        show(list(loader))
        assert os.path.exists("has died")
        show(list(loader))


def the_template_is_killed() -> None:
    """Its workers die with it; the next ones come from another, or from another interpreter."""
    with loader_of() as loader:
        show(list(loader))
        kill_templates()
        show(list(loader))
        kill_templates()
        with a_thread():
            show(list(loader))


def kill_templates() -> None:
    ours = ("asyncloader tem", "asyncloader w")
    family = {Seen.of(pid): what for pid, what in descendants().items() if what.startswith(ours)}
    for each, what in family.items():
        if what.startswith("asyncloader tem"):
            os.kill(each.pid, signal.SIGKILL)
    assert alive_after(family, 30.0) == []


def draw(number: int) -> tuple[int, float]:
    return number, random.random()


def draws_are_the_same() -> None:
    random.seed(1)
    found = []
    for method in (None, "spawn"):
        with loader_of(draw, multiprocessing_context=method) as loader:
            loader.seed(7)
            found.append([list(loader), list(loader)])
    assert found[0] == found[1]
    assert len({drawn for _, drawn in found[0][0]}) == COUNT


def wait_for_the_end() -> None:
    """Say the pids of all processes, and wait to be killed."""
    with loader_of() as loader:
        items = iter(loader)
        first = next(items)
        assert first == (0, True), first
        print(*descendants(), flush=True)  # noqa: T201
        time.sleep(1000)


def compute(number: int) -> tuple[int, bool]:
    """Compute with several threads, and a gradient, as in a program that has done so before."""
    import torch

    torch.set_num_threads(2)
    train()
    return mark(number)


def train() -> None:
    import torch

    model = torch.nn.Linear(256, 256)
    model(torch.randn(512, 256)).sum().backward()


def a_worker_computes_as_the_program_has() -> None:
    train()
    with loader_of(compute) as loader:
        show(list(loader))
