"""As many items on every rank.

This file is about ``FullSync``.
"""

from __future__ import annotations

from typing import Any

from asyncloader.adapters.base import Adapter, appended
from asyncloader.datapipes.pipe.arguments import checked_seconds
from asyncloader.datapipes.pipe.kinds import functional_name


class FullSync(Adapter):
    """End the graph with ``fullsync``; one that ends so already is left.

    ``timeout`` is how many seconds a rank waits for the others.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> FullSync(60)(IterableWrapper(range(4)).sharding_filter())
    fullsync(60)
    """

    def __init__(self, timeout: float = 1800) -> None:
        self.timeout = checked_seconds("timeout", timeout)

    def __call__(self, datapipe: Any) -> Any:
        if functional_name(datapipe) == "fullsync":
            return datapipe
        return appended(datapipe, "fullsync", self.timeout)
