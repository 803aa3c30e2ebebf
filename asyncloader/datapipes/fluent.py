"""The fluent methods, as editors and type checkers see them.

This file is about ``pipe.map(fn).batch(64)``: ``functional_datapipe`` puts the
methods in place when a pipe class is defined, so here are only their types. A
test holds every declaration against the constructor it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Iterable, Sequence
    from typing import Literal

    from asyncloader.datapipes.base import IterDataPipe, MapDataPipe
    from asyncloader.datapipes.branching import Branch
    from asyncloader.datapipes.combining import ZipperLongest
    from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
    from asyncloader.datapipes.mapping import LengthSetter
    from asyncloader.datapipes.sharding import (
        SHARDING_PRIORITIES,
        ShardingFilter,
        ShardingRoundRobinDispatcher,
    )
    from asyncloader.datapipes.shuffling import InBatchShuffler, MapShuffler, Shuffler

    A = TypeVar("A")
    B = TypeVar("B")
    K = TypeVar("K")
    U = TypeVar("U")


class IterFluent(Generic[T_co]):
    """The methods of ``IterDataPipe``."""

    if TYPE_CHECKING:
        # One to one

        @overload
        def map(self, fn: Callable[[T_co], Coroutine[Any, Any, U]]) -> IterDataPipe[U]: ...
        @overload
        def map(self, fn: Callable[[T_co], U]) -> IterDataPipe[U]: ...
        @overload
        def map(
            self, fn: Callable[..., Any], input_col: Any, output_col: Any = None
        ) -> IterDataPipe[Any]: ...
        def map(
            self, fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
        ) -> IterDataPipe[Any]: ...

        def collate(
            self,
            conversion: Callable[[T_co], Any] | None = None,
            collate_fn: Callable[[T_co], Any] | None = None,
        ) -> IterDataPipe[Any]: ...

        def enumerate(self, starting_index: int = 0) -> IterDataPipe[tuple[int, T_co]]: ...

        def set_length(self, length: int) -> LengthSetter[T_co]: ...

        # Many at once, and ahead

        def async_map(
            self,
            fn: Callable[..., Awaitable[U]],
            input_col: Any = None,
            output_col: Any = None,
            *,
            concurrency: int = 64,
            ordered: bool = True,
        ) -> IterDataPipe[U]: ...

        def thread_map(
            self,
            fn: Callable[..., U],
            input_col: Any = None,
            output_col: Any = None,
            *,
            concurrency: int | None = None,
            ordered: bool = True,
        ) -> IterDataPipe[U]: ...

        def prefetch(self, buffer_size: int = 10) -> IterDataPipe[T_co]: ...

        def pin_memory(
            self, device: Any = None, pin_memory_fn: Callable[[T_co, Any], T_co] | None = None
        ) -> IterDataPipe[T_co]: ...

        # Many to one, one to many

        @overload
        def batch(
            self, batch_size: int, drop_last: bool = False, *, max_wait: float | None = None
        ) -> IterDataPipe[list[T_co]]: ...
        @overload
        def batch(
            self,
            batch_size: int,
            drop_last: bool = False,
            wrapper_class: Callable[[list[T_co]], U] = ...,
            *,
            max_wait: float | None = None,
        ) -> IterDataPipe[U]: ...
        def batch(
            self,
            batch_size: int,
            drop_last: bool = False,
            wrapper_class: Any = list,
            *,
            max_wait: float | None = None,
        ) -> IterDataPipe[Any]: ...

        @overload
        def unbatch(self: IterFluent[list[U]]) -> IterDataPipe[U]: ...
        @overload
        def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]: ...
        def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]: ...

        @overload
        def flatmap(self, fn: Callable[[T_co], AsyncIterable[U]]) -> IterDataPipe[U]: ...
        @overload
        def flatmap(
            self, fn: Callable[[T_co], Coroutine[Any, Any, Iterable[U]]]
        ) -> IterDataPipe[U]: ...
        @overload
        def flatmap(self, fn: Callable[[T_co], Iterable[U]]) -> IterDataPipe[U]: ...
        @overload
        def flatmap(self: IterFluent[Iterable[U]]) -> IterDataPipe[U]: ...
        @overload
        def flatmap(self, fn: Callable[..., Any] | None, input_col: Any) -> IterDataPipe[Any]: ...
        def flatmap(
            self, fn: Callable[..., Any] | None = None, input_col: Any = None
        ) -> IterDataPipe[Any]: ...

        def filter(
            self, filter_fn: Callable[..., Any], input_col: Any = None
        ) -> IterDataPipe[T_co]: ...

        def header(self, limit: int | None = 10) -> IterDataPipe[T_co]: ...

        def groupby(
            self,
            group_key_fn: Callable[[T_co], Any],
            *,
            keep_key: bool = False,
            buffer_size: int = 10000,
            group_size: int | None = None,
            guaranteed_group_size: int | None = None,
            drop_remaining: bool = False,
        ) -> IterDataPipe[Any]: ...

        # Order

        def shuffle(
            self, *, buffer_size: int = 10000, unbatch_level: int = 0
        ) -> Shuffler[T_co]: ...

        def in_batch_shuffle(self: IterFluent[Sequence[U]]) -> InBatchShuffler[U]: ...

        # Splitting and joining

        @overload
        def zip(self, other: Iterable[A], /) -> IterDataPipe[tuple[T_co, A]]: ...
        @overload
        def zip(
            self, other: Iterable[A], another: Iterable[B], /
        ) -> IterDataPipe[tuple[T_co, A, B]]: ...
        @overload
        def zip(self, *datapipes: Iterable[Any]) -> IterDataPipe[tuple[Any, ...]]: ...
        def zip(self, *datapipes: Iterable[Any]) -> IterDataPipe[Any]: ...

        def zip_longest(
            self, *datapipes: Iterable[Any], fill_value: Any = None
        ) -> ZipperLongest: ...

        def concat(self, *datapipes: Iterable[U]) -> IterDataPipe[T_co | U]: ...

        def mux(self, *datapipes: Iterable[U]) -> IterDataPipe[T_co | U]: ...

        def mux_longest(self, *datapipes: Iterable[U]) -> IterDataPipe[T_co | U]: ...

        def cycle(self, count: int | None = None) -> IterDataPipe[T_co]: ...

        def repeat(self, times: int) -> IterDataPipe[T_co]: ...

        def fork(
            self,
            num_instances: int,
            buffer_size: int = 1000,
            copy: Literal["shallow", "deep"] | None = None,
        ) -> list[Branch[T_co]]: ...

        def demux(
            self,
            num_instances: int,
            classifier_fn: Callable[[T_co], Any],
            drop_none: bool = False,
            buffer_size: int = 1000,
        ) -> list[Branch[T_co]]: ...

        def round_robin_demux(
            self, num_instances: int, buffer_size: int = 1000
        ) -> list[Branch[T_co]]: ...

        # Sharding

        def sharding_filter(
            self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
        ) -> ShardingFilter[T_co]: ...

        def sharding_round_robin_dispatch(
            self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
        ) -> ShardingRoundRobinDispatcher[T_co]: ...

        # Converting

        @overload
        def to_map_datapipe(self: IterFluent[tuple[K, U]]) -> IterToMapConverter[U]: ...
        @overload
        def to_map_datapipe(
            self, key_value_fn: Callable[[T_co], tuple[Any, U]]
        ) -> IterToMapConverter[U]: ...
        @overload
        def to_map_datapipe(
            self, key_value_fn: Callable[[T_co], Any] | None = None
        ) -> IterToMapConverter[Any]: ...
        def to_map_datapipe(
            self, key_value_fn: Callable[[T_co], Any] | None = None
        ) -> IterToMapConverter[Any]: ...


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

        def shuffle(self, *, indices: Sequence[Any] | None = None) -> MapShuffler[T_co]: ...

        def to_iter_datapipe(
            self, indices: Sequence[Any] | None = None
        ) -> MapToIterConverter[T_co]: ...
