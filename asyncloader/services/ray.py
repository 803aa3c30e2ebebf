"""Running a graph in actors of a Ray cluster.

This file is about ``RayReadingService``: what ``MultiProcessingReadingService`` does with processes
of one machine, with processes that Ray places on any of a cluster's nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal

from asyncloader.arguments import checked_seconds
from asyncloader.graph.refusals import Purpose, check_graph
from asyncloader.ranks import world_size
from asyncloader.runtime import in_thread
from asyncloader.services.on_workers import InitFn, ResetFn, WorkersReadingService
from asyncloader.services.tuned_workers import FIRST_WORKERS, PREFETCH
from asyncloader.services.workplace import Workplace
from asyncloader.tuning import AUTO
from asyncloader.workers.actors.cluster import Room, answer_of, initialized_ray, room_for
from asyncloader.workers.actors.engine import ActorEngine

#: More actors than a cluster will ever hold.
_UNBOUNDED = 1 << 20


@dataclass(eq=False, repr=False)
class RayReadingService(WorkersReadingService):
    """Run the graph in ``num_workers`` actors of a Ray cluster, which stay alive between epochs.

    Use it when one machine is not enough; on one machine ``MultiProcessingReadingService`` is
    faster. It uses the Ray that the program has initialized, and needs ``asyncloader[ray]``.

    The parameters up to ``worker_reset_fn``, and ``in_order``, ``prefetch_bytes``,
    ``on_worker_death``, ``max_restarts`` and ``max_workers``, are those of
    ``MultiProcessingReadingService``. The items and their order are the same as with as many
    processes, and a state can be resumed with either.

    ``num_cpus``, ``memory``, ``resources``, ``scheduling_strategy`` and ``runtime_env`` are handed
    to Ray as they are, for each actor. ``start_timeout`` is how many seconds the actors may take
    to be ready, with the time that a cluster needs to add nodes.

    ``num_workers="auto"`` chooses the number of actors while an epoch runs, from 1 up to
    ``max_workers``, as far as the nodes that are there have room for them. Where the next actors
    find no room beside those that work, these are ended first.

    An actor that owes an item and is silent for ``timeout`` seconds is ended; so is one on a node
    that does not answer any more. With ``on_worker_death="restart"`` an actor that is lost is
    replaced by one on any node, which resumes at the same place.

    >>> from asyncloader import RayReadingService
    >>> RayReadingService(num_workers=4, resources={"ssd": 1})
    RayReadingService(num_workers=4)
    """

    num_workers: int | Literal["auto"]
    worker_prefetch_cnt: int | Literal["auto"] = PREFETCH
    main_prefetch_cnt: int = 10
    worker_init_fn: InitFn | None = None
    worker_reset_fn: ResetFn | None = None
    _: KW_ONLY
    num_cpus: float = 1
    memory: float | None = None
    resources: dict[str, float] | None = None
    scheduling_strategy: Any = "SPREAD"
    runtime_env: Any = None
    in_order: bool = True
    timeout: float | None = 60.0
    prefetch_bytes: int = 256 << 20
    on_worker_death: Literal["raise", "restart"] = "restart"
    max_restarts: int = 3
    start_timeout: float = 600.0
    max_workers: int | None = None

    def workplace(self) -> RayCluster:
        self.start_timeout = checked_seconds("start_timeout", self.start_timeout)
        options = {
            "num_cpus": self.num_cpus,
            "memory": self.memory,
            "resources": self.resources,
            "scheduling_strategy": self.scheduling_strategy,
            "runtime_env": self.runtime_env,
        }
        return RayCluster(options, self.start_timeout, chooses=self.num_workers == AUTO)


class RayCluster(Workplace):
    """The nodes of a Ray cluster, where workers are actors.

    ``chooses`` says whether it matters for how many actors there is room.
    """

    least = 1
    most = _UNBOUNDED
    first = FIRST_WORKERS
    change_seconds = 60.0

    def __init__(self, options: dict[str, Any], start_seconds: float, *, chooses: bool) -> None:
        self._options = options
        self._start_seconds = start_seconds
        self._chooses = chooses
        #: What the cluster had room for when it was last asked.
        self._found = Room(0, 0)

    def engine(self, workers: int) -> ActorEngine:
        return ActorEngine(self._options, workers, self._start_seconds)

    async def begin(self, datapipe: Any) -> int | None:
        check_graph(datapipe, Purpose.ACTORS)
        if self._chooses and world_size() > 1:
            raise ValueError(
                'RayReadingService(num_workers="auto") cannot run on several ranks: they need the'
                " same number of actors, and each would find other room in the cluster; give"
                " num_workers a number"
            )
        # Importing Ray takes a second.
        await in_thread(initialized_ray)
        room = await self._asked()
        return None if room is None else room.free

    async def look(self) -> None:
        await self._asked()

    def room(self, running: int, pids: Sequence[int]) -> int:
        return min(self._found.whole, running + self._found.free)

    async def has_room_beside(self, workers: int) -> bool | None:
        room = await self._asked()
        return None if room is None else room.free >= workers

    async def _asked(self) -> Room | None:
        """Return how many actors there is room for if that matters; None if nobody answers."""
        room = await answer_of(room_for, self._options) if self._chooses else None
        if room is not None:
            self._found = room
        return room
