"""Several sources side by side, or mixed.

This file is about pipes that take an item from each of their sources in turn: zip, zip_longest,
mux and mux_longest, and the map form of zip; and about SampleMultiplexer, which draws the source
of each item at random, by weights.
"""

from __future__ import annotations

import contextlib
import operator
from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import Annotated, Any, TypeVar, overload

from asyncloader.arguments import checked_mapping, checked_weight, kind_name
from asyncloader.datapipes.base import (
    IterDataPipe,
    MapDataPipe,
    functional_datapipe,
    is_pipe,
    most_items,
)
from asyncloader.datapipes.batching import index_within
from asyncloader.datapipes.edges import beginning, resume_one
from asyncloader.datapipes.randomness import Seeded, fractions
from asyncloader.datapipes.running.cursor_forms import (
    Count,
    Fields,
    Form,
    Of,
    Seed,
    ascending,
    list_of,
    row,
    whole,
)
from asyncloader.datapipes.running.cursors import Cursor, Cursors, close_items
from asyncloader.datapipes.running.run import Edge, Pass
from asyncloader.datapipes.running.watch.watching import UNCOUNTED
from asyncloader.datapipes.sources import iterable_source, iterable_sources, keyed_sources
from asyncloader.datapipes.splitting import OutlastingPass
from asyncloader.seeds import checked_seed

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass
class UnevenPass(OutlastingPass[T]):
    """A pass that counts what it has taken of each source."""

    sources: list[Edge[Any]] = field(init=False, repr=False)
    taken: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sources = [self.edge.of(source) for source in self.pipe.sources]
        self.taken = [0] * len(self.sources)
        # The sources' cursors when this pass began or resumed. A source that was not read since
        # may have none of its own.
        self._began_at = [*self.taken]
        self._began_with: list[Cursors] = [{} for _ in self.sources]

    def counts(self) -> tuple[int, int, bool, int]:
        return UNCOUNTED, sum(self.taken), False, 0

    def note_begin(self) -> None:
        """Note the sources' first cursors, before they begin."""
        self._began_with = [beginning(source) for source in self.sources]

    def note_taken(self, turn: int) -> None:
        """Count an item of a source."""
        self.taken[turn] += 1
        self._began_with[turn] = {}

    def put_source_cursors(self, into: Cursors) -> None:
        for turn, source in enumerate(self.sources):
            if self.taken[turn] > self._began_at[turn]:
                source.put_cursors(into)
            else:
                into.update(self._began_with[turn])
        super().put_source_cursors(into)

    def resume_each(self, taken: Iterable[int], cursors: Cursors) -> None:
        """Resume each source after the given number of its items."""
        self.taken = [*taken]
        self._began_at = [*self.taken]
        for source, count in zip(self.sources, self.taken, strict=True):
            resume_one(source, count, cursors)


@contextlib.contextmanager
def readers(sources: Iterable[Edge[Any]]) -> Iterator[list[Iterator[Any]]]:
    """Give an iterator for each source and close them all, also those not read to the end."""
    with contextlib.ExitStack() as stack:
        iterators = []
        for source in sources:
            iterators.append(source.begin())
            stack.callback(close_items, iterators[-1])
        yield iterators


class Together(IterDataPipe[T_co]):
    """A pipe that reads all its sources at a time."""

    sources: tuple[Any, ...]


@functional_datapipe("zip")
class Zipper(Together[tuple[Any, ...]]):
    """Yield tuples of one item from each source, until the shortest ends.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(9)).zip(IterableWrapper("ab")))
    [(0, 'a'), (1, 'b')]
    """

    makes_again = False

    def __init__(self, *datapipes: Iterable[Any]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources))

    def new_pass(self, edge: Edge[Any]) -> ZipPass:
        return ZipPass(edge, zip)


@dataclass
class SideBySide(Pass[T]):
    """A pass that takes the same number of items from every source."""

    sources: list[Edge[Any]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.sources = [self.edge.of(source, self) for source in self.pipe.sources]

    def put_source_cursors(self, into: Cursors) -> None:
        for source in self.sources:
            self.put_place(source, into)

    def resume_all(self, position: int, cursors: Cursors) -> None:
        """Resume every source after its first ``position`` items."""
        for source in self.sources:
            resume_one(source, position, cursors)


@dataclass
class ZipPass(SideBySide[tuple[Any, ...]]):
    """One pass over a Zipper or a ZipperLongest, which knows how many tuples it has yielded."""

    #: Puts iterators together.
    zipped: Callable[..., Iterator[tuple[Any, ...]]] = field(repr=False)
    yielded: int = 0

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        with readers(self.sources) as iterators:
            for items in self.zipped(*iterators):
                self.yielded += 1
                yield items

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.yielded = position
        self.resume_all(position, cursors)
        return 0


@functional_datapipe("zip_longest")
class ZipperLongest(Together[tuple[Any, ...]]):
    """Yield tuples of one item from each source, until the longest ends.

    A source that ended before is represented by ``fill_value``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(2)).zip_longest(IterableWrapper("a"), fill_value="-"))
    [(0, 'a'), (1, '-')]
    """

    makes_again = False

    def __init__(self, *datapipes: Iterable[Any], fill_value: Any = None) -> None:
        for pipe in datapipes:
            # A fill_value passed by position would be taken for one more source.
            if not is_pipe(pipe):
                raise TypeError(
                    f"zip_longest reads pipes, got {kind_name(pipe)}; wrap a list by"
                    " IterableWrapper(...), and name a fill value: fill_value=..."
                )
        self.sources = iterable_sources(datapipes)
        self.fill_value = fill_value

    def __len__(self) -> int:
        return max(map(len, self.sources))

    def new_pass(self, edge: Edge[Any]) -> ZipPass:
        return ZipPass(edge, partial(zip_longest, fillvalue=self.fill_value))


@functional_datapipe("mux")
class Multiplexer(Together[T]):
    """Yield one item from each source in turn, in whole rounds, until the shortest ends.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([0, 1, 2]).mux(IterableWrapper([10, 11])))
    [0, 10, 1, 11]
    """

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources)) * len(self.sources)

    def new_pass(self, edge: Edge[Any]) -> MuxPass[T]:
        return MuxPass(edge)


@dataclass
class MuxPass(SideBySide[T]):
    """One pass over a Multiplexer: the rounds taken, and the items yielded of the last round."""

    rounds: int = 0
    turn: int = 0

    def needs(self) -> int:
        # All items of the current round were taken already.
        is_whole = self.turn == len(self.sources)
        return self.rounds if is_whole else self.rounds - 1

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        self.rounds, behind = divmod(position, len(self.sources))
        self.turn = len(self.sources)
        self.resume_all(self.rounds, cursors)
        return behind

    def __iter__(self) -> Iterator[T]:
        with readers(self.sources) as iterators:
            # A round is yielded only when every source has given its item.
            for items in zip(*iterators, strict=False):
                self.rounds += 1
                for self.turn, item in enumerate(items, 1):
                    yield item


class InTurn(Fields):
    """The place of a MultiplexerLongest: whose turn it was last, and who has ended."""

    yielded: Count = 0
    turn: Annotated[int, Of(lambda pipe: whole(-1, len(pipe.sources) - 1))] = -1
    rounds: Count = 0
    ended: Annotated[list[int], Of(lambda pipe: ascending(below=len(pipe.sources)))] = field(
        default_factory=list
    )


@functional_datapipe("mux_longest")
class MultiplexerLongest(Together[T]):
    """Yield one item from each source in turn, without those that ended, until all have.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([0, 1, 2]).mux_longest(IterableWrapper([10])))
    [0, 10, 1, 2]
    """

    State = InTurn

    def __init__(self, *datapipes: Iterable[T]) -> None:
        self.sources = iterable_sources(datapipes)

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    def new_pass(self, edge: Edge[Any]) -> MuxLongestPass[T]:
        return MuxLongestPass(edge)


@dataclass
class MuxLongestPass(UnevenPass[T]):
    """One pass over a MultiplexerLongest."""

    state: InTurn = field(default_factory=InTurn, kw_only=True)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        self.state = state = InTurn.loaded(cursor)
        # A source that had ended has fewer items than this.
        taken = (state.rounds + (place <= state.turn) for place in range(len(self.sources)))
        self.resume_each(taken, cursors)
        return position - state.yielded

    def __iter__(self) -> Iterator[T]:
        self.note_begin()
        state = self.state
        with readers(self.sources) as iterators:
            first = state.turn + 1
            while len(state.ended) < len(iterators):
                for turn in range(first, len(iterators)):
                    if turn in state.ended:
                        continue
                    item = next(iterators[turn], _END)
                    if item is _END:
                        insort(state.ended, turn)
                        self.note_end(self.sources[turn])
                        continue
                    state.turn = turn
                    self.note_taken(turn)
                    state.yielded += 1
                    yield item
                state.rounds += 1
                state.turn, first = -1, 0


_END: Any = object()


@functional_datapipe("zip")
class MapZipper(MapDataPipe[tuple[Any, ...]]):
    """Look up tuples of one item from each source, under the same key.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> SequenceWrapper("ab").zip(SequenceWrapper(range(9)))[1]
    ('b', 1)
    """

    def __init__(self, *datapipes: MapDataPipe[Any]) -> None:
        self.sources = keyed_sources(datapipes)

    def __len__(self) -> int:
        return min(map(len, self.sources))

    def __getitem__(self, key: Any) -> tuple[Any, ...]:
        if _is_from_end(key):
            # The sources may differ in length, so a negative key would mean different items.
            key = index_within(key, len(self))
        return tuple(source[key] for source in self.sources)


def _is_from_end(key: Any) -> bool:
    try:
        return operator.index(key) < 0
    except TypeError:
        return False


def _taken_form(pipe: SampleMultiplexer[Any]) -> Form:
    return row(*(whole(most=most_items(source)) for source in pipe.sources))


def _ended_form(pipe: SampleMultiplexer[Any]) -> Form:
    count = len(pipe.sources)
    return list_of(whole(most=count - 1), most=count)


class Mixed(Fields):
    """The place of a SampleMultiplexer: its draws, and the items taken of each source."""

    seed: Seed
    drawn: Count = 0
    yielded: Count = 0
    taken: Annotated[list[int], Of(_taken_form)] = field(default_factory=list)
    ended: Annotated[list[int], Of(_ended_form)] = field(default_factory=list)

    def check(self, pipe: Any) -> Iterator[str]:
        if self.yielded != sum(self.taken):
            yield "as many items were yielded as were taken of all sources"
        if self.drawn != self.yielded + len(set(self.ended)):
            yield "each draw is for an item, or for a source that has ended"


class SampleMultiplexer(Seeded, IterDataPipe[T]):
    """Yield items of several sources, drawing each time which one gives its next.

    ``pipes_to_weights_dict`` says how often a source is drawn relative to the others.
    When one has ended, the rest are drawn by their weights; apply ``cycle`` to a source
    that is to last. A pass draws from the seed that was set for it, as shufflers do;
    with ``seed`` every pass draws from it, and mixes in the same way.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> rare, common = IterableWrapper("ab"), IterableWrapper(range(6))
    >>> list(SampleMultiplexer({rare: 1, common: 3}, seed=2))
    ['a', 0, 'b', 1, 2, 3, 4, 5]
    """

    State = Mixed

    @overload
    def __init__(
        self, pipes_to_weights_dict: Mapping[Iterable[T], float], seed: int | None = None
    ) -> None: ...

    # A Mapping's key type is invariant, so a dict keyed by one pipe class needs this.
    @overload
    def __init__(
        self: SampleMultiplexer[Any],
        pipes_to_weights_dict: Mapping[Any, float],
        seed: int | None = None,
    ) -> None: ...

    def __init__(
        self, pipes_to_weights_dict: Mapping[Iterable[T], float], seed: int | None = None
    ) -> None:
        if not checked_mapping("pipes_to_weights_dict", pipes_to_weights_dict):
            raise ValueError("pipes_to_weights_dict must have at least one source, got none")
        self.pipes_to_weights_dict = {
            iterable_source(source): checked_weight(source, weight, may_be_0=False)
            for source, weight in pipes_to_weights_dict.items()
        }
        self.seed = None if seed is None else checked_seed(seed)

    def __len__(self) -> int:
        return sum(map(len, self.pipes_to_weights_dict))

    @property
    def sources(self) -> tuple[Iterable[T], ...]:
        """The sources, in the order in which they were given."""
        return tuple(self.pipes_to_weights_dict)

    def new_pass(self, edge: Edge[Any]) -> MixPass[T]:
        seed = self.next_seed() if self.seed is None else self.seed
        return MixPass(edge, state=Mixed(seed=seed))


@dataclass
class MixPass(UnevenPass[T]):
    """One pass over a SampleMultiplexer."""

    state: Mixed = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = [*self.pipe.pipes_to_weights_dict.values()]

    def __iter__(self) -> Iterator[T]:
        state = self.state
        draw = fractions(state.seed, state.drawn).__next__
        self.note_begin()
        with readers(self.sources) as iterators:
            while (turn := self._draw_turn(draw())) is not None:
                state.drawn += 1
                item = next(iterators[turn], _END)
                if item is _END:
                    state.ended.append(turn)
                    self.note_end(self.sources[turn])
                    continue
                self.note_taken(turn)
                state.yielded += 1
                yield item

    def _draw_turn(self, fraction: float) -> int | None:
        weights = self._weights
        open_ones = [turn for turn in range(len(self.sources)) if turn not in self.state.ended]
        rest = fraction * sum(weights[turn] for turn in open_ones)
        for turn in open_ones:
            rest -= weights[turn]
            if rest < 0:
                return turn
        # Rounding may leave the sum of the fractions a little too small.
        return open_ones[-1] if open_ones else None

    def fill(self) -> None:
        self.state.taken = self.taken

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        self.state = state = Mixed.loaded(cursor)
        self.pipe.follow_seed(state.seed)
        self.resume_each(state.taken, cursors)
        return position - state.yielded
