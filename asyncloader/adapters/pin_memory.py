"""Items in pinned memory.

This file is about ``PinMemory``.
"""

from __future__ import annotations

from typing import Any

from asyncloader.adapters.base import Adapter, appended
from asyncloader.datapipes.pipe.kinds import functional_name


class PinMemory(Adapter):
    """End the graph with ``pin_memory``, for a device; one that ends so already is left.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> PinMemory("cuda")(IterableWrapper(range(4)).batch(2))
    pin_memory('cuda')
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def __call__(self, datapipe: Any) -> Any:
        if functional_name(datapipe) == "pin_memory":
            return datapipe
        return appended(datapipe, "pin_memory", self.device)
