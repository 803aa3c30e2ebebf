"""What is made once and kept in files.

This file is about on_disk_cache and end_caching. The pipes between them are run for an
item only where its files are not there yet, and only by one process:

    source ──▶ on_disk_cache ──▶ download, unpack … ──▶ end_caching ──▶ paths of files
       └──────────────── files that are there ──────────────┘
"""

from __future__ import annotations

import functools
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

from asyncloader.arguments import checked_count, checked_wait, function_name
from asyncloader.datapipes.base import DataPipe, IterDataPipe, functional_datapipe
from asyncloader.datapipes.caching.cache_files import CacheEntry, CacheRules
from asyncloader.datapipes.caching.own_files import FileLock
from asyncloader.datapipes.call import blame, plain_function
from asyncloader.datapipes.edges import edges_of, reached
from asyncloader.datapipes.files.local import checked_hashes
from asyncloader.datapipes.files.streams import pair_in
from asyncloader.datapipes.patterns import Finished, PipePass, closing_items
from asyncloader.datapipes.resources import keeper_at, keeping
from asyncloader.datapipes.running.conveyor import RunningBeside
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import Makers, some_home
from asyncloader.datapipes.running.traits import is_dispatch, is_filter_of_shards, waits
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import listening_for_omissions
from asyncloader.safe_error_text import note

_HASHES = ("sha256", "md5")


@functional_datapipe("on_disk_cache")
class OnDiskCacheHolder(IterDataPipe[Any]):
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

    All files of an entry are in the folder of the path that ``filepath_fn`` returns, at any
    depth. Names that begin with ``.asyncloader-`` are the cache's own: a ValueError.

    What a pipe in between fails on and leaves out (``on_error="skip"``) is not remembered: the
    item is made again, to be whole, whenever it comes.

    Any number of processes may use one cache. One of them makes an entry while the others
    wait; if it dies, another makes it, and removes what was left.

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

    def __iter__(self) -> Iterator[Any]:
        yield self._item()

    async def __aiter__(self) -> AsyncIterator[Any]:
        yield self._item()

    def _item(self) -> Any:
        """Return the one item for which the pipes up to ``end_caching`` are run."""
        items = _ITEMS.get({})
        if id(self) not in items:
            raise RuntimeError(
                f"{stage_name(self)} cannot be iterated without its end_caching(): call"
                " end_caching() on the graph, and iterate that"
            )
        return items[id(self)]


@functional_datapipe("end_caching")
class EndOnDiskCacheHolder(IterDataPipe[Any]):
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

    reads_ahead = True
    State = Finished

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
            raise ValueError(
                "filepath_fn and same_filepath_fn exclude each other; give one of the two"
            )
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
        """Make all entries again that were made before now, each when it is asked for.

        When an entry was made is what its files say; a clock that is ahead makes them younger.
        """
        self.made_after = time.time_ns()

    def new_pass(self, edge: Edge[Any]) -> DiskCachePass:
        return DiskCachePass(edge)


#: How many entries are made at a time where making them means waiting.
AT_ONCE = 16


class DiskCachePass(PipePass[str]):
    """One pass, which looks entries up and makes what is not there.

    It counts how many entries were yielded to their end, and how many paths they had. Its source is
    further ahead while entries are being made. To resume within an entry, that entry is looked up
    again.
    """

    def __init__(self, edge: Edge[Any]) -> None:
        pipe: EndOnDiskCacheHolder = edge.pipe
        self._recipe = recipe = Recipe(pipe)
        self._beginning = begun = recipe.beginning
        self._path_fn = begun.filepath_fn if pipe.same_filepath_fn else pipe.filepath_fn
        self._rules = CacheRules(
            begun.hash_dict,
            begun.hash_type,
            begun.extra_check_fn,
            pipe.mode,
            pipe.skip_read,
            pipe.made_after,
        )
        usual = AT_ONCE if recipe.waits() else 1
        self._count = (pipe.concurrency or usual) if recipe.runs_at_once() else 1
        #: What recipes run in.
        self._scope: Callable[[], AbstractContextManager[None]] = nullcontext
        super().__init__(edge, state=Finished())

    def reads(self) -> Any:
        return self._beginning.source

    def __iter__(self) -> Iterator[str]:
        runs_ahead = self._recipe.waits() or self._count > 1
        entries = self._ahead() if runs_ahead else self._each()
        with closing_items(entries):
            for files in entries:
                yield from self._paths(files)

    def _paths(self, files: list[str]) -> Iterator[str]:
        yield from files[:-1]
        self.state.taken += 1
        self.state.yielded += len(files)
        # An entry is done with its last path, or at once if it has none.
        yield from files[-1:]

    def _each(self) -> Iterator[list[str]]:
        items = iter(self.source)
        with closing_items(items):
            for item in items:
                entry = self._entry_of(item)
                files = self._files_of(entry)
                yield self._make(entry, item) if files is None else files

    def _ahead(self) -> Iterator[list[str]]:
        watching = self.edge.tree.watching
        with some_home(watching) as home, keeper_at(home) as keeper, Makers(home) as makers:
            self._scope = functools.partial(keeping, keeper)
            begin = functools.partial(self._begun, makers)
            with MakingAhead(self.source, makers, self._count, begin).running(home) as making:
                yield from making.outcomes()

    def _begun(self, makers: Makers, item: Any) -> list[str] | Future[list[str]]:
        entry = self._entry_of(item)
        files = self._files_of(entry)
        return makers.start(self._make, entry, item) if files is None else files

    def _entry_of(self, item: Any) -> CacheEntry:
        begun = self._beginning
        path = self._path_by(begun.filepath_fn, item, begun)
        return CacheEntry(path, self._rules)

    def _files_of(self, entry: CacheEntry) -> list[str] | None:
        try:
            return entry.files()
        except BaseException as error:
            blame(error, self._beginning)
            raise

    def _make(self, entry: CacheEntry, item: Any) -> list[str]:
        """Make an entry, unless another process makes it first."""
        with FileLock.acquire(entry.path, self.pipe.timeout) as lock:
            files = self._files_of(entry)
            if files is not None:
                if lock.after_death:
                    # Who made it may have died before that was done.
                    entry.remove_half_written(files)
                return files
            with (
                self._scope(),
                self._recipe.run_for(item) as source,
                listening_for_omissions() as omission,
            ):
                pairs = self.edge.of(source).begin()
                try:
                    return entry.make(
                        map(self._pair, pairs), omission, after_death=lock.after_death
                    )
                except BaseException as error:
                    note(error, f"while the cache entry {entry.path} was made")
                    raise
                finally:
                    close_items(pairs)

    def _pair(self, item: Any) -> tuple[str, Any]:
        name, data = pair_in(item, "(path, data)", self.pipe)
        return self._path_by(self._path_fn, name, self.pipe), data

    def _path_by(self, function: Callable[[Any], Any] | None, item: Any, pipe: Any) -> str:
        try:
            path = item if function is None else function(item)
        except BaseException as error:
            blame(error, pipe)
            raise
        if isinstance(path, str | os.PathLike):
            return str(os.fspath(path))
        what = "an item" if function is None else f"what {function_name(function)} returns"
        raise TypeError(f"{what} must be one path for {pipe!r}, got {type(path).__name__}")


def _plain_function(name: str, function: Any) -> Any:
    return None if function is None else plain_function(name, function, takes=1)


def _checked_mode(mode: str) -> str:
    """Return the mode in which files are written."""
    kinds = set(mode) - {"w"} if isinstance(mode, str) else None
    if kinds is None or kinds not in ({"b"}, {"t"}, set()):
        raise ValueError(f'mode must be "wb" or "wt", got {mode!r}')
    return "w" + "".join(kinds)


#: How many are held of those that were there already.
MOST_HELD = 64


class MakingAhead(RunningBeside):
    """Up to ``room`` things that were begun and not yet taken, in their order.

    ``begin(item)`` begins one, in the reader's thread, or returns what was there already: that
    takes no room, but there is an end to it, too.
    """

    def __init__(
        self,
        source: Edge[Any],
        makers: Makers,
        room: int,
        begin: Callable[[Any], list[str] | Future[list[str]]],
    ) -> None:
        super().__init__(source, makers)
        self._room = room
        self._begin = begin
        self._held: deque[list[str] | Future[list[str]]] = deque()
        self._begun = 0
        self._taken = 0

    def hold(self, item: Any) -> None:
        made = self._begin(item)
        self._begun += isinstance(made, Future)
        self._held.append(made)
        self.wake_consumer()

    def has_room(self) -> bool:
        return self._begun - self._taken < self._room and len(self._held) < MOST_HELD

    def is_empty(self) -> bool:
        return not self._held

    def has_something(self) -> bool:
        first = self._held[0] if self._held else None
        return first.done() if isinstance(first, Future) else first is not None

    def outcomes(self) -> Iterator[list[str]]:
        """Yield what was made, or raise what kept it from being made, in order."""
        while self.has_next():
            made = self._held.popleft()
            self._taken += isinstance(made, Future)
            self.wake_reader()
            yield made.result() if isinstance(made, Future) else made


#: The items for which recipes are run here, by the ids of the pipes that begin those.
_ITEMS: ContextVar[dict[int, Any]] = ContextVar("asyncloader_recipe_items")


class Recipe:
    """The pipes between an on_disk_cache and the end_caching that ends it.

    They are run for one item at a time, each time from the beginning, so that what comes out
    belongs to that item alone.
    """

    def __init__(self, ending: EndOnDiskCacheHolder) -> None:
        self.end = ending.source
        found = list(reached([self.end], _sources_in_recipe))
        self.pipes = [pipe for pipe in found if not isinstance(pipe, OnDiskCacheHolder)]
        beginnings = [pipe for pipe in found if isinstance(pipe, OnDiskCacheHolder)]
        if not beginnings:
            raise RuntimeError(
                f"{stage_name(ending)} needs an on_disk_cache() above it, and there is"
                f" none above {stage_name(self.end)}"
            )
        self.beginning = beginnings[0]
        self._check_whole()

    def waits(self) -> bool:
        """Whether a pipe in between waits on an event loop."""
        return any(map(waits, self.pipes))

    def runs_at_once(self) -> bool:
        """Whether the recipe can be run for several items at the same time."""
        # A splitter has one pass at a time, as all pipes of torch have.
        return all(isinstance(pipe, DataPipe) and not pipe.is_splitter() for pipe in self.pipes)

    @contextmanager
    def run_for(self, item: Any) -> Iterator[Any]:
        """Give what is to be iterated to run the recipe for an item."""
        token = _ITEMS.set({**_ITEMS.get({}), id(self.beginning): item})
        try:
            yield self.end
        finally:
            _ITEMS.reset(token)

    def _check_whole(self) -> None:
        for pipe in self.pipes:
            if is_filter_of_shards(pipe) or is_dispatch(pipe):
                raise RuntimeError(
                    f"{stage_name(pipe)} between on_disk_cache() and end_caching() would leave"
                    " some workers with empty entries; put it before on_disk_cache()"
                )


def _sources_in_recipe(pipe: Any) -> list[Any]:
    """Return what a pipe reads, if that is in the recipe too."""
    if isinstance(pipe, OnDiskCacheHolder):
        return []
    # A recipe within this one has a beginning of its own.
    is_ending = isinstance(pipe, EndOnDiskCacheHolder)
    return [Recipe(pipe).beginning.source] if is_ending else edges_of(pipe)
