"""Workers that stay for the next loader.

This file is about ``standing``: a service that a test gives to one fresh loader of a graph
after another, and whose processes are started once, because that is what takes time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any, Self

from asyncloader import MultiProcessingReadingService
from asyncloader.services.on_workers import WorkersReadingService


class Staying(WorkersReadingService):
    """Runs every loader's graph, always the same, in the workers of the first."""

    _root: Any = None

    def __deepcopy__(self, memo: Any) -> Self:
        # Loaders take this very service, with its workers, and not a copy.
        return self

    async def initialize(self, datapipe: Any) -> Any:
        if self._root is None:
            self._root = await super().initialize(datapipe)
        return self._root

    async def finalize(self) -> None:
        """Keep the workers for the next loader."""

    async def dismiss(self) -> None:
        """End the workers."""
        await super().finalize()


class Standing(Staying, MultiProcessingReadingService):
    """The same in processes."""


@contextlib.contextmanager
def standing(workers: int, **settings: Any) -> Iterator[Standing]:
    """A service for loader after loader of one graph; its workers end with the block."""
    service = Standing(workers, **settings)
    try:
        yield service
    finally:
        asyncio.run(service.dismiss())
