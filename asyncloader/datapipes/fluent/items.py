"""Fluent methods of pipes that change single items.

This file is about ``ItemMethods``: one item out for each, and lookups made of a stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Hashable, Iterable, Sequence

    from asyncloader.datapipes.items.converting import IterToMapConverter
    from asyncloader.datapipes.items.mapping import LengthSetter
    from asyncloader.datapipes.pipe.base import IterDataPipe
    from asyncloader.datapipes.pipe.tolerance import OnError

    K = TypeVar("K")
    U = TypeVar("U")


class ItemMethods(Generic[T_co]):
    """The methods of these pipes."""

    if TYPE_CHECKING:

        @overload
        def map(
            self,
            fn: Callable[[T_co], Coroutine[Any, Any, U]],
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def map(
            self,
            fn: Callable[[T_co], U],
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def map(
            self,
            fn: Callable[..., Any],
            input_col: Any,
            output_col: Any = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...
        def map(
            self,
            fn: Callable[..., Any],
            input_col: Any = None,
            output_col: Any = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...

        def collate(
            self,
            conversion: Callable[[T_co], Any] | None = None,
            collate_fn: Callable[[T_co], Any] | None = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...

        def enumerate(self, starting_index: int = 0) -> IterDataPipe[tuple[int, T_co]]: ...

        def set_length(self, length: int) -> LengthSetter[T_co]: ...

        def add_index(
            self: ItemMethods[dict[Any, Any]], index_name: str = "index"
        ) -> IterDataPipe[dict[Any, Any]]: ...

        def in_memory_cache(self, size: int | None = None) -> IterDataPipe[T_co]: ...

        def slice(
            self, index: Any, stop: int | None = None, step: int | None = None
        ) -> IterDataPipe[Any]: ...

        def drop(self, indices: Hashable | list[Hashable]) -> IterDataPipe[Any]: ...

        def flatten(
            self, indices: Hashable | list[Hashable] | None = None
        ) -> IterDataPipe[Any]: ...

        def rows2columnar(
            self: ItemMethods[Iterable[Any]], column_names: Sequence[str] | None = None
        ) -> IterDataPipe[dict[Any, list[Any]]]: ...

        @overload
        def to_map_datapipe(self: ItemMethods[tuple[K, U]]) -> IterToMapConverter[U]: ...
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
