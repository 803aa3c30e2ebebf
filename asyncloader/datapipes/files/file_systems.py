"""The file systems of fsspec, as a pass works with them.

This file is about ``FileSystems``: those that are made of coroutines are called on the loop
of the pass, and others in the thread that runs the pipe.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.running.crossing import loop_calls


class FileSystems:
    """The file systems that one pass works with; closing them ends their connections."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._opened: dict[Any, FileSystem] = {}
        self._open = contextlib.ExitStack()
        self._call: Callable[..., Any] | None = None

    def at(self, url: str) -> tuple[FileSystem, str]:
        """Return the file system of a URL, and what it calls the place."""
        kind = _kind(url)
        if not kind.async_impl:
            fs, path = file_system_of(url, self._options)
            return FileSystem(fs), path
        # What the URL says of the connection, such as a host, makes it another one.
        key = (kind, repr(kind._get_kwargs_from_urls(url)))
        if key not in self._opened:
            self._opened[key] = self._connected(url)
        return self._opened[key], kind._strip_protocol(url)

    def close(self) -> None:
        """End the connections that were begun here."""
        self._open.close()

    def _connected(self, url: str) -> FileSystem:
        if self._call is None:
            self._call = self._open.enter_context(loop_calls())
        # fsspec keeps what it makes, for any loop; this one is for the loop of the pass.
        only_here = {"asynchronous": True, "skip_instance_cache": True}
        fs, _ = file_system_of(url, {**self._options, **only_here})
        self._open.callback(self._call, _disconnect, self._call(_connect, fs))
        return FileSystem(fs, self._call)


class FileSystem:
    """A file system of fsspec, whose methods are called from this thread in either colour."""

    def __init__(self, fs: Any, call_on_loop: Callable[..., Any] | None = None) -> None:
        self._fs = fs
        self._call_on_loop = call_on_loop

    @property
    def writes_whole_files(self) -> bool:
        """Whether a file that is written in one call appears at once and whole."""
        return self._call_on_loop is not None or "memory" in self._fs.protocol

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call one of its methods and return the result."""
        if self._call_on_loop is None:
            return getattr(self._fs, method)(*args, **kwargs)
        coroutine = functools.partial(getattr(self._fs, f"_{method}"), **kwargs)
        return self._call_on_loop(coroutine, *args)


async def _connect(fs: Any) -> Any:
    begin = getattr(fs, "set_session", None)
    return None if begin is None else await begin()


async def _disconnect(session: Any) -> None:
    end = getattr(session, "close", None)
    if end is not None:
        await end()


def _kind(url: str) -> Any:
    import fsspec  # type: ignore[import-untyped,unused-ignore]

    # Chained file systems are made of threads, whatever is at the end of the chain.
    if "::" in url:
        return fsspec.AbstractFileSystem
    return fsspec.get_filesystem_class(fsspec.core.split_protocol(url)[0])


def file_system_of(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Return fsspec's file system of a URL, to be called in any thread, and the path there."""
    import fsspec

    found: tuple[Any, str] = fsspec.url_to_fs(url, **options)
    return found
