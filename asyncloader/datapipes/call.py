"""A user's function inside a pipe.

This file is about calling it, ``def`` or ``async def``; about its errors, which are raised
unchanged with a note that names the pipe; and about debug mode, which names a function that
blocks the event loop or the GIL for too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import logging
import os
import threading
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from time import perf_counter, thread_time
from types import CoroutineType
from typing import Any, TypeVar

from asyncloader.arguments import checked_function, function_name
from asyncloader.datapipes.running.bridge import loop_calls
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run_place import PLACE
from asyncloader.runtime import is_being_cancelled, start_thread
from asyncloader.safe_error_text import note
from asyncloader.system import in_forked_child
from asyncloader.waiting import Bell, Stopped
from asyncloader.worker_info import this_worker

T = TypeVar("T")

_BEAT_SECONDS = 0.01
_LONG_SECONDS = 0.03
#: How many silences are kept.
_SILENCES = 16


class Pulse:
    """A thread that wakes a hundred times a second; a gap shows that something held the GIL."""

    def __init__(self) -> None:
        # Reentrant: a garbage collection in here may run code that stops listening.
        self._lock = threading.RLock()
        self._listeners = 0
        self._stop = Bell()
        self._latest = 0.0
        #: The beginnings and ends of the latest long silences.
        self._silences: tuple[tuple[float, float], ...] = ()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Keep the thread running."""
        with self._lock:
            self._listeners += 1
            if self._listeners == 1:
                self._start()
        try:
            yield
        finally:
            with self._lock:
                self._listeners -= 1
                if not self._listeners:
                    self._stop.ring()

    def silence(self, since: float) -> float:
        """Return the longest silence in seconds from ``since`` on."""
        now = perf_counter()
        silences = (*self._silences, (self._latest, now))
        return max(end - max(begin, since) for begin, end in silences)

    def start_anew(self) -> None:
        """Start afresh in a forked child, which does not have the parent's thread."""
        self.__init__()  # type: ignore[misc]  # resets every field

    def _start(self) -> None:
        self._stop = Bell()
        self._latest = perf_counter()
        thread = threading.Thread(
            target=self._beat, args=(self._stop,), name="asyncloader pulse", daemon=True
        )
        start_thread(thread)

    def _beat(self, stop: Bell) -> None:
        while not stop.heard(_BEAT_SECONDS):
            now = perf_counter()
            if now - self._latest > _LONG_SECONDS:
                self._silences = (*self._silences, (self._latest, now))[-_SILENCES:]
            self._latest = now


#: The pulse of this process.
PULSE = Pulse()

in_forked_child(PULSE.start_anew)


logger = logging.getLogger("asyncloader")

#: The variable of the environment that turns debug mode on. Worker processes inherit it.
VARIABLE = "ASYNCLOADER_DEBUG"

_HELD_SECONDS = 0.05


def set_debug(enabled: bool) -> None:
    """Turn debug mode on or off, for the epochs that begin from now on.

    It is on as well where the variable ASYNCLOADER_DEBUG is set to anything but 0, and it
    holds for the workers that are started while it is on.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> set_debug(True)
    >>> list(IterableWrapper([1]).map(str))  # would log what holds up the event loop
    ['1']
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
        return await _in_steps(function(*args), name)

    return call


@contextlib.contextmanager
def watched_plain(function: Callable[..., Any], pipe: object) -> Iterator[Callable[..., Any]]:
    """Give a plain function that, in debug mode, warns of mistakes.

    These are results that nobody will await, and holding the GIL that an event loop needs.
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
        # A function that mostly waited had released the GIL: another thread held it.
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
    # In a worker process it is fine to hold the GIL.
    return PLACE.get() is not None and this_worker() is None


@types.coroutine
def _in_steps(work: Awaitable[Any], name: str) -> Generator[Any, Any, Any]:
    """Await something, and measure how long each of its steps takes."""
    steps: Any = work.__await__()
    step, value = steps.send, None
    while True:
        begun = perf_counter()
        try:
            waited = step(value)
        except StopIteration as end:
            return end.value
        finally:
            _check_step(perf_counter() - begun, name)
        try:
            step, value = steps.send, (yield waited)
        except BaseException as error:  # noqa: BLE001 - it is for what is awaited
            step, value = steps.throw, error


def _check_step(seconds: float, name: str) -> None:
    if seconds >= _HELD_SECONDS:
        logger.warning(
            "%s held the event loop for %.0f ms; await what it waits for, or use map or"
            " thread_map for a plain function that computes",
            name,
            seconds * 1e3,
        )


def _check_result(result: Any, name: str) -> None:
    if inspect.isasyncgen(result):
        logger.warning("%s returned an async generator, which nobody will iterate", name)
    # A coroutine is an error in any mode, not a warning.
    elif inspect.isawaitable(result) and not inspect.iscoroutine(result):
        kind = type(result).__name__
        logger.warning("%s returned a %s, which nobody will await; use async_map", name, kind)


def _name(function: Callable[..., Any], pipe: object) -> str:
    return function_name(function) if pipe is None else stage_name(pipe)


def is_async(function: object) -> bool:
    """Whether calling ``function`` gives something to await."""
    return _runs(function, inspect.iscoroutinefunction)


def is_async_generator(function: object) -> bool:
    """Whether calling ``function`` gives an async generator."""
    return _runs(function, inspect.isasyncgenfunction)


def _runs(function: object, is_kind: Callable[[object], bool]) -> bool:
    call = function
    while isinstance(call, functools.partial):  # which is what it wraps
        call = call.func
    if is_kind(call) or not callable(call):
        return is_kind(call)
    # Calling a class makes an object, even if the object's own __call__ is async.
    return not isinstance(call, type) and is_kind(call.__call__)


def plain_function(name: str, value: Any, *, takes: int) -> Any:
    """Return a function that is called where nothing can be awaited; TypeError for others."""
    if is_async(checked_function(name, value, takes=takes)):
        raise TypeError(f"{name} must be a plain function, got the async {function_name(value)}")
    return value


def itself(item: T) -> T:
    """Return the item: the function that does nothing."""
    return item


@contextlib.contextmanager
def calling(function: Callable[..., Any], pipe: object = None) -> Iterator[Callable[..., Any]]:
    """Give the form of ``function`` that returns its result, be it sync or async.

    Debug mode calls it by the name of its ``pipe``.
    """
    if not is_async(function):
        with watched_plain(function, pipe) as call:
            yield call
        return
    with loop_calls() as call:
        yield functools.partial(call, watched_async(function, pipe))


def unawaited(pipe: object, coroutine: Coroutine[Any, Any, Any]) -> TypeError:
    """Close the coroutine that a plain function returned, and return the error for it."""
    # Python would warn of it too, but later and without the pipe's name.
    coroutine.close()
    return TypeError(
        f"the function of {stage_name(pipe)} returned a coroutine, but is no async function"
        " itself; write it with `async def`, and use async_map to await many at a time"
    )


class NotCalled(BaseException):
    """A function could not be called at all, which is no failure of its item.

    It passes what tolerates errors, and tries again; who made the call raises ``error``.
    """

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def blame(error: BaseException, pipe: object) -> None:
    """Add a note to a user function's error that names ``pipe``.

    The caller then raises the error again. StopIteration, GeneratorExit and the like would
    look like the end of the data, so for those this raises a RuntimeError instead.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        note(error, f"raised in {stage_name(pipe)}")
    elif not _ends_the_process(error):
        raise RuntimeError(
            f"the function of {stage_name(pipe)} raised {type(error).__name__}"
        ) from error


def _ends_the_process(error: BaseException) -> bool:
    # Ctrl-C reaches the loader's process; in a worker only the function itself can raise this.
    if isinstance(error, KeyboardInterrupt):
        return this_worker() is None
    if isinstance(error, asyncio.CancelledError):
        # If nobody cancelled us, the function raised it itself and has simply failed.
        return is_being_cancelled()
    return isinstance(error, Stopped | SystemExit | NotCalled)


def answer_of(pipe: object, function: Callable[..., Any], *args: Any) -> Any:
    """Return what a function that was given to ``pipe`` returns for ``args``.

    Its errors get a note that names the pipe; a returned coroutine is a TypeError.
    """
    try:
        answer = function(*args)
    except BaseException as error:
        blame(error, pipe)
        raise
    if answer.__class__ is CoroutineType:
        raise unawaited(pipe, answer)
    return answer


def key_of(pipe: object, function: Callable[..., Any], item: Any) -> Any:
    """Return an item's key by the key function of ``pipe``."""
    return checked_key_of(pipe, answer_of(pipe, function, item))


def checked_key_of(pipe: object, key: Any) -> Any:
    """Return a hashable key; raise a TypeError that names ``pipe`` otherwise."""
    try:
        hash(key)
    except TypeError as error:
        raise TypeError(
            f"{pipe!r} got an unhashable key of type {type(key).__name__} ({error}); use text or a"
            " tuple"
        ) from None
    return key
