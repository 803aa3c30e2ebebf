"""Mistakes that cost time and say nothing.

This file is about debug mode: it names the pipe whose function held the event loop, be it
async or one that does not let go of the GIL, and the one whose plain function returned
something that nobody will await.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Iterator
from time import perf_counter, thread_time
from typing import Any

from asyncloader.datapipes.naming import function_name, stage_name
from asyncloader.datapipes.pipe.pulse import PULSE
from asyncloader.datapipes.running.home import PLACE
from asyncloader.worker_info import this_worker

logger = logging.getLogger("asyncloader")

#: The variable of the environment that turns debug mode on. Worker processes inherit it.
VARIABLE = "ASYNCLOADER_DEBUG"

_HELD_SECONDS = 0.05


def set_debug(enabled: bool) -> None:
    """Turn debug mode on or off, for the epochs that begin from now on.

    It is on as well where the variable ASYNCLOADER_DEBUG is set to anything but 0, and it
    holds for the workers that are started while it is on.

    >>> set_debug(True)
    >>> is_debug()
    True
    >>> set_debug(False)
    """
    os.environ[VARIABLE] = "1" if enabled else "0"


def is_debug() -> bool:
    """Whether debug mode is on."""
    return os.environ.get(VARIABLE, "0") not in ("", "0")


def watched_async(function: Callable[..., Any], pipe: object) -> Callable[..., Any]:
    """Return an async function that, in debug mode, tells when it holds the event loop."""
    if not is_debug():
        return function
    name = _name(function, pipe)

    async def call(*args: Any) -> Any:
        return await _Steps(function(*args), name)

    return call


@contextlib.contextmanager
def watched_plain(function: Callable[..., Any], pipe: object) -> Iterator[Callable[..., Any]]:
    """Give a plain function that, in debug mode, tells of mistakes.

    Those are results that nobody will await, and holding the GIL beside an event loop that
    needs it.
    """
    if not is_debug():
        yield function
        return
    name = _name(function, pipe)
    with PULSE.listening():
        yield functools.partial(_checked if _is_beside_loop() else _awaited, name, function)


def _checked(name: str, function: Callable[..., Any], *args: Any) -> Any:
    begun, used = perf_counter(), thread_time()
    try:
        return _awaited(name, function, *args)
    finally:
        silence = PULSE.silence(begun)
        # One that waits lets go of the GIL: it was some other thread that held it then.
        if silence >= _HELD_SECONDS <= thread_time() - used:
            logger.warning(
                "%s held the GIL, and the event loop with it, for %.0f ms; let worker processes"
                " call it (MultiProcessingReadingService)",
                name,
                silence * 1e3,
            )


def _awaited(name: str, function: Callable[..., Any], *args: Any) -> Any:
    result = function(*args)
    _check_result(result, name)
    return result


def _is_beside_loop() -> bool:
    # A worker process is the place for what holds the GIL.
    return PLACE.get() is not None and this_worker() is None


class _Steps:
    """Awaits something and looks how long each of its steps takes."""

    def __init__(self, work: Awaitable[Any], name: str) -> None:
        self._work = work
        self._name = name

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Any = self._work.__await__()
        step, value = steps.send, None
        while True:
            begun = perf_counter()
            try:
                waited = step(value)
            except StopIteration as end:
                return end.value
            finally:
                self._check(perf_counter() - begun)
            try:
                step, value = steps.send, (yield waited)
            except BaseException as error:  # noqa: BLE001 - it is for what is awaited
                step, value = steps.throw, error

    def _check(self, seconds: float) -> None:
        if seconds >= _HELD_SECONDS:
            logger.warning(
                "%s held the event loop for %.0f ms; await what it waits for, or use map or"
                " thread_map for a plain function that computes",
                self._name,
                seconds * 1e3,
            )


def _check_result(result: Any, name: str) -> None:
    if inspect.isasyncgen(result):
        logger.warning("%s returned an async generator, which nobody will iterate", name)
    # A coroutine is an error in any mode.
    elif inspect.isawaitable(result) and not inspect.iscoroutine(result):
        kind = type(result).__name__
        logger.warning("%s returned a %s, which nobody will await; use async_map", name, kind)


def _name(function: Callable[..., Any], pipe: object) -> str:
    return function_name(function) if pipe is None else stage_name(pipe)
