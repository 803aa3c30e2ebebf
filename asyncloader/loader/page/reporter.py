"""A process that shows its loaders on the page of another.

This file is about ``Reporter``: it sends the panels of this process to a page's address, once for
each time that somebody looks, and otherwise waits for the answer to the last report. Ranks and
other children of a watched program do this.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from urllib.parse import urlsplit

from asyncloader.loader.page.panels import Panels
from asyncloader.loader.page.server import report
from asyncloader.runtime import LoopThread

#: Where no page answers, it is looked for again after this time, and then after twice as long.
_FIRST_PAUSE_SECONDS, _LAST_PAUSE_SECONDS = 1.0, 60.0


class Reporter:
    """Reports until it is closed, or the process ends."""

    def __init__(self, url: str, process: str) -> None:
        parts = urlsplit(url)
        try:
            self._address = parts.hostname or "", parts.port or 0
        except ValueError:
            self._address = "", 0
        if parts.scheme != "http" or not all(self._address):
            raise ValueError(f"ASYNCLOADER_WATCH must be 1, or the address of a page, got {url!r}")
        self.url = url
        self._path = f"{parts.path.rstrip('/')}/report"
        self._source = secrets.token_hex(8)
        self.panels = Panels(process, self._source)
        self._thread = LoopThread("asyncloader watch")
        self._work = asyncio.run_coroutine_threadsafe(self._report_on(), self._thread.loop)

    def close(self) -> None:
        """End the reports."""
        self._work.cancel()
        self._thread.close(1.0)

    async def _report_on(self) -> None:
        pause = _FIRST_PAUSE_SECONDS
        while True:
            # The page's process may have ended, or be too busy.
            with contextlib.suppress(OSError, EOFError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(*self._address)
                try:
                    while await self._is_wanted(reader, writer):
                        pause = _FIRST_PAUSE_SECONDS
                finally:
                    writer.close()
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LAST_PAUSE_SECONDS)

    async def _is_wanted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Report, and wait until another report is wanted; False if the page refuses it."""
        body = report(self._source, self.panels.look())
        host, port = self._address
        head = (
            f"POST {self._path} HTTP/1.1\r\nHost: {host}:{port}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await writer.drain()
        answer = await reader.readuntil(b"\r\n\r\n")
        return answer.startswith(b"HTTP/1.1 204 ")
