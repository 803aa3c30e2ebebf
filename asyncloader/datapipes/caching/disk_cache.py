"""What is made once and kept in files.

This file is about on_disk_cache and end_caching. The pipes between them are run for an
item only where its files are not there yet, and only by one process:

    source ──▶ on_disk_cache ──▶ download, unpack … ──▶ end_caching ──▶ paths of files
       └──────────────── files that are there ──────────────┘
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.caching.entry_maker import EntryMaker
from asyncloader.datapipes.caching.recipe import Beginning, Ending, Recipe
from asyncloader.datapipes.files.local import checked_hashes
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.patterns.lagging_pass import LAGGING, LaggingPass
from asyncloader.datapipes.patterns.rereading import closing_items
from asyncloader.datapipes.pipe.arguments import (
    checked_count,
    checked_wait,
    iterable_source,
)
from asyncloader.datapipes.pipe.base import functional_datapipe
from asyncloader.datapipes.pipe.function import plain_function
from asyncloader.datapipes.pipe.run import Run

_HASHES = ("sha256", "md5")


@functional_datapipe("on_disk_cache")
class OnDiskCacheHolder(Beginning):
    """Begin what is done only for items that are not in a cache on disk.

    ``filepath_fn(item)`` is the path of an item's file; without it the item itself is.
    What the pipes from here to ``end_caching`` make of an item is written to that path,
    and what ``end_caching`` yields are paths, in the order of the items. If the file is
    there already, those pipes are not run. They are run for one item at a time, each
    time from the beginning, and may make several files of it, or none: those of an item
    appear together, and ``end_caching`` yields them all.

    With ``hash_dict``, from paths to hashes by ``hash_type`` ("sha256" or "md5"), a file
    of another hash is made again, and a ValueError if that does not help. A file for which
    ``extra_check_fn(path)`` is false is made again as well.

    What a pipe in between fails on and leaves out (``on_error="skip"``) is not remembered: the
    item is made again, to be whole, whenever it comes.

    Any number of processes may use one cache. One of them makes an entry while the others
    wait; if it dies, another makes it, and writes over what was left.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with TemporaryDirectory() as folder:
    ...     names = IterableWrapper(["a", "b"]).on_disk_cache(Path(folder).joinpath)
    ...     pairs = names.map(lambda name: (name, name.upper()))
    ...     cached = pairs.end_caching("wt", same_filepath_fn=True)
    ...     [Path(path).read_text() for path in cached]
    ['A', 'B']
    """

    def __init__(
        self,
        source_datapipe: Iterable[Any],
        filepath_fn: Callable[[Any], Any] | None = None,
        hash_dict: dict[str, str] | None = None,
        hash_type: str = "sha256",
        extra_check_fn: Callable[[str], bool] | None = None,
    ) -> None:
        if hash_type not in _HASHES:
            raise ValueError(f"hash_type must be one of {', '.join(_HASHES)}, got {hash_type!r}")
        self.source = iterable_source(source_datapipe)
        self.filepath_fn = _plain_function("filepath_fn", filepath_fn)
        self.hash_dict = None if hash_dict is None else checked_hashes(hash_dict)
        self.hash_type = hash_type
        self.extra_check_fn = _plain_function("extra_check_fn", extra_check_fn)


@functional_datapipe("end_caching")
class EndOnDiskCacheHolder(Ending):
    """Write what was made of an item to files, and yield their paths.

    It ends what the nearest ``on_disk_cache`` above it begins. Its source yields pairs of
    a path, or what ``filepath_fn`` makes a path of, and data: bytes or text, something
    with a ``read``, or an iterable of pieces; what can be closed is closed. With
    ``same_filepath_fn`` the function is that of ``on_disk_cache``; with ``skip_read`` data
    is written as it is. ``mode`` is "wb" or "wt".

    A process waits at most ``timeout`` seconds for an entry that another makes, then it
    raises a TimeoutError. Up to ``concurrency`` entries are made at a time, in threads, while
    another reads for which items; by default 16 where a pipe in between waits on an event
    loop, and otherwise one.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with TemporaryDirectory() as folder:
    ...     paths = IterableWrapper([f"{folder}/file"]).on_disk_cache()
    ...     cached = paths.map(lambda path: (path, b"data")).end_caching()
    ...     [Path(path).read_bytes() for path in cached]
    [b'data']
    """

    def __init__(
        self,
        datapipe: Iterable[Any],
        mode: str = "wb",
        filepath_fn: Callable[[Any], Any] | None = None,
        *,
        same_filepath_fn: bool = False,
        skip_read: bool = False,
        timeout: float = 300,
        concurrency: int | None = None,
    ) -> None:
        if filepath_fn is not None and same_filepath_fn:
            raise ValueError("filepath_fn and same_filepath_fn exclude one another; give one")
        if concurrency is not None:
            checked_count("concurrency", concurrency, at_least=1)
        self.source = iterable_source(datapipe)
        self.mode = _checked_mode(mode)
        self.filepath_fn = _plain_function("filepath_fn", filepath_fn)
        self.same_filepath_fn = same_filepath_fn
        self.skip_read = skip_read
        self.concurrency = concurrency
        self.made_after = 0
        self.set_timeout(timeout)
        Recipe(self)

    def set_timeout(self, timeout: float) -> None:
        """Wait at most so many seconds for an entry that another process makes."""
        self.timeout = checked_wait("timeout", timeout)

    def invalidate(self) -> None:
        """Make all entries again that were made before now, each when it is asked for."""
        self.made_after = time.time_ns()

    def new_pass(self, run: Run[Any]) -> DiskCachePass:
        return DiskCachePass(run)

    def cursor_form(self) -> Form:
        return LAGGING


class DiskCachePass(LaggingPass[str]):
    """One pass: how many entries were handed out whole, and how many paths they had.

    It is ahead of that in its source while entries are being made. To go on within an
    entry, that entry is looked up once more.
    """

    def __init__(self, run: Run[Any]) -> None:
        self.maker = EntryMaker(run)
        super().__init__(run)

    def reads(self) -> Any:
        return self.maker.beginning.source

    def __iter__(self) -> Iterator[str]:
        entries = self.maker.entries(self._items())
        with closing_items(entries):
            for files in entries:
                yield from self._paths(files)

    def set_paused(self, is_paused: bool) -> None:
        self.maker.set_paused(is_paused)

    def _items(self) -> Iterator[Any]:
        items = self.source.begin()
        with closing_items(items):
            for count, item in enumerate(items, self.taken + 1):
                self.above.passed(count)
                yield item

    def _paths(self, files: list[str]) -> Iterator[str]:
        yield from files[:-1]
        self.taken += 1
        self.yielded += len(files)
        # An entry is done with its last path, or at once if it has none.
        yield from files[-1:]


def _plain_function(name: str, function: Any) -> Any:
    return None if function is None else plain_function(name, function, takes=1)


def _checked_mode(mode: str) -> str:
    """Return the mode in which files are written."""
    kinds = set(mode) - {"w"} if isinstance(mode, str) else None
    if kinds is None or kinds not in ({"b"}, {"t"}, set()):
        raise ValueError(f'mode must be "wb" or "wt", got {mode!r}')
    return "w" + "".join(kinds)
