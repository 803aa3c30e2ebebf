"""Entries of a cache, looked up or made.

This file is about ``EntryMaker``: for every item of a cache's source it finds the files
of the item's entry, or runs the recipe for the item, in one process at a time.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

from asyncloader.datapipes.caching.cache_entry import CacheEntry, CacheRules
from asyncloader.datapipes.caching.making_ahead import MakingAhead
from asyncloader.datapipes.caching.promise import Promise
from asyncloader.datapipes.caching.recipe import Recipe
from asyncloader.datapipes.calls.ahead_pass import NOTHING_AHEAD, Ahead
from asyncloader.datapipes.calls.keeper import keeper_at, keeping
from asyncloader.datapipes.files.streams import pair_in
from asyncloader.datapipes.going_on.iterating import close_items
from asyncloader.datapipes.naming import function_name
from asyncloader.datapipes.patterns.reading import begin
from asyncloader.datapipes.patterns.rereading import closing_items
from asyncloader.datapipes.pipe.function import blame
from asyncloader.datapipes.pipe.omissions import listening_for_omissions
from asyncloader.datapipes.running.makers import Makers, Making, some_home
from asyncloader.safe_error_text import note

if TYPE_CHECKING:
    from asyncloader.datapipes.caching.disk_cache import EndOnDiskCacheHolder, OnDiskCacheHolder

#: How many entries are made at a time where making them means waiting.
AT_ONCE = 16


class EntryMaker:
    """Looks entries up and makes what is not there, for one pass."""

    def __init__(self, pipe: EndOnDiskCacheHolder) -> None:
        self._pipe = pipe
        self._recipe = recipe = Recipe(pipe)
        self.beginning = begun = cast("OnDiskCacheHolder", recipe.beginning)
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
        self._making: Ahead = NOTHING_AHEAD

    def entries(self, items: Iterator[Any]) -> Iterator[list[str]]:
        """Yield the files of each item's entry, in order."""
        return self._ahead(items) if self._recipe.waits() or self._count > 1 else self._each(items)

    def set_paused(self, is_paused: bool) -> None:
        """Make nothing ahead of what is waited for, or do so again; from any thread."""
        self._making.set_paused(is_paused)

    def _each(self, items: Iterator[Any]) -> Iterator[list[str]]:
        with closing_items(items):
            for item in items:
                entry = self._entry_of(item)
                files = self._files_of(entry)
                yield self._make(entry, item) if files is None else files

    def _ahead(self, items: Iterator[Any]) -> Iterator[list[str]]:
        with some_home() as home, keeper_at(home) as keeper, Makers(home) as makers:
            self._scope = functools.partial(keeping, keeper)
            making: MakingAhead[list[str]] = MakingAhead(makers, self._count)
            self._making = making
            try:
                yield from making.outcomes(self._begun(items, makers))
            finally:
                self._making = NOTHING_AHEAD

    def _begun(self, items: Iterator[Any], makers: Makers) -> Iterator[Making[list[str]]]:
        with closing_items(items):
            for item in items:
                entry = self._entry_of(item)
                files = self._files_of(entry)
                if files is None:
                    yield makers.start(self._make, entry, item)
                else:
                    yield Making.done(files)

    def _entry_of(self, item: Any) -> CacheEntry:
        begun = self.beginning
        path = self._path_by(begun.filepath_fn, item, begun)
        return CacheEntry(path, self._rules)

    def _files_of(self, entry: CacheEntry) -> list[str] | None:
        try:
            return entry.files()
        except BaseException as error:
            blame(error, self.beginning)
            raise

    def _make(self, entry: CacheEntry, item: Any) -> list[str]:
        """Make an entry, unless another process makes it first."""
        with Promise.claim(entry.path, self._pipe.timeout):
            files = self._files_of(entry)
            if files is not None:
                return files
            with (
                self._scope(),
                self._recipe.run_for(item) as source,
                listening_for_omissions() as omissions,
            ):
                pairs = begin(source)
                try:
                    return entry.make(map(self._pair, pairs), omissions)
                except BaseException as error:
                    note(error, f"while the cache entry {entry.path} was made")
                    raise
                finally:
                    close_items(pairs)

    def _pair(self, item: Any) -> tuple[str, Any]:
        name, data = pair_in(item, "(path, data)", self._pipe)
        return self._path_by(self._path_fn, name, self._pipe), data

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
