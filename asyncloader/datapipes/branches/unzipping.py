"""Sequences taken apart into streams.

This file is about unzip, in its iter and map forms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any, TypeVar

from asyncloader.datapipes.branches.branching import Branch
from asyncloader.datapipes.branches.splitting import ForkSplitter
from asyncloader.datapipes.pipe.arguments import checked_count, keyed_source
from asyncloader.datapipes.pipe.base import IterDataPipe, MapDataPipe, functional_datapipe

T = TypeVar("T")


@functional_datapipe("unzip")
class UnZipper(IterDataPipe[T]):
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

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: Iterable[Sequence[T]],
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[Branch[T]]:
        return UnzipSplitter(
            source_datapipe, sequence_length, buffer_size, columns_to_skip
        ).branches()


class UnzipSplitter(ForkSplitter[Any]):
    """Gives every branch every sequence, of which it hands out one place."""

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

    def branches(self) -> list[Branch[Any]]:
        return [ColumnBranch(self, index) for index in range(self.num_instances)]


class ColumnBranch(Branch[T]):
    """What is at one place of a source's sequences."""

    source: UnzipSplitter

    @property
    def copied(self) -> Callable[[Any], Any]:
        return self._picked

    def _picked(self, item: Any) -> Any:
        return item[self.source.columns[self.index]]


@functional_datapipe("unzip")
class MapUnZipper(MapDataPipe[T]):
    """Return a list of map pipes, one for each place in the source's sequences.

    Every sequence has ``sequence_length`` places (another number is an error, so that
    nothing is lost); ``columns_to_skip`` names some, from 0, that get no pipe.

    >>> from asyncloader.datapipes.map import SequenceWrapper
    >>> images, labels = SequenceWrapper([("a", 0), ("b", 1)]).unzip(2)
    >>> images[1], labels[1]
    ('b', 1)
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: MapDataPipe[Sequence[T]],
        sequence_length: int,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[MapColumn[T]]:
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
    """Return the places of a sequence that are not to be skipped."""
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
    """Raise a TypeError for what is no sequence, and a ValueError for one that is too long."""
    if not hasattr(type(sequence), "__getitem__"):
        raise TypeError(f"{pipe!r} reads sequences, got {type(sequence).__name__}")
    if isinstance(sequence, Sized) and len(sequence) > count:
        raise ValueError(
            f"{pipe!r} got a sequence of {len(sequence)} places; pass that as sequence_length, and"
            " those to leave out as columns_to_skip"
        )
