"""Running a graph in actors of a Ray cluster.

This file is about ``RayReadingService``: what ``MultiProcessingReadingService`` does with processes
of one machine, with processes that Ray places on any of a cluster's nodes.
"""

from __future__ import annotations

from typing import Any, Literal

from asyncloader.datapipes.arguments import checked_count, checked_seconds
from asyncloader.datapipes.edges import lives_with_loader
from asyncloader.datapipes.naming import stage_name
from asyncloader.graph.walk import breadth_first
from asyncloader.runtime import in_thread
from asyncloader.services.multi_processing import InitFn, MultiProcessingReadingService, ResetFn
from asyncloader.workers.actors.cluster import initialized_ray
from asyncloader.workers.actors.engine import ActorEngine


class RayReadingService(MultiProcessingReadingService):
    """Run the graph in ``num_workers`` actors of a Ray cluster, which stay alive between epochs.

    Use it when one machine is not enough; on one machine ``MultiProcessingReadingService`` is
    faster. It uses the Ray that the program has initialized, and needs ``asyncloader[ray]``.

    The parameters up to ``worker_reset_fn``, and ``in_order``, ``prefetch_bytes``,
    ``on_worker_death`` and ``max_restarts``, are those of ``MultiProcessingReadingService``. The
    items and their order are the same as with as many processes, and a state can be resumed with
    either.

    ``num_cpus``, ``memory``, ``resources``, ``scheduling_strategy`` and ``runtime_env`` are handed
    to Ray as they are, for each actor. ``start_timeout`` is how many seconds the actors may take
    to be ready, with the time that a cluster needs to add nodes.

    An actor that owes an item and is silent for ``timeout`` seconds is ended; so is one on a node
    that does not answer any more. With ``on_worker_death="restart"`` an actor that is lost is
    replaced by one on any node, which resumes at the same place.

    >>> from asyncloader import RayReadingService
    >>> RayReadingService(num_workers=4, resources={"ssd": 1})
    RayReadingService(num_workers=4)
    """

    def __init__(
        self,
        num_workers: int,
        worker_prefetch_cnt: int = 10,
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
    ) -> None:
        super().__init__(
            checked_count("num_workers", num_workers, at_least=1),
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
        )
        self.start_timeout = checked_seconds("start_timeout", start_timeout)
        self._options = {
            "num_cpus": num_cpus,
            "memory": memory,
            "resources": resources,
            "scheduling_strategy": scheduling_strategy,
            "runtime_env": runtime_env,
        }

    async def initialize(self, datapipe: Any) -> Any:
        for pipe in breadth_first(datapipe):
            if lives_with_loader(pipe):
                raise ValueError(
                    f"RayReadingService cannot run {stage_name(pipe)}: a feed's requests are"
                    " answered by processes of the same machine; use MultiProcessingReadingService"
                )
        # Importing Ray takes a second.
        await in_thread(initialized_ray)
        return await super().initialize(datapipe)

    def _engine(self) -> ActorEngine:
        return ActorEngine(self._options, self.num_workers, self.start_timeout)

    def __repr__(self) -> str:
        return f"RayReadingService(num_workers={self.num_workers})"
