"""Adapters that change a setting of every pipe that has it.

This file is about ``Shuffle``, which switches shuffling on or off, ``CacheTimeout``, how long
to wait for a cache entry that another process is making, and ``InvalidateCache``, which has
cached entries made again.
"""

from __future__ import annotations

from numbers import Real
from typing import Any

from asyncloader.adapters.base import Adapter
from asyncloader.datapipes.running.traits import can
from asyncloader.graph.settings import apply_shuffle_settings
from asyncloader.graph.walk import breadth_first


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


class CacheTimeout(Adapter):
    """Let every caching pipe wait ``timeout`` seconds for an entry that another process makes.

    A caching pipe is one with a ``set_timeout`` method, such as ``end_caching``.

    >>> import tempfile
    >>> from pathlib import Path
    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> folder = tempfile.TemporaryDirectory()
    >>> names = IterableWrapper(["a"]).on_disk_cache(Path(folder.name).joinpath)
    >>> paths = names.map(lambda name: (name, b"content")).end_caching("wb", same_filepath_fn=True)
    >>> with folder, DataLoader2(paths, CacheTimeout(5)) as loader:
    ...     [Path(path).name for path in loader]
    ['a']
    """

    def __init__(self, timeout: float | None = None) -> None:
        if not _is_duration(timeout):
            raise ValueError(f"timeout must be a number of seconds, at least 0, got {timeout!r}")
        self.timeout = timeout

    def __call__(self, datapipe: Any) -> Any:
        for pipe in breadth_first(datapipe):
            if can(pipe, "set_timeout"):
                pipe.set_timeout(self.timeout)
        return datapipe


class InvalidateCache(Adapter):
    """Let every caching pipe of the graph delete its entries, so that they are made again.

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


def _is_duration(timeout: Any) -> bool:
    is_number = isinstance(timeout, Real) and not isinstance(timeout, bool)
    # A NaN compares as false.
    return is_number and timeout >= 0
