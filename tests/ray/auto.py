"""Another number of actors, when a test wants it.

This file is about ``change``, which does what a loader does that chooses its number by measuring.
"""

from __future__ import annotations

from typing import Any

from asyncloader import DataLoader2, RayReadingService


class Untuned(RayReadingService):
    """Chooses nothing by itself, so that only the test changes its number."""

    def note(self, window: Any) -> None:
        """Ignore what was measured."""


def change(loader: DataLoader2[Any], workers: int) -> None:
    """Do what the loader does when it has measured that another number is better."""
    loader.reading_service.resume_with(workers)
    loader._engine.change_settings()
