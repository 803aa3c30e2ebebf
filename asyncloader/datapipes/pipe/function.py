"""A user's function inside a pipe.

This file is about calling it, be it ``def`` or ``async def``, and about what is
said when it fails: the user's own exception comes out, with a note that names
the pipe.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from asyncloader.datapipes.naming import function_name, stage_name
from asyncloader.datapipes.pipe.arguments import checked_function
from asyncloader.datapipes.pipe.debugging import watched_async, watched_plain
from asyncloader.datapipes.running.crossing import loop_calls
from asyncloader.runtime import is_being_cancelled
from asyncloader.safe_error_text import note
from asyncloader.waiting import Stopped
from asyncloader.worker_info import this_worker

T = TypeVar("T")


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
    # Calling a class makes an object, however that is called then.
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
    """Return the error for a plain function that handed back a coroutine, which is closed."""
    # Python would warn of it too, when it is collected, and say less.
    coroutine.close()
    return TypeError(
        f"the function of {stage_name(pipe)} returned a coroutine, but is no async function"
        " itself; write it with `async def`, and use async_map to await many at a time"
    )


def blame(error: BaseException, pipe: object) -> None:
    """Note on an error that a user's function raised that it was raised in ``pipe``.

    To be called where the error is caught, which then raises it again. Errors with
    which a generator or the interpreter is ended are no way for a function to fail:
    for those a RuntimeError is raised here, so that they cannot pass for the end of
    the data.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration):
        note(error, f"raised in {stage_name(pipe)}")
    elif not _ends_the_process(error):
        raise RuntimeError(
            f"the function of {stage_name(pipe)} raised {type(error).__name__}"
        ) from error


def _ends_the_process(error: BaseException) -> bool:
    # In the loader's process it is the user who interrupts; in a worker it is nobody.
    if isinstance(error, KeyboardInterrupt):
        return this_worker() is None
    if isinstance(error, asyncio.CancelledError):
        # A function that raises it by itself has failed like any other.
        return is_being_cancelled()
    return isinstance(error, Stopped | SystemExit)
