"""A splitter and its branches.

This file is about what fork, demux and their like have in common. A splitter is one
pipe that reads the source, and each of its branches is a pipe that reads the
splitter:

    source ──▶ splitter ──┬──▶ branch 0
                          └──▶ branch 1

All branches share a pass over the source. What one branch draws for another waits
in that one's queue. An iterator of a branch joins the pass that is under way if the
branch is not in it yet; otherwise it begins a new one, and the iterators of the
pass before are invalid. Branches may be read in different threads.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from asyncloader.datapipes.branches.split_pass import SplitPass, split_form
from asyncloader.datapipes.going_on.cursors import Cursor, Cursors, number_of, put_cursor
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.patterns.rereading import add_cursors
from asyncloader.datapipes.pipe.arguments import checked_count, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.edges import edges_of
from asyncloader.datapipes.pipe.function import blame, itself
from asyncloader.datapipes.pipe.run import Pass, Run, RunTree, own_tree_of
from asyncloader.datapipes.pipe.upstream import pipes_from

T = TypeVar("T")


class Branch(IterDataPipe[T]):
    """One of the streams that a splitter makes of its source."""

    def __init__(self, splitter: Splitter[T], index: int) -> None:
        self.source = splitter
        self.index = index

    def __len__(self) -> int:
        return self.source.branch_length(self.index)

    @property
    def copied(self) -> Callable[[Any], Any]:
        """What the branch does to an item that it hands out."""
        return self.source.copied

    def new_pass(self, run: Run[Any]) -> BranchPass[T]:
        return BranchPass(run)

    def cursor_form(self) -> Form:
        return split_form(self.source.num_instances, number_of(self.source), self.index)

    def split_in(self, tree: RunTree) -> SplitPass[T] | None:
        """Return the latest pass that the branches share, if there was one."""
        found: SplitPass[T] | None = tree.latest_pass(self.source)
        return found

    def joins_others(self, tree: RunTree) -> bool:
        """Whether the next pass is one in which other branches have drawn items already."""
        split = self.split_in(tree)
        return split is not None and split.is_open_to(self.index)

    def __repr__(self) -> str:
        return f"{stage_name(self.source)}[{self.index}]"


@dataclass
class BranchPass(Pass[T]):
    """A branch's part in the pass that it shares with its sisters."""

    marks = ()

    _split: SplitPass[T] | None = field(default=None, init=False, repr=False)

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self._split = split = self._joined(goes_on=True)
        return split.expect(self.pipe.index, position, cursors)

    def __iter__(self) -> Iterator[T]:
        split = self._joined() if self._split is None else self._split
        return BranchIterator(split, self.pipe.index, self.pipe.copied)

    def _joined(self, *, goes_on: bool = False) -> SplitPass[T]:
        splitter = self.pipe.source
        # The branches of a splitter that is used by itself are iterated one by one.
        tree = self.run.tree if self.run.tree.has(splitter) else own_tree_of(splitter)
        joined: SplitPass[T] = splitter.join(tree, self.pipe.index, goes_on=goes_on)
        return joined

    def cursor(self) -> Cursor:
        split = self.pipe.split_in(self.run.tree)
        cursor: Cursor = {} if split is None else split.cursor_of(self.pipe.index)
        return cursor

    def put_above(self, into: Cursors) -> None:
        """Add nothing: what is above is part of the branch's own cursor."""


@dataclass
class OutlastingPass(Pass[T]):
    """A pass that goes on where a source of it has ended, and needs no more of its branches."""

    _ended_branches: Cursors = field(default_factory=dict, init=False, repr=False)

    def note_end(self, source: Run[Any]) -> None:
        """Say that a source has ended, right after its last item."""
        self._ended_branches |= _branches_read_by(source)

    def put_above(self, into: Cursors) -> None:
        """Add where the branches stand through which the sources were read that have ended.

        What is read now adds its own before: it may read the same branches once more.
        """
        add_cursors(self._ended_branches, into)


def _branches_read_by(source: Run[Any]) -> Cursors:
    """Return the cursors of the branches through which a source is read, as they stand."""
    into: Cursors = {}
    waiting = [source.pipe]
    while waiting:
        pipe = waiting.pop()
        if isinstance(pipe, Branch):
            split = pipe.split_in(source.tree)
            if split is not None:
                put_cursor(pipe, split.cursor_of(pipe.index), into)
        else:
            waiting += edges_of(pipe)
    return into


class BranchIterator(Iterator[T]):
    """Reads a branch's share of one pass; dropped or closed, it leaves the pass."""

    def __init__(self, split: SplitPass[T], index: int, copied: Callable[[T], T]) -> None:
        self.split = split
        self.index = index
        self.copied = copied

    def __next__(self) -> T:
        item = self.split.next_of(self.index)
        if self.copied is itself:
            return item
        try:
            return self.copied(item)
        except BaseException as error:
            blame(error, self.split.split)
            raise

    def close(self) -> None:
        """Take no more; the pass is over when no branch takes any."""
        self.split.leave(self.index)

    def __del__(self) -> None:
        self.close()


class Splitter(IterDataPipe[T]):
    """Reads the source for all branches."""

    #: What a branch does to an item that it hands out.
    copied: Callable[[Any], Any] = staticmethod(itself)

    def is_splitter(self) -> bool:
        return True

    def __init__(self, datapipe: Iterable[T], num_instances: int, buffer_size: int) -> None:
        self.source = iterable_source(datapipe)
        self.num_instances = checked_count("num_instances", num_instances, at_least=1)
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=-1)
        self._joining = threading.Lock()
        if buffer_size == -1:
            warnings.warn(
                f"{self!r} holds as many items as one branch is ahead of another, without bound",
                stacklevel=5,
            )

    def branches(self) -> list[Branch[T]]:
        """Return a pipe for each branch."""
        return [Branch(self, index) for index in range(self.num_instances)]

    def join(self, tree: RunTree, index: int, *, goes_on: bool = False) -> SplitPass[T]:
        """Return the pass under way, now with this branch in it, or a new pass.

        A branch that goes on where it was may be one that had left then.
        """
        with self._joining:
            split: SplitPass[T] | None = tree.latest_pass(self)
            if split is None or not split.join(index, goes_on=goes_on):
                if split is not None:
                    split.invalidate()
                split = SplitPass(Run(self, tree))
                tree.note_pass(self, split)
                split.join(index, goes_on=goes_on)
            return split

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function that a split needs, if it needs one."""
        return itself

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        """Return the branches that get the item with this number."""
        raise NotImplementedError

    def held(self, lengths: Iterable[int]) -> int:
        """Return what ``buffer_size`` bounds: the items that wait for the other branches."""
        return sum(lengths)

    def branches_above(self) -> list[Branch[Any]]:
        """Return the branches of other splitters that the source is made of."""
        above = pipes_from(self.source, to_splitters=True)
        return [pipe for pipe in above if isinstance(pipe, Branch)]

    def branch_length(self, index: int) -> int:
        """Return how many items a branch has, or raise TypeError."""
        raise TypeError(f"{self!r} cannot say how many items each branch gets")

    def __iter__(self) -> Iterator[T]:
        raise TypeError(f"{self!r} is read through its branches: iterate those")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_joining"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._joining = threading.Lock()
