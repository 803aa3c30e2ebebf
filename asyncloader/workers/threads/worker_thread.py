"""Workers that are threads.

This file is about ``ThreadEngine``, which starts a thread for each worker, and about
``WorkerThread``, one of them: what ``workers/process/`` is for processes of this machine.
"""

from __future__ import annotations

import importlib
import itertools
import os
import pickle
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from asyncloader.datapipes.running.run_place import Home, function_in
from asyncloader.datapipes.running.waits import held_up_in
from asyncloader.datapipes.running.watch.frames import present_frames
from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.graph.edit import copy_graph, copy_graphs
from asyncloader.graph.walk import breadth_first
from asyncloader.runtime import at_exit, start_thread
from asyncloader.transport.parcel import Call, Parcel
from asyncloader.waiting import do_nothing
from asyncloader.workers.dispatcher import DispatchPlan
from asyncloader.workers.handing import Handed
from asyncloader.workers.mortal import Mortal
from asyncloader.workers.process.process import ProcessPlan, WorkerProcess, how_it_ended
from asyncloader.workers.threads.near_end import (
    NearEnd,
    NearLoopEnd,
    channel_between,
    channel_to_loop,
)
from asyncloader.workers.threads.own_thread import OwnThread
from asyncloader.workers.worker import WorkerPlan


class ThreadEngine:
    """Starts the threads of a pool."""

    #: To copy a graph takes no time, but a user's init function may do anything.
    start_seconds = 300.0
    #: Nothing is sent: functions and data are shared.
    instead_of_sending = ""
    why_not_forked = ""

    def __init__(self) -> None:
        self._kept: list[int] = []
        # A pool that was dropped closes nothing itself.
        weakref.finalize(self, _forget, self._kept).atexit = False

    def expect(self, plan: ProcessPlan) -> None:
        """Do nothing: a thread starts at once."""

    async def begin(self, codes: Sequence[Any]) -> None:
        """Do nothing: threads inherit everything."""

    async def start(self, plan: ProcessPlan) -> WorkerThread:
        return WorkerThread(plan)

    async def why_late(self) -> str:
        return ""

    def pack(self, code: Any) -> Parcel:
        number = next(_numbers)
        _plans[number] = code
        self._kept.append(number)
        # Each thread makes a copy of the plan.
        return Parcel(pickle.dumps(Call(copy_of_plan, number)), ())

    def sent(self, parcel: Parcel) -> Parcel:
        return parcel

    async def close(self) -> None:
        _forget(self._kept)

    def shared(self, parcel: Parcel) -> list[Any]:
        return []

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[NearEnd, NearEnd]:
        return channel_between()

    def line(self) -> tuple[NearLoopEnd, NearEnd]:
        return channel_to_loop()


def _forget(kept: list[int]) -> None:
    while kept:
        del _plans[kept.pop()]


_numbers = itertools.count()
#: What the threads of all pools run.
_plans: dict[int, WorkerPlan | DispatchPlan] = {}


def copy_of_plan(number: int) -> WorkerPlan | DispatchPlan:
    """Return a copy of a plan for one thread: pipes of its own, which share functions and data.

    So what is iterated is its own too, since torch's data sets count on themselves how far they
    are.
    """
    plan = _plans[number]
    if isinstance(plan, DispatchPlan):
        return replace(plan, end=copy_graph(plan.end))
    ends = copy_graphs(plan.ends)
    for pipe in {id(pipe): pipe for end in ends for pipe in breadth_first(end)}.values():
        if isinstance(pipe, IterableWrapper):
            pipe.use_own_iterable()
    return replace(plan, ends=tuple(ends))


class KeptFunction:
    """Stands for a function in messages to threads, which call the function itself."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._number = next(_numbers)
        _functions[self._number] = function
        weakref.finalize(self, _functions.pop, self._number).atexit = False

    def __reduce__(self) -> tuple[Callable[[int], Any], tuple[int]]:
        return kept_function, (self._number,)


#: The functions for which something stands.
_functions: dict[int, Callable[..., Any]] = {}


def kept_function(number: int) -> Callable[..., Any]:
    """Return the function for which something stood in a message."""
    return _functions[number]


class WorkerThread(Mortal):
    """A thread that works for a loader, until it has ended or is given up."""

    #: The node of a cluster: none.
    node: Final = ""
    when_silent: Final = "it was given up"
    exitcode: int | None = None

    def __init__(self, plan: ProcessPlan) -> None:
        super().__init__(plan.name)
        self.pid = os.getpid()
        self._loader_end: NearLoopEnd | None
        self._loader_end, self._end = channel_to_loop()
        self._program = plan.main.partition(":")[0]
        self._own = OwnThread()
        self._thread = threading.Thread(target=self._run, name=plan.name, daemon=True)
        start_thread(self._thread)
        _running.add(self)

    @property
    def place(self) -> str:
        return f"thread {self._thread.native_id}"

    def open_channel(self) -> NearLoopEnd:
        # From now on only the loader keeps that end alive: without it the thread ends.
        end, self._loader_end = self._loader_end, None
        assert end is not None, "a channel is opened once"
        return end

    def open_items(self, wake: Callable[[], None], *, copy_beyond: int) -> Handed:
        return Handed()

    def work_for(self, home: Home | None) -> None:
        # A loader that is dropped must not be kept alive by its threads.
        self._own.beyond = do_nothing if home is None else weakref.ref(home)

    def holding_up(self) -> list[UnderWay]:
        ident = self._thread.ident
        return [] if ident is None or self.is_dead() else held_up_in(ident)

    async def hang_dump(self) -> str | None:
        with present_frames() as frames:
            frame = frames.get(self._thread.ident or 0)
            return None if frame is None else "".join(traceback.format_stack(frame))

    def kill(self) -> None:
        """Tell the thread to end, which it does after the item in progress."""
        if self.is_ours():
            self._end.close()

    def release(self) -> None:
        """Give up a thread that has not ended."""
        self.kill()
        if self.is_ours() and self._die("was given up"):
            warnings.warn(
                f"thread {self.name!r} is still inside {function_in(self._thread)}"
                f" {time.monotonic() - self._end.ended_at:.1f} s after it was told to end and was"
                " left behind: a thread cannot be killed. Give long calls a timeout of their own",
                ResourceWarning,
                stacklevel=2,
            )

    def _run(self) -> None:
        code = 0
        try:
            importlib.import_module(self._program).work(self._end, self._own)
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except BaseException:  # noqa: BLE001  user code ran: whatever it raised ends the thread
            traceback.print_exc()
            code = 1
        self.exitcode = code
        # What was sent is complete before anybody hears of the end.
        self._end.close()
        self._die(how_it_ended(code, memory_was_short=False))
        _running.discard(self)


_running: set[WorkerThread] = set()
#: How long threads may take to end before the interpreter does, which then ends them anywhere.
_EXIT_SECONDS = 1.0


@at_exit
def _end_everything() -> None:
    """Leave no thread to be ended within a call."""
    deadline = time.monotonic() + _EXIT_SECONDS
    running = list(_running)
    for thread in running:
        thread.kill()
    for thread in running:
        thread.wait_now(max(0.0, deadline - time.monotonic()))
