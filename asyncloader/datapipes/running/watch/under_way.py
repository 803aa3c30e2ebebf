"""What a reader waits for, and where that stands.

This file is about ``UnderWay``, one thing that somebody waits for, as plain data; and about reading
the stack of a thread or a task from outside, while it stands still.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from time import perf_counter
from types import AsyncGeneratorType, CodeType, CoroutineType, FrameType, GeneratorType
from typing import Any, TypeVar

from asyncloader import waiting
from asyncloader.garbage import collecting_nothing
from asyncloader.system import in_forked_child

F = TypeVar("F", bound=Callable[..., Any])

_WATCH = os.path.dirname(__file__)
#: Where threads and tasks wait for something; it does not say for what.
_WAITING = str(waiting.__file__)
_PACKAGE = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(_WATCH))), "")


@dataclass(frozen=True)
class UnderWay:
    """One thing that somebody waits for, at one moment.

    >>> from asyncloader import UnderWay
    >>> print(UnderWay("async_map(ask)", item=7, attempt=2, seconds=61.5))
    async_map(ask): item 7, attempt 2, for 62 s
    """

    #: The pipe with its function, or what else is awaited.
    what: str
    #: Which worker, rank or thread has it; empty on the event loop that runs the graph.
    where: str = ""
    #: Its number among the items that the pipe has read, from 0; None where nobody counts them.
    item: int | None = None
    #: How often it was tried, this time included.
    attempt: int = 1
    #: For how many seconds it has been under way; None where nobody knows.
    seconds: float | None = None
    #: Where it stands, the innermost function last: ``train.py:12 in ask``.
    stack: tuple[str, ...] = ()

    def __str__(self) -> str:
        """What it is, and since when, in one line."""
        facts = [] if self.item is None else [f"item {self.item}"]
        facts += [f"attempt {self.attempt}"] if self.attempt > 1 else []
        facts += [self.where] if self.where else []
        facts += [] if self.seconds is None else [f"for {seconds_text(self.seconds)}"]
        return f"{self.what}: {', '.join(facts)}" if facts else self.what


def seconds_text(seconds: float) -> str:
    """Return a time for people: ``61 s``, ``0.4 s``."""
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"


def of_task(
    task: asyncio.Task[Any], what: str, *, item: int | None = None, since: float | None = None
) -> UnderWay:
    """Return what a task is doing; ``since`` is when that began, by ``perf_counter``."""
    return of_frames(frames_of_task(task), what, item=item, since=since)


def of_frames(
    frames: Iterable[FrameType],
    what: str,
    *,
    where: str = "",
    item: int | None = None,
    since: float | None = None,
) -> UnderWay:
    """Return what has these frames, the innermost last."""
    frames = list(frames)
    seconds = None if since is None else max(0.0, perf_counter() - since)
    return UnderWay(what, where, item, _attempt(frames), seconds, stack_of(frames))


#: Whether making any object may collect garbage, which can run any code.
_COLLECTS_ANYWHERE = sys.version_info < (3, 12)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Let one thread at a time look at the frames of others, and collect no garbage meanwhile.

    Python makes the object of a frame when it is asked for. If garbage were collected then, the
    code that runs could let the thread leave the frame before its object exists, which crashes; or
    it could wait for the list of threads, which is locked.
    """
    with _looking, collecting_nothing() if _COLLECTS_ANYWHERE else contextlib.nullcontext():
        yield


_looking = threading.RLock()


@in_forked_child
def _look_again() -> None:
    # The thread that looked in the parent does not exist in its forked child.
    global _looking
    _looking = threading.RLock()


def frames_of_task(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a task that waits, the innermost last, through what it awaits."""
    with undisturbed():
        return list(_awaited_frames(task))


def _awaited_frames(awaited: Any) -> Iterator[FrameType]:
    for _ in range(_MOST_FRAMES):
        frame, following = _step(awaited)
        if frame is not None:
            yield frame
        if following is None:
            return
        awaited = following


def frames_of_thread(innermost: FrameType | None) -> list[FrameType]:
    """Return the frames of a thread, the innermost last."""
    frames: list[FrameType] = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


#: A chain of tasks that wait for one another is a circle.
_MOST_FRAMES = 200

_WITH_FRAMES = (CoroutineType, AsyncGeneratorType, GeneratorType, asyncio.Task)


def _step(awaited: Any) -> tuple[FrameType | None, Any]:
    """Return the frame of something that is awaited, if it has one, and what it awaits itself."""
    match awaited:
        case asyncio.Task():
            return None, awaited.get_coro()
        case CoroutineType():
            return awaited.cr_frame, awaited.cr_await
        case AsyncGeneratorType():
            return awaited.ag_frame, awaited.ag_await
        case GeneratorType():
            return awaited.gi_frame, awaited.gi_yieldfrom
        case None:
            return None, None
    # The awaitables of the interpreter itself, as that of an async generator's next item, do not
    # tell what is behind them.
    behind = (each for each in gc.get_referents(awaited) if isinstance(each, _WITH_FRAMES))
    return None, next(behind, None)


def stack_of(frames: Iterable[FrameType]) -> tuple[str, ...]:
    """Return frames as text, the innermost last; of ours only an innermost one.

    What leads to ours says nothing of what they do.
    """
    frames = list(frames)
    first = next((n for n, frame in enumerate(frames[:-1]) if is_own(frame)), 0)
    shown = [frame for frame in frames[first:-1] if not is_own(frame)]
    shown += [frame for frame in frames[-1:] if frame.f_code.co_filename != _WAITING]
    return tuple(map(_line_of, shown))


def is_own(frame: FrameType) -> bool:
    """Whether a frame is of asyncloader's code."""
    return frame.f_code.co_filename.startswith(_PACKAGE)


def _line_of(frame: FrameType) -> str:
    code = frame.f_code
    return f"{code.co_filename}:{frame.f_lineno} in {code.co_qualname}"


def local_of(frame: FrameType, name: str) -> Any:
    """Return a variable of a frame, or None."""
    if frame.f_trace is not None:
        # A debugger in this frame uses its dict of locals.
        return None
    fields = frame.f_locals
    value = fields.get(name)
    if type(fields) is dict:
        # The dict would keep the present item alive long after the frame has dropped it.
        fields.clear()
    return value


def counting_attempts(function: F) -> F:
    """Mark a function whose variable ``tried`` says how many attempts have failed."""
    _counting.add(function.__code__)
    return function


_counting: set[CodeType] = set()


def _attempt(frames: Iterable[FrameType]) -> int:
    counting = (frame for frame in frames if frame.f_code in _counting)
    return next((1 + (local_of(frame, "tried") or 0) for frame in counting), 1)
