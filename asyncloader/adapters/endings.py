"""Adapters that put a pipe at the end of a graph.

This file is about ``FullSync``, ``PinMemory`` and ``PrefetchPolicy``, which can also put
``prefetch`` pipes elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncloader.adapters.base import Adapter, appended, end_on_host
from asyncloader.arguments import checked_count, checked_mapping, checked_seconds
from asyncloader.datapipes.base import is_map_pipe
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import (
    has_name,
    is_fullsync,
    is_pinned,
    is_prefetch,
    is_splitter,
)
from asyncloader.graph.edit import replaced
from asyncloader.graph.walk import Graph, breadth_first


class FullSync(Adapter):
    """End the graph with ``fullsync``, unless it ends with one already.

    ``timeout`` is how many seconds a rank waits for the others.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> FullSync(60)(IterableWrapper(range(4)).sharding_filter())
    fullsync(60)
    """

    def __init__(self, timeout: float = 1800) -> None:
        self.timeout = checked_seconds("timeout", timeout)

    def __call__(self, datapipe: Any) -> Any:
        if is_fullsync(end_on_host(datapipe)):
            return datapipe
        return appended(datapipe, "fullsync", self.timeout)


class PinMemory(Adapter):
    """End the graph with ``pin_memory`` for a device, unless it ends with that or ``to_device``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> PinMemory("cuda")(IterableWrapper(range(4)).batch(2))
    pin_memory('cuda')
    """

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def __call__(self, datapipe: Any) -> Any:
        if is_pinned(datapipe):
            return datapipe
        return appended(datapipe, "pin_memory", self.device)


class PrefetchPolicy(Adapter):
    """Set how much the graph's ``prefetch`` pipes hold ready, and add such pipes.

    ``buffer_size`` is set for every prefetch in the graph; if there is none, one is added at
    the end. ``after`` names pipes by their fluent names, and says how many items are held
    ready right after each of them: ``after={"open_files": 8}``. ``buffer_bytes`` is set for
    every prefetch: it does not read ahead while it holds that much.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> from asyncloader.graph import to_text
    >>> pipe = IterableWrapper(range(4)).map(str).batch(2)
    >>> print(to_text(PrefetchPolicy(2, after={"map": 8})(pipe)))
    IterableWrapper()
    map(str)
    prefetch(8)
    batch(2)
    """

    def __init__(
        self,
        buffer_size: int | None = None,
        *,
        buffer_bytes: int | None = None,
        after: Mapping[str, int] | None = None,
    ) -> None:
        if buffer_size is None and buffer_bytes is None and not after:
            raise ValueError(
                "give a buffer_size, buffer_bytes, or after={name of a pipe: buffer size}"
            )
        self.buffer_size = None if buffer_size is None else _size("buffer_size", buffer_size)
        self.buffer_bytes = None if buffer_bytes is None else _size("buffer_bytes", buffer_bytes)
        sizes = checked_mapping("after", after or {})
        self.after = {name: _size(f"after[{name!r}]", size) for name, size in sizes.items()}

    def __call__(self, datapipe: Any) -> Any:
        pipes = breadth_first(datapipe)
        for name, count in self.after.items():
            for pipe in _named(name, pipes):
                datapipe = _held_after(datapipe, pipe, count)
        if not any(map(is_prefetch, breadth_first(datapipe))):
            datapipe = appended(datapipe, "prefetch")
        self._set(Graph(datapipe))
        return datapipe

    def _set(self, graph: Graph) -> None:
        for pipe in filter(is_prefetch, graph.pipes):
            is_set = has_name(graph.sources(pipe)[0], *self.after)
            if self.buffer_size is not None and not is_set:
                pipe.buffer_size = self.buffer_size
            if self.buffer_bytes is not None:
                pipe.buffer_bytes = self.buffer_bytes


def _named(name: str, pipes: Sequence[Any]) -> list[Any]:
    """Return the pipes with that fluent name that a prefetch can follow."""
    named = [pipe for pipe in pipes if has_name(pipe, name)]
    if not named:
        raise ValueError(f"after names {name!r}, but no pipe of the graph has that fluent name")
    streams = [pipe for pipe in named if not is_map_pipe(pipe)]
    if not streams:
        raise TypeError(
            f"after names {name!r}, but {stage_name(named[0])} is a MapDataPipe, and a prefetch can"
            " only follow an IterDataPipe; name to_iter_datapipe, which makes it one, or a pipe"
            " after that"
        )
    return streams


def _held_after(datapipe: Any, pipe: Any, count: int) -> Any:
    if is_splitter(pipe):
        raise ValueError(f"a prefetch cannot follow {stage_name(pipe)} itself, only its branches")
    readers = Graph(datapipe).readers(pipe)
    if readers and all(is_prefetch(reader) for reader in readers):
        for reader in readers:
            reader.buffer_size = count
        return datapipe
    return replaced(datapipe, pipe, appended(pipe, "prefetch", count))


def _size(name: str, value: int) -> int:
    return checked_count(name, value, at_least=1)
