"""Files wherever fsspec finds them.

This file is about list_files_by_fsspec, open_files_by_fsspec and save_by_fsspec, and about the
``FileSystems`` that a pass works with: those that are made of coroutines are called on the loop of
the pass, and others in the thread that runs the pipe.
"""

from __future__ import annotations

import contextlib
import functools
import posixpath
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from asyncloader.arguments import checked_mapping
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.files.local import (
    Saver,
    any_match,
    as_bytes,
    as_roots,
    checked_masks,
    in_order,
    temporary_beside,
    write,
)
from asyncloader.datapipes.files.streams import OpenedText, PathName, path_in
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.datapipes.patterns import Expander, after
from asyncloader.datapipes.running.bridge import loop_calls
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import iterable_source


@functional_datapipe("list_files_by_fsspec")
class FSSpecFileLister(Expander[str]):
    """Yield the paths or URLs of the files in a folder that fsspec can reach, or in several.

    They are in sorted order, and begin like the folder's own. ``masks`` is a pattern such
    as ``"*.txt"``, or a list of them. Other keywords are for the connection.

    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe({"/listed/b.txt": b"", "/listed/a.txt": b""})
    >>> from asyncloader.datapipes.iter import FSSpecFileLister
    >>> list(FSSpecFileLister("memory://listed"))
    ['memory://listed/a.txt', 'memory://listed/b.txt']
    """

    def __init__(
        self,
        root: PathName | Sequence[PathName] | IterDataPipe[PathName],
        masks: str | list[str] = "",
        **kwargs: Any,
    ) -> None:
        super().__init__(as_roots(root))
        self.masks = checked_masks(masks)
        self.kwargs_for_connection = kwargs

    def parts(self, item: Any, skip: int = 0) -> Iterator[str]:
        with contextlib.closing(FileSystems(self.kwargs_for_connection)) as systems:
            found = self._found(systems, path_in(item, self))
        yield from after(found, skip)

    def _found(self, systems: FileSystems, root: str) -> Iterable[str]:
        call, path = systems.at(root)
        # What ends in a slash is a folder, also where a file could have that name.
        if not root.endswith("/") and call("isfile", path):
            return [root]
        entries = call("ls", path, detail=True)
        names = [entry["name"] for entry in entries if not _is_folder(call, entry)]
        fitting = [n for n in names if any_match(self.masks, n, posixpath.basename(n))]
        return in_order([_like(root, path, name) for name in fitting])


def _is_folder(call: Callable[..., Any], entry: dict[str, Any]) -> bool:
    if entry["type"] in ("file", "directory"):
        return bool(entry["type"] == "directory")
    # A link says nothing of what it leads to.
    return bool(call("isdir", entry["name"]))


def _like(root: str, path: str, name: str) -> str:
    """Return the name of a file in the folder ``path`` so that it begins like ``root``."""
    inside = name.removeprefix(path.rstrip("/")).removeprefix("/")
    if "://" in name or not name.startswith(path.rstrip("/")):
        inside = posixpath.basename(name)
    return f"{root.rstrip('/')}/{inside}"


@functional_datapipe("open_files_by_fsspec")
class FSSpecFileOpener(OneToOne, IterDataPipe[tuple[str, Any]]):
    """Yield ``(path, file)`` for each path or URL, with the file opened by fsspec.

    ``mode`` is ``"r"`` for text or ``"rb"`` for bytes. ``kwargs_for_open`` are for the
    file system's ``open``, other keywords for the connection. A file is closed by the
    pipe that reads it, or when it is dropped; you may keep it.

    >>> import fsspec
    >>> fsspec.filesystem("memory").pipe({"/opened/a.txt": b"hello"})
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> paths = IterableWrapper(["memory://opened/a.txt"])
    >>> [(path, file.read()) for path, file in paths.open_files_by_fsspec()]
    [('memory://opened/a.txt', 'hello')]
    """

    def __init__(
        self,
        source_datapipe: Iterable[PathName],
        mode: str = "r",
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        if mode not in _MODES:
            raise ValueError(f"mode must be one of {', '.join(map(repr, _MODES))}, got {mode!r}")
        self.mode = mode
        self.kwargs_for_open = _settings("kwargs_for_open", kwargs_for_open)
        self.kwargs_for_connection = kwargs

    def __len__(self) -> int:
        return len(self.source)

    def run(self, source: Edge[Any], state: None) -> Iterator[tuple[str, Any]]:
        for url in source:
            name = path_in(url, self)
            # In no variable here, so that the file closes when its reader drops it.
            yield name, self._opened(name)

    def _opened(self, url: str) -> Any:
        # A file may be held for longer than the loop of the pass runs, so that its bytes
        # come through fsspec's own loop.
        fs, path = file_system_of(url, self.kwargs_for_connection)
        if "b" in self.mode:
            return fs.open(path, self.mode, **self.kwargs_for_open)
        of_text = {key: self.kwargs_for_open[key] for key in _OF_TEXT & self.kwargs_for_open.keys()}
        others = {key: self.kwargs_for_open[key] for key in self.kwargs_for_open.keys() - _OF_TEXT}
        file = fs.open(path, self.mode.replace("t", "") + "b", **others)
        return OpenedText(file, **of_text)


#: Only to read: what an opened file is written to would be the file that is to be read.
_MODES = ("r", "rt", "rb")

#: What ``open`` takes for text, and not for the bytes below it.
_OF_TEXT = {"encoding", "errors", "newline"}


@functional_datapipe("save_by_fsspec")
class FSSpecSaver(Saver):
    """Save the data of pairs ``(path, data)`` by fsspec, and yield each path once it is there.

    ``filepath_fn`` makes the path or URL out of the first value of the pair. ``mode``
    is ``"w"`` for text, ``"wb"`` for bytes or a stream of them, and ``"a"`` or ``"ab"`` to
    append. A file that is written anew appears whole, in place of what was there.
    ``kwargs_for_open`` are for the file system's ``open``, others for the connection.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("memory://saved/a.txt", "hello")]).save_by_fsspec())
    ['memory://saved/a.txt']
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[Any, Any]],
        mode: str = "w",
        filepath_fn: Callable[[Any], Any] | None = None,
        *,
        kwargs_for_open: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(source_datapipe, mode, filepath_fn)
        self.kwargs_for_open = _settings("kwargs_for_open", kwargs_for_open)
        self.kwargs_for_connection = kwargs

    @contextlib.contextmanager
    def saving(self) -> Iterator[Callable[[str, Any], None]]:
        with contextlib.closing(FileSystems(self.kwargs_for_connection)) as systems:
            yield functools.partial(self._save, systems)

    def _save(self, systems: FileSystems, url: str, data: Any) -> None:
        call, path = systems.at(url)
        if "a" in self.mode:
            self._append(url, data)
        elif _writes_whole_files(url) and not self.kwargs_for_open:
            whole = data.read() if hasattr(data, "read") else data
            call("pipe_file", path, as_bytes(whole, self.mode, url))
        else:
            self._replace(url, data)

    def _append(self, url: str, data: Any) -> None:
        fs, path = file_system_of(url, self.kwargs_for_connection)
        with fs.open(path, "ab", **self.kwargs_for_open) as file:
            write(file, data, self.mode, url)

    def _replace(self, url: str, data: Any) -> None:
        fs, path = file_system_of(url, self.kwargs_for_connection)
        fs.makedirs(fs._parent(path), exist_ok=True)
        temporary = temporary_beside(path)
        try:
            with fs.open(temporary, "wb", **self.kwargs_for_open) as file:
                write(file, data, self.mode, url)
            fs.mv(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                fs.rm_file(temporary)
            raise


def _settings(name: str, value: Any) -> dict[str, Any]:
    return {} if value is None else dict(checked_mapping(name, value))


class FileSystems:
    """The file systems that one pass works with; closing them ends their connections."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._opened: dict[Any, Callable[..., Any]] = {}
        self._open = contextlib.ExitStack()
        self._call: Callable[..., Any] | None = None

    def at(self, url: str) -> tuple[Callable[..., Any], str]:
        """Return a function that calls a method of a URL's file system, and its path there.

        It is given the method's name and arguments, and called in this thread in either colour.
        """
        kind = _kind(url)
        if not kind.async_impl:
            fs, path = file_system_of(url, self._options)
            return functools.partial(_call, fs), path
        # What the URL says of the connection, such as a host, makes it another one.
        key = (kind, repr(kind._get_kwargs_from_urls(url)))
        if key not in self._opened:
            self._opened[key] = self._connected(url)
        return self._opened[key], kind._strip_protocol(url)

    def close(self) -> None:
        """End the connections that were begun here."""
        self._open.close()

    def _connected(self, url: str) -> Callable[..., Any]:
        if self._call is None:
            self._call = self._open.enter_context(loop_calls())
        # fsspec keeps what it makes, for any loop; this one is for the loop of the pass.
        only_here = {"asynchronous": True, "skip_instance_cache": True}
        fs, _ = file_system_of(url, {**self._options, **only_here})
        self._open.callback(self._call, _disconnect, self._call(_connect, fs))
        return functools.partial(_call_on_loop, self._call, fs)


def _call(fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(fs, method)(*args, **kwargs)


def _call_on_loop(call: Callable[..., Any], fs: Any, method: str, *args: Any, **kwargs: Any) -> Any:
    return call(functools.partial(getattr(fs, f"_{method}"), **kwargs), *args)


def _writes_whole_files(url: str) -> bool:
    """Whether a file that is written in one call appears at once and whole."""
    kind = _kind(url)
    return bool(kind.async_impl or "memory" in kind.protocol)


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
