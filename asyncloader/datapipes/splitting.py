"""One source, several streams.

This file is about fork, demux, round_robin_demux and unzip. A splitter is one pipe that reads
the source, and each of its branches is a pipe that reads the splitter:

    source ──▶ splitter ──┬──▶ branch 0
                          └──▶ branch 1

All branches share a pass over the source. Items that one branch draws for another wait in
the other's queue. An iterator of a branch joins the running pass if the branch is not in it
yet; otherwise it begins a new one, and the iterators of the old pass become invalid.
Branches may be read in different threads.
"""

from __future__ import annotations

import copy as copying
import operator
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from asyncloader.arguments import checked_count, checked_function
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, functional_datapipe
from asyncloader.datapipes.call import answer_of, blame, is_async, itself
from asyncloader.datapipes.edges import all_readers, edges_of, read_apart
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass, RunTree, own_tree_of
from asyncloader.datapipes.running.traits import reads_ahead
from asyncloader.datapipes.running.watch.watching import UNCOUNTED
from asyncloader.datapipes.sources import iterable_source, keyed_source
from asyncloader.datapipes.split_pass import Branching, SplitPass
from asyncloader.errors import IteratorInvalidated
from asyncloader.system import unless_exiting

T = TypeVar("T")


class Branch(IterDataPipe[T]):
    """One of the streams that a splitter makes of its source."""

    State = Branching

    def __init__(self, splitter: Splitter[T], index: int) -> None:
        self.source = splitter
        self.index = index

    @property
    def known_as(self) -> str:  # type: ignore[override]
        return f"{stage_name(self.source)}[{self.index}]"

    def __len__(self) -> int:
        return self.source.branch_length(self.index)

    @property
    def copied(self) -> Callable[[Any], Any]:
        """The function that the branch applies to each item before yielding it: a copy, or none."""
        return self.source.copied

    def new_pass(self, edge: Edge[Any]) -> BranchPass[T]:
        return BranchPass(edge)

    def split_in(self, tree: RunTree) -> SplitPass[T] | None:
        """Return the latest shared pass of the branches, or None."""
        found: SplitPass[T] | None = tree.latest_pass(self.source)
        return found

    def joins_others(self, tree: RunTree) -> bool:
        """Whether the next iterator joins a pass in which other branches have drawn items."""
        split = self.split_in(tree)
        return split is not None and split.is_open_to(self.index)


@dataclass
class BranchPass(Pass[T]):
    """One branch's part in the pass that it shares with the other branches."""

    #: The shared pass that it has joined.
    _split: SplitPass[T] | None = field(default=None, init=False, repr=False)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self._split = split = self._joined(resumes=True)
        return split.expect(self.pipe.index, position, cursors)

    def __iter__(self) -> Iterator[T]:
        if self._split is None:
            self._split = self._joined()
        return BranchIterator(self._split, self.pipe.index, self.pipe.copied)

    def _joined(self, *, resumes: bool = False) -> SplitPass[T]:
        splitter = self.pipe.source
        # Branches used without a loader are iterated one by one, so the splitter keeps their tree.
        tree = self.edge.tree if self.edge.tree.has(splitter) else own_tree_of(splitter)
        joined: SplitPass[T] = splitter.join(tree, self.pipe.index, resumes=resumes)
        return joined

    def cursor(self) -> Cursor:
        split: SplitPass[T] | None = self.pipe.split_in(self.edge.tree)
        if split is None:
            return {}
        if self._split in (split, None):
            return split.cursor_of(self.pipe.index)
        # Its reader has ended, and others have begun a later pass.
        return split.first_cursor_of(self.pipe.index)

    def counts(self) -> tuple[int, int, bool, int]:
        split = self.pipe.split_in(self.edge.tree)
        yielded = UNCOUNTED if split is None else split.yielded_by(self.pipe.index)
        return UNCOUNTED, yielded, False, 0

    def put_source_cursors(self, into: Cursors) -> None:
        """Add nothing: the branch's own cursor includes those of the splitter's sources."""


class BranchIterator(Iterator[T]):
    """Reads a branch's items of one pass; it leaves the pass when it is closed or dropped."""

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
        """Leave the pass; it is over when all branches have left."""
        self.split.leave(self.index)

    @unless_exiting
    def __del__(self) -> None:
        self.close()


class Splitter(IterDataPipe[T]):
    """Reads the source for all branches."""

    #: The function that a branch applies to each item before yielding it.
    copied: Callable[[Any], Any] = staticmethod(itself)

    def is_splitter(self) -> bool:
        return True

    def __init__(self, datapipe: Iterable[T], num_instances: int, buffer_size: int = 1000) -> None:
        self.source = iterable_source(datapipe)
        self.num_instances = checked_count("num_instances", num_instances, at_least=1)
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=-1)
        self._joining = threading.Lock()

    def branches(self) -> list[Branch[T]]:
        """Return a pipe for each branch; called by the function that the user calls."""
        if self.buffer_size == -1:
            warnings.warn(
                f"{self!r} holds all items that one branch is ahead of another, without limit",
                stacklevel=4,
            )
        return [self.branch(index) for index in range(self.num_instances)]

    def branch(self, index: int) -> Branch[T]:
        """Return the pipe of one branch."""
        return Branch(self, index)

    def join(self, tree: RunTree, index: int, *, resumes: bool = False) -> SplitPass[T]:
        """Return the pass under way, now with this branch in it, or a new pass.

        With ``resumes`` the branch may be one that had left at its cursor.
        """
        with self._joining:
            split: SplitPass[T] | None = tree.latest_pass(self)
            if split is None or not split.join(index, resumes=resumes):
                if split is not None:
                    if index not in split.may_begin_again:
                        _check_nobody_is_late(self, split.begun(), index, tree)
                        split.may_begin_again.add(index)
                    split.invalidate()
                split = SplitPass(Edge(self, tree), split)
                tree.note_pass(self, split)
                split.join(index, resumes=resumes)
            return split

    @property
    def function(self) -> Callable[..., Any]:
        """The user's function that ``takers`` needs, if it needs one; it may be async."""
        return itself

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        """Return the branches that get the item with this number.

        ``function`` is the user's, made sync.
        """
        raise NotImplementedError

    def held(self, lengths: Iterable[int]) -> int:
        """Return the count that ``buffer_size`` limits: items waiting for the other branches.

        ``lengths`` are those of the other branches' queues.
        """
        return sum(lengths)

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


def _check_nobody_is_late(
    splitter: Splitter[Any], begun: set[int], index: int, tree: RunTree
) -> None:
    """Raise IteratorInvalidated if time decides in which pass a branch that has not begun will be.

    It will be in the present one, or in that which another branch begins now.
    """
    if not any(map(reads_ahead, tree.pipes)):
        return
    readers: dict[int, list[Any]] = {}
    for pipe in tree.pipes:
        for edge in edges_of(pipe):
            readers.setdefault(id(edge), []).append(pipe)

    def readers_of(pipe: Any) -> list[Any]:
        return readers.get(id(pipe), [])

    found = {each.index: all_readers(each, readers_of) for each in readers_of(splitter)}
    for other in found.keys() - begun:
        apart = read_apart(found[index], found[other]) or []
        ahead = next(filter(reads_ahead, apart), None)
        if ahead is not None:
            again, late = f"{stage_name(splitter)}[{index}]", f"{stage_name(splitter)}[{other}]"
            raise IteratorInvalidated(
                f"{again} is read twice, and {late} was not read before the second time; as"
                f" {stage_name(ahead)} reads ahead, nobody knows with which of the two it belongs."
                " Read it once, or read twice what the branches are joined to"
            )


@functional_datapipe("fork", on=IterDataPipe)
def Forker(
    datapipe: Iterable[T],
    num_instances: int,
    buffer_size: int = 1000,
    copy: Literal["shallow", "deep"] | None = None,
) -> list[Branch[T]]:
    """Return a list of branches that each yield all of the source's items.

    They yield the same objects, unless ``copy`` is "shallow" or "deep". A branch
    that gets more than ``buffer_size`` items ahead of another is a BufferError;
    -1 sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> left, right = IterableWrapper([1, 2]).fork(2)
    >>> list(left), list(right)
    ([1, 2], [1, 2])
    """
    return ForkSplitter(datapipe, num_instances, buffer_size, copy).branches()


class ForkSplitter(Splitter[T]):
    """Gives every branch every item."""

    functional_name = "fork"

    def __init__(
        self,
        datapipe: Iterable[T],
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep"] | None = None,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        if copy not in (None, "shallow", "deep"):
            raise ValueError(f'copy must be None, "shallow" or "deep", got {copy!r}')
        self.copy = copy
        self.copied = _COPIES[copy]

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        return range(self.num_instances)

    def held(self, lengths: Iterable[int]) -> int:
        # The branches share the items, so the slowest branch's queue holds them all.
        return max(lengths, default=0)

    def branch_length(self, index: int) -> int:
        return len(self.source)


_COPIES: dict[str | None, Callable[[Any], Any]] = {
    None: itself,
    "shallow": copying.copy,
    "deep": copying.deepcopy,
}


@functional_datapipe("demux", on=IterDataPipe)
def Demultiplexer(
    datapipe: Iterable[T],
    num_instances: int,
    classifier_fn: Callable[[T], Any],
    drop_none: bool = False,
    buffer_size: int = 1000,
) -> list[Branch[T]]:
    """Return a list of branches, of which ``classifier_fn(item)`` picks one for each item.

    It returns the branch's index, or None for an item that no branch gets, which
    ``drop_none`` must allow. More than ``buffer_size`` items waiting for branches
    that do not take them are a BufferError; -1 sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> even, odd = IterableWrapper(range(5)).demux(2, lambda n: n % 2)
    >>> list(even), list(odd)
    ([0, 2, 4], [1, 3])
    """
    splitter = DemuxSplitter(datapipe, num_instances, classifier_fn, drop_none, buffer_size)
    return splitter.branches()


class DemuxSplitter(Splitter[T]):
    """Gives each item to the branch that a function picks for it."""

    functional_name = "demux"

    def __init__(
        self,
        datapipe: Iterable[T],
        num_instances: int,
        classifier_fn: Callable[[T], Any],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> None:
        super().__init__(datapipe, num_instances, buffer_size)
        self.classifier_fn: Callable[[T], Any] = checked_function(
            "classifier_fn", classifier_fn, takes=1
        )
        self.drop_none = drop_none

    def waits(self) -> bool:
        return is_async(self.classifier_fn)

    @property
    def function(self) -> Callable[..., Any]:
        return self.classifier_fn

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        answer = answer_of(self, function, item)
        if answer is None and self.drop_none:
            return ()
        return (self._checked(answer),)

    def _checked(self, answer: Any) -> int:
        last = self.num_instances - 1
        if answer is None:
            raise ValueError(
                f"classifier_fn returned None; return 0 to {last}, or pass drop_none=True"
            )
        try:
            # Python's bools are integers, NumPy's are not, but both are accepted.
            index = operator.index(answer.item() if _is_bool_of_numpy(answer) else answer)
        except TypeError:
            raise TypeError(
                f"classifier_fn must return an integer, got {type(answer).__name__}"
            ) from None
        if not 0 <= index <= last:
            raise ValueError(f"classifier_fn must return 0 to {last}, got {index}")
        return index


def _is_bool_of_numpy(answer: Any) -> bool:
    dtype = getattr(answer, "dtype", None)
    return getattr(dtype, "kind", None) == "b" and answer.shape == ()


@functional_datapipe("round_robin_demux", on=IterDataPipe)
def RoundRobinDemultiplexer(
    datapipe: Iterable[T], num_instances: int, buffer_size: int = 1000
) -> list[Branch[T]]:
    """Return a list of branches that get the source's items in turn.

    More than ``buffer_size`` items waiting for branches that do not take them are
    a BufferError; -1 sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> first, second = IterableWrapper(range(5)).round_robin_demux(2)
    >>> list(first), list(second)
    ([0, 2, 4], [1, 3])
    """
    return RoundRobinSplitter(datapipe, num_instances, buffer_size).branches()


class RoundRobinSplitter(Splitter[T]):
    """Gives each branch every n-th item."""

    functional_name = "round_robin_demux"

    def takers(self, item: T, number: int, function: Callable[..., Any]) -> Iterable[int]:
        return (number % self.num_instances,)

    def branch_length(self, index: int) -> int:
        return len(range(index, len(self.source), self.num_instances))


@functional_datapipe("unzip", on=IterDataPipe)
def UnZipper(
    source_datapipe: Iterable[Sequence[T]],
    sequence_length: int,
    buffer_size: int = 1000,
    columns_to_skip: Sequence[int] | None = None,
) -> list[Branch[T]]:
    """Return a list of branches, one for each place in the source's sequences.

    Every sequence has ``sequence_length`` places (another number is an error, so that
    nothing is lost); ``columns_to_skip`` names some, from 0, that get no branch. A branch
    that gets more than ``buffer_size`` sequences ahead of another is a BufferError; -1
    sets no bound.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> images, labels = IterableWrapper([("a", 0), ("b", 1)]).unzip(2)
    >>> list(images), list(labels)
    (['a', 'b'], [0, 1])
    """
    splitter = UnzipSplitter(source_datapipe, sequence_length, buffer_size, columns_to_skip)
    return splitter.branches()


class UnzipSplitter(ForkSplitter[Any]):
    """Gives every branch every sequence; each branch yields one place of it."""

    functional_name = "unzip"

    def __init__(
        self,
        source_datapipe: Iterable[Sequence[Any]],
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> None:
        self.columns = columns_of(sequence_length, columns_to_skip)
        self.sequence_length = sequence_length
        self.columns_to_skip = columns_to_skip
        super().__init__(source_datapipe, len(self.columns), buffer_size)

    def takers(self, item: Any, number: int, function: Callable[..., Any]) -> Iterable[int]:
        check_places(item, self.sequence_length, self)
        return super().takers(item, number, function)

    def branch(self, index: int) -> Branch[Any]:
        return ColumnBranch(self, index)


class ColumnBranch(Branch[T]):
    """What is at one place of a source's sequences."""

    source: UnzipSplitter

    @property
    def copied(self) -> Callable[[Any], Any]:
        return self._picked

    def _picked(self, item: Any) -> Any:
        return item[self.source.columns[self.index]]


@functional_datapipe("unzip", on=MapDataPipe)
def MapUnZipper(
    source_datapipe: MapDataPipe[Sequence[T]],
    sequence_length: int,
    columns_to_skip: Sequence[int] | None = None,
) -> list[MapColumn[T]]:
    """Return a list of map pipes, one for each place in the source's sequences.

    Every sequence has ``sequence_length`` places (another number is an error, so that
    nothing is lost); ``columns_to_skip`` names some, from 0, that get no pipe.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> images, labels = SequenceWrapper([("a", 0), ("b", 1)]).unzip(2)
    >>> images[1], labels[1]
    ('b', 1)
    """
    columns = columns_of(sequence_length, columns_to_skip)
    return [MapColumn(source_datapipe, column, sequence_length) for column in columns]


class MapColumn(MapDataPipe[T]):
    """Looks up what is at one place of a source's sequences."""

    functional_name = "unzip"

    def __init__(
        self, source_datapipe: MapDataPipe[Sequence[T]], column: int, sequence_length: int
    ) -> None:
        self.source = keyed_source(source_datapipe)
        self.column = column
        self.sequence_length = sequence_length

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> T:
        sequence = self.source[key]
        check_places(sequence, self.sequence_length, self)
        item: T = sequence[self.column]
        return item


def columns_of(sequence_length: int, columns_to_skip: Sequence[int] | None) -> list[int]:
    """Return the places of a sequence that are not skipped."""
    columns = range(checked_count("sequence_length", sequence_length, at_least=1))
    if not isinstance(columns_to_skip, Iterable | None):
        raise TypeError(
            f"columns_to_skip must be a list of places, got {type(columns_to_skip).__name__}"
        )
    skipped = set(columns_to_skip or ())
    if not skipped <= set(columns):
        raise ValueError(
            f"columns_to_skip must be from 0 to {sequence_length - 1}, got {columns_to_skip!r}"
        )
    if len(skipped) == len(columns):
        raise ValueError(f"columns_to_skip must leave a column, got all {sequence_length}")
    return [column for column in columns if column not in skipped]


def check_places(sequence: Any, count: int, pipe: object) -> None:
    """Raise TypeError for an item that is no sequence, ValueError for one of another length."""
    if not hasattr(type(sequence), "__getitem__"):
        raise TypeError(f"{pipe!r} reads sequences, got {type(sequence).__name__}")
    if isinstance(sequence, Sized) and len(sequence) > count:
        raise ValueError(
            f"{pipe!r} got a sequence of {len(sequence)} places; pass that as sequence_length, and"
            " those to leave out as columns_to_skip"
        )
