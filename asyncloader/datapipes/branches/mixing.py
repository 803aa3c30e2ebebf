"""Several sources mixed at random.

This file is about SampleMultiplexer: which source each item comes from is drawn, by
the sources' weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar, overload

from asyncloader.datapipes.branches.combining import readers
from asyncloader.datapipes.branches.uneven_pass import UnevenPass
from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import (
    SEED,
    Form,
    Rule,
    counts,
    fields,
    list_of,
    row,
    whole,
)
from asyncloader.datapipes.groups.batching import most_items
from asyncloader.datapipes.pipe.arguments import checked_mapping, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe
from asyncloader.datapipes.pipe.randomness import Seeded
from asyncloader.datapipes.pipe.run import Run
from asyncloader.datapipes.pipe.weights import checked_weight
from asyncloader.seeds import checked_seed

T = TypeVar("T")


class SampleMultiplexer(Seeded, IterDataPipe[T]):
    """Yield items of several sources, drawing each time which one gives its next.

    ``pipes_to_weights_dict`` says how often a source is drawn relative to the others.
    When one has ended, the rest are drawn by their weights; apply ``cycle`` to a source
    that is to last. A pass draws from the seed that was set for it, as shufflers do;
    with ``seed`` every pass draws from that and mixes alike.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> rare, common = IterableWrapper("ab"), IterableWrapper(range(6))
    >>> list(SampleMultiplexer({rare: 1, common: 3}, seed=2))
    [0, 1, 'a', 'b', 2, 3, 4, 5]
    """

    @overload
    def __init__(
        self, pipes_to_weights_dict: Mapping[Iterable[T], float], seed: int | None = None
    ) -> None: ...

    # A dict made elsewhere is one of just the pipes that are in it.
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
        """What is mixed, in the order in which it was given."""
        return tuple(self.pipes_to_weights_dict)

    def new_pass(self, run: Run[Any]) -> MixPass[T]:
        return MixPass(run, self.next_seed() if self.seed is None else self.seed)

    def cursor_form(self) -> Form:
        count = len(self.pipes_to_weights_dict)
        own = {"seed": SEED, **counts("drawn", "yielded")}
        taken = row(*(whole(most=most_items(source)) for source in self.pipes_to_weights_dict))
        own |= {"taken": taken, "ended": list_of(whole(most=count - 1), most=count)}
        return fields(own, _WHAT_WAS_TAKEN_CAME, _EACH_DRAW_COUNTS)


_WHAT_WAS_TAKEN_CAME: Rule = (
    "as many items were yielded as were taken of all sources",
    lambda cursor: cursor["yielded"] == sum(cursor["taken"]),
)
_EACH_DRAW_COUNTS: Rule = (
    "each draw is for an item, or for a source that has ended",
    lambda cursor: cursor["drawn"] == cursor["yielded"] + len(set(cursor["ended"])),
)


@dataclass
class MixPass(UnevenPass[T]):
    """One pass over a SampleMultiplexer: the draws made, and what each source has given."""

    marks = ("seed", "drawn", "yielded")

    seed: int
    drawn: int = 0
    yielded: int = 0
    ended: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._weights = [*self.pipe.pipes_to_weights_dict.values()]

    def __iter__(self) -> Iterator[T]:
        draw = Random(self.seed).random
        for _ in range(self.drawn):
            draw()
        self.note_begin()
        with readers(self.sources) as iterators:
            while (turn := self._draw_turn(draw())) is not None:
                self.drawn += 1
                item = next(iterators[turn], _END)
                if item is _END:
                    self.ended.append(turn)
                    self.note_end(self.sources[turn])
                    continue
                self.note_taken(turn)
                self.yielded += 1
                yield item

    def _draw_turn(self, fraction: float) -> int | None:
        weights = self._weights
        open_ones = [turn for turn in range(len(self.sources)) if turn not in self.ended]
        rest = fraction * sum(weights[turn] for turn in open_ones)
        for turn in open_ones:
            rest -= weights[turn]
            if rest < 0:
                return turn
        # Sums of fractions may fall short by a rounding.
        return open_ones[-1] if open_ones else None

    def cursor(self) -> Cursor:
        return {**super().cursor(), "taken": [*self.taken], "ended": [*self.ended]}

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        for name in ("seed", "drawn", "yielded"):
            setattr(self, name, cursor[name])
        self.pipe.follow_seed(self.seed)
        self.ended = [*cursor["ended"]]
        self.resume_each(cursor["taken"], cursors)
        return position - self.yielded


_END: Any = object()
