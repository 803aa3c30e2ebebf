"""What a reading service is.

This file is about the moments of a service's life, which a loader calls in this
order:

    initialize ── verify ── (initialize_iteration ── finalize_iteration) per epoch ── finalize

and about resets, which services hand on to the graph at the start of an epoch.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

from asyncloader.graph.fingerprint import Fingerprint
from asyncloader.seeds import SeedGenerator
from asyncloader.workers.worker_stats import WorkerStats

P = ParamSpec("P")

#: A coroutine function that prepares a graph for an epoch and returns it. It acts
#: on the graph it is given, ignores pipes it does not find, and captures values
#: only, since it may run in another process.
IterResetFn = Callable[[Any], Awaitable[Any]]


async def unchanged(datapipe: Any) -> Any:
    """The reset that changes nothing."""
    return datapipe


def either_colour(method: Callable[P, Awaitable[Any]]) -> Callable[P, Any]:
    """Let type checkers accept a plain ``def`` in place of this method, as a loader does."""
    return method


def any_style(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Let them accept one that takes less, too, or other resets."""
    return method


@dataclass(frozen=True)
class Facts:
    """What is known of a loader once its services are initialized, and must agree among ranks."""

    #: Of the graph before any service adapted it.
    graph: Fingerprint
    num_workers: int


class ReadingServiceInterface:
    """Says how a graph is run; one method for each moment of a loader's life.

    Every method may be written as a plain ``def`` as well. A service must be
    copyable and picklable before ``initialize``.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> class InPairs(ReadingServiceInterface):
    ...     async def initialize(self, datapipe):
    ...         return datapipe.batch(2)
    >>> with DataLoader2(IterableWrapper(range(4)), reading_service=InPairs()) as loader:
    ...     list(loader)
    [[0, 1], [2, 3]]
    """

    @either_colour
    async def initialize(self, datapipe: Any) -> Any:
        """Adapt the graph, before the first epoch; return what is to be iterated.

        That is done once, unless the start fails or comes before a state is loaded: then
        ``finalize`` follows, and the next start.
        """
        return datapipe

    @either_colour
    async def verify(self, facts: Facts) -> None:
        """Compare what must be the same elsewhere, once all services are initialized.

        What it raises keeps the loader from starting, as if ``initialize`` had raised it.
        """

    @any_style
    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        """Begin an epoch.

        ``seed_generator`` is this epoch's own: what is done to it is seen by the
        services that follow and by the loader. Return a reset that includes
        ``iter_reset_fn``, the reset of the services before.
        """
        return iter_reset_fn

    @either_colour
    async def finalize_iteration(self) -> None:
        """End an epoch, at its natural end or when it is abandoned; once for each."""

    @either_colour
    async def finalize(self) -> None:
        """Give back everything the service holds; it may be called more than once."""

    def needs_finalize(self) -> bool:
        """Whether ``finalize`` alone gives back what the service holds.

        A loader that is dropped without a shutdown then calls it, with a warning.
        """
        return type(self).finalize is not ReadingServiceInterface.finalize

    def length(self, datapipe: Any) -> int:
        """Return how many items an epoch of the graph has; TypeError where nobody can tell."""
        return len(self.share(datapipe))

    def graph_changer(self) -> str:
        """Return what may put other pipes into the graph when the loader starts; or nothing.

        Where there is something, the length is that of what ``initialize`` returned.
        """
        return ""

    def share(self, datapipe: Any) -> Any:
        """Return a graph with as many items as are left to this loader where others have theirs."""
        return datapipe

    def worker_count(self) -> int:
        """Return in how many worker processes the graph runs."""
        return 0

    def is_in_order(self) -> bool:
        """Whether items come in the same order every time."""
        return True

    def rank(self) -> tuple[int, int]:
        """Return which rank this is, and of how many the items are divided among."""
        return 0, 1

    def worker_stats(self) -> list[WorkerStats]:
        """Return how the service's processes are doing; to be called at any moment."""
        return []

    def restarts(self) -> int:
        """Return how many processes of the service died and were replaced."""
        return 0

    def pause(self) -> None:
        """Produce nothing more until ``resume``; the item in progress may finish."""

    def resume(self) -> None:
        """Go on producing after ``pause`` or a limit."""

    def limit(self, num_items: int | None) -> None:
        """Know that the loader hands out so many items and then stops for a while."""


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service whose own state is part of a loader's snapshot.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> class Longer(CheckpointableReadingServiceInterface):
    ...     def __init__(self, size):
    ...         self.size = size
    ...     async def initialize(self, datapipe):
    ...         return datapipe.header(self.size)
    ...     def checkpoint(self):
    ...         return bytes([self.size])
    ...     async def restore(self, datapipe, serialized_state):
    ...         self.size = serialized_state[0]
    ...         return await self.initialize(datapipe)
    >>> pipe = IterableWrapper(range(9))
    >>> with DataLoader2(pipe, reading_service=Longer(4)) as loader:
    ...     state = loader.state_dict()
    >>> with DataLoader2(pipe, reading_service=Longer(2)) as loader:
    ...     list(loader)
    [0, 1]
    >>> resumed = DataLoader2(pipe, reading_service=Longer(2))
    >>> resumed.load_state_dict(state)
    >>> with resumed:
    ...     list(resumed)
    [0, 1, 2, 3]
    """

    def checkpoint(self) -> bytes:
        """Return the service's state; called at any moment, and must not wait."""
        raise NotImplementedError(f"{type(self).__qualname__} must define checkpoint")

    @either_colour
    async def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Adapt the graph as ``initialize`` does, going on from a checkpoint."""
        raise NotImplementedError(f"{type(self).__qualname__} must define restore")

    def check(self, serialized_state: bytes) -> None:
        """Raise an error if ``restore`` could not go on from a checkpoint; change nothing."""
