"""Watching loaders.

This file is about ``Watch``, which ``loader.watch()`` returns, and about the one page that the
loaders of a process share: a ``PageServer`` of this process, or the page of another process, to
which a ``Reporter`` reports. It is there as long as somebody has a ``Watch``, or for good where
ASYNCLOADER_WATCH asks for it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from html import escape
from typing import Self

from asyncloader.loader.page.asking import VARIABLE
from asyncloader.loader.page.panels import HasStats, Panels, Shown
from asyncloader.loader.page.reporter import Reporter
from asyncloader.loader.page.server import PageServer
from asyncloader.ranks import is_initialized, own_rank
from asyncloader.runtime import at_exit, in_thread
from asyncloader.system import in_forked_child, publish_page
from asyncloader.waiting import do_nothing


class Watch:
    """A loader on the page, until ``close()`` or the end of a ``with`` or ``async with``."""

    def __init__(self, pages: Pages, page: Page, shown: Shown) -> None:
        #: Where to look, with the token of this page.
        self.url = page.url
        self._pages, self._page, self._shown = pages, page, shown
        self._is_closed = False

    def close(self) -> None:
        """Show the loader no more; the last one to be closed closes the page."""
        if not self._is_closed:
            self._is_closed = True
            self._pages.release(self._page, self._shown)

    async def aclose(self) -> None:
        """Do as ``close`` does, and let the event loop go on meanwhile."""
        await in_thread(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Watch of {self._shown.name} at {self.url}>"

    def _repr_html_(self) -> str:
        url = escape(self.url)
        link = f'<a href="{url}" target="_blank" rel="noopener noreferrer">{url}</a>'
        return f"<p>The live picture of {escape(self._shown.name)}: {link}</p>"


Page = PageServer | Reporter


class Pages:
    """The page of this process, while it has one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.page: Page | None = None
        # How often each loader is watched.
        self._watched: list[Shown] = []
        # Takes back what lets others find the page.
        self._hide: Callable[[], None] = do_nothing
        #: Whether the page stays until the process ends.
        self.is_lasting = False

    def watch(self, loader: HasStats, name: str = "") -> Watch:
        """Show a loader, on the page that there is or on a new one."""
        with self._lock:
            page = self._opened()
            shown = page.panels.add(loader, name)
            self._watched.append(shown)
            return Watch(self, page, shown)

    def show(self, loader: HasStats) -> None:
        """Show a loader for as long as it exists, on a page that stays until the process ends."""
        self.open().panels.add(loader)

    def open(self) -> Page:
        """Return the page, which stays from now on until the process ends."""
        with self._lock:
            is_new = self.page is None
            page = self._opened()
            self.is_lasting = True
        if is_new and isinstance(page, PageServer):
            # Ranks and other children of this process show their loaders here.
            os.environ[VARIABLE] = page.url
            who = f"{name} of the program" if (name := _process_name()) else "the program"
            sys.stderr.write(f"asyncloader: watch {who} at {page.url}\n")
            sys.stderr.flush()
        return page

    def release(self, page: Page, shown: Shown) -> None:
        """Note that a watch is over."""
        with self._lock:
            # Another page has nothing of this one, which a forked child or a close has left.
            if page is not self.page:
                return
            self._watched.remove(shown)
            if shown not in self._watched and not self.is_lasting:
                page.panels.remove(shown)
            if self._watched or self.is_lasting:
                return
            self.page = None
            self._hide()
        page.close()

    def close(self) -> None:
        """Close the page, whoever has a watch."""
        with self._lock:
            page, self.page, self._watched = self.page, None, []
            if page is None:
                return
            self._hide()
        page.close()

    def hide(self) -> None:
        """Let nobody find the page by the number of this process."""
        self._hide()

    def _opened(self) -> Page:
        if self.page is None:
            asked, where = os.environ.get(VARIABLE, ""), _process_name()
            is_address = "://" in asked
            self.page = Reporter(asked, where) if is_address else PageServer(Panels(where))
            self._hide = publish_page(self.page.url)
        return self.page


def _process_name() -> str:
    """Return what tells this process from others of the program: its rank, where there are some."""
    if is_initialized():
        return f"rank {own_rank()}"
    rank = os.environ.get("RANK", "")
    return f"rank {rank}" if rank.isdecimal() else ""


#: The one of this process.
PAGES = Pages()
at_exit(PAGES.close)


@in_forked_child
def _forget_parents() -> None:
    # Its thread does not exist in a forked child, but the end of the object would stop it.
    _of_parents.append(PAGES.page)
    if PAGES.page is not None:
        PAGES.hide()
    PAGES.__init__()  # type: ignore[misc]  # a fresh start


_of_parents: list[Page | None] = []
