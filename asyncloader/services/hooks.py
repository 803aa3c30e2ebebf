"""What a loader asks of a service besides the moments of its life.

This file is about ``ServiceHooks``. Our own services have them as methods. A user's service need
not know of them, and may have attributes of these names: ``hooks_of`` answers in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.datapipes.running.traits import is_of_package
from asyncloader.graph.fingerprint import Fingerprint
from asyncloader.services.base import ReadingServiceInterface
from asyncloader.tuning import Window
from asyncloader.workers.worker_stats import WorkerStats


class ServiceHooks:
    """What a loader asks of a service; the answers here are of one that runs nothing itself."""

    async def verify(self, graph: Fingerprint, workers: int, *, in_order: bool) -> None:
        """Check what must be the same on all ranks, after all services are initialized.

        That is the ``graph`` as it was before any service changed it, how many workers run it, and
        whether items come in the same order every time.
        An error keeps the loader from starting, as if ``initialize`` had raised it.
        """

    def expect_start(self) -> None:
        """Begin what takes long at a start, in the background: a loader was made that will start.

        Must not block, and must not fail: the loader may never be used.
        """

    async def decline(self) -> None:
        """Tell those who start together that this loader cannot; ``initialize`` is not called."""

    def needs_finalize(self) -> bool:
        """Whether the service holds something that only ``finalize`` releases.

        Then a loader that is dropped without a shutdown calls it, with a warning.
        """
        return _defines_finalize(self)

    def length(self, datapipe: Any) -> int:
        """Return how many items an epoch of the graph has; TypeError if that is unknown."""
        return len(self.share(datapipe))

    def graph_changer(self) -> str:
        """Return the name of what may change the graph when the loader starts, or ""."""
        return ""

    def share(self, datapipe: Any) -> Any:
        """Return a graph with as many items as this rank's share of the graph."""
        return datapipe

    def worker_count(self) -> int:
        """Return in how many worker processes the graph runs."""
        return 0

    def is_in_order(self) -> bool:
        """Whether items come in the same order every time."""
        return True

    def rank(self) -> tuple[int, int]:
        """Return which rank this is, and how many ranks divide the items among them."""
        return 0, 1

    def meets_others(self) -> bool:
        """Whether ranks agree with one another, also those that load the same items."""
        return False

    def pads(self) -> bool:
        """Whether ranks repeat items so that all have as many."""
        return False

    def own_items(self) -> int | None:
        """Return how many items of the epoch come before padding; None if that is not known."""
        return None

    def worker_stats(self) -> list[WorkerStats]:
        """Return how the service's processes are doing; to be called at any moment."""
        return []

    def restarts(self) -> int:
        """Return how many processes of the service died and were replaced."""
        return 0

    def pause(self) -> None:
        """Produce nothing more until ``resume``; an item in progress may finish."""

    def resume(self) -> None:
        """Produce items again, after ``pause`` or a limit."""

    def seed_rest(self) -> None:
        """Give pipes that stay with the loader the seeds that were drawn for them in this epoch.

        A service that divides the graph among processes draws shared seeds for all of it.
        """

    def limit(self, num_items: int | None) -> None:
        """Note that the loader yields so many items and then stops for a while."""

    def adjustable(self) -> Adjustable | None:
        """Return what can change the number of workers while the loader is used, or None."""
        return None

    def begins_and_ends_at_once(self) -> bool:
        """Whether nothing is done for an epoch, at its beginning or its end, that needs a loop."""
        return False


class Adjustable(Protocol):
    """A service that chooses its number of workers, as the loader sees it."""

    #: Whether the rest of an epoch can run with another number, in the same order.
    is_elastic: bool
    #: Whether it chooses the number of workers, and not only how far they run ahead.
    chooses_workers: bool

    def running(self) -> int:
        """Return how many workers run now."""
        ...

    def note(self, window: Window) -> None:
        """Note what was measured in a stretch of time."""
        ...

    def wants_change(self) -> bool:
        """Whether other settings than the present ones should be used."""
        ...

    async def prepare(self) -> None:
        """Start what those settings need, beside what runs now."""
        ...

    def drain(self) -> None:
        """Let the workers send what they work at, and no more: others are to take over."""
        ...

    async def adopt(self) -> Any | None:
        """Change to the settings, between epochs; return the graph to iterate if it is another."""
        ...

    def resume_with(self, workers: int) -> None:
        """Use so many workers first, because a state was taken with them."""
        ...

    def fitted(self, cursors: Cursors) -> Cursors:
        """Return cursors of any number of workers for those that run now."""
        ...

    def portable(self, cursors: Cursors, workers: int) -> tuple[Cursors, int]:
        """Return cursors that any number of workers can resume, and with how many they go."""
        ...

    def choices(self) -> list[str]:
        """Return what was chosen, and why, in words."""
        ...


class HooksOfUsers(ServiceHooks):
    """The answers of a user's service, which may have some of these methods."""

    def __init__(self, service: Any) -> None:
        self.service = service

    def needs_finalize(self) -> bool:
        return _defines_finalize(self.service)

    def length(self, datapipe: Any) -> int:
        return int(self._method("length", len)(datapipe))

    def pause(self) -> None:
        self._method("pause", super().pause)()

    def resume(self) -> None:
        self._method("resume", super().resume)()

    def limit(self, num_items: int | None) -> None:
        self._method("limit", super().limit)(num_items)

    def _method(self, name: str, default: Callable[..., Any]) -> Callable[..., Any]:
        # An attribute of this name is the user's own affair.
        is_defined = callable(getattr(type(self.service), name, None))
        return getattr(self.service, name) if is_defined else default


def hooks_of(service: ReadingServiceInterface) -> ServiceHooks:
    """Return what answers a loader for a service."""
    return service if isinstance(service, ServiceHooks) else HooksOfUsers(service)


def counts_itself(service: ReadingServiceInterface) -> bool:
    """Whether a service knows the length of a graph better than the graph does."""
    return callable(_defined(service, "length"))


def graph_changer(service: ReadingServiceInterface) -> str:
    """Return the name of what may change a service's graph when the loader starts, or "".

    If there is something, the length is that of the graph that ``initialize`` returned. A user's
    service that counts by itself is believed.
    """
    kind = type(service)
    counts = [_defined(service, "length"), _defined(service, "share")]
    if any(callable(each) and not is_of_package(each) for each in counts):
        return ""
    if not is_of_package(kind.initialize):
        return f"{kind.__qualname__}.initialize"
    return service.graph_changer() if isinstance(service, ServiceHooks) else ""


def _defines_finalize(service: Any) -> bool:
    return type(service).finalize is not ReadingServiceInterface.finalize


def _defined(service: ReadingServiceInterface, name: str) -> Any:
    """Return a class's method in place of that of the base, or None."""
    method = getattr(type(service), name, None)
    return None if method is getattr(ServiceHooks, name) else method
