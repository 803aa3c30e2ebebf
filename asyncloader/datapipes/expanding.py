"""Many items out of one.

This file is about ``Expander``, the base of pipes that read their items out of
another's, as lines out of files and members out of archives: which item of the source
a pass is in, and how far inside.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.expansion import Expansion

T = TypeVar("T")


class Expander(IterDataPipe[T]):
    """A pipe that yields the parts of each item of its source, one item after another."""

    source: Iterable[Any]

    def parts(self, item: Any, skip: int = 0) -> Generator[T, None, None]:
        """Yield the parts of an item in order, without the first ``skip``.

        What it opens it closes, also when it is closed in between.
        """
        raise NotImplementedError

    def new_pass(self) -> ExpansionPass[T]:
        return ExpansionPass(self)


@dataclass
class ExpansionPass(Expansion[T]):
    """One pass over an Expander. What was yielded of the item it goes on in is passed over."""

    pipe: Expander[T]

    def __iter__(self) -> Iterator[T]:
        for item in self.begin():
            self.offset, self._known = self._known, 0
            with contextlib.closing(self.pipe.parts(item, self.offset)) as parts:
                del item
                for part in parts:
                    self.offset += 1
                    yield part
                    # The part just yielded is not kept alive here while the next is made.
                    del part
            self.finish()
