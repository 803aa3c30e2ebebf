"""A pipe that remembers something.

This file is about ``Pipe``: a class with one method, ``run``, and a ``State`` that says where a run
is.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any, TypeVar

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.running.cursor_forms import Fields
from asyncloader.datapipes.running.cursor_forms import State as Taken
from asyncloader.datapipes.running.run import CountedPass, Edge, Pass

T_co = TypeVar("T_co", covariant=True)


class Pipe(IterDataPipe[T_co]):
    """A pipe that remembers items, or something about them, and resumes exactly where it was.

    Write ``run``, a generator that reads ``source``, which is the edge to ``self.source``, by
    ``for``; or ``arun``, an async generator that reads it by ``async for``. What it remembers from
    one item to the next is in ``state``, an object of the class ``State``, and nowhere else.

    A run begins where its state says: at item ``state.taken`` of the source, in a new epoch at 0.
    ``source.again(positions)`` gives items before that again.

    >>> class EveryOther(Pipe):
    ...     def __init__(self, source):
    ...         self.source = source
    ...     def run(self, source, state):
    ...         for number, item in enumerate(source, state.taken):
    ...             if number % 2 == 0:
    ...                 yield item
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(EveryOther(IterableWrapper("abcde")))
    ['a', 'c', 'e']
    """

    State: type[Fields] | None = Taken

    def run(self, source: Any, state: Any) -> Iterator[T_co]:
        """Read the source from where the state says, and yield what is made of it."""
        raise NotImplementedError

    def arun(self, source: Any, state: Any) -> AsyncIterator[T_co]:
        """Do the same as ``run`` on an event loop."""
        raise NotImplementedError

    def new_state(self) -> Any:
        """Return the state with which a run begins at the first item."""
        assert self.State is not None
        return self.State()

    def new_pass(self, edge: Edge[Any]) -> Pass[T_co]:
        return CountedPass(edge, state=self.new_state())

    def is_async(self) -> bool:
        return type(self).arun is not Pipe.arun or super().is_async()
