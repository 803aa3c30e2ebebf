"""Fluent methods of pipes that do many things at once, or ahead.

This file is about ``CallMethods``: calls in a window or in threads, requests, and running ahead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable
    from typing import Literal

    from asyncloader.datapipes.calls.attempts import ErrorTypes
    from asyncloader.datapipes.calls.shared_resource import Resource
    from asyncloader.datapipes.pipe.base import IterDataPipe
    from asyncloader.datapipes.pipe.tolerance import OnError

    U = TypeVar("U")


class CallMethods(Generic[T_co]):
    """The methods of these pipes."""

    if TYPE_CHECKING:

        @overload
        def async_map(
            self,
            fn: Callable[..., Awaitable[U]],
            *,
            concurrency: int = 64,
            ordered: bool = True,
            timeout: float | None = None,
            retries: int = 0,
            retry_on: ErrorTypes = OSError,
            backoff: float = 0.1,
            resource: Resource | None = None,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def async_map(
            self,
            fn: Callable[..., Awaitable[Any]],
            input_col: Any,
            output_col: Any = None,
            *,
            concurrency: int = 64,
            ordered: bool = True,
            timeout: float | None = None,
            retries: int = 0,
            retry_on: ErrorTypes = OSError,
            backoff: float = 0.1,
            resource: Resource | None = None,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...
        def async_map(
            self,
            fn: Callable[..., Awaitable[Any]],
            input_col: Any = None,
            output_col: Any = None,
            *,
            concurrency: int = 64,
            ordered: bool = True,
            timeout: float | None = None,
            retries: int = 0,
            retry_on: ErrorTypes = OSError,
            backoff: float = 0.1,
            resource: Resource | None = None,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...

        @overload
        def async_map_batches(
            self,
            async_fn: Callable[..., Awaitable[U]],
            batch_size: int,
            input_col: None = None,
            output_col: None = None,
            max_concurrency: int = 32,
            flatten: Literal[True] = True,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def async_map_batches(
            self,
            async_fn: Callable[..., Awaitable[Any]],
            batch_size: int,
            input_col: Any = None,
            output_col: Any = None,
            max_concurrency: int = 32,
            flatten: bool = True,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...
        def async_map_batches(
            self,
            async_fn: Callable[..., Awaitable[Any]],
            batch_size: int,
            input_col: Any = None,
            output_col: Any = None,
            max_concurrency: int = 32,
            flatten: bool = True,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...

        @overload
        def thread_map(
            self,
            fn: Callable[[T_co], U],
            *,
            concurrency: int | None = None,
            ordered: bool = True,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...
        @overload
        def thread_map(
            self,
            fn: Callable[..., Any],
            input_col: Any,
            output_col: Any = None,
            *,
            concurrency: int | None = None,
            ordered: bool = True,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...
        def thread_map(
            self,
            fn: Callable[..., Any],
            input_col: Any = None,
            output_col: Any = None,
            *,
            concurrency: int | None = None,
            ordered: bool = True,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[Any]: ...

        # First, since what is named input_col would else be one of the other keywords.
        @overload
        def threadpool_map(
            self,
            fn: Callable[..., Any],
            input_col: Any,
            output_col: Any = None,
            scheduled_tasks: int = 128,
            max_workers: int | None = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **threadpool_kwargs: Any,
        ) -> IterDataPipe[Any]: ...
        @overload
        def threadpool_map(
            self,
            fn: Callable[[T_co], U],
            *,
            scheduled_tasks: int = 128,
            max_workers: int | None = None,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **threadpool_kwargs: Any,
        ) -> IterDataPipe[U]: ...
        def threadpool_map(
            self,
            fn: Callable[..., Any],
            input_col: Any = None,
            output_col: Any = None,
            scheduled_tasks: int = 128,
            max_workers: int | None = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **threadpool_kwargs: Any,
        ) -> IterDataPipe[Any]: ...

        def map_batches(
            self,
            fn: Callable[[list[Any]], Iterable[U]],
            batch_size: int,
            input_col: Any = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[U]: ...

        def read_from_http(
            self,
            timeout: float | None = None,
            skip_on_error: bool = False,
            *,
            concurrency: int | None = None,
            ordered: bool = True,
            retries: int = 3,
            backoff: float = 0.1,
            max_redirects: int = 10,
            max_bytes: int | Literal["auto"] | None = "auto",
            as_bytes: bool = False,
            stream: bool = False,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **request_settings: Any,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def read_from_object_store(
            self,
            store: Any,
            *,
            concurrency: int = 64,
            ordered: bool = True,
            timeout: float | None = None,
            max_bytes: int = 1 << 30,
            as_bytes: bool = False,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **store_settings: Any,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def prefetch(
            self, buffer_size: int = 10, *, buffer_bytes: int | None = None
        ) -> IterDataPipe[T_co]: ...

        def pin_memory(
            self, device: Any = None, pin_memory_fn: Callable[[T_co, Any], T_co] | None = None
        ) -> IterDataPipe[T_co]: ...

        def fullsync(self, timeout: float = 1800) -> IterDataPipe[T_co]: ...
