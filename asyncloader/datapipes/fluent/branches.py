"""Fluent methods of pipes that have several sources, or several readers.

This file is about ``BranchMethods``: splitting, joining, and dividing among processes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
    from typing import Literal

    from asyncloader.datapipes.branches.branching import Branch
    from asyncloader.datapipes.branches.combining import ZipperLongest
    from asyncloader.datapipes.branches.random_splitting import Share
    from asyncloader.datapipes.branches.sharding import (
        SHARDING_PRIORITIES,
        ShardingFilter,
        ShardingRoundRobinDispatcher,
    )
    from asyncloader.datapipes.pipe.base import IterDataPipe, MapDataPipe

    A = TypeVar("A")
    B = TypeVar("B")
    U = TypeVar("U")


class BranchMethods(Generic[T_co]):
    """The methods of these pipes."""

    if TYPE_CHECKING:

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

        def unzip(
            self: BranchMethods[Sequence[U]],
            sequence_length: int,
            buffer_size: int = 1000,
            columns_to_skip: Sequence[int] | None = None,
        ) -> list[Branch[U]]: ...

        @overload
        def random_split(
            self, weights: Mapping[Any, float], seed: int, total_length: int | None = None
        ) -> list[Share[T_co]]: ...
        @overload
        def random_split(
            self,
            weights: Mapping[Any, float],
            seed: int,
            total_length: int | None = None,
            *,
            target: Hashable,
        ) -> Share[T_co]: ...
        @overload
        def random_split(
            self,
            weights: Mapping[Any, float],
            seed: int,
            total_length: int | None,
            target: Hashable,
        ) -> Share[T_co]: ...
        def random_split(
            self,
            weights: Mapping[Any, float],
            seed: int,
            total_length: int | None = None,
            target: Hashable | None = None,
        ) -> Any: ...

        @overload
        def zip_with_iter(
            self,
            ref_datapipe: Iterable[U],
            key_fn: Callable[..., Any],
            ref_key_fn: Callable[..., Any] | None = None,
            *,
            buffer_size: int | None = 10000,
        ) -> IterDataPipe[tuple[T_co, U]]: ...
        @overload
        def zip_with_iter(
            self,
            ref_datapipe: Iterable[Any],
            key_fn: Callable[..., Any],
            ref_key_fn: Callable[..., Any] | None = None,
            keep_key: bool = False,
            buffer_size: int | None = 10000,
            merge_fn: Callable[..., Any] | None = None,
        ) -> IterDataPipe[Any]: ...
        def zip_with_iter(
            self,
            ref_datapipe: Iterable[Any],
            key_fn: Callable[..., Any],
            ref_key_fn: Callable[..., Any] | None = None,
            keep_key: bool = False,
            buffer_size: int | None = 10000,
            merge_fn: Callable[..., Any] | None = None,
        ) -> IterDataPipe[Any]: ...

        @overload
        def zip_with_map(
            self, map_datapipe: MapDataPipe[U], key_fn: Callable[..., Any]
        ) -> IterDataPipe[tuple[T_co, U]]: ...
        @overload
        def zip_with_map(
            self,
            map_datapipe: MapDataPipe[Any],
            key_fn: Callable[..., Any],
            merge_fn: Callable[..., Any] | None = None,
            keep_key: bool = False,
        ) -> IterDataPipe[Any]: ...
        def zip_with_map(
            self,
            map_datapipe: MapDataPipe[Any],
            key_fn: Callable[..., Any],
            merge_fn: Callable[..., Any] | None = None,
            keep_key: bool = False,
        ) -> IterDataPipe[Any]: ...

        def sharding_filter(
            self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
        ) -> ShardingFilter[T_co]: ...

        def sharding_round_robin_dispatch(
            self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
        ) -> ShardingRoundRobinDispatcher[T_co]: ...
