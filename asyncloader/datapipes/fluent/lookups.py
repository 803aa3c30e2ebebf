"""Fluent methods of map pipes.

This file is about ``MapFluent``: what can be called on what is looked up by key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from asyncloader.datapipes.branches.unzipping import MapColumn
    from asyncloader.datapipes.groups.shuffling import MapShuffler
    from asyncloader.datapipes.items.converting import MapToIterConverter
    from asyncloader.datapipes.pipe.base import MapDataPipe

    A = TypeVar("A")
    U = TypeVar("U")


class MapFluent(Generic[T_co]):
    """The methods of ``MapDataPipe``."""

    if TYPE_CHECKING:

        @overload
        def map(self, fn: Callable[[T_co], Coroutine[Any, Any, U]]) -> MapDataPipe[U]: ...
        @overload
        def map(self, fn: Callable[[T_co], U]) -> MapDataPipe[U]: ...
        def map(self, fn: Callable[[T_co], Any]) -> MapDataPipe[Any]: ...

        @overload
        def batch(self, batch_size: int, drop_last: bool = False) -> MapDataPipe[list[T_co]]: ...
        @overload
        def batch(
            self,
            batch_size: int,
            drop_last: bool = False,
            wrapper_class: Callable[[list[T_co]], U] = ...,
        ) -> MapDataPipe[U]: ...
        def batch(
            self, batch_size: int, drop_last: bool = False, wrapper_class: Any = list
        ) -> MapDataPipe[Any]: ...

        @overload
        def zip(self, other: MapDataPipe[A], /) -> MapDataPipe[tuple[T_co, A]]: ...
        @overload
        def zip(self, *datapipes: MapDataPipe[Any]) -> MapDataPipe[tuple[Any, ...]]: ...
        def zip(self, *datapipes: MapDataPipe[Any]) -> MapDataPipe[Any]: ...

        def concat(self, *datapipes: MapDataPipe[U]) -> MapDataPipe[T_co | U]: ...

        def unzip(
            self: MapFluent[Sequence[U]],
            sequence_length: int,
            columns_to_skip: Sequence[int] | None = None,
        ) -> list[MapColumn[U]]: ...

        def in_memory_cache(self) -> MapDataPipe[T_co]: ...

        def shuffle(self, *, indices: Sequence[Any] | None = None) -> MapShuffler[T_co]: ...

        def to_iter_datapipe(
            self, indices: Sequence[Any] | None = None
        ) -> MapToIterConverter[T_co]: ...
