"""The fluent methods, as editors and type checkers see them.

``python -m tests.fluent_stub`` made this file from the constructors of the pipes; change those.
"""

from collections.abc import (
    AsyncIterable,
    Awaitable,
    Callable,
    Coroutine,
    Hashable,
    Iterable,
    Mapping,
    Sequence,
)
from typing import Any, Generic, Literal, TypeVar, overload

from asyncloader.datapipes.admission import Order, Version
from asyncloader.datapipes.attempts import ErrorTypes
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe
from asyncloader.datapipes.combining import ZipperLongest
from asyncloader.datapipes.converting import IterToMapConverter, MapToIterConverter
from asyncloader.datapipes.files.decompressing import CompressionType
from asyncloader.datapipes.files.parsing import MAX_GROUP_BYTES
from asyncloader.datapipes.files.streams import PathAndStream, PathName
from asyncloader.datapipes.files.text import MAX_LINE_BYTES
from asyncloader.datapipes.files.unpacking import (
    MAX_BYTES,
    MAX_MEMBER_BYTES,
    MAX_MEMBERS,
    MAX_RATIO,
)
from asyncloader.datapipes.flattening import ShuffledFlatMapper
from asyncloader.datapipes.mapping import LengthSetter
from asyncloader.datapipes.random_splitting import Share
from asyncloader.datapipes.resources import Resource, ThreadResource
from asyncloader.datapipes.sharding import (
    SHARDING_PRIORITIES,
    ShardingFilter,
    ShardingRoundRobinDispatcher,
)
from asyncloader.datapipes.shuffling import InBatchShuffler, MapShuffler, Shuffler
from asyncloader.datapipes.splitting import Branch, MapColumn
from asyncloader.datapipes.tolerance import OnError

T_co = TypeVar("T_co", covariant=True)
A = TypeVar("A")
B = TypeVar("B")
K = TypeVar("K")
U = TypeVar("U")

class IterFluent(Generic[T_co]):
    """The methods of ``IterDataPipe``."""
    def add_index(
        self: IterFluent[dict[Any, Any]], index_name: str = "index"
    ) -> IterDataPipe[dict[Any, Any]]: ...
    @overload
    def async_map(
        self,
        fn: Callable[..., Awaitable[U]],
        *,
        concurrency: int | Literal["auto"] = 64,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: Resource | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> IterDataPipe[U]: ...
    @overload
    def async_map(
        self,
        fn: Callable[..., Awaitable[Any]],
        input_col: Any,
        output_col: Any = None,
        *,
        concurrency: int | Literal["auto"] = 64,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: Resource | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
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
        repeatable: bool = True,
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
        repeatable: bool = True,
    ) -> IterDataPipe[Any]: ...
    @overload
    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        *,
        across_workers: bool = False,
        max_wait: float | Literal["adaptive"] | None = None,
    ) -> IterDataPipe[list[T_co]]: ...
    @overload
    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[T_co]], U] = ...,
        *,
        across_workers: bool = False,
        max_wait: float | Literal["adaptive"] | None = None,
    ) -> IterDataPipe[U]: ...
    def batch_tokens(
        self, max_tokens: int, length: Callable[[T_co], Any] = ...
    ) -> IterDataPipe[list[T_co]]: ...
    def bucketbatch(
        self,
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[T_co]], Any] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> IterDataPipe[list[T_co]]: ...
    def check_hash(
        self: IterFluent[tuple[str, U]],
        hash_dict: dict[str, str],
        hash_type: str = "sha256",
        rewind: bool = True,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[tuple[str, U]]: ...
    def collate(
        self,
        conversion: Callable[[T_co], Any] | None = None,
        collate_fn: Callable[[T_co], Any] | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[Any]: ...
    def concat(self, *datapipes: Iterable[U]) -> IterDataPipe[T_co | U]: ...
    def cycle(self, count: int | None = None) -> IterDataPipe[T_co]: ...
    def decompress(
        self: IterFluent[PathAndStream],
        file_type: str | CompressionType | None = None,
        *,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[PathAndStream]: ...
    def demux(
        self,
        num_instances: int,
        classifier_fn: Callable[[T_co], Any],
        drop_none: bool = False,
        buffer_size: int = 1000,
    ) -> list[Branch[T_co]]: ...
    def drop(self, indices: Hashable | list[Hashable]) -> IterDataPipe[Any]: ...
    def end_caching(
        self,
        mode: str = "wb",
        filepath_fn: Callable[[Any], Any] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = 300,
        concurrency: int | None = None,
    ) -> IterDataPipe[str]: ...
    def enumerate(self, starting_index: int = 0) -> IterDataPipe[tuple[int, T_co]]: ...
    def filter(
        self,
        filter_fn: Callable[..., Any],
        input_col: Any = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> IterDataPipe[T_co]: ...
    @overload
    def flatmap(
        self,
        fn: Callable[[T_co], AsyncIterable[U]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> IterDataPipe[U]: ...
    @overload
    def flatmap(
        self,
        fn: Callable[[T_co], Coroutine[Any, Any, Iterable[U]]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> IterDataPipe[U]: ...
    @overload
    def flatmap(
        self,
        fn: Callable[[T_co], Iterable[U]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> IterDataPipe[U]: ...
    @overload
    def flatmap(
        self: IterFluent[Iterable[U]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> IterDataPipe[U]: ...
    @overload
    def flatmap(
        self,
        fn: Callable[..., Any] | None,
        input_col: Any,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
    ) -> IterDataPipe[Any]: ...
    def flatten(self, indices: Hashable | list[Hashable] | None = None) -> IterDataPipe[Any]: ...
    def fork(
        self,
        num_instances: int,
        buffer_size: int = 1000,
        copy: Literal["shallow", "deep"] | None = None,
    ) -> list[Branch[T_co]]: ...
    def fullsync(self, timeout: float = 1800) -> IterDataPipe[T_co]: ...
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
    def header(self, limit: int | None = 10) -> IterDataPipe[T_co]: ...
    def in_batch_shuffle(self: IterFluent[Sequence[U]]) -> InBatchShuffler[U]: ...
    def in_memory_cache(self, size: int | None = None) -> IterDataPipe[T_co]: ...
    def lines_to_paragraphs(
        self: IterFluent[tuple[str, U]], joiner: Callable[[list[Any]], Any] = ...
    ) -> IterDataPipe[tuple[str, Any]]: ...
    def list_files(
        self: IterFluent[PathName],
        masks: str | list[str] = "",
        *,
        recursive: bool = False,
        abspath: bool = False,
        non_deterministic: bool = False,
        length: int = -1,
    ) -> IterDataPipe[str]: ...
    def list_files_by_fsspec(
        self: IterFluent[PathName], masks: str | list[str] = "", **kwargs: Any
    ) -> IterDataPipe[str]: ...
    def load_from_bz2(
        self: IterFluent[PathAndStream],
        length: int = -1,
        *,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
    ) -> IterDataPipe[PathAndStream]: ...
    def load_from_tar(
        self: IterFluent[PathAndStream],
        mode: str = "r:*",
        length: int = -1,
        *,
        max_members: float = MAX_MEMBERS,
        max_member_bytes: float = MAX_MEMBER_BYTES,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[PathAndStream]: ...
    def load_from_xz(
        self: IterFluent[PathAndStream],
        length: int = -1,
        *,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
    ) -> IterDataPipe[PathAndStream]: ...
    def load_from_zip(
        self: IterFluent[PathAndStream],
        length: int = -1,
        *,
        max_members: float = MAX_MEMBERS,
        max_member_bytes: float = MAX_MEMBER_BYTES,
        max_bytes: float = MAX_BYTES,
        max_ratio: float = MAX_RATIO,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[PathAndStream]: ...
    def load_parquet(
        self,
        columns: Sequence[str] | None = None,
        *,
        as_rows: bool = False,
        return_path: bool = False,
        max_group_bytes: float = MAX_GROUP_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[Any]: ...
    @overload
    def map(
        self,
        fn: Callable[[T_co], Coroutine[Any, Any, U]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> IterDataPipe[U]: ...
    @overload
    def map(
        self,
        fn: Callable[[T_co], U],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
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
        repeatable: bool = True,
        keep_results: bool = False,
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
    def max_token_bucketize(
        self,
        max_token_count: int,
        len_fn: Callable[[T_co], Any] = ...,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> IterDataPipe[list[T_co]]: ...
    def mux(self, *datapipes: Iterable[U]) -> IterDataPipe[T_co | U]: ...
    def mux_longest(self, *datapipes: Iterable[U]) -> IterDataPipe[T_co | U]: ...
    def on_disk_cache(
        self,
        filepath_fn: Callable[[T_co], Any] | None = None,
        hash_dict: dict[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> IterDataPipe[T_co]: ...
    def open_files(
        self: IterFluent[PathName], mode: str = "r", encoding: str | None = None, length: int = -1
    ) -> IterDataPipe[tuple[str, Any]]: ...
    def open_files_by_fsspec(
        self: IterFluent[PathName],
        mode: str = "r",
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> IterDataPipe[tuple[str, Any]]: ...
    def pack_sequences(
        self,
        budget: int,
        *,
        len_fn: Callable[[T_co], Any] = ...,
        split: Literal["never", "long", "always"] = "never",
        cut_fn: Callable[[T_co, int, int], Any] | None = None,
        open_packs: int = 16,
        drop_last: bool = False,
    ) -> IterDataPipe[list[T_co]]: ...
    def parse_csv(
        self: IterFluent[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        as_tuple: bool = False,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **fmtparams: Any,
    ) -> IterDataPipe[Any]: ...
    def parse_csv_as_dict(
        self: IterFluent[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        decode: bool = True,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = False,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **fmtparams: Any,
    ) -> IterDataPipe[Any]: ...
    def parse_json_files(
        self: IterFluent[tuple[str, Any]],
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **kwargs: Any,
    ) -> IterDataPipe[tuple[str, Any]]: ...
    def parse_json_lines(
        self: IterFluent[tuple[str, Any]],
        *,
        return_path: bool = False,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        **kwargs: Any,
    ) -> IterDataPipe[Any]: ...
    def pin_memory(
        self, device: Any = None, pin_memory_fn: Callable[[T_co, Any], T_co] | None = None
    ) -> IterDataPipe[T_co]: ...
    def prefetch(
        self, buffer_size: int = 10, *, buffer_bytes: int | None = None
    ) -> IterDataPipe[T_co]: ...
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
        self, weights: Mapping[Any, float], seed: int, total_length: int | None, target: Hashable
    ) -> Share[T_co]: ...
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
    def read_from_stream(
        self: IterFluent[tuple[str, Any]],
        chunk: int | None = None,
        *,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[tuple[str, Any]]: ...
    def readlines(
        self: IterFluent[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> IterDataPipe[Any]: ...
    def repeat(self, times: int) -> IterDataPipe[T_co]: ...
    @overload
    def rollout(
        self,
        generate: Callable[..., Awaitable[U]],
        *,
        group: int,
        concurrency: int = 64,
        version: Version | None = None,
        max_lag: int | None = None,
        per_step: int | None = None,
        order: Order | None = None,
        on_stale: Literal["again", "drop"] = "again",
        on_error: Literal["again", "raise"] = "again",
        attempts: int | None = 3,
        max_stale: int | None = None,
        backoff: float = 0.1,
        timeout: float | None = None,
        min_group: int | None = None,
        group_timeout: float | None = None,
        max_failures: int = 100,
        most_ahead: int = 100000,
        keep_results: bool = False,
    ) -> IterDataPipe[list[U]]: ...
    @overload
    def rollout(
        self,
        generate: Callable[..., Awaitable[U]],
        *,
        group: None = None,
        concurrency: int = 64,
        version: Version | None = None,
        max_lag: int | None = None,
        per_step: int | None = None,
        order: Order | None = None,
        on_stale: Literal["again", "drop"] = "again",
        on_error: Literal["again", "raise"] = "again",
        attempts: int | None = 3,
        max_stale: int | None = None,
        backoff: float = 0.1,
        timeout: float | None = None,
        min_group: int | None = None,
        group_timeout: float | None = None,
        max_failures: int = 100,
        most_ahead: int = 100000,
        keep_results: bool = False,
    ) -> IterDataPipe[U]: ...
    @overload
    def rollout(
        self,
        generate: Callable[..., Awaitable[U]],
        *,
        group: int | None = None,
        concurrency: int = 64,
        version: Version | None = None,
        max_lag: int | None = None,
        per_step: int | None = None,
        order: Order | None = None,
        on_stale: Literal["again", "drop"] = "again",
        on_error: Literal["again", "raise"] = "again",
        attempts: int | None = 3,
        max_stale: int | None = None,
        backoff: float = 0.1,
        timeout: float | None = None,
        min_group: int | None = None,
        group_timeout: float | None = None,
        max_failures: int = 100,
        most_ahead: int = 100000,
        keep_results: bool = False,
    ) -> IterDataPipe[Any]: ...
    def round_robin_demux(
        self, num_instances: int, buffer_size: int = 1000
    ) -> list[Branch[T_co]]: ...
    def rows2columnar(
        self: IterFluent[Iterable[Any]], column_names: Sequence[str] | None = None
    ) -> IterDataPipe[dict[Any, list[Any]]]: ...
    def save_by_fsspec(
        self: IterFluent[tuple[U, Any]],
        mode: str = "w",
        filepath_fn: Callable[[U], Any] | None = None,
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> IterDataPipe[str]: ...
    def save_to_disk(
        self: IterFluent[tuple[U, Any]],
        mode: str = "w",
        filepath_fn: Callable[[U], Any] | None = None,
    ) -> IterDataPipe[str]: ...
    def set_length(self, length: int) -> LengthSetter[T_co]: ...
    def shard_expand(self: IterFluent[str]) -> IterDataPipe[str]: ...
    def sharding_filter(
        self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
    ) -> ShardingFilter[T_co]: ...
    def sharding_round_robin_dispatch(
        self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
    ) -> ShardingRoundRobinDispatcher[T_co]: ...
    def shuffle(self, *, buffer_size: int = 10000, unbatch_level: int = 0) -> Shuffler[T_co]: ...
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
        self: IterFluent[Iterable[U]],
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
    def slice(
        self, index: Any, stop: int | None = None, step: int | None = None
    ) -> IterDataPipe[Any]: ...
    @overload
    def thread_map(
        self,
        fn: Callable[[T_co], U],
        *,
        concurrency: int | Literal["auto"] | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: ThreadResource | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> IterDataPipe[U]: ...
    @overload
    def thread_map(
        self,
        fn: Callable[..., Any],
        input_col: Any,
        output_col: Any = None,
        *,
        concurrency: int | Literal["auto"] | None = None,
        ordered: bool = True,
        timeout: float | None = None,
        retries: int = 0,
        retry_on: ErrorTypes = OSError,
        backoff: float = 0.1,
        resource: ThreadResource | None = None,
        on_error: OnError = "raise",
        max_errors: int | None = None,
        repeatable: bool = True,
        keep_results: bool = False,
    ) -> IterDataPipe[Any]: ...
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
    def to_device(self, device: Any = None, ahead: int = 2) -> IterDataPipe[T_co]: ...
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
    @overload
    def unbatch(self: IterFluent[list[U]]) -> IterDataPipe[U]: ...
    @overload
    def unbatch(self, unbatch_level: int = 1) -> IterDataPipe[Any]: ...
    def unzip(
        self: IterFluent[Sequence[U]],
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[Branch[U]]: ...
    def webdataset(self: IterFluent[tuple[str, Any]]) -> IterDataPipe[dict[str, Any]]: ...
    @overload
    def zip(self, other: Iterable[A], /) -> IterDataPipe[tuple[T_co, A]]: ...
    @overload
    def zip(
        self, other: Iterable[A], another: Iterable[B], /
    ) -> IterDataPipe[tuple[T_co, A, B]]: ...
    @overload
    def zip(self, *datapipes: Iterable[Any]) -> IterDataPipe[tuple[Any, ...]]: ...
    def zip_longest(self, *datapipes: Iterable[Any], fill_value: Any = None) -> ZipperLongest: ...
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

class MapFluent(Generic[T_co]):
    """The methods of ``MapDataPipe``."""
    @overload
    def batch(self, batch_size: int, drop_last: bool = False) -> MapDataPipe[list[T_co]]: ...
    @overload
    def batch(
        self,
        batch_size: int,
        drop_last: bool = False,
        wrapper_class: Callable[[list[T_co]], U] = ...,
    ) -> MapDataPipe[U]: ...
    def concat(self, *datapipes: MapDataPipe[U]) -> MapDataPipe[T_co | U]: ...
    def in_memory_cache(self) -> MapDataPipe[T_co]: ...
    @overload
    def map(self, fn: Callable[[T_co], Coroutine[Any, Any, U]]) -> MapDataPipe[U]: ...
    @overload
    def map(self, fn: Callable[[T_co], U]) -> MapDataPipe[U]: ...
    def sharding_filter(
        self, sharding_group_filter: SHARDING_PRIORITIES | int | None = None
    ) -> IterDataPipe[T_co]: ...
    def shuffle(self, *, indices: Sequence[Any] | None = None) -> MapShuffler[T_co]: ...
    def to_iter_datapipe(
        self, indices: Sequence[Any] | None = None
    ) -> MapToIterConverter[T_co]: ...
    def unzip(
        self: MapFluent[Sequence[U]],
        sequence_length: int,
        columns_to_skip: Sequence[int] | None = None,
    ) -> list[MapColumn[U]]: ...
    @overload
    def zip(self, other: MapDataPipe[A], /) -> MapDataPipe[tuple[T_co, A]]: ...
    @overload
    def zip(self, *datapipes: MapDataPipe[Any]) -> MapDataPipe[tuple[Any, ...]]: ...
