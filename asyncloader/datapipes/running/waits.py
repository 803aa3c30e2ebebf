"""Who holds up the readers of a graph in this process.

This file is about ``holding_up``: the calls, threads and tasks of one epoch that do not wait for
another one of it, so that all others wait for them. Somebody who waits long looks at them; nothing
is noted for that while items pass.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import FrameType
from typing import Any

from asyncloader import waiting
from asyncloader.datapipes.running import bridge, conveyor, exchange, run_place
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run_place import PLACE
from asyncloader.datapipes.running.watch.frames import (
    IMPORTING,
    OUTSIDE,
    attribute,
    can_be_looked_at,
    latest_pass,
    pipe_of,
    present_frames,
)
from asyncloader.datapipes.running.watch.under_way import (
    UnderWay,
    frames_of_task,
    frames_of_thread,
    is_own,
    local_of,
    of_frames,
)
from asyncloader.datapipes.running.watch.watching import Watched, WatchedWait, Watching
from asyncloader.runtime import thread_of_loop
from asyncloader.waiting import AwaitsOthers

#: Who stands still in one of these files waits for another part of the same epoch.
_PASSING_ON = tuple(
    str(module.__file__) for module in (waiting, bridge, conveyor, exchange, run_place)
)

#: A thread that runs a loop is seen to be busy if it does not move for so long.
_STILL_SECONDS = 0.03

#: So many are named.
MOST_NAMED = 5


def holding_up(watching: Watching) -> list[UnderWay]:
    """Return what holds up an epoch in this process, what is wanted first first.

    To be called in a thread that runs none of the epoch.
    """
    if not can_be_looked_at():
        return [_out_of_sight()]
    blocking = list(_loops_that_stand_still(watching))
    on_loops = [] if blocking else [*_calls(watching), *_tasks(watching)]
    found = [*blocking, *on_loops, *_threads(watching)]
    # A task of a call is seen as both.
    return list({each.stack or each: each for each in reversed(found)}.values())[::-1]


def _out_of_sight() -> UnderWay:
    """Return what is said where a thread may run on while another one looks at its frames."""
    return UnderWay(
        "something that cannot be looked at where Python has no global interpreter lock",
        f"`py-spy dump --pid {os.getpid()}` shows the stacks",
    )


def of_start(task: asyncio.Task[Any]) -> UnderWay:
    """Return what the task waits for that starts a loader."""
    frames = frames_of_task(task)
    outsider = _outsider(frames)
    found = of_frames(frames, _named(None, frames))
    return found if outsider is None else replace(found, stack=outsider.their_stack())


def _calls(watching: Watching) -> Iterator[UnderWay]:
    for pipe in watching.pipes:
        running = latest_pass(pipe)
        if running is not None:
            yield from running.under_way()


def _threads(watching: Watching) -> Iterator[UnderWay]:
    owners = watching.owners()
    with present_frames() as present:
        for thread in watching.threads():
            if thread.resting_since or isinstance(thread, WatchedWait):
                continue
            place = thread.place(owners, present)
            frames = _inside(thread, frames_of_thread(present.get(thread.thread)))
            if place == OUTSIDE or not frames or _thread_passes_on(frames):
                continue
            pipe = watching.pipes[place] if place >= 0 else _pipe_in(frames, watching.pipes)
            yield of_frames(
                frames,
                "an import" if place == IMPORTING else _named(pipe, frames),
                where=_thread_name(thread.thread),
                item=_items_of(pipe),
            )


def _inside(thread: Watched, frames: list[FrameType]) -> list[FrameType]:
    """Return a thread's frames below the function within which it iterates pipes."""
    at = next((n for n, each in enumerate(frames) if each.f_code is thread.inside), None)
    return frames if at is None else frames[at + 1 :]


def _tasks(watching: Watching) -> Iterator[UnderWay]:
    for loop in watching.loops():
        for task in asyncio.all_tasks(loop):
            if _runs_for(task, watching):
                frames = frames_of_task(task)
                if frames and not _task_passes_on(frames):
                    pipe = _pipe_in(frames, watching.pipes)
                    yield of_frames(frames, _named(pipe, frames), item=_items_of(pipe))


def _runs_for(task: asyncio.Task[Any], watching: Watching) -> bool:
    """Whether a task was begun by the epoch, or by a function that it calls."""
    # Only the newest Python tells a task's context.
    for each in gc.get_referents(task):
        if isinstance(each, contextvars.Context):
            place = each.get(PLACE)
            return place is not None and place[0].watching is watching
    return False


def _loops_that_stand_still(watching: Watching) -> Iterator[UnderWay]:
    idents = {loop: thread_of_loop(loop) or watching.main.thread for loop in watching.loops()}
    before = _positions(idents.values())
    threading.Event().wait(_STILL_SECONDS)
    with present_frames() as present:
        for ident in idents.values():
            frames = frames_of_thread(present.get(ident))
            if frames and before.get(ident) == _position(frames[-1]) and _runs_code(frames):
                frames = frames[_after_loop(frames) :]
                pipe = _pipe_in(frames, watching.pipes)
                where = f"the event loop of {_thread_name(ident)}, which stands still"
                yield of_frames(frames, _named(pipe, frames), where=where)


def _positions(idents: Iterable[int]) -> Mapping[int, tuple[int, int]]:
    with present_frames() as present:
        return {ident: _position(present[ident]) for ident in idents if ident in present}


def _position(frame: FrameType) -> tuple[int, int]:
    return id(frame), frame.f_lasti


def _runs_code(frames: list[FrameType]) -> bool:
    """Whether the thread of a loop runs something there, and does not wait for events."""
    return _after_loop(frames) < len(frames) and not _is_in(frames[-1], "selectors.py")


def _after_loop(frames: list[FrameType]) -> int:
    """Return how many frames there are up to the last one of the loop itself."""
    of_loop = (n for n, each in enumerate(frames) if each.f_code.co_name in _LOOP_CALLS)
    return max((n + 1 for n in of_loop if _is_in(frames[n], *_LOOP_FILES)), default=len(frames))


#: What calls the code of tasks. uvloop has no frames of its own, only those around it.
_LOOP_CALLS = frozenset({"_run", "_run_once", "run", "run_forever", "run_until_complete"})
_LOOP_FILES = (
    *(os.path.join("asyncio", name) for name in ("events.py", "base_events.py", "runners.py")),
    os.path.join("asyncloader", "runtime.py"),
)


def _is_in(frame: FrameType, *files: str) -> bool:
    return frame.f_code.co_filename.endswith(files)


def _thread_passes_on(frames: list[FrameType]) -> bool:
    """Whether a thread with these frames waits for another part of its epoch."""
    return _is_in(frames[-1], *_PASSING_ON) and _outsider(frames) is None


def _task_passes_on(frames: list[FrameType]) -> bool:
    """Whether a task with these frames waits for another part of its epoch."""
    while frames and _is_in(frames[-1], *_WAITING_FOR_TASKS):
        frames = frames[:-1]
    return (not frames or is_own(frames[-1])) and _outsider(frames) is None


_WAITING_FOR_TASKS = (os.path.join("asyncio", "tasks.py"), os.path.join("asyncio", "taskgroups.py"))


def _outsider(frames: list[FrameType]) -> AwaitsOthers | None:
    """Return who waits in these frames for somebody outside of the epoch, if anybody does."""
    owners = (local_of(each, "self") for each in reversed(frames) if is_own(each))
    return next((each for each in owners if isinstance(each, AwaitsOthers)), None)


def _named(pipe: Any, frames: list[FrameType]) -> str:
    """Return what is awaited, in words."""
    name = "the loader" if pipe is None else stage_name(pipe)
    outsider = _outsider(frames)
    return name if outsider is None else f"{name} waits for {outsider.awaited()}"


def _pipe_in(frames: list[FrameType], pipes: list[Any]) -> Any:
    """Return the pipe whose code has the innermost of these frames that any has, or None.

    Where none has, it is the one that is read ahead by them.
    """
    owners = [local_of(frame, "self") for frame in reversed(frames)]
    found = [each for owner in owners for each in (owner, pipe_of(owner))]
    if _outsider(frames) is None:
        found += [attribute(attribute(owner, "reads"), "pipe") for owner in owners]
    return next((each for each in found if any(each is pipe for pipe in pipes)), None)


def _items_of(pipe: Any) -> int | None:
    """Return the number of the item that a pipe makes at the moment, if it counts."""
    running = None if pipe is None else latest_pass(pipe)
    yielded = -1 if running is None else running.counts()[1]
    return yielded if yielded >= 0 else None


def _thread_name(ident: int) -> str:
    names = (each.name for each in threading.enumerate() if each.ident == ident)
    return f"thread {next(names, ident)!r}"


#: The epochs of this process that others may ask about, those of workers, by their ids. Several
#: threads begin and end them.
ASKED_ABOUT: dict[int, Watching] = {}


def held_up_here() -> list[UnderWay]:
    """Return what holds up the epochs that run in this process for others."""
    return [each for watching in list(ASKED_ABOUT.values()) for each in holding_up(watching)]


def held_up_in(ident: int) -> list[UnderWay]:
    """Return what holds up the epochs that run for others in one thread of this process."""
    found = [each for each in list(ASKED_ABOUT.values()) if each.main.thread == ident]
    return [each for watching in found for each in holding_up(watching)]
