"""Actors that stay for the next loader.

This file is about ``standing_actors``: a service that a test gives to one fresh loader of a graph
after another, and whose actors are started once, because that is what takes time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

from asyncloader import RayReadingService
from tests.standing import Staying


class StandingActors(Staying, RayReadingService):
    """Runs every loader's graph, always the same, in the actors of the first."""


@contextlib.contextmanager
def standing_actors(workers: int, **settings: Any) -> Iterator[StandingActors]:
    """A service for loader after loader of one graph; its actors end with the block."""
    service = StandingActors(workers, **settings)
    try:
        yield service
    finally:
        asyncio.run(service.dismiss())
