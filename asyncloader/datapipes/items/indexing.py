"""Items that know their number.

This file is about add_index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.pipe.arguments import checked_key, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.run import Pass, Run


@functional_datapipe("add_index")
class IndexAdder(IterDataPipe[dict[Any, Any]]):
    """Yield copies of dicts that have their number in the stream under ``index_name``.

    An item that is no dict is a NotImplementedError.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([{"a": 1}, {"a": 5}]).add_index("order"))
    [{'a': 1, 'order': 0}, {'a': 5, 'order': 1}]
    """

    def __init__(
        self, source_datapipe: Iterable[dict[Any, Any]], index_name: str = "index"
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.index_name = checked_key("index_name", index_name)

    def __len__(self) -> int:
        return len(self.source)

    def new_pass(self, run: Run[Any]) -> IndexPass:
        return IndexPass(run)


@dataclass
class IndexPass(Pass[dict[Any, Any]]):
    """One pass over an IndexAdder, which knows the next index."""

    marks = ()

    yielded: int = 0

    def __iter__(self) -> Iterator[dict[Any, Any]]:
        for item in self.source.begin():
            if not isinstance(item, dict):
                raise NotImplementedError(
                    f"{self.pipe!r} adds an index to dicts, got {type(item).__name__}; use"
                    " enumerate for other items"
                )
            index = self.yielded
            self.yielded += 1
            yield {**item, self.pipe.index_name: index}

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.yielded = position
        self.source.resume(position, cursors)
        return 0
