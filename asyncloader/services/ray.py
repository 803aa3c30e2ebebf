"""Running a graph in actors of a Ray cluster.

This file is about ``RayReadingService``: what ``MultiProcessingReadingService`` does with processes
of one machine, with processes that Ray places on any of a cluster's nodes.
"""

from __future__ import annotations

from typing import Any, Literal

from asyncloader.arguments import checked_auto, checked_seconds
from asyncloader.graph.refusals import Purpose, check_graph
from asyncloader.ranks import world_size
from asyncloader.runtime import in_thread
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import IterResetFn, unchanged
from asyncloader.services.multi_processing import (
    InitFn,
    MultiProcessingReadingService,
    ResetFn,
)
from asyncloader.services.tuned_workers import FIRST_WORKERS, PREFETCH, TunedWorkers
from asyncloader.workers.actors.cluster import Room, answer_of, initialized_ray, room_for
from asyncloader.workers.actors.engine import ActorEngine

#: More actors than a cluster will ever hold.
_UNBOUNDED = 1 << 20


class RayReadingService(MultiProcessingReadingService):
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

    _change_seconds = 60.0

    def __init__(
        self,
        num_workers: int | Literal["auto"],
        worker_prefetch_cnt: int | Literal["auto"] = PREFETCH,
        main_prefetch_cnt: int = 10,
        worker_init_fn: InitFn | None = None,
        worker_reset_fn: ResetFn | None = None,
        *,
        num_cpus: float = 1,
        memory: float | None = None,
        resources: dict[str, float] | None = None,
        scheduling_strategy: Any = "SPREAD",
        runtime_env: Any = None,
        in_order: bool = True,
        timeout: float | None = 60.0,
        prefetch_bytes: int = 256 << 20,
        on_worker_death: Literal["raise", "restart"] = "restart",
        max_restarts: int = 3,
        start_timeout: float = 600.0,
        max_workers: int | None = None,
    ) -> None:
        super().__init__(
            checked_auto("num_workers", num_workers, at_least=1),
            None,
            worker_prefetch_cnt,
            main_prefetch_cnt,
            worker_init_fn,
            worker_reset_fn,
            in_order=in_order,
            timeout=timeout,
            prefetch_bytes=prefetch_bytes,
            on_worker_death=on_worker_death,
            max_restarts=max_restarts,
            max_workers=max_workers,
        )
        most = _UNBOUNDED if max_workers is None else max_workers
        self._tuned = TunedWorkers(num_workers, worker_prefetch_cnt, most, FIRST_WORKERS)
        self._tuned.bound(least=1)
        #: What the cluster had room for when it was last asked.
        self._found = Room(0, 0)
        self.start_timeout = checked_seconds("start_timeout", start_timeout)
        self._options = {
            "num_cpus": num_cpus,
            "memory": memory,
            "resources": resources,
            "scheduling_strategy": scheduling_strategy,
            "runtime_env": runtime_env,
        }

    async def initialize(self, datapipe: Any) -> Any:
        check_graph(datapipe, Purpose.ACTORS)
        if self.chooses_workers and world_size() > 1:
            raise ValueError(
                'RayReadingService(num_workers="auto") cannot run on several ranks: they need the'
                " same number of actors, and each would find other room in the cluster; give"
                " num_workers a number"
            )
        # Importing Ray takes a second.
        await in_thread(initialized_ray)
        room = await self._asked_room()
        if room is not None:
            self._tuned.begin_within(room.free)
        return await super().initialize(datapipe)

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        await self._asked_room()
        return await super().initialize_iteration(seed_generator, iter_reset_fn)

    def _room(self) -> int:
        return min(self._found.whole, self._running.workers + self._found.free)

    async def _has_room_beside(self, workers: int) -> bool:
        room = await self._asked_room()
        if room is None:
            # Nothing can be started now, so what runs must not be given up.
            self._tuned.refuse(workers, self._running.workers)
        return room is not None and room.free >= workers

    async def _asked_room(self) -> Room | None:
        """Return how many actors there is room for if that matters; None if nobody answers."""
        room = await answer_of(room_for, self._options) if self.chooses_workers else None
        if room is not None:
            self._found = room
        return room

    def _engine(self, workers: int) -> ActorEngine:
        return ActorEngine(self._options, workers, self.start_timeout)

    def __repr__(self) -> str:
        return f"RayReadingService(num_workers={self.num_workers!r})"
