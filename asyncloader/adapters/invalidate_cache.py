"""Making cached entries again.

This file is about ``InvalidateCache``.
"""

from __future__ import annotations

from typing import Any

from asyncloader.adapters.base import Adapter
from asyncloader.graph.kinds import can
from asyncloader.graph.walk import breadth_first


class InvalidateCache(Adapter):
    """Let every caching pipe of the graph drop its entries, so that they are made again.

    A caching pipe is one with an ``invalidate`` method.
    """

    def __call__(self, datapipe: Any) -> Any:
        for pipe in breadth_first(datapipe):
            if can(pipe, "invalidate"):
                pipe.invalidate()
        return datapipe
