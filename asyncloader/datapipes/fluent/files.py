"""Fluent methods of pipes that read and write files.

This file is about ``FileMethods``: files, archives, what is parsed out of them, and what
is kept in them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from asyncloader.datapipes.files.decompressing import CompressionType
    from asyncloader.datapipes.files.limits import (
        MAX_BYTES,
        MAX_GROUP_BYTES,
        MAX_LINE_BYTES,
        MAX_MEMBER_BYTES,
        MAX_MEMBERS,
        MAX_RATIO,
    )
    from asyncloader.datapipes.files.streams import PathName
    from asyncloader.datapipes.files.text import joined_lines
    from asyncloader.datapipes.pipe.base import IterDataPipe
    from asyncloader.datapipes.pipe.tolerance import OnError

    U = TypeVar("U")


class FileMethods(Generic[T_co]):
    """The methods of these pipes."""

    if TYPE_CHECKING:

        def list_files(
            self: FileMethods[PathName],
            masks: str | list[str] = "",
            *,
            recursive: bool = False,
            abspath: bool = False,
            non_deterministic: bool = False,
            length: int = -1,
        ) -> IterDataPipe[str]: ...

        def open_files(
            self: FileMethods[PathName],
            mode: str = "r",
            encoding: str | None = None,
            length: int = -1,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def read_from_stream(
            self: FileMethods[tuple[str, Any]],
            chunk: int | None = None,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def list_files_by_fsspec(
            self: FileMethods[PathName], masks: str | list[str] = "", **kwargs: Any
        ) -> IterDataPipe[str]: ...

        def open_files_by_fsspec(
            self: FileMethods[PathName],
            mode: str = "r",
            *,
            kwargs_for_open: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def save_by_fsspec(
            self: FileMethods[tuple[U, Any]],
            mode: str = "w",
            filepath_fn: Callable[[U], Any] | None = None,
            *,
            kwargs_for_open: dict[str, Any] | None = None,
            **kwargs: Any,
        ) -> IterDataPipe[str]: ...

        def save_to_disk(
            self: FileMethods[tuple[U, Any]],
            mode: str = "w",
            filepath_fn: Callable[[U], Any] | None = None,
        ) -> IterDataPipe[str]: ...

        def check_hash(
            self: FileMethods[tuple[str, U]],
            hash_dict: dict[str, str],
            hash_type: str = "sha256",
            rewind: bool = True,
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[tuple[str, U]]: ...

        def decompress(
            self: FileMethods[tuple[str, Any]],
            file_type: str | CompressionType | None = None,
            *,
            max_bytes: float = MAX_BYTES,
            max_ratio: float = MAX_RATIO,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def load_from_xz(
            self: FileMethods[tuple[str, Any]],
            length: int = -1,
            *,
            max_bytes: float = MAX_BYTES,
            max_ratio: float = MAX_RATIO,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def load_from_bz2(
            self: FileMethods[tuple[str, Any]],
            length: int = -1,
            *,
            max_bytes: float = MAX_BYTES,
            max_ratio: float = MAX_RATIO,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def load_from_tar(
            self: FileMethods[tuple[str, Any]],
            mode: str = "r:*",
            length: int = -1,
            *,
            max_members: float = MAX_MEMBERS,
            max_member_bytes: float = MAX_MEMBER_BYTES,
            max_bytes: float = MAX_BYTES,
            max_ratio: float = MAX_RATIO,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def load_from_zip(
            self: FileMethods[tuple[str, Any]],
            length: int = -1,
            *,
            max_members: float = MAX_MEMBERS,
            max_member_bytes: float = MAX_MEMBER_BYTES,
            max_bytes: float = MAX_BYTES,
            max_ratio: float = MAX_RATIO,
            on_error: OnError = "raise",
            max_errors: int | None = None,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def webdataset(self: FileMethods[tuple[str, Any]]) -> IterDataPipe[dict[str, Any]]: ...

        def shard_expand(self: FileMethods[str]) -> IterDataPipe[str]: ...

        def readlines(
            self: FileMethods[tuple[str, Any]],
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

        def lines_to_paragraphs(
            self: FileMethods[tuple[str, U]], joiner: Callable[[list[Any]], Any] = joined_lines
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def parse_csv(
            self: FileMethods[tuple[str, Any]],
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
            self: FileMethods[tuple[str, Any]],
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
            self: FileMethods[tuple[str, Any]],
            *,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **kwargs: Any,
        ) -> IterDataPipe[tuple[str, Any]]: ...

        def parse_json_lines(
            self: FileMethods[tuple[str, Any]],
            *,
            return_path: bool = False,
            max_line_bytes: float | None = MAX_LINE_BYTES,
            on_error: OnError = "raise",
            max_errors: int | None = None,
            **kwargs: Any,
        ) -> IterDataPipe[Any]: ...

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

        def on_disk_cache(
            self,
            filepath_fn: Callable[[T_co], Any] | None = None,
            hash_dict: dict[str, str] | None = None,
            hash_type: str = "sha256",
            extra_check_fn: Callable[[str], bool] | None = None,
        ) -> IterDataPipe[T_co]: ...

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
