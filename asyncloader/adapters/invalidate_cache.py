"""Making cached entries again.

This file is about ``InvalidateCache``.
"""

from __future__ import annotations

from typing import Any

from asyncloader.adapters.base import Adapter
from asyncloader.datapipes.pipe.kinds import can
from asyncloader.graph.walk import breadth_first


class InvalidateCache(Adapter):
    """Let every caching pipe of the graph drop its entries, so that they are made again.

    A caching pipe is one with an ``invalidate`` method.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> calls = []
    >>> def make(name):
    ...     calls.append(name)
    ...     return name, b"content"
    >>> folder = tempfile.TemporaryDirectory()
    >>> names = IterableWrapper(["a"]).on_disk_cache(Path(folder.name).joinpath)
    >>> paths = names.map(make).end_caching("wb", same_filepath_fn=True)
    >>> with folder:
    ...     for adapters in ([], [], [InvalidateCache()]):
    ...         with DataLoader2(paths, adapters) as loader:
    ...             _ = list(loader)
    >>> calls
    ['a', 'a']
    """

    def __call__(self, datapipe: Any) -> Any:
        for pipe in breadth_first(datapipe):
            if can(pipe, "invalidate"):
                pipe.invalidate()
        return datapipe
