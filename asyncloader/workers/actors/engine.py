"""Processes that Ray starts.

This file is about ``ActorEngine``, which has Ray start an actor for each worker, and about
``ActorProcess``, one of them: what ``workers/process/`` is for processes of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, Final

from asyncloader.datapipes.running.watch.under_way import UnderWay
from asyncloader.errors import WorkerDied, WorkerStartupError
from asyncloader.memory import SharedBytes
from asyncloader.runtime import CallThread, uncancellable
from asyncloader.transport.codec import Decoder
from asyncloader.transport.ends import LoopEnd
from asyncloader.transport.parcel import Parcel, pack_code
from asyncloader.workers.actors.actor import LOADER, Actor, versions
from asyncloader.workers.actors.cluster import (
    answer_of,
    cause_of,
    free_resources,
    import_ray,
    initialized_ray,
    needs_of,
)
from asyncloader.workers.actors.far_end import FarEnd
from asyncloader.workers.mortal import Mortal
from asyncloader.workers.process.process import UNKNOWN, ProcessPlan, WorkerProcess, how_it_ended

logger = logging.getLogger("asyncloader")

#: How long no actors are started on a node that does not answer. Ray takes a minute to notice that
#: a node is lost, and starts actors there until then.
_AVOID_SECONDS = 120.0
#: After how long the head is asked whether it is there, and how long it may take to answer: both
#: before Ray ends the program, which is after a minute.
_HEAD_SECONDS = 15.0
#: How long a worker that hangs may take to say where its threads stand.
_STACK_SECONDS = 1.0
_DISPATCH = "workers.dispatcher"


class ActorEngine:
    """Has Ray start the processes of a pool; ``num_workers`` may be linked to a dispatcher.

    ``options`` are Ray's options for each actor, with those that are None left to Ray.
    """

    #: Nodes of a cluster inherit nothing.
    instead_of_sending = ""
    why_not_forked = ""

    def __init__(self, options: dict[str, Any], num_workers: int, start_seconds: float) -> None:
        self.start_seconds = start_seconds
        self._options = {name: value for name, value in options.items() if value is not None}
        #: The resources that an actor needs.
        self._wanted = needs_of(options)
        self._num_workers = num_workers
        self._links = 0
        #: The nodes that did not answer, and may be lost without Ray knowing it yet.
        self._avoided: dict[str, float] = {}
        self._lock = threading.Lock()
        #: Those that are not released yet.
        self._processes: set[ActorProcess] = set()
        #: Ray's objects for shared memory, which is put once for all actors and freed after them.
        self._objects: dict[int, tuple[SharedBytes, Any]] = {}
        #: Asks for the free resources, to see whether the head answers.
        self._asking: asyncio.Future[dict[str, float] | None] | None = None

    def expect(self, plan: ProcessPlan) -> None:
        """Do nothing: the cluster is asked when the loader starts."""

    async def begin(self, codes: Sequence[Any]) -> None:
        """Do nothing: actors are placed when they are started."""

    async def start(self, plan: ProcessPlan) -> ActorProcess:
        # Ray places actors on a node that is lost until it notices that. The start has a limit.
        while (process := await self._placed(plan)) is None:
            logger.warning("%s was placed on a node that is lost; it is placed again", plan.name)
        return process

    async def _placed(self, plan: ProcessPlan) -> ActorProcess | None:
        """Start an actor; None if it never ran, because the node for it was lost."""
        process = ActorProcess(plan.name, self)
        with self._lock:
            self._processes.add(process)
        try:
            _check_versions(process, await self._born(process, plan))
        except BaseException as error:
            process.release()
            if isinstance(error, WorkerStartupError) or not isinstance(error, Exception):
                raise
            if _never_ran(error):
                return None
            failure = f"{plan.name} could not be started in the cluster: {cause_of(error)}"
            cause = WorkerDied(failure, worker=None) if _is_loss(error) else error
            raise WorkerStartupError(failure) from cause
        return process

    async def why_late(self) -> str:
        free = await answer_of(free_resources)
        if free is None:
            return "; the cluster does not answer"
        return f"; each needs {self._wanted}, and the cluster has free {free}"

    def pack(self, code: Any) -> Parcel:
        return pack_code(code)

    def sent(self, parcel: Parcel) -> Parcel:
        return parcel

    async def close(self) -> None:
        """Do nothing: what was put for the actors is freed with the last of them."""

    def shared(self, parcel: Parcel) -> list[Any]:
        return list(parcel.shared)

    def link(self, dealer: WorkerProcess, worker: WorkerProcess) -> tuple[Any, Any]:
        assert isinstance(dealer, ActorProcess)
        self._links += 1
        number = (self._links - 1) % self._num_workers + 1
        # Mailbox.opened makes the two ends of these.
        return (dealer.actor, number), number

    def line(self) -> tuple[LoopEnd, Any]:
        raise AssertionError("a graph with a Feed is refused before actors are started")

    def avoid(self, node_id: str) -> None:
        """Start no more actors on a node, as long as there are others that have room for them.

        Of an actor that never ran the node is not known, ``""``.
        """
        if not node_id:
            return
        with self._lock:
            self._avoided[node_id] = time.monotonic() + _AVOID_SECONDS

    def argument(self, sent: Any) -> Any:
        """Return Ray's object for shared memory; anything else as it is."""
        if not isinstance(sent, SharedBytes):
            return sent
        with self._lock:
            if id(sent) not in self._objects:
                ray = initialized_ray()
                self._objects[id(sent)] = sent, ray.put(pickle.PickleBuffer(sent.view))
            return self._objects[id(sent)][1]

    def forget(self, process: ActorProcess) -> None:
        """Free what was put for all actors if this process was the last."""
        with self._lock:
            self._processes.discard(process)
            if not self._processes:
                self._objects.clear()

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
            self._asking = asyncio.ensure_future(answer_of(free_resources, seconds=_HEAD_SECONDS))
        if await asyncio.shield(self._asking) is None:
            raise WorkerStartupError(
                f"{name} cannot be started: the head of the Ray cluster does not answer"
            )

    def _make(self, plan: ProcessPlan) -> Any:
        ray = initialized_ray()
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
    return import_ray().remote(concurrency_groups=groups)(Actor)


def _check_versions(process: ActorProcess, there: dict[str, str]) -> None:
    here = versions()
    for what, other in there.items():
        if other != here[what]:
            raise WorkerStartupError(
                f"{process.name} on node {process.node} has {what} {other}, but the loader has"
                f" {here[what]}; use the same version on all nodes"
            )


class ActorProcess(Mortal):
    """An actor, from its start until ``release``."""

    when_silent: Final = "it was killed"

    def __init__(self, name: str, engine: ActorEngine) -> None:
        super().__init__(name)
        self.pid = 0
        self.exitcode: int | None = None
        self.node = ""
        self._node_id = ""
        self._engine = engine
        self._calls = CallThread(f"{name} calls")
        #: Ray's handle, and the end of the channel; None before the start.
        self.actor: Any = None
        self._end: FarEnd | None = None

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

    def open_items(self, wake: Callable[[], None], *, copy_beyond: int) -> Decoder:
        assert self._end is not None
        self._end.memory.wake = wake
        self._end.memory.keep(copy_beyond)
        return self._end.open_items()

    def holding_up(self) -> list[UnderWay]:
        # An actor answers by a call, which nobody can wait for here.
        return [UNKNOWN]

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

    def release(self) -> None:
        self.kill()
        if self._end is not None:
            self._calls.submit(self._end.memory.free)
        # After what is still to be sent: that may ask the engine for its objects.
        self._calls.submit(partial(self._engine.forget, self))
        self._calls.close()

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
            self._die(f"was lost: {cause_of(how)}")

    def _settle(self) -> None:
        if self._end is not None:
            self._end.end()
        self._calls.submit(self._kill)

    def _kill(self) -> None:
        if self._end is not None:
            self._end.stop()
        actor, self.actor = self.actor, None
        if actor is not None:
            # It may be dead, or Ray may be gone.
            with contextlib.suppress(Exception):
                import_ray().kill(actor)


def _is_loss(error: BaseException) -> bool:
    """Whether an actor was lost, so that another may be started."""
    exceptions = import_ray().exceptions
    is_loss = isinstance(error, exceptions.RayActorError | exceptions.OutOfMemoryError)
    return is_loss and not getattr(error, "actor_init_failed", False)


def _never_ran(error: BaseException) -> bool:
    """Whether an actor did not begin on the node that was chosen for it, as that was lost."""
    return _is_loss(error) and not _is_death(error) and "never ran" in str(error)


def _is_death(error: BaseException) -> bool:
    """Whether Ray knows that an actor's process is dead; otherwise its node may be."""
    message = str(error)
    is_known = isinstance(error, import_ray().exceptions.ActorDiedError)
    return is_known and "node" not in message.partition("died because")[2]
