"""Switching shuffling on and off.

This file is about ``Shuffle``.
"""

from __future__ import annotations

from typing import Any

from asyncloader.adapters.base import Adapter
from asyncloader.graph.settings import apply_shuffle_settings


class Shuffle(Adapter):
    """Switch every shuffler of the graph on or off, or leave them all as they are (None).

    If there is no shuffler to switch on, one is added at the end, with a warning.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper(range(4)).shuffle(), Shuffle(False)) as loader:
    ...     list(loader)
    [0, 1, 2, 3]
    """

    def __init__(self, enable: bool | None = True) -> None:
        if enable not in (True, False, None):
            raise ValueError(f"enable must be True, False or None, got {enable!r}")
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        return apply_shuffle_settings(datapipe, shuffle=self.enable)
