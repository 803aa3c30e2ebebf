"""Workers that are actors of a Ray cluster.

This file is about ``ActorEngine``, which has Ray start an actor for each worker, and about how the
frames of a worker's conversation travel there and back: as arguments and results of the actor's
calls. What lies in slots of the worker's arena goes beside them, as Ray's objects.

    loader                                  actor
    FarEnd.send ─── Actor.tell.remote ───▶  Mailbox.put ──▶ receive ──▶ the worker's program
    FarEnd.attach ◀─ Actor.fetch.remote ──  Mailbox.fetch ◀── send ◀───────────┘

Two fetches wait at a time. Each call of Ray, which may block, is made by a thread; results wake
it. There is one for each actor, so that one that does not answer keeps no other waiting. An actor
that is dealt items by another one holds a ``FarEnd`` of that one. Only this file imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

from asyncloader.errors import ResourceExhausted, TransportError, WorkerDied, WorkerStartupError
from asyncloader.memory import SharedBytes
from asyncloader.runtime import CallThread, in_thread, start_thread, uncancellable
from asyncloader.transport.arena import Arena, News, SlotRef, unwritten, wake_nobody
from asyncloader.transport.channel import OnClosed, OnFrames
from asyncloader.transport.code import Parcel
from asyncloader.transport.codec import read_payload
from asyncloader.transport.frame import Buffer, Frame
from asyncloader.waiting import call_soon, release
from asyncloader.workers.messages import FrameKind, split_items
from asyncloader.workers.process.process import ProcessPlan, WorkerProcess, how_it_ended

#: How many calls wait for a worker's frames at once: while one result travels, the next is made.
_FETCHES = 2
#: A result takes no more frames once it has so many bytes.
_FETCH_BYTES = 8 << 20
#: What is smaller is copied into the result's pickle.
_BESIDE = 64 << 10
_COPY_BYTES = 1 << 20
#: How long no actors are started on a node that does not answer. Ray takes a minute to notice that
#: a node is lost, and starts actors there until then.
_AVOID_SECONDS = 120.0
#: How long the cluster may take to be connected to, or to say what is free.
_ASK_SECONDS = 5.0
#: After how long the head is asked whether it is there, and how long it may take to answer: both
#: before Ray ends the program, which is after a minute.
_HEAD_SECONDS = 15.0
_DISPATCH = "workers.dispatcher"
_MOST_RINGS = 1 << 10
#: How long a worker that hangs may take to say where its threads stand.
_STACK_SECONDS = 1.0

#: The number of the mailbox that an actor has for its loader; others are for other actors.
LOADER = 0


def import_ray() -> Any:
    """Return the module; raise WorkerStartupError where it is missing or not initialized."""
    ray = _installed()
    if not ray.is_initialized():
        raise WorkerStartupError(
            "RayReadingService uses the Ray of this program, but none is initialized: call"
            " ray.init(), or ray.init(address=...) for a cluster, before the loader is started"
        )
    return ray


def _installed() -> Any:
    try:
        return _ray()
    except ImportError as error:
        raise WorkerStartupError(
            "RayReadingService needs Ray, which is not installed: pip install 'asyncloader[ray]'"
        ) from error


def _ray() -> Any:
    import ray  # type: ignore[import-untyped,import-not-found,unused-ignore]

    return ray


class Cluster(NamedTuple):
    """A cluster that this program has joined."""

    version: str
    nodes: int
    #: How many actors of one CPU each can be started.
    room: int


@contextlib.contextmanager
def joined_cluster() -> Iterator[Cluster]:
    """Use the Ray of this program, or join the cluster that RAY_ADDRESS or this machine has."""
    ray = _installed()
    joins = not ray.is_initialized()
    if joins:
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            _connect_to(address)
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            where = f" at RAY_ADDRESS={address}" if address else ""
            raise WorkerStartupError(
                f"no Ray cluster can be reached{where}: {_cause(error).rstrip('.')}. Run this on a"
                " node of the cluster, or set RAY_ADDRESS to host:port"
            ) from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield Cluster(ray.__version__, len(nodes), int(ray.available_resources().get("CPU", 0)))
    finally:
        if joins:
            ray.shutdown()


def _connect_to(address: str) -> None:
    """Raise OSError where nobody listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _ASK_SECONDS).close()


# The loader's side ----------------------------------------------------------------------


class ActorEngine:
    """Has Ray start the processes of a pool; ``num_workers`` may be linked to a dispatcher.

    ``options`` are Ray's options for each actor, with those that are None left to Ray.
    """

    def __init__(self, options: dict[str, Any], num_workers: int, start_seconds: float) -> None:
        self.start_seconds = start_seconds
        self._options = {name: value for name, value in options.items() if value is not None}
        memory = {"memory": options["memory"]} if "memory" in self._options else {}
        #: The resources that an actor needs.
        self._wanted = {"CPU": options["num_cpus"], **memory, **(options["resources"] or {})}
        self._num_workers = num_workers
        self._links = 0
        #: The nodes that did not answer, and may be lost without Ray knowing it yet.
        self._avoided: dict[str, float] = {}
        self._lock = threading.Lock()
        #: Ray's objects for shared memory, which is put once for all actors.
        self._objects: dict[int, tuple[SharedBytes, Any]] = {}
        #: Asks for the free resources, to see whether the head answers.
        self._asking: asyncio.Future[dict[str, float] | None] | None = None

    async def start(self, plan: ProcessPlan) -> ActorProcess:
        process = ActorProcess(plan.name, self)
        try:
            _check_versions(process, await self._born(process, plan))
        except BaseException as error:
            process.release()
            if isinstance(error, WorkerStartupError) or not isinstance(error, Exception):
                raise
            failure = f"{plan.name} could not be started in the cluster: {_cause(error)}"
            cause = WorkerDied(failure, worker=None) if _is_loss(error) else error
            raise WorkerStartupError(failure) from cause
        return process

    async def why_late(self) -> str:
        free = await self._free(_ASK_SECONDS)
        if free is None:
            return "; the cluster does not answer"
        return f"; each needs {self._wanted}, and the cluster has free {free}"

    def shared(self, parcel: Parcel) -> list[Any]:
        return list(parcel.shared)

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[Any, Any]:
        assert isinstance(dealer, ActorProcess)
        self._links += 1
        number = (self._links - 1) % self._num_workers + 1
        # Mailbox.opened makes the two ends of these.
        return (dealer.actor, number), number

    def avoid(self, node_id: str) -> None:
        """Start no more actors on a node, as long as there are others that have room for them."""
        with self._lock:
            self._avoided[node_id] = time.monotonic() + _AVOID_SECONDS

    def argument(self, sent: Any) -> Any:
        """Return Ray's object for shared memory; anything else as it is."""
        if not isinstance(sent, SharedBytes):
            return sent
        with self._lock:
            if id(sent) not in self._objects:
                ray = import_ray()
                self._objects[id(sent)] = sent, ray.put(pickle.PickleBuffer(sent.view))
            return self._objects[id(sent)][1]

    async def _born(self, process: ActorProcess, plan: ProcessPlan) -> dict[str, str]:
        """Wait for an actor, as long as the head answers, and return its versions."""
        born = asyncio.wrap_future(process.begin(partial(self._make, plan)))
        try:
            while not (await asyncio.wait([born], timeout=_HEAD_SECONDS))[0]:
                await self._check_head(plan.name)
            return born.result()
        finally:
            born.cancel()

    async def _check_head(self, name: str) -> None:
        # It is asked once for all that are starting.
        if self._asking is None or self._asking.done():
            self._asking = asyncio.ensure_future(self._free(_HEAD_SECONDS))
        if await asyncio.shield(self._asking) is None:
            raise WorkerStartupError(
                f"{name} cannot be started: the head of the Ray cluster does not answer"
            )

    async def _free(self, seconds: float) -> dict[str, float] | None:
        """Return what resources are free; None if the cluster does not answer."""
        try:
            async with asyncio.timeout(seconds):
                return await in_thread(_free_resources)
        except Exception:  # noqa: BLE001  Ray has many kinds for it
            return None

    def _make(self, plan: ProcessPlan) -> Any:
        ray = import_ray()
        boxes = 1 + (self._num_workers if _DISPATCH in plan.main else 0)
        options = {**self._options, "max_restarts": 0, "max_task_retries": 0}
        if selector := self._selector(ray):
            options["label_selector"] = selector
        module, _, _ = plan.main.partition(":")
        return _remote_class(boxes).options(**options).remote(module)

    def _selector(self, ray: Any) -> dict[str, str] | None:
        with self._lock:
            now = time.monotonic()
            avoided = sorted(node for node, until in self._avoided.items() if until > now)
        if not avoided:
            return None
        for node in ray.nodes():
            has = node["Resources"]
            is_large = all(has.get(name, 0.0) >= amount for name, amount in self._wanted.items())
            if node["Alive"] and node["NodeID"] not in avoided and is_large:
                return {"ray.io/node-id": f"!in({','.join(avoided)})"}
        return None


@cache
def _remote_class(boxes: int) -> Any:
    """Return Ray's class of actors with so many boxes; it is sent to the cluster only once."""
    # What waits has threads of its own, so that a worker that is stuck still answers.
    groups = {"tell": 1, "ask": 1, **{f"fetch{box}": 1 for box in range(boxes)}}
    return _ray().remote(concurrency_groups=groups)(Actor)


def _check_versions(process: ActorProcess, there: dict[str, str]) -> None:
    here = versions()
    for what, other in there.items():
        if other != here[what]:
            raise WorkerStartupError(
                f"{process.name} on node {process.node} has {what} {other}, but the loader has"
                f" {here[what]}; use the same version on all nodes"
            )


def _free_resources() -> dict[str, float]:
    free: dict[str, float] = import_ray().available_resources()
    return {name: amount for name, amount in free.items() if not name.startswith("node:")}


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
        self._calls = CallThread(f"{name} calls")
        #: Ray's handle, and the end of the channel; None before the start.
        self.actor: Any = None
        self._end: FarEnd | None = None
        self._lock = threading.RLock()
        #: What is called on which loop when the actor is dead.
        self._watches: dict[Callable[[], None], asyncio.AbstractEventLoop] = {}
        self._dead = threading.Event()
        self._how = ""

    def begin(self, make: Callable[[], Any]) -> Future[dict[str, str]]:
        """Have the actor made; the future has its versions when it is there."""
        born: Future[dict[str, str]] = uncancellable()
        self._calls.submit(partial(self._begin, make, born))
        return born

    @property
    def place(self) -> str:
        return f"pid {self.pid} on node {self.node}"

    def open_channel(self) -> FarEnd:
        assert self._end is not None
        return self._end

    def open_memory(self, wake: Callable[[], None], *, copy_beyond: int) -> ArrivedMemory:
        assert self._end is not None
        self._end.memory.wake = wake
        self._end.memory.keep(copy_beyond)
        return self._end.memory

    def on_death(
        self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]
    ) -> Callable[[], object]:
        def tell() -> None:
            # Somebody may have lost interest meanwhile.
            if self._watches.pop(tell, None) is not None:
                callback()

        with self._lock:
            self._watches[tell] = loop
            if self._dead.is_set():
                call_soon(loop, tell)
        return partial(self._watches.pop, tell, None)

    def is_dead(self) -> bool:
        return self._dead.is_set()

    def how_it_ended(self) -> str:
        return self._how

    async def hang_dump(self) -> str | None:
        stacks: Future[str | None] = uncancellable()
        self._calls.submit(partial(self._ask_stacks, stacks))
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
        unwatch = self.on_death(loop, partial(release, dead))
        try:
            await dead
        finally:
            unwatch()

    def wait_now(self, timeout: float) -> None:
        self._dead.wait(timeout)

    def release(self) -> None:
        self.kill()
        self._calls.close()

    def is_ours(self) -> bool:
        return self._owner == os.getpid()

    def _begin(self, make: Callable[[], Any], born: Future[dict[str, str]]) -> None:
        if self.is_dead():
            born.set_exception(WorkerStartupError(f"{self.name} was ended while it was starting"))
            return
        try:
            self.actor = make()
            birth = self.actor.birth.options(concurrency_group="tell").remote().future()
        except Exception as error:  # noqa: BLE001  the caller is told
            born.set_exception(error)
            return
        self._end = FarEnd(self.actor, LOADER, self._calls, self._engine.argument, self._on_end)
        birth.add_done_callback(partial(self._on_birth, born))

    def _on_birth(self, born: Future[dict[str, str]], answer: Any) -> None:
        error = answer.exception()
        if error is not None:
            born.set_exception(error)
            return
        self.pid, self.node, self._node_id, its_versions = answer.result()
        born.set_result(its_versions)

    def _ask_stacks(self, stacks: Future[str | None]) -> None:
        try:
            answer = self.actor.stacks.options(concurrency_group="ask").remote().future()
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
        if self._end is not None:
            self._end.end()
        self._calls.submit(self._kill)
        for tell, loop in list(self._watches.items()):
            call_soon(loop, tell)

    def _kill(self) -> None:
        if self._end is not None:
            self._end.stop()
        actor, self.actor = self.actor, None
        if actor is not None:
            # It may be dead, or Ray may be gone.
            with contextlib.suppress(Exception):
                _ray().kill(actor)


def _is_loss(error: BaseException) -> bool:
    """Whether an actor was lost, so that another may be started."""
    exceptions = _ray().exceptions
    is_loss = isinstance(error, exceptions.RayActorError | exceptions.OutOfMemoryError)
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
    return re.split(" Some common causes| OOM kill reason", text)[0]


def _nothing(news: object) -> None:
    """Ignore news that nobody waits for."""


class FarEnd:
    """The end of an actor's channel that is in another process: it fetches frames and tells some.

    A loop takes what has come, by ``attach``, or a thread, by ``receive``. ``calls`` is the thread
    that makes the calls; there ``argument`` makes of what is sent with a frame an argument for
    Ray, and ``on_end`` is called once, with the program's exit code or with what kept a call from
    being answered. Ray keeps what it is to call as long as a call waits, and a loader that is
    dropped is to be collected: so that does not keep the end alive.
    """

    def __init__(
        self,
        actor: Any,
        box: int,
        calls: CallThread,
        argument: Callable[[Any], Any],
        on_end: Callable[[int | BaseException], None] = _nothing,
    ) -> None:
        self.memory = ArrivedMemory()
        self._box = box
        self._fetch = actor.fetch.options(concurrency_group=f"fetch{box}")
        self._tell = actor.tell.options(concurrency_group="tell", num_returns=0)
        self._calls = calls
        # These belong to the calls' thread.
        self._argument = argument
        self._on_end = on_end
        self._asked: deque[Any] = deque()
        self._told = self._arrived = 0
        self._is_over = False
        # The lock may be taken twice: a garbage collection within a method may end a loader.
        self._changed = threading.Condition()
        self._frames: deque[Frame] = deque()
        self._has_ended = self._is_closed = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._on_frames: OnFrames = _nothing
        self._on_closed: OnClosed = _nothing
        #: Whether the loop will look at what has arrived.
        self._is_due = False
        for _ in range(_FETCHES):
            calls.submit(self._ask)

    # What the reader does, on its loop or in its thread.

    def attach(
        self, loop: asyncio.AbstractEventLoop, on_frames: OnFrames, on_closed: OnClosed
    ) -> None:
        with self._changed:
            self._loop, self._on_frames, self._on_closed = loop, on_frames, on_closed
            self._is_due = True
        loop.call_soon(self._deliver)

    def detach(self) -> None:
        with self._changed:
            self._loop, self._on_frames, self._on_closed = None, _nothing, _nothing

    def open_memory(self) -> ArrivedMemory:
        return self.memory

    def receive(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._frames or self._has_ended)
            if not self._frames:
                raise EOFError("the other actor is gone")
            return self._frames.popleft()

    def receive_ready(self) -> list[Frame]:
        with self._changed:
            frames, self._frames = list(self._frames), deque()
            return frames

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        if not self._is_closed:
            frames = [(kind, _joined(payload)), *((each, bytes(data)) for each, data in then)]
            self._calls.submit(partial(self._send_now, frames, fds))

    def close(self) -> None:
        self.detach()
        self.end()
        if not self._is_closed:
            self._is_closed = True
            # No frames close the other end.
            self._calls.submit(partial(self._send_now, [], ()))

    def end(self) -> None:
        """Note that nothing more will arrive; from any thread."""
        with self._changed:
            self._has_ended = True
            self._wake()

    def _wake(self) -> None:
        self._changed.notify_all()
        if self._loop is not None and not self._is_due:
            self._is_due = True
            call_soon(self._loop, self._deliver)

    def _deliver(self) -> None:
        with self._changed:
            self._is_due = False
            if self._loop is None:
                return
            frames = self.receive_ready()
            on_frames, on_closed = self._on_frames, self._on_closed
            if self._has_ended:
                self._on_closed = _nothing
        if frames:
            on_frames(frames)
        if self._has_ended:
            on_closed(EOFError("the actor is gone"))

    # What the calls' thread does.

    def stop(self) -> None:
        """Fetch and tell no more; in the calls' thread."""
        self._is_over = True
        self._asked.clear()

    def _send_now(self, frames: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        if self._is_over:
            return
        try:
            self._tell.remote(self._box, self._told, frames, *map(self._argument, sent))
        except Exception as error:  # noqa: BLE001  Ray may be gone; whoever waits is told
            self._over(error)
        self._told += 1

    def _ask(self) -> None:
        if self._is_over:
            return
        try:
            answer = self._fetch.remote(self._box).future()
        except Exception as error:  # noqa: BLE001  Ray may be gone; whoever waits is told
            self._over(error)
            return
        self._asked.append(answer)
        answer.add_done_callback(partial(_submit, self._calls, weakref.WeakMethod(self._look)))

    def _look(self) -> None:
        """Take what was fetched, in the order in which it was asked for."""
        while self._asked and self._asked[0].done():
            answer = self._asked.popleft()
            if answer.exception() is not None:
                self._over(answer.exception())
                return
            frames, code = answer.result()
            self._arrive(frames)
            del answer, frames
            if code is not None:
                self._over(code)
                return
            self._ask()

    def _arrive(self, fetched: list[Frame]) -> None:
        frames = []
        for number, frame in enumerate(fetched, self._arrived):
            for slot, memory in frame.fds:
                self.memory.add(slot, memory)
            frames.append(Frame(frame.kind, bytes(frame.payload), number))
        self._arrived += len(frames)
        with self._changed:
            if frames and not self._has_ended:
                self._frames += frames
                self._wake()

    def _over(self, how: int | BaseException) -> None:
        if not self._is_over:
            self.stop()
            self.end()
            self._on_end(how)


def _submit(calls: CallThread, method: weakref.WeakMethod[Callable[[], None]], _: object) -> None:
    call = method()
    if call is not None:
        calls.submit(call)


class ArrivedMemory:
    """What the items of frames that have arrived are in: private copies of a worker's slots.

    Ray's own memory cannot be written to, and is free again at once. A slot is given back when
    its items are opened, so that what has arrived and was not opened is within the budget.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = wake_nobody
        self._arrived: dict[int, memoryview] = {}
        self._released: deque[int] = deque()
        #: Memory that is used again, since new pages take longer than what is copied into them.
        self._arena = Arena(0)
        self._lock = threading.Lock()

    def keep(self, nbytes: int) -> None:
        """Use so many bytes again and again; what is beyond them is new memory each time."""
        self._arena.budget = nbytes

    def add(self, slot: int, buffer: Any) -> None:
        """Copy a slot's bytes, which arrived; in the calls' thread."""
        source = memoryview(buffer).cast("B")
        copy = self._memory(len(source))
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
        with self._lock:
            self._arena.budget = 0
            self._arena.close()

    def _memory(self, nbytes: int) -> memoryview:
        with self._lock, contextlib.suppress(ResourceExhausted):
            memory = self._arena.allocate(nbytes)
            # No other process maps it.
            for fd in self._arena.take_news().fds:
                os.close(fd)
            if memory is not None:
                return memory
        return memoryview(unwritten(nbytes))

    def _return(self, slot: int) -> None:
        self._released.append(slot)
        self.wake()


# The actor ------------------------------------------------------------------------------


class Actor:
    """A process of a Ray cluster that runs a program of ours, in a thread of its own.

    ``program`` is the module whose ``work`` is called with the channel to the loader.
    """

    def __init__(self, program: str) -> None:
        self._node_id = _ray().get_runtime_context().get_node_id()
        # Several nodes may have one address.
        self._node = f"{_ray().util.get_node_ip_address()} ({self._node_id[:8]})"
        self._lock = threading.Lock()
        self._boxes: dict[int, Mailbox] = {}
        loader = self._box(LOADER)
        start_thread(threading.Thread(target=_run, args=(program, loader), daemon=True))

    def birth(self) -> tuple[int, str, str, dict[str, str]]:
        """Say which process this is, on which node (its name and its id), with which versions."""
        return os.getpid(), self._node, self._node_id, versions()

    def tell(self, box: int, number: int, frames: list[tuple[int, bytes]], *sent: Any) -> None:
        """Put frames into a box; calls may arrive in another order than their numbers."""
        self._box(box).put(number, frames, sent)

    def fetch(self, box: int) -> tuple[list[Frame], int | None]:
        """Wait for frames in a box and take them; at the end the program's exit code."""
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
                self._boxes[number] = Mailbox(f" on node {self._node}", self._box)
            return self._boxes[number]


def _run(program: str, loader: Mailbox) -> None:
    code = 0
    try:
        importlib.import_module(program).work(loader)
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:  # noqa: BLE001  user code ran: whatever it raised ends the process
        traceback.print_exc()
        code = 1
    loader.end(code)


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
    """The end of a channel that is in an actor, whose calls fill and empty it.

    ``box_of`` returns the actor's other boxes by their numbers.
    """

    def __init__(self, place: str, box_of: Callable[[int], Mailbox]) -> None:
        self.place = place
        self._box_of = box_of
        self._changed = threading.Condition()
        self._arena: Arena | None = None
        #: Readable while a frame waits.
        self._bell, self._ringing = socket.socketpair()
        for end in (self._bell, self._ringing):
            end.setblocking(False)
        #: Calls that came before one with a lower number, and the number that is due.
        self._early: dict[int, tuple[list[tuple[int, bytes]], Sequence[Any]]] = {}
        self._due = 0
        #: Frames for the program, and those of the program.
        self._incoming: deque[Frame] = deque()
        self._outgoing: deque[Frame] = deque()
        self._count = 0
        self._is_closed = False
        self._code: int | None = None

    # What the actor's calls do.

    def put(self, number: int, frames: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        """Add frames that were told; no frames close the box."""
        with self._changed:
            self._early[number] = frames, sent
            while self._due in self._early:
                self._add(*self._early.pop(self._due))
                self._due += 1
            # If it is full, it rings already.
            with contextlib.suppress(BlockingIOError):
                self._ringing.send(b"!")
            self._changed.notify_all()

    def fetch(self) -> tuple[list[Frame], int | None]:
        """Wait for frames and take them; the exit code comes after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._outgoing or self._code is not None)
            frames: list[Frame] = []
            nbytes = 0
            while self._outgoing and nbytes < _FETCH_BYTES:
                frames.append(frame := self._outgoing.popleft())
                nbytes += len(frame.payload) + sum(len(memory) for _, memory in frame.fds)
            code = None if self._outgoing else self._code
        return list(map(_beside, frames)), code

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
        # The receiver maps no segment, so nobody needs their descriptors.
        for fd in fds:
            os.close(fd)
        data = _joined(payload)
        frames = [Frame(kind, data, 0, self._memory(data) if kind == FrameKind.ITEMS else ())]
        frames += [Frame(each, bytes(data), 0) for each, data in then]
        with self._changed:
            if self._is_closed:
                raise EOFError("the other end of the channel is closed")
            self._outgoing.extend(frames)
            self._changed.notify_all()

    post = send

    def flush(self) -> None:
        """Do nothing: there is room for all."""

    def has_unsent(self) -> bool:
        return False

    def receive(self) -> Frame:
        with self._changed:
            self._changed.wait_for(lambda: self._incoming or self._is_closed)
            if not self._incoming:
                raise EOFError("the other end of the channel is closed")
            return self._incoming.popleft()

    def receive_ready(self) -> list[Frame]:
        with self._changed:
            with contextlib.suppress(BlockingIOError):
                self._bell.recv(_MOST_RINGS)
            if self._is_closed and not self._incoming:
                raise EOFError("the other end of the channel is closed")
            frames = list(self._incoming)
            self._incoming.clear()
            return frames

    def opened(self, fd: Any) -> Any:
        # A link's two ends: the box of a number here, or the actor where that box is.
        if isinstance(fd, int):
            return self._box_of(fd)
        actor, number = fd
        return FarEnd(actor, number, CallThread("asyncloader link"), argument=_unchanged)

    def fileno(self) -> int:
        return self._bell.fileno()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True

    def _add(self, frames: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        if not frames:
            self._is_closed = True
        for kind, payload in frames:
            things = tuple(map(_as_memory, sent)) if kind == FrameKind.MESSAGE else ()
            self._incoming.append(Frame(kind, payload, self._count, things))
            self._count += 1
            sent = ()

    def _memory(self, items: bytes) -> tuple[tuple[int, memoryview], ...]:
        """Return the slots that a frame of items speaks of, each with its bytes."""
        if self._arena is None:
            return ()
        refs = read_payload(split_items(items).items).slots
        return tuple((ref.slot, self._arena.memory_of(ref)) for ref in refs)


def _joined(payload: Buffer | Sequence[Buffer]) -> bytes:
    return b"".join(payload if isinstance(payload, list | tuple) else (payload,))


def _unchanged(sent: Any) -> Any:
    return sent


def _as_memory(sent: Any) -> Any:
    return sent if isinstance(sent, int | tuple) else memoryview(sent)


def _beside(frame: Frame) -> Frame:
    """Return a frame whose large parts Ray takes from where they are."""
    payload: Any = frame.payload
    if len(payload) >= _BESIDE:
        payload = pickle.PickleBuffer(payload)
    memory = tuple((slot, pickle.PickleBuffer(each)) for slot, each in frame.fds)
    return frame._replace(payload=payload, fds=memory)
