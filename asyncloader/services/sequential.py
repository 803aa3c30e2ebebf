"""Several reading services as one.

This file is about ``SequentialReadingService``: the graph and the resets pass through its
services from first to last, and the services are finalized from last to first.
"""

from __future__ import annotations

import base64
import contextlib
import json
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from operator import itemgetter
from typing import Any

from asyncloader.deadline import leaving_time
from asyncloader.errors import SnapshotError
from asyncloader.graph.fingerprint import Fingerprint
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import (
    CheckpointableReadingServiceInterface,
    IterResetFn,
    ReadingServiceInterface,
    ServiceCalls,
    as_reset,
    is_users,
    unchanged,
)
from asyncloader.services.hooks import (
    Adjustable,
    ServiceHooks,
    counts_itself,
    graph_changer,
    hooks_of,
)
from asyncloader.workers.worker_stats import WorkerStats


class SequentialReadingService(CheckpointableReadingServiceInterface, ServiceHooks):
    """Run several services one after the other, each on what the one before returned.

    Typical is ``SequentialReadingService(DistributedReadingService(),
    MultiProcessingReadingService(...))``. Every service is finalized, even if one fails;
    all failures are raised in one ExceptionGroup.

    >>> from asyncloader import DataLoader2, InProcessReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pairs = InProcessReadingService(init_fn=lambda pipe: pipe.batch(2))
    >>> sums = InProcessReadingService(init_fn=lambda pipe: pipe.map(sum))
    >>> service = SequentialReadingService(pairs, sums)
    >>> with DataLoader2(IterableWrapper(range(4)), reading_service=service) as loader:
    ...     list(loader)
    [1, 5]
    """

    def __init__(self, *reading_services: Any) -> None:
        if not reading_services:
            raise ValueError("SequentialReadingService needs at least one reading service")
        for service in reading_services:
            if not isinstance(service, ReadingServiceInterface):
                raise TypeError(
                    "SequentialReadingService takes reading services, which derive from"
                    f" ReadingServiceInterface, got {service!r}; pass several as several arguments"
                )
        self.reading_services = list(reading_services)
        self._calls = [ServiceCalls(service) for service in reading_services]
        self._hooks = [hooks_of(service) for service in reading_services]
        self._initialized: list[ServiceCalls] = []

    async def initialize(self, datapipe: Any) -> Any:
        for service in self._calls:
            async with self._beginning(service):
                datapipe = await service.initialize(datapipe, workers=self.worker_count())
        return datapipe

    @contextlib.asynccontextmanager
    async def _beginning(self, service: ServiceCalls) -> AsyncIterator[None]:
        # A service that fails half-way may hold something, so it is finalized too.
        self._initialized.append(service)
        try:
            yield
        except BaseException:
            for later in self._hooks[len(self._initialized) :]:
                await later.decline()
            raise

    async def decline(self) -> None:
        for hooks in self._hooks:
            await hooks.decline()

    async def verify(self, graph: Fingerprint, workers: int, *, in_order: bool) -> None:
        for hooks in self._hooks:
            await hooks.verify(graph, workers, in_order=in_order)

    def checkpoint(self) -> bytes | None:  # type: ignore[override]  # None where no member has one
        states = [service.checkpoint() for service in self._calls]
        if all(state is None for state in states):
            return None
        texts = [None if state is None else base64.b64encode(state).decode() for state in states]
        return json.dumps(texts).encode()

    def check(self, serialized_state: bytes) -> None:
        for service, state in zip(self._calls, self._states(serialized_state), strict=True):
            if state is not None:
                service.check(state)

    async def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        states = self._states(serialized_state)
        for service, state in zip(self._calls, states, strict=True):
            async with self._beginning(service):
                if state is not None:
                    datapipe = await service.restore(datapipe, state)
                    continue
                _warn_of_lost_state(service.service)
                datapipe = await service.initialize(datapipe, workers=self.worker_count())
        return datapipe

    def _states(self, serialized_state: bytes) -> list[bytes | None]:
        try:
            texts = json.loads(serialized_state)
            states = [None if text is None else base64.b64decode(text) for text in texts]
        except (ValueError, TypeError, RecursionError) as error:
            raise SnapshotError(
                f"reading_service_state was not made by SequentialReadingService: {error}"
            ) from error
        if len(states) != len(self._calls):
            raise SnapshotError(
                f"reading_service_state is of {len(states)} services in sequence, but this loader"
                f" has {len(self._calls)}; use the services that the state was taken with"
            )
        return states

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        # Each service gets the function of those before it and returns one that includes it.
        reset = as_reset(iter_reset_fn)
        for service in self._calls:
            reset = await service.initialize_iteration(seed_generator, reset)
        return reset

    async def finalize_iteration(self) -> None:
        await all_of(service.finalize_iteration for service in reversed(self._calls))

    async def finalize(self) -> None:
        initialized, self._initialized = self._initialized, []
        await all_of(service.finalize for service in reversed(initialized))

    def expect_start(self) -> None:
        for hooks in self._hooks:
            hooks.expect_start()

    def needs_finalize(self) -> bool:
        return any(hooks.needs_finalize() for hooks in self._hooks)

    def length(self, datapipe: Any) -> int:
        share = self.share(datapipe)
        # The service that divides the graph among workers knows its length best.
        for service, hooks in zip(
            reversed(self.reading_services), reversed(self._hooks), strict=True
        ):
            if counts_itself(service):
                return hooks.length(share)
        return len(share)

    def graph_changer(self) -> str:
        return next(filter(None, map(graph_changer, self.reading_services)), "")

    def share(self, datapipe: Any) -> Any:
        for hooks in self._hooks:
            datapipe = hooks.share(datapipe)
        return datapipe

    def worker_count(self) -> int:
        return sum(hooks.worker_count() for hooks in self._hooks)

    def is_in_order(self) -> bool:
        return all(hooks.is_in_order() for hooks in self._hooks)

    def rank(self) -> tuple[int, int]:
        # The service that divides the items among ranks knows.
        ranks = [hooks.rank() for hooks in self._hooks]
        return max(ranks, key=itemgetter(1))

    def meets_others(self) -> bool:
        return any(hooks.meets_others() for hooks in self._hooks)

    def pads(self) -> bool:
        return any(hooks.pads() for hooks in self._hooks)

    def own_items(self) -> int | None:
        known = (hooks.own_items() for hooks in self._hooks)
        return next((count for count in known if count is not None), None)

    def worker_stats(self) -> list[WorkerStats]:
        return [each for hooks in self._hooks for each in hooks.worker_stats()]

    def restarts(self) -> int:
        return sum(hooks.restarts() for hooks in self._hooks)

    def pause(self) -> None:
        for hooks in self._hooks:
            hooks.pause()

    def resume(self) -> None:
        for hooks in self._hooks:
            hooks.resume()

    def seed_rest(self) -> None:
        for hooks in self._hooks:
            hooks.seed_rest()

    def limit(self, num_items: int | None) -> None:
        for hooks in self._hooks:
            hooks.limit(num_items)

    def adjustable(self) -> Adjustable | None:
        *others, last = self._hooks
        # A user's own service must not see more epochs than there are. All ranks need the same
        # number of workers.
        if any(map(is_users, self.reading_services)) or self.meets_others():
            return None
        adjustable = last.adjustable()
        return None if any(hooks.worker_count() for hooks in others) else adjustable

    def __repr__(self) -> str:
        return f"SequentialReadingService({', '.join(map(repr, self.reading_services))})"


def _warn_of_lost_state(service: Any) -> None:
    # Our own services have no state but their place in the graph, which every state has.
    if is_users(service):
        warnings.warn(
            f"{service!r} has no checkpoint in the state, so it is initialized from the start"
            " while other services are restored",
            stacklevel=2,
        )


async def all_of(calls: Iterable[Callable[[], Awaitable[None]]]) -> None:
    """Make every call, one after the other; raise all failures together at the end."""
    errors = []
    calls = list(calls)
    for done, call in enumerate(calls, 1):
        try:
            with leaving_time(len(calls) - done):
                await call()
        except Exception as error:  # noqa: BLE001 - every call must be tried
            errors.append(error)
    if errors:
        raise ExceptionGroup("reading services failed to finalize", errors)
