"""Fluent methods of pipes that make one item of many, or many of one.

This file is about ``GroupMethods``: batches, groups and packs, what they are taken apart
into, and in which order.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Coroutine, Iterable, Sequence
    from typing import Literal

    from asyncloader.datapipes.groups.shuffled_flattening import ShuffledFlatMapper
    from asyncloader.datapipes.groups.shuffling import InBatchShuffler, Shuffler
    from asyncloader.datapipes.pipe.base import IterDataPipe
    from asyncloader.datapipes.pipe.tolerance import OnError

    U = TypeVar("U")


class GroupMethods(Generic[T_co]):
    """The methods of these pipes."""

    if TYPE_CHECKING:

        @overload
        def batch(
            self,
            batch_size: int,
            drop_last: bool = False,
            *,
            across_workers: bool = False,
            max_wait: float | None = None,
        ) -> IterDataPipe[list[T_co]]: ...
        @overload
        def batch(
            self,
            batch_size: int,
            drop_last: bool = False,
            wrapper_class: Callable[[list[T_co]], U] = ...,
            *,
            across_workers: bool = False,
            max_wait: float | None = None,
        ) -> IterDataPipe[U]: ...
        def batch(
            self,
            batch_size: int,
            drop_last: bool = False,
            wrapper_class: Any = list,
            *,
            across_workers: bool = False,
            max_wait: float | None = None,
        ) -> IterDataPipe[Any]: ...

        @overload
        def unbatch(self: GroupMethods[list[U]]) -> IterDataPipe[U]: ...
        @overload
        def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]: ...
        def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]: ...

        @overload
        def flatmap(
            self,
            fn: Callable[[T_co], AsyncIterable[U]],
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def flatmap(
            self,
            fn: Callable[[T_co], Coroutine[Any, Any, Iterable[U]]],
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def flatmap(
            self,
            fn: Callable[[T_co], Iterable[U]],
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def flatmap(self: GroupMethods[Iterable[U]]) -> IterDataPipe[U]: ...
        @overload
        def flatmap(
            self,
            fn: Callable[..., Any] | None,
            input_col: Any,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...
        def flatmap(
            self,
            fn: Callable[..., Any] | None = None,
            input_col: Any = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...

        def filter(
            self,
            filter_fn: Callable[..., Any],
            input_col: Any = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
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

        def bucketbatch(
            self,
            batch_size: int,
            drop_last: bool = False,
            batch_num: int = 100,
            bucket_num: int = 1,
            sort_key: Callable[[list[T_co]], Any] | None = None,
            use_in_batch_shuffle: bool = True,
        ) -> IterDataPipe[list[T_co]]: ...

        def max_token_bucketize(
            self,
            max_token_count: int,
            len_fn: Callable[[T_co], Any] = len,  # type: ignore[assignment]
            min_len: int = 0,
            max_len: int | None = None,
            buffer_size: int = 1000,
            include_padding: bool = False,
        ) -> IterDataPipe[list[T_co]]: ...

        def pack_sequences(
            self,
            budget: int,
            *,
            len_fn: Callable[[T_co], Any] = len,  # type: ignore[assignment]
            split: Literal["never", "long", "always"] = "never",
            cut_fn: Callable[[T_co, int, int], Any] | None = None,
            open_packs: int = 16,
            drop_last: bool = False,
        ) -> IterDataPipe[list[T_co]]: ...

        @overload
        def shuffled_flatmap(
            self,
            fn: Callable[[T_co], AsyncIterable[U]],
            *,
            buffer_size: int = 100,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> ShuffledFlatMapper[U]: ...
        @overload
        def shuffled_flatmap(
            self,
            fn: Callable[[T_co], Coroutine[Any, Any, Iterable[U]]],
            *,
            buffer_size: int = 100,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> ShuffledFlatMapper[U]: ...
        @overload
        def shuffled_flatmap(
            self,
            fn: Callable[[T_co], Iterable[U]],
            *,
            buffer_size: int = 100,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> ShuffledFlatMapper[U]: ...
        @overload
        def shuffled_flatmap(
            self: GroupMethods[Iterable[U]],
            *,
            buffer_size: int = 100,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> ShuffledFlatMapper[U]: ...
        @overload
        def shuffled_flatmap(
            self,
            fn: Callable[..., Any] | None,
            input_col: Any,
            buffer_size: int = 100,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> ShuffledFlatMapper[Any]: ...
        def shuffled_flatmap(
            self,
            fn: Callable[..., Any] | None = None,
            input_col: Any = None,
            buffer_size: int = 100,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> ShuffledFlatMapper[Any]: ...

        def shuffle(
            self, *, buffer_size: int = 10000, unbatch_level: int = 0
        ) -> Shuffler[T_co]: ...

        def in_batch_shuffle(self: GroupMethods[Sequence[U]]) -> InBatchShuffler[U]: ...
