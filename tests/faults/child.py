"""Faults are met in a process of their own, with a hard limit.

This file is about playing a scene: a function of a test's file, run in a process of
its own under ``-W error`` with the loop in debug mode. A scene that fails, prints
a word to stderr, leaves something behind or does not end in time fails its test; in
the last case with the stacks of its threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.leaks import leaves_nothing
from tests.preloading import preload
from tests.processes.forks import nothing_forked
from tests.processes.stage import MODULES, run_forked

METHODS = [None, "fork", "spawn", "forkserver"]

DETECT_SECONDS = 1.0
CLOSE_SECONDS = 3.0
#: What a busy machine may add to a bound.
SLACK = 4.0
#: Within which all scenes of a child process end.
LIMIT_SECONDS = 200.0


#: Functions of a test's file, each with its arguments.
Scenes = list[tuple[Callable[..., Any], tuple[Any, ...]]]


def play(folder: Path, scene: Callable[..., Any], *args: Any, imports: str = "") -> str:
    """Run a scene in a child process, where a module was imported first; return what it printed."""
    return _play(folder, [(scene, args)], imports)


def play_each(
    folder: Path, scene: Callable[..., Any], cases: list[tuple[Any, ...]], *, imports: str = ""
) -> str:
    """Run a scene once for the arguments of each case, all in one child process."""
    return _play(folder, [(scene, args) for args in cases], imports)


def play_all(folder: Path, *scenes: Callable[[], Any]) -> str:
    """Run scenes one after the other in one child process."""
    return _play(folder, [(scene, ()) for scene in scenes])


def _play(folder: Path, scenes: Scenes, imports: str = "") -> str:
    (module,) = {scene.__module__ for scene, _ in scenes}
    named = [(scene.__name__, args) for scene, args in scenes]
    call = f"{perform.__module__}:{perform.__name__}"
    imported = (*MODULES, imports) if imports else MODULES
    done = run_forked(folder, call, module, named, limit=LIMIT_SECONDS, imported=imported)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr + done.stdout
    return done.stdout


def perform(module: str, scenes: list[tuple[str, tuple[Any, ...]]]) -> None:
    """In the child: warm up, and run the scenes, each of which must leave nothing behind."""
    # A callback that is slow on a busy machine is no fault; errors are still printed.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
    found = importlib.import_module(module)
    preload(module)
    named = [arg for _, args in scenes for arg in args if arg in METHODS]
    for method in dict.fromkeys([None, *named]):
        warm_up(method)
    for name, args in scenes:
        try:
            with leaves_nothing():
                run(getattr(found, name), args)
        except BaseException as error:
            error.add_note(f"in {name}{args}")
            raise


def run(scene: Callable[..., Any], args: tuple[Any, ...]) -> None:
    if inspect.iscoroutinefunction(scene):
        asyncio.run(scene(*args), debug=True)
    else:
        scene(*args)
    settle()


def warm_up(method: str | None) -> None:
    """Start what stays: the template process, or the standard library's servers."""
    with nothing_forked() if method is None else contextlib.nullcontext():
        loader = DataLoader2(IterableWrapper([1]), None, MultiProcessingReadingService(1, method))
        with loader as one:
            assert list(one) == [1]


def settle() -> None:
    """Wait for threads that are on their way out."""
    for thread in threading.enumerate():
        if thread.name.startswith("asyncloader") and "spawner" not in thread.name:
            thread.join(1.0)


@contextlib.contextmanager
def within(seconds: float) -> Iterator[None]:
    """Fail if the block takes longer, with something added for a busy machine."""
    begun = time.monotonic()
    yield
    took = time.monotonic() - begun
    assert took <= seconds + SLACK, f"took {took:.2f} s instead of {seconds} s"


def loader_of(graph: Any, *args: Any, **kwargs: Any) -> DataLoader2[Any]:
    """A loader that runs a graph in worker processes."""
    return DataLoader2(graph, None, MultiProcessingReadingService(*args, **kwargs))


def numbers(count: int = 100) -> Any:
    return IterableWrapper(range(count)).sharding_filter()


async def collected(loader: DataLoader2[Any]) -> tuple[list[Any], BaseException | None]:
    """Take items up to the end or an error; an error must be raised again by the next."""
    items, taken = aiter(loader), []
    failure = await _failure(items, taken)
    if failure is not None:
        for _ in range(2):
            assert await _failure(items, taken) is failure, "an iterator that failed went on"
    return taken, failure


async def _failure(items: Any, taken: list[Any]) -> BaseException | None:
    try:
        async for item in items:
            taken.append(item)  # noqa: PERF401 - those before an error count
    except BaseException as error:  # noqa: BLE001 - the scene looks at it
        return error
    return None
