"""Another loader, and how it is opened on a job.

This file is about ``Peer``. Every peer is set up as its documentation says it is fastest:
workers that stay, batches made where the items are, queues that are long enough, its own
shared memory where it has some. What is opened can be iterated again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.environments import HERE, Environment
from tests.benchmarks.job import Job

Opener = Callable[[Job], Iterable[Any]]


@dataclass(frozen=True)
class Peer:
    """A loader that is not ours, under the name that the tables give it."""

    name: str
    open: Opener
    needs: tuple[str, ...]
    environment: Environment = HERE

    def case(self, measure: Callable[..., float], *args: Any) -> Case:
        """Return the case that calls ``measure`` with how to open the peer, and ``args``."""
        return Case(self.name, measure, self.needs, (self.open, *args), self.environment)


def cases(peers: Iterable[Peer], measure: Callable[..., float], *args: Any) -> list[Case]:
    """Return the same case for several peers."""
    return [peer.case(measure, *args) for peer in peers]
