"""One source split at random, for example into training and validation.

This file is about random_split. Only the seed, the weights and an item's number decide which
share it belongs to. So every share can draw for all items by itself, and no item is held:

    source ──▶ split ──┬──▶ share "train"
                       └──▶ share "valid"
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import field
from random import Random
from typing import Annotated, Any, Self, TypeVar, overload

from asyncloader.arguments import checked_count, checked_mapping, checked_weight
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.edges import drawn_above
from asyncloader.datapipes.patterns import Pipe, PipePass
from asyncloader.datapipes.running.cursor_forms import (
    Count,
    Of,
    State,
    at_most,
    each_of,
    quantity,
    whole,
)
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, own_tree_of
from asyncloader.datapipes.sources import iterable_source
from asyncloader.errors import IteratorInvalidated

T = TypeVar("T")


@overload
def RandomSplitter(
    source_datapipe: Iterable[T],
    weights: Mapping[Any, float],
    seed: int,
    total_length: int | None = None,
) -> list[Share[T]]: ...


@overload
def RandomSplitter(
    source_datapipe: Iterable[T],
    weights: Mapping[Any, float],
    seed: int,
    total_length: int | None = None,
    *,
    target: Hashable,
) -> Share[T]: ...


@overload
def RandomSplitter(
    source_datapipe: Iterable[T],
    weights: Mapping[Any, float],
    seed: int,
    total_length: int | None,
    target: Hashable,
) -> Share[T]: ...


@functional_datapipe("random_split", on=IterDataPipe)
def RandomSplitter(
    source_datapipe: Iterable[T],
    weights: Mapping[Any, float],
    seed: int,
    total_length: int | None = None,
    target: Hashable | None = None,
) -> list[Share[T]] | Share[T]:
    """Return a list of shares, one for each key of ``weights``, into which items are drawn.

    Weights that are whole numbers with the sum ``total_length`` (default: the length of
    the source) give shares of just these lengths. With ``target``, one of the keys, only
    that share is returned. Equal seeds give equal splits, in every pass, until
    ``share.override_seed(seed)`` says otherwise for the next ones. One share is read at
    a time: a pass over one invalidates the iterators of the others. Each share reads the
    source by itself, so shuffle the shares and not the source.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> numbers = IterableWrapper(range(10))
    >>> train, valid = numbers.random_split({"train": 7, "valid": 3}, seed=0)
    >>> list(valid), len(train)
    ([0, 6, 9], 7)
    """
    split: RandomSplit[T] = RandomSplit(source_datapipe, weights, seed, total_length)
    if target is None:
        return [Share(split, key) for key in split.weights]
    if target not in split.weights:
        raise KeyError(f"target must be a key of weights, got {target!r}")
    return Share(split, target)


class RandomSplit(IterDataPipe[T]):
    """Says which share each item of the source belongs to."""

    functional_name = "random_split"

    def __init__(
        self,
        source_datapipe: Iterable[T],
        weights: Mapping[Any, float],
        seed: int,
        total_length: int | None = None,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.weights = _checked_weights(weights)
        self.seed = _checked_seed(seed)
        self.total_length = _length_of(source_datapipe) if total_length is None else total_length
        checked_count("total_length", self.total_length, at_least=0)

    def is_splitter(self) -> bool:
        return True

    def refusal(self) -> tuple[str, str] | None:
        """Return why items would be lost at this place of the graph, and the remedy, or None."""
        drawn = drawn_above(self)
        if drawn is None:
            return None
        return (
            f"{self!r} reads its source once for each share, but {drawn!r} before it yields another"
            " order each time, so an item could be in several shares, or in none",
            "Split first, and shuffle the shares",
        )

    def expected_lengths(self) -> list[float]:
        """Return how many items each share has; fractions are not known before a pass."""
        return _scaled(list(self.weights.values()), self.total_length)

    def __iter__(self) -> Iterator[T]:
        raise TypeError(f"{self!r} is read through its shares: iterate those")


class Shared(State):
    """The place of a share: the source's items, its own, and how many each share has to come."""

    seed: int
    taken: Annotated[int, Of(lambda share: whole(most=share.source.total_length))] = 0
    yielded: Count = 0
    to_come: Annotated[
        list[float], Of(lambda share: each_of(len(share.source.weights), quantity))
    ] = field(default_factory=list)
    _is_invalid: bool = False

    def invalidate(self) -> None:
        """Let the pass yield nothing more: another over a share of the same split begins."""
        self._is_invalid = True

    def check_valid(self, split: RandomSplit[Any]) -> None:
        """Raise IteratorInvalidated if another pass has begun."""
        if self._is_invalid:
            raise IteratorInvalidated(
                f"this iterator has been invalidated: a share of {split!r} is being iterated anew"
            )

    def check(self, pipe: Any) -> Iterator[str]:
        yield from at_most(self, "yielded", "taken")
        total = pipe.source.total_length
        # But for rounding.
        if abs(sum(self.to_come) - (total - self.taken)) > 1e-6 * (total + 1):
            yield "what is to come was not taken"


class Share(Pipe[T]):
    """The items of a source that belong to one share of a random split."""

    State = Shared

    def __init__(self, split: RandomSplit[T], key: Any) -> None:
        self.source = split
        self.key = key

    @property
    def known_as(self) -> str:  # type: ignore[override]
        return f"{stage_name(self.source)}[{self.key!r}]"

    def __len__(self) -> int:
        expected = self.source.expected_lengths()
        if not all(length.is_integer() for length in expected):
            raise TypeError(
                f"{self!r} has no length before it was read; use weights that are whole numbers"
                " with the sum total_length, or set_length"
            )
        return int(expected[list(self.source.weights).index(self.key)])

    def override_seed(self, seed: int) -> Self:
        """Split all shares by another seed from the next pass on; return this share."""
        self.source.seed = _checked_seed(seed)
        return self

    def new_state(self) -> Shared:
        return Shared(seed=self.source.seed, to_come=self.source.expected_lengths())

    def new_pass(self, edge: Edge[Any]) -> SharePass[T]:
        if refusal := self.source.refusal():
            raise ValueError(". ".join(refusal))
        split = self.source
        begun: SharePass[T] = SharePass(edge, state=self.new_state())
        # This ends the pass before, of any share.
        tree = edge.tree if edge.tree.has(split) else own_tree_of(split)
        before: SharePass[T] | None = tree.latest_pass(split)
        if before is not None:
            before.state.invalidate()
        tree.note_pass(split, begun)
        return begun

    def run(self, source: Edge[T], state: Shared) -> Iterator[T]:
        split, total = self.source, self.source.total_length
        state.check_valid(split)
        own = list(split.weights).index(self.key)
        draws = Draws(state.to_come, total, state.seed, state.taken)
        for number, item in enumerate(source, state.taken):
            if number == total:
                raise ValueError(
                    f"the source of {split!r} has more than {number} items; pass its real"
                    " length as total_length"
                )
            if draws.next() == own:
                yield item
                state.check_valid(split)


class SharePass(PipePass[T]):
    """One pass over a share, which reads the source of the split by itself."""

    def reads(self) -> Any:
        return self.pipe.source.source


class Draws:
    """Draws shares, each with a probability by how many of its items are still ``to_come``.

    That list is changed with each draw. ``drawn`` of the ``total`` items were drawn already.

    >>> draws = Draws([1.0, 2.0], total=3, seed=3)
    >>> [draws.next() for _ in range(3)]
    [0, 1, 1]
    """

    def __init__(self, to_come: list[float], total: int, seed: int, drawn: int = 0) -> None:
        self.to_come = to_come
        random = Random(seed)
        for first in range(0, drawn, _AT_ONCE):
            # A draw takes a fraction, and a fraction 64 bits.
            random.getrandbits(64 * min(_AT_ONCE, drawn - first))
        self._choose = random.choices
        self._shares = range(len(to_come))
        self._count = total - drawn

    def next(self) -> int:
        """Return the share of the next item."""
        (share,) = self._choose(self._shares, self.to_come)
        self.to_come[share] -= 1
        self._count -= 1
        if self.to_come[share] < 0:
            # The share expected only a fraction of an item and got a whole one.
            self.to_come[share] = 0
            self.to_come[:] = _scaled(self.to_come, self._count)
        return share


# How many draws are skipped in one call. A draw cannot be computed without those before it,
# since the splits are those of torchdata; skipping one takes some nanoseconds.
_AT_ONCE = 1 << 12


def _scaled(weights: list[float], total: int) -> list[float]:
    whole = sum(weights)
    if whole == total:
        # Scaling would change large whole numbers by rounding.
        return [*weights]
    return [float(weight) * total / whole for weight in weights] if whole else weights


def _checked_weights(weights: Mapping[Any, float]) -> dict[Any, float]:
    if not checked_mapping("weights", weights):
        raise ValueError("weights must have at least one key, got none")
    checked = {key: checked_weight(key, each, may_be_0=True) for key, each in weights.items()}
    if not any(checked.values()):
        raise ValueError("weights must not all be 0")
    return checked


def _checked_seed(seed: Any) -> int:
    # Without a seed each share would draw differently, and items would be lost.
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(f"seed must be an integer, got {type(seed).__name__}") from None


def _length_of(source: Any) -> int:
    try:
        return len(source)
    except TypeError as error:
        raise TypeError(
            f"the source of random_split has no length ({error}); pass total_length"
        ) from None
