"""Workers that are actors of a Ray cluster.

This file is about ``ActorEngine``, which has Ray start an actor for each worker, and about how the
frames of a worker's conversation travel there and back: as arguments and results of the actor's
calls. What lies in slots of the worker's arena goes beside them, as Ray's objects.

    loader                                        actor
    ActorProcess ── tell.remote(letters) ──────▶  Mailbox ── receive ──▶ the worker's program
         ▲                                           │                          │
         └── fetch.remote(), two at a time ◀─────────┘◀───────── send ──────────┘

Each call of Ray, which may block, is made by the thread of a ``Caller``; results wake it. There is
one for each actor, so that one that does not answer keeps no other waiting. Only this file imports
Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import pickle
import platform
import re
import socket
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from queue import SimpleQueue
from typing import Any, NamedTuple

from asyncloader.errors import TransportError, WorkerDied, WorkerStartupError
from asyncloader.memory import SharedBytes
from asyncloader.runtime import in_thread, start_thread, uncancellable
from asyncloader.transport.arena import Arena, News, SlotRef, unwritten, wake_nobody
from asyncloader.transport.channel import LoopEnd, OnClosed, OnFrames
from asyncloader.transport.code import Parcel
from asyncloader.transport.codec import read_tables
from asyncloader.transport.frame import Buffer, Frame
from asyncloader.waiting import call_soon, release
from asyncloader.workers.messages import FrameKind, split_items
from asyncloader.workers.process.process import ProcessPlan, WorkerProcess, how_it_ended

#: How many calls wait for a worker's letters at once: while one result travels, the next is made.
_FETCHES = 2
#: A result takes no more letters once it has so many bytes.
_FETCH_BYTES = 8 << 20
#: What is smaller is copied into the result's pickle.
_BESIDE = 64 << 10
_COPY_BYTES = 1 << 20
#: How long no actors are started on a node that does not answer. Ray takes a minute to notice that
#: a node is lost, and starts actors there until then.
_AVOID_SECONDS = 120.0
#: How long the cluster may take to say what is free.
_ASK_SECONDS = 5.0
_DISPATCH = "workers.dispatcher"
_MOST_RINGS = 1 << 10
#: How long a worker that hangs may take to say where its threads stand.
_STACK_SECONDS = 1.0


def import_ray() -> Any:
    """Return the module; raise WorkerStartupError where it is missing or not initialized."""
    try:
        ray = _ray()
    except ImportError as error:
        raise WorkerStartupError(
            "RayReadingService needs Ray, which is not installed: pip install 'asyncloader[ray]'"
        ) from error
    if not ray.is_initialized():
        raise WorkerStartupError(
            "RayReadingService uses the Ray of this program, but none is initialized: call"
            " ray.init(), or ray.init(address=...) for a cluster, before the loader is started"
        )
    return ray


def _ray() -> Any:
    import ray  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return ray


# The actor ------------------------------------------------------------------------------


class Letter(NamedTuple):
    """A frame on its way, and the memory of the slots that it speaks of."""

    kind: int
    payload: Any
    slots: tuple[int, ...] = ()
    buffers: tuple[Any, ...] = ()


class Birth(NamedTuple):
    """What an actor says of itself when it is there."""

    pid: int
    address: str
    node_id: str
    versions: dict[str, str]


class Actor:
    """A process of a Ray cluster that runs a program of ours, in a thread of its own.

    ``program`` is the module whose ``work`` is called with the channel to the loader.
    """

    def __init__(self, program: str) -> None:
        self._address = _ray().util.get_node_ip_address()
        self._node_id = _ray().get_runtime_context().get_node_id()
        self._place = f" on node {_node_name(self._address, self._node_id)}"
        self._lock = threading.Lock()
        self._boxes = {LOADER: Mailbox(self._place, self._box)}
        start_thread(threading.Thread(target=self._run, args=(program,), daemon=True))

    def birth(self) -> Birth:
        """Say which process this is."""
        return Birth(os.getpid(), self._address, self._node_id, versions())

    def tell(self, box: int, number: int, letters: list[tuple[int, bytes]], *sent: Any) -> None:
        """Put letters into a box; calls may arrive in another order than their numbers."""
        self._box(box).put(number, letters, sent)

    def fetch(self, box: int) -> tuple[list[Letter], int | None]:
        """Wait for letters in a box and take them; at the end the program's exit code."""
        return self._box(box).fetch()

    def stacks(self) -> str:
        """Return where the threads of this process stand."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        )

    def _box(self, number: int) -> Mailbox:
        # Another actor may know of a channel between the two before this one does.
        with self._lock:
            if number not in self._boxes:
                self._boxes[number] = Mailbox(self._place)
            return self._boxes[number]

    def _run(self, program: str) -> None:
        box = self._boxes[LOADER]
        code = 0
        try:
            importlib.import_module(program).work(box)
        except SystemExit as leave:
            code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except BaseException:  # noqa: BLE001  user code ran: whatever it raised ends the process
            traceback.print_exc()
            code = 1
        box.end(code)


#: The number of the channel between an actor and its loader.
LOADER = 0


def _node_name(address: str, node_id: str) -> str:
    # Several nodes may have one address.
    return f"{address} ({node_id[:8]})"


def versions() -> dict[str, str]:
    """Return the versions that have to be the same in all processes."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _version("torch"),
        "asyncloader": _version("asyncloader"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


class Mailbox:
    """The end of a channel that is in an actor, whose calls fill and empty it."""

    def __init__(self, place: str, box_of: Callable[[int], Mailbox] | None = None) -> None:
        self.place = place
        #: Returns the actor's other boxes by their numbers.
        self._box_of = box_of or _no_other
        self._changed = threading.Condition()
        self._arena: Arena | None = None
        #: Readable while a frame waits.
        self._bell, self._ringing = socket.socketpair()
        for end in (self._bell, self._ringing):
            end.setblocking(False)
        self._frames: deque[Frame] = deque()
        self._heard = InTurn()
        self._count = 0
        self._letters: deque[Letter] = deque()
        self._is_closed = False
        self._code: int | None = None

    # What the actor's calls do.

    def put(self, number: int, letters: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        """Add letters that were told; no letters close the box."""
        with self._changed:
            for told, things in self._heard.add(number, (letters, sent)):
                self._add(told, things)
            # If it is full, it rings already.
            with contextlib.suppress(BlockingIOError):
                self._ringing.send(b"!")
            self._changed.notify_all()

    def fetch(self) -> tuple[list[Letter], int | None]:
        """Wait for letters and take them; the exit code comes after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._letters or self._code is not None)
            letters: list[Letter] = []
            nbytes = 0
            while self._letters and nbytes < _FETCH_BYTES:
                letters.append(self._letters.popleft())
                nbytes += len(letters[-1].payload) + sum(map(len, letters[-1].buffers))
            code = None if self._letters else self._code
        return list(map(_beside, letters)), code

    def end(self, code: int) -> None:
        """Note that the program is over."""
        with self._changed:
            self._code = code
            self._changed.notify_all()

    # What the program does.

    def lend_from(self, arena: Arena) -> None:
        self._arena = arena

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        letters = [self._letter(kind, payload, fds)]
        letters += [Letter(each, bytes(data)) for each, data in then]
        with self._changed:
            if self._is_closed:
                raise EOFError("the other end of the channel is closed")
            self._letters.extend(letters)
            self._changed.notify_all()

    post = send

    def flush(self) -> None:
        """Do nothing: there is room for all."""

    def has_unsent(self) -> bool:
        return False

    def receive(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._is_closed)
            if not self._frames:
                raise EOFError("the other end of the channel is closed")
            return self._frames.popleft()

    def receive_ready(self) -> list[Frame]:
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(_MOST_RINGS)
            if self._is_closed and not self._frames:
                raise EOFError("the other end of the channel is closed")
            frames = list(self._frames)
            self._frames.clear()
            return frames

    def opened(self, fd: Any) -> Any:
        # A link's two ends: the box of a number here, and the actor where that box is.
        return LinkEnd(fd) if isinstance(fd, Link) else self._box_of(fd)

    def fileno(self) -> int:
        return self._bell.fileno()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True

    def _add(self, letters: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        if not letters:
            self._is_closed = True
        for kind, payload in letters:
            things = tuple(map(_as_memory, sent)) if kind == FrameKind.MESSAGE else ()
            self._frames.append(Frame(kind, payload, self._count, things))
            self._count += 1
            sent = ()

    def _letter(self, kind: int, payload: Buffer | Sequence[Buffer], fds: Sequence[int]) -> Letter:
        # The receiver maps no segment, so nobody needs their descriptors.
        for fd in fds:
            os.close(fd)
        data = _joined(payload)
        if kind != FrameKind.ITEMS or self._arena is None:
            return Letter(kind, data)
        refs = read_tables(split_items(data).items).slots
        memory = tuple(map(self._arena.memory_of, refs))
        return Letter(kind, data, tuple(ref.slot for ref in refs), memory)


def _joined(payload: Buffer | Sequence[Buffer]) -> bytes:
    return b"".join(payload if isinstance(payload, list | tuple) else (payload,))


def _no_other(number: int) -> Mailbox:
    raise TransportError(f"there is no channel {number}")


def _as_memory(sent: Any) -> Any:
    return sent if isinstance(sent, int | Link) else memoryview(sent)


def _beside(letter: Letter) -> Letter:
    """Return a letter whose large parts Ray takes from where they are."""
    large = len(letter.payload) >= _BESIDE
    payload = pickle.PickleBuffer(letter.payload) if large else letter.payload
    return letter._replace(payload=payload, buffers=tuple(map(pickle.PickleBuffer, letter.buffers)))


class InTurn:
    """Puts numbered things that arrive in any order into the order of their numbers."""

    def __init__(self) -> None:
        self._due = 0
        self._early: dict[int, Any] = {}

    def add(self, number: int, thing: Any) -> list[Any]:
        """Add one; return those whose turn it is."""
        self._early[number] = thing
        ready = []
        while self._due in self._early:
            ready.append(self._early.pop(self._due))
            self._due += 1
        return ready


# The calls ------------------------------------------------------------------------------


class Caller:
    """A thread that makes the calls of one actor, one after the other."""

    def __init__(self, name: str) -> None:
        self._jobs: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        start_thread(threading.Thread(target=self._run, name=f"{name} calls", daemon=True))

    def submit(self, job: Callable[[], object]) -> None:
        """Do this after all that was submitted before."""
        self._jobs.put(job)

    def close(self) -> None:
        """End the thread after what was submitted."""
        self._jobs.put(None)

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            # An idle thread keeps nothing alive.
            del job


class Line:
    """The end of a channel that is not in the actor: it fetches letters and tells some.

    ``on_letters`` and ``on_end`` are called in the caller's thread, the latter once, with the
    program's exit code or with what kept a call from being answered. Their objects and the memory
    are not kept alive: Ray keeps a line as long as a call of it waits, and a loader that is dropped
    is to be collected.
    """

    def __init__(
        self,
        actor: Any,
        box: int,
        caller: Caller,
        memory: ArrivedMemory,
        on_letters: Callable[[list[Frame]], None],
        on_end: Callable[[int | BaseException], None],
    ) -> None:
        self._memory = weakref.proxy(memory)
        self._box = box
        self._caller = caller
        self._fetch = actor.fetch.options(concurrency_group=f"fetch{box}")
        self._tell = actor.tell.options(concurrency_group="tell", num_returns=0)
        self._on_letters = weakref.WeakMethod(on_letters)
        self._on_end = weakref.WeakMethod(on_end)
        self._asked: deque[Any] = deque()
        self._told = 0
        self._arrived = 0
        self._is_over = False

    def begin(self) -> None:
        """Ask for letters; in the caller's thread, as all methods are to be called."""
        for _ in range(_FETCHES):
            self._ask()

    def tell(self, letters: list[tuple[int, bytes]], sent: Sequence[Any] = ()) -> None:
        """Send frames; none close the channel."""
        if self._is_over:
            return
        try:
            self._tell.remote(self._box, self._told, letters, *sent)
        except Exception as error:  # noqa: BLE001  Ray may be gone; whoever waits is told
            self._end(error)
        self._told += 1

    def stop(self) -> None:
        """Take no more letters."""
        self._is_over = True
        self._asked.clear()

    def _ask(self) -> None:
        try:
            answer = self._fetch.remote(self._box).future()
        except Exception as error:  # noqa: BLE001  Ray may be gone; whoever waits is told
            self._end(error)
            return
        self._asked.append(answer)
        answer.add_done_callback(lambda _: self._caller.submit(self._look))

    def _look(self) -> None:
        while self._asked and self._asked[0].done():
            answer = self._asked.popleft()
            if answer.exception() is not None:
                self._end(answer.exception())
                return
            letters, code = answer.result()
            on_letters = self._on_letters()
            if on_letters is None:
                self.stop()
                return
            if letters:
                on_letters(list(map(self._frame, letters)))
            del answer, letters, on_letters
            if code is not None:
                self._end(code)
                return
            self._ask()

    def _frame(self, letter: Letter) -> Frame:
        for slot, buffer in zip(letter.slots, letter.buffers, strict=True):
            self._memory.add(slot, buffer)
        self._arrived += 1
        return Frame(letter.kind, bytes(letter.payload), self._arrived - 1)

    def _end(self, how: int | BaseException) -> None:
        if not self._is_over:
            self.stop()
            on_end = self._on_end()
            if on_end is not None:
                on_end(how)


class ArrivedMemory:
    """What the items of frames that have arrived are in: private copies of a worker's slots.

    Ray's own memory cannot be written to, and is free again at once. A slot is given back when
    its items are opened, so that what has arrived and was not opened is within the budget.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = wake_nobody
        self._arrived: dict[int, memoryview] = {}
        self._released: deque[int] = deque()

    def add(self, slot: int, buffer: Any) -> None:
        """Copy a slot's bytes, which arrived."""
        source = memoryview(buffer).cast("B")
        copy = memoryview(unwritten(len(source)))
        # In steps, between which other threads get the GIL.
        for at in range(0, len(source), _COPY_BYTES):
            copy[at : at + _COPY_BYTES] = source[at : at + _COPY_BYTES]
        self._arrived[slot] = copy

    def update(self, news: News) -> None:
        """Do nothing: no segment is mapped here."""

    def lease(self, ref: SlotRef) -> memoryview:
        memory = self._arrived.pop(ref.slot, None)
        if memory is None or len(memory) < ref.nbytes:
            raise TransportError(f"{ref} speaks of memory that did not arrive")
        self._return(ref.slot)
        return memory[: ref.nbytes]

    def give_back(self, ref: SlotRef) -> None:
        self._arrived.pop(ref.slot, None)
        self._return(ref.slot)

    def take_released(self) -> list[int]:
        released = []
        while self._released:
            released.append(self._released.popleft())
        return released

    def close(self) -> None:
        self._arrived.clear()

    def _return(self, slot: int) -> None:
        self._released.append(slot)
        self.wake()


class ActorEnd:
    """The loader's end of the channel to an actor. All methods but three belong to its loop."""

    def __init__(self, tell: Callable[[list[tuple[int, bytes]], Sequence[Any]], None]) -> None:
        self._tell = tell
        # A garbage collection within a method may end a dropped loader.
        self._lock = threading.RLock()
        self._frames: list[Frame] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frames: OnFrames = _nothing
        self._on_closed: OnClosed = _nothing
        #: Whether the loop will look at what has arrived.
        self._is_due = False
        self._has_ended = False
        self._is_closed = False

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        with self._lock:
            self._loop, self._on_frames, self._on_closed = loop, on_frames, on_closed
            self._is_due = True
        loop.call_soon(self._deliver)

    def detach(self) -> None:
        with self._lock:
            self._loop, self._on_frames, self._on_closed = None, _nothing, _nothing

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        if not self._is_closed:
            data = _joined(payload)
            self._tell([(kind, data), *((each, bytes(more)) for each, more in then)], fds)

    def close(self) -> None:
        self.detach()
        self.end()
        if not self._is_closed:
            self._is_closed = True
            self._tell([], ())

    def add(self, frames: list[Frame]) -> None:
        """Add frames that arrived; from any thread."""
        with self._lock:
            if not self._has_ended:
                self._frames += frames
                self._wake()

    def end(self) -> None:
        """Note that nothing more will arrive; from any thread."""
        with self._lock:
            self._has_ended = True
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None and not self._is_due:
            self._is_due = True
            call_soon(self._loop, self._deliver)

    def _deliver(self) -> None:
        with self._lock:
            self._is_due = False
            if self._loop is None:
                return
            frames, self._frames = self._frames, []
            on_frames, on_closed = self._on_frames, self._on_closed
            if self._has_ended:
                self._on_closed = _nothing
        if frames:
            on_frames(frames)
        if self._has_ended:
            on_closed(EOFError("the actor is gone"))


def _nothing(news: object) -> None:
    """Ignore news that nobody waits for."""


# The loader's side ----------------------------------------------------------------------


class ActorProcess:
    """An actor, from its start until ``release``."""

    def __init__(self, name: str, engine: ActorEngine) -> None:
        self.name = name
        self.pid = 0
        self.exitcode: int | None = None
        self.node = ""
        self._node_id = ""
        self._engine = engine
        self._owner = os.getpid()
        self._caller = Caller(name)
        self._actor: Any = None
        self._line: Line | None = None
        self._end = ActorEnd(self._tell)
        self._memory = ArrivedMemory()
        self._lock = threading.RLock()
        self._watches: set[ActorWatch] = set()
        self._dead = threading.Event()
        self._how = ""

    def begin(self, make: Callable[[], Any]) -> Future[Birth]:
        """Have the actor made; the future says when it is there."""
        born: Future[Birth] = uncancellable()
        self._caller.submit(partial(self._begin, make, born))
        return born

    @property
    def place(self) -> str:
        return f"pid {self.pid} on node {self.node}"

    @property
    def actor(self) -> Any:
        """Ray's handle."""
        return self._actor

    def open_channel(self) -> LoopEnd:
        return self._end

    def open_memory(self, wake: Callable[[], None], *, copy_beyond: int) -> ArrivedMemory:
        self._memory.wake = wake
        return self._memory

    def on_death(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> ActorWatch:
        with self._lock:
            watch = ActorWatch(loop, callback, self._watches)
            if self._dead.is_set():
                watch.finish()
            return watch

    def is_dead(self) -> bool:
        return self._dead.is_set()

    def how_it_ended(self) -> str:
        return self._how

    async def hang_dump(self) -> str | None:
        stacks: Future[str | None] = uncancellable()
        self._caller.submit(partial(self._ask_stacks, stacks))
        found = None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STACK_SECONDS):
                found = await asyncio.wrap_future(stacks)
        if found is None:
            self._engine.avoid(self._node_id)
        return found

    def kill(self) -> None:
        # At once for us: what a lost actor still does is not waited for, and not delivered.
        self._die("was killed")

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        dead: asyncio.Future[None] = loop.create_future()
        watch = self.on_death(loop, partial(release, dead))
        try:
            await dead
        finally:
            watch.detach()

    def wait_now(self, timeout: float) -> None:
        self._dead.wait(timeout)

    def release(self) -> None:
        self.kill()
        self._caller.close()

    def is_ours(self) -> bool:
        return self._owner == os.getpid()

    def _begin(self, make: Callable[[], Any], born: Future[Birth]) -> None:
        if self.is_dead():
            born.set_exception(WorkerStartupError(f"{self.name} was ended while it was starting"))
            return
        try:
            self._actor = make()
            birth = self._actor.birth.options(concurrency_group="tell").remote().future()
        except Exception as error:  # noqa: BLE001  the caller is told
            born.set_exception(error)
            return
        birth.add_done_callback(partial(self._on_birth, born))
        self._line = Line(
            self._actor, LOADER, self._caller, self._memory, self._end.add, self._on_end
        )
        self._line.begin()

    def _on_birth(self, born: Future[Birth], answer: Any) -> None:
        error = answer.exception()
        if error is not None:
            born.set_exception(error)
            return
        birth: Birth = answer.result()
        self.pid, self._node_id = birth.pid, birth.node_id
        self.node = _node_name(birth.address, birth.node_id)
        born.set_result(birth)

    def _tell(self, letters: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        self._caller.submit(partial(self._tell_now, letters, sent))

    def _tell_now(self, letters: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        if self._line is not None:
            self._line.tell(letters, list(map(self._engine.object_of, sent)))

    def _ask_stacks(self, stacks: Future[str | None]) -> None:
        try:
            answer = self._actor.stacks.options(concurrency_group="ask").remote().future()
        except Exception:  # noqa: BLE001  without an answer there is no stack to show
            stacks.set_result(None)
            return
        answer.add_done_callback(
            lambda _: stacks.set_result(None if answer.exception() else answer.result())
        )

    def _on_end(self, how: int | BaseException) -> None:
        if isinstance(how, int):
            self.exitcode = how
            self._die(how_it_ended(how, memory_was_short=False))
        else:
            if not _is_death(how):
                self._engine.avoid(self._node_id)
            self._die(f"was lost: {_cause(how)}")

    def _die(self, how: str) -> None:
        with self._lock:
            if self._dead.is_set() or not self.is_ours():
                return
            self._how = how
            self._dead.set()
        self._end.end()
        self._caller.submit(self._kill)
        for watch in list(self._watches):
            watch.finish()

    def _kill(self) -> None:
        if self._line is not None:
            self._line.stop()
        actor, self._actor = self._actor, None
        if actor is not None:
            # It may be dead, or Ray may be gone.
            with contextlib.suppress(Exception):
                _ray().kill(actor)


def _is_loss(error: BaseException) -> bool:
    """Whether an actor was lost, so that another may be started."""
    exceptions = _ray().exceptions
    is_loss = isinstance(error, exceptions.RayActorError)
    return is_loss and not getattr(error, "actor_init_failed", False)


def _is_death(error: BaseException) -> bool:
    """Whether Ray knows that an actor's process is dead; otherwise its node may be."""
    message = str(error)
    is_known = isinstance(error, _ray().exceptions.ActorDiedError)
    return is_known and "node" not in message.partition("died because")[2]


def _cause(error: BaseException) -> str:
    """Return what Ray says of a lost actor, in one line and without what is said elsewhere."""
    text = " ".join(str(error).split())
    text = re.sub(r"class_name: .*? ip: \S+ ", "", text)
    return text.partition(" Some common causes")[0]


class ActorWatch:
    """Calls ``callback`` once, in its loop, unless detached before."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        watches: set[ActorWatch],
    ) -> None:
        self._loop = loop
        self._callback: Callable[[], None] = callback
        self._watches = watches
        watches.add(self)

    def finish(self) -> None:
        """Call soon; from any thread."""
        call_soon(self._loop, self._call)

    def detach(self) -> None:
        self._watches.discard(self)
        self._callback = _do_nothing

    def _call(self) -> None:
        callback, self._callback = self._callback, _do_nothing
        self.detach()
        callback()


def _do_nothing() -> None:
    """Nobody waits any more."""


@dataclass(frozen=True)
class Placing:
    """What Ray is told of each actor; the fields are those of its ``options``."""

    num_cpus: float = 1
    memory: float | None = None
    resources: dict[str, float] | None = None
    scheduling_strategy: Any = "SPREAD"
    runtime_env: Any = None

    def wanted(self) -> dict[str, float]:
        """Return the resources that an actor needs."""
        memory = {} if self.memory is None else {"memory": self.memory}
        return {"CPU": self.num_cpus, **memory, **(self.resources or {})}


class Link(NamedTuple):
    """A channel to another actor, as it is sent to the one that fetches."""

    actor: Any
    box: int


class LinkEnd:
    """A worker's end of the channel on which the dispatching actor deals to it."""

    def __init__(self, link: Link) -> None:
        self._caller = Caller("asyncloader link")
        self._memory = ArrivedMemory()
        #: Frames that arrived; None after the last.
        self._frames: SimpleQueue[Frame | None] = SimpleQueue()
        self._line = Line(link.actor, link.box, self._caller, self._memory, self._add, self._end)
        self._caller.submit(self._line.begin)

    def open_memory(self) -> ArrivedMemory:
        return self._memory

    def send(self, kind: int, payload: bytes) -> None:
        self._caller.submit(partial(self._line.tell, [(kind, payload)]))

    def receive(self) -> Frame:
        frame = self._frames.get()
        if frame is None:
            self._frames.put(None)
            raise EOFError("the dispatching actor is gone")
        return frame

    def receive_ready(self) -> list[Frame]:
        return [self.receive() for _ in range(self._frames.qsize())]

    def close(self) -> None:
        self._frames.put(None)
        self._caller.submit(partial(self._line.tell, []))
        self._caller.submit(self._line.stop)
        self._caller.close()

    def _add(self, frames: list[Frame]) -> None:
        for frame in frames:
            self._frames.put(frame)

    def _end(self, how: int | BaseException) -> None:
        self._frames.put(None)


class ActorEngine:
    """Has Ray start the processes of a pool; ``num_workers`` may be linked to a dispatcher."""

    def __init__(self, placing: Placing, num_workers: int, start_seconds: float) -> None:
        self.start_seconds = start_seconds
        self._placing = placing
        self._num_workers = num_workers
        self._links = 0
        #: The nodes that did not answer, and may be lost without Ray knowing it yet.
        self._avoided: dict[str, float] = {}
        self._lock = threading.Lock()
        #: Ray's objects for shared memory, which is put once for all actors.
        self._objects: dict[int, tuple[SharedBytes, Any]] = {}

    async def start(self, plan: ProcessPlan) -> ActorProcess:
        process = ActorProcess(plan.name, self)
        try:
            birth = await asyncio.wrap_future(process.begin(partial(self._make, plan)))
        except WorkerStartupError:
            process.release()
            raise
        except BaseException as error:
            process.release()
            if isinstance(error, Exception):
                failure = f"{plan.name} could not be started in the cluster: {_cause(error)}"
                cause = WorkerDied(failure, worker=None) if _is_loss(error) else error
                raise WorkerStartupError(failure) from cause
            raise
        try:
            _check_versions(plan.name, process, birth)
        except WorkerStartupError:
            process.release()
            raise
        return process

    async def why_late(self) -> str:
        try:
            async with asyncio.timeout(_ASK_SECONDS):
                free = await in_thread(_free_resources)
        except TimeoutError:
            return "; the cluster does not answer"
        return f"; each needs {self._placing.wanted()}, and the cluster has free {free}"

    def shared(self, parcel: Parcel) -> list[Any]:
        return list(parcel.shared)

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[Any, Any]:
        assert isinstance(dealer, ActorProcess)
        self._links += 1
        number = (self._links - 1) % self._num_workers + 1
        return Link(dealer.actor, number), number

    def avoid(self, node_id: str) -> None:
        """Start no more actors on a node, as long as there are others that have room for them."""
        with self._lock:
            self._avoided[node_id] = time.monotonic() + _AVOID_SECONDS

    def _selector(self, ray: Any) -> dict[str, str] | None:
        with self._lock:
            now = time.monotonic()
            avoided = sorted(node for node, until in self._avoided.items() if until > now)
        if not avoided:
            return None
        wanted = self._placing.wanted().items()
        for node in ray.nodes():
            has = node["Resources"]
            is_large = all(has.get(name, 0.0) >= amount for name, amount in wanted)
            if node["Alive"] and node["NodeID"] not in avoided and is_large:
                return {"ray.io/node-id": f"!in({','.join(avoided)})"}
        return None

    def _make(self, plan: ProcessPlan) -> Any:
        ray = import_ray()
        # What waits has threads of its own, so that a worker that is stuck still answers.
        boxes = 1 + (self._num_workers if _DISPATCH in plan.main else 0)
        groups = {"tell": 1, "ask": 1, **{f"fetch{box}": 1 for box in range(boxes)}}
        placing = self._placing
        options: dict[str, Any] = {
            "num_cpus": placing.num_cpus,
            "memory": placing.memory,
            "resources": placing.resources,
            "scheduling_strategy": placing.scheduling_strategy,
            "runtime_env": placing.runtime_env,
            "label_selector": self._selector(ray),
            "max_restarts": 0,
            "max_task_retries": 0,
            "concurrency_groups": groups,
        }
        given = {name: value for name, value in options.items() if value is not None}
        module, _, _ = plan.main.partition(":")
        return ray.remote(**given)(Actor).remote(module)

    def object_of(self, sent: Any) -> Any:
        """Return Ray's object for shared memory; anything else as it is."""
        if not isinstance(sent, SharedBytes):
            return sent
        with self._lock:
            if id(sent) not in self._objects:
                ray = import_ray()
                self._objects[id(sent)] = sent, ray.put(pickle.PickleBuffer(sent.view))
            return self._objects[id(sent)][1]


def _check_versions(name: str, process: ActorProcess, birth: Birth) -> None:
    here = versions()
    for what, there in birth.versions.items():
        if there != here[what]:
            raise WorkerStartupError(
                f"{name} on node {process.node} has {what} {there}, but the loader has"
                f" {here[what]}; use the same version on all nodes"
            )


def _free_resources() -> dict[str, float]:
    free: dict[str, float] = import_ray().available_resources()
    return {name: amount for name, amount in free.items() if not name.startswith("node:")}
