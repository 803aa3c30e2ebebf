"""Sources one after the other.

This file is about pipes that read one source after another, or the same again:
concat (in its iter and map forms), cycle, and repeat.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

from asyncloader.arguments import checked_count
from asyncloader.datapipes.base import MapDataPipe, functional_datapipe
from asyncloader.datapipes.batching import index_within
from asyncloader.datapipes.edges import EndedBranches, pipes_from, put_left
from asyncloader.datapipes.patterns import Pipe, PipePass
from asyncloader.datapipes.randomness import (
    SeedPairs,
    Seeds,
    in_pairs,
    seeded_in,
    seeds_to_come,
    set_seeds,
)
from asyncloader.datapipes.running.cursor_forms import (
    MOST,
    Of,
    State,
    at_most,
    whole,
)
from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.traits import draws, is_branch, keeps_one_of_several
from asyncloader.datapipes.sources import iterable_source, iterable_sources, keyed_sources
from asyncloader.datapipes.split_pass import seeds_ahead

T = TypeVar("T")


class InRound(State):
    """The place of a pipe that reads in rounds.

    ``taken`` counts the items of the present source or round only, and there are the seeds of this
    round and the next.
    """

    seeds: SeedPairs = field(default_factory=list)
    following: SeedPairs = field(default_factory=list)
    #: Knows them while the pipe is run.
    _rounds: RoundSeeds | None = None

    def fill(self, taken: int, yielded: int) -> None:
        super().fill(taken, yielded)
        if self._rounds is not None:
            self._rounds.fill(self)

    def check(self, pipe: Any) -> Iterator[str]:
        yield from at_most(self, "taken", "yielded")


class Concatenated(InRound):
    """The place of a Concater: which source is being read, and how much of it was."""

    current: Annotated[int, Of(lambda pipe: whole(most=len(pipe.sources) - 1))] = 0
    _ended: EndedBranches = field(default_factory=EndedBranches)


class Cycled(InRound):
    """The place of a Cycler: the rounds that are over, and what was taken in this one."""

    rounds: Annotated[
        int, Of(lambda pipe: whole(most=MOST if pipe.count is None else pipe.count))
    ] = 0


@functional_datapipe("concat")
class Concater(Pipe[T]):
    """Yield all items of the first source, then all of the next, to the last.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).concat(IterableWrapper([3])))
    [1, 2, 3]
    """

    makes_again = False
    reads_in_turn = True

    State = Concatenated

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def new_pass(self, edge: Edge[Any]) -> ConcatPass[T]:
        return ConcatPass(edge, state=Concatenated())

    def run(self, source: tuple[Edge[T], ...], state: Concatenated) -> Iterator[T]:
        # Such as the shares of one random_split, which all read its source.
        rounds = RoundSeeds(state, source[0].tree, _read_again(self.sources))
        return self._in_turn(source, state, rounds)

    def _in_turn(
        self, sources: tuple[Edge[T], ...], state: Concatenated, rounds: RoundSeeds
    ) -> Iterator[T]:
        rounds.begin()
        while True:
            yield from sources[state.current]
            if state.current == len(sources) - 1:
                return
            state._ended.note(sources[state.current], is_read_again=False)
            state.current += 1
            rounds.begin_next()


@dataclass
class ConcatPass(PipePass[T]):
    """One pass over a Concater, whose source is the one that is being read."""

    sources: tuple[Edge[Any], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sources = tuple(self.edge.of(source, self) for source in self.pipe.sources)

    @property
    def source(self) -> Edge[Any]:
        current: Edge[Any] = self.sources[self.state.current]
        return current

    def reads(self) -> Any:
        return self.source.pipe

    def reading(self) -> Any:
        return self.sources

    def put_source_cursors(self, into: Cursors) -> None:
        self.source.put_cursors(into)
        self.state._ended.put(into, [self.source])
        # Of an earlier round of a cycle.
        put_left(self.sources[self.state.current + 1 :], self.source, into)

    def resume_sources(self, taken: int | None, cursors: Cursors) -> None:
        self.state._ended.resume(self.sources[: self.state.current], cursors)
        super().resume_sources(taken, cursors)


@functional_datapipe("concat")
class MapConcater(MapDataPipe[T]):
    """Look items up by the index they would have if the sources were one sequence.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> SequenceWrapper("ab").concat(SequenceWrapper("cd"))[2]
    'c'
    """

    def __init__(self, *datapipes: MapDataPipe[T]) -> None:
        self.sources = keyed_sources(datapipes)

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def __getitem__(self, key: Any) -> T:
        index = index_within(key, len(self))
        for source in self.sources:
            if index < len(source):
                break
            index -= len(source)
        item: T = source[index]
        return item


def told(pipe: object, count: int) -> int:
    """Return a number of items as a length; TypeError where it is too large to be one."""
    if count > sys.maxsize:
        raise TypeError(f"{pipe!r} has {count} items, more than len() can return")
    return count


@functional_datapipe("cycle")
class Cycler(Pipe[T]):
    """Yield the source's items ``count`` times over; without a count, without an end.

    Each round is a new pass over the source. A source that has no items ends a
    cycle that would otherwise never yield and never end; with a count it has as many rounds as
    are asked for where an order is drawn for each and divided among workers, since a worker's
    share may be empty in one of them.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).cycle(2))
    [1, 2, 1, 2]
    """

    makes_again = False

    State = Cycled

    def __init__(self, source_datapipe: Iterable[T], count: int | None = None) -> None:
        self.source = iterable_source(source_datapipe)
        self.count = None if count is None else checked_count("count", count, at_least=0)

    def __len__(self) -> int:
        if self.count is None:
            raise TypeError(f"{self!r} repeats without end, so it has no length")
        return told(self, self.count * len(self.source))

    def new_pass(self, edge: Edge[Any]) -> CyclePass[T]:
        return CyclePass(edge, state=Cycled())

    def run(self, source: Edge[T], state: Cycled) -> Iterator[T]:
        rounds = RoundSeeds(state, source.tree, pipes_from(self.source))
        return self._in_rounds(source, state, rounds)

    def _in_rounds(self, source: Edge[T], state: Cycled, rounds: RoundSeeds) -> Iterator[T]:
        rounds.begin()
        # A later round may have items although one had none, where there will be an end.
        may_differ = self.count is not None and rounds.differ_by_share()
        while state.rounds != self.count:
            yield from source
            if not source.count() and not may_differ:
                return
            state.rounds += 1
            source.rewind()
            rounds.begin_next()


class CyclePass(PipePass[T]):
    """One pass over a Cycler, which yields each item that it takes."""

    follows_source = True


class RoundSeeds:
    """The seeds of pipes that are read several times in one pass, which a state may have.

    Their cursors give a position within a round, and every round has other seeds, so the seeds
    are part of the cursor.
    """

    def __init__(self, state: InRound, tree: RunTree, pipes: Iterable[Any]) -> None:
        self._tree = tree
        self._pipes = list(pipes)
        self._seeded = seeded_in(self._pipes)
        # By number: the seeds of this round, and of the next if no more passes begin in this one.
        self._seeds: Seeds = dict(state.seeds)
        self._following: Seeds = dict(state.following)
        # At once: others that read the same pipes may begin before the first item is wanted.
        set_seeds(self._seeded, self._seeds)
        state._rounds = self

    def fill(self, state: InRound) -> None:
        """Write the seeds of this round and of the next into a state."""
        state.seeds = in_pairs(self._seeds)
        following = {**seeds_to_come(self._seeded), **self._instead_of_unused()}
        state.following = in_pairs(following)

    def differ_by_share(self) -> bool:
        """Whether a round may have other shares than one before: an order is drawn and divided."""
        return any(map(draws, self._pipes)) and any(map(keeps_one_of_several, self._pipes))

    def begin(self) -> None:
        """Begin the first round, or resume the cursor's round."""
        if not self._seeds:
            self._settle()

    def begin_next(self) -> None:
        """Begin the next round."""
        # A pipe that had ended where this pass resumed may still have a start: it begins anew.
        self._tree.forget_starts(self._pipes)
        set_seeds(self._seeded, self._instead_of_unused())
        self._following = {}
        self._settle()

    def _instead_of_unused(self) -> Seeds:
        """Return the next round's seeds for pipes that still have this round's.

        Those had ended where this pass resumed, or have not begun yet.
        """
        unused = self._seeds.items() & seeds_to_come(self._seeded).items()
        return {number: self._following.get(number, seed) for number, seed in unused}

    def _settle(self) -> None:
        # For all pipes, also those that begin late in the round or not at all.
        self._seeds = seeds_ahead(self._pipes, self._tree)


def _read_again(sources: Sequence[Any]) -> list[Any]:
    """Return the pipes that more than one of the sources read."""
    found: dict[int, Any] = {}
    read: set[int] = set()
    for source in sources:
        # Up to branches, which share their splitter's pass.
        pipes = list(pipes_from(source, is_branch))
        for pipe in pipes:
            if id(pipe) in read:
                found.update((id(each), each) for each in pipes_from(pipe))
        read.update(map(id, pipes))
    return list(found.values())


@functional_datapipe("repeat")
class Repeater(Pipe[T]):
    """Yield each item ``times`` times in a row; it is the same object each time.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).repeat(2))
    [1, 1, 2, 2]
    """

    State = None

    def __init__(self, source_datapipe: Iterable[T], times: int) -> None:
        self.source = iterable_source(source_datapipe)
        self.times = checked_count("times", times, at_least=2)

    def __len__(self) -> int:
        return told(self, self.times * len(self.source))

    def start(self, position: int) -> tuple[int, int]:
        # An item that must still be repeated is taken again.
        return divmod(position, self.times)

    def run(self, source: Edge[T], state: None) -> Iterator[T]:
        for item in source:
            for _ in range(self.times):
                yield item
