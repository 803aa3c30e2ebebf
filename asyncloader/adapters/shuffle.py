"""Switching shuffling on and off.

This file is about ``Shuffle``.
"""

from __future__ import annotations

from typing import Any

from asyncloader.adapters.base import Adapter
from asyncloader.graph.settings import apply_shuffle_settings


class Shuffle(Adapter):
    """Let every shuffler of the graph shuffle, or none of them, or leave them (None).

    If there is none to switch on, one is added at the end, with a warning.
    """

    def __init__(self, enable: bool | None = True) -> None:
        self.enable = enable

    def __call__(self, datapipe: Any) -> Any:
        return apply_shuffle_settings(datapipe, shuffle=self.enable)
