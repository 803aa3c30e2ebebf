"""How far a graph runs ahead.

This file is about ``PrefetchPolicy``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncloader.adapters.base import Adapter, appended
from asyncloader.datapipes.naming import stage_name
from asyncloader.graph.edit import replace_dp
from asyncloader.graph.kinds import functional_name, is_splitter
from asyncloader.graph.walk import Wiring, breadth_first, traverse_dps


class PrefetchPolicy(Adapter):
    """Set how many items the graph's ``prefetch`` pipes hold ready, and add such pipes.

    ``buffer_size`` counts for every prefetch that is in the graph; if there is none,
    one is added at the end. ``after`` names pipes by their fluent names, and says how
    many items are held ready right after each of them: ``after={"open_files": 8}``.

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
        self, buffer_size: int | None = None, *, after: Mapping[str, int] | None = None
    ) -> None:
        if buffer_size is None and not after:
            raise ValueError("give a buffer_size, or after={name of a pipe: buffer size}")
        self.buffer_size = None if buffer_size is None else _checked(buffer_size)
        self.after = {name: _checked(count) for name, count in (after or {}).items()}

    def __call__(self, datapipe: Any) -> Any:
        pipes = breadth_first(datapipe)
        for name, count in self.after.items():
            named = [pipe for pipe in pipes if functional_name(pipe) == name]
            if not named:
                raise ValueError(f"after names {name!r}, but no pipe of the graph is called so")
            for pipe in named:
                datapipe = _held_after(datapipe, pipe, count)
        return datapipe if self.buffer_size is None else self._set_others(datapipe)

    def _set_others(self, datapipe: Any) -> Any:
        wiring = Wiring(datapipe)
        prefetches = [pipe for pipe in wiring.pipes if _is_prefetch(pipe)]
        if not prefetches:
            return appended(datapipe, "prefetch", self.buffer_size)
        for pipe in prefetches:
            if functional_name(wiring.sources(pipe)[0]) not in self.after:
                pipe.buffer_size = self.buffer_size
        return datapipe


def _held_after(datapipe: Any, pipe: Any, count: int) -> Any:
    if is_splitter(pipe):
        raise ValueError(f"a prefetch cannot follow {stage_name(pipe)} itself, only its branches")
    readers = Wiring(datapipe).readers(pipe)
    if readers and all(_is_prefetch(reader) for reader in readers):
        for reader in readers:
            reader.buffer_size = count
        return datapipe
    graph = replace_dp(traverse_dps(datapipe), pipe, appended(pipe, "prefetch", count))
    ((end, _),) = graph.values()
    return end


def _is_prefetch(pipe: Any) -> bool:
    return functional_name(pipe) == "prefetch"


def _checked(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"a buffer size must be an integer, got {type(count).__name__}")
    if count < 1:
        raise ValueError(f"a buffer size must be at least 1, got {count}")
    return count
