"""Names of shards.

This file is about shard_expand: ``"data-{000..099}.tar"`` stands for a hundred names.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.files.text import after
from asyncloader.datapipes.patterns.expanding import Expander
from asyncloader.datapipes.pipe.arguments import iterable_source
from asyncloader.datapipes.pipe.base import functional_datapipe

_RANGE = re.compile(r"\{([0-9]+)\.\.([0-9]+)\}")


@functional_datapipe("shard_expand")
class ShardExpander(Expander[str]):
    """Yield the names that a source's patterns stand for.

    ``{0..9}`` counts up, both ends included; ``{000..099}`` keeps the zeros in front.
    Where there are several ranges the last counts fastest.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["ds-{08..10}.tar"]).shard_expand())
    ['ds-08.tar', 'ds-09.tar', 'ds-10.tar']
    """

    def __init__(self, source_datapipe: Iterable[str]) -> None:
        self.source = iterable_source(source_datapipe)

    def parts(self, item: Any, skip: int = 0) -> Generator[str, None, None]:
        if not isinstance(item, str):
            raise TypeError(f"{self!r} reads names of shards, got {type(item).__name__}")
        yield from after(expanded(item), skip)


def expanded(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for; itself if it has no range."""
    found = _RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    before, rest = pattern[: found.start()], pattern[found.end() :]
    low, high = found.groups()
    width = _width(pattern, low, high)
    for number in range(int(low), int(high) + 1):
        for end in expanded(rest):
            yield f"{before}{number:0{width}d}{end}"


def _width(pattern: str, low: str, high: str) -> int:
    if len(low) > len(high):
        raise ValueError(f"{pattern!r}: the low bound {low} must be shorter than {high}")
    if len(low) < len(high) and low.startswith("0") and low != "0":
        raise ValueError(f"{pattern!r}: the low bound {low} must not start with 0, or be as long")
    if int(low) > int(high):
        raise ValueError(f"{pattern!r} has a bad range: {low} is greater than {high}")
    return len(high) if low.startswith("0") and len(low) == len(high) else 0
