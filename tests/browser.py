"""A real browser for tests: Chromium without a window, driven by its DevTools protocol.

This file is about ``browsing``, which starts Chromium, and ``Tab``, one page in it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WITHOUT_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed here")

#: A busy machine takes its time to start a browser.
SECONDS = 60.0

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
    "--no-first-run", "--disable-extensions", "--disable-background-networking",
    "--disable-component-update", "--no-proxy-server", "--remote-debugging-port=0",
)  # fmt: skip


class Tab:
    """A page in the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._sent = 0
        #: What the page has logged, errors of its script and refusals of its policy among it.
        self.said: list[str] = []

    async def do(self, method: str, **params: Any) -> Any:
        """Call a method of the protocol and return its result."""
        self._sent += 1
        await self._socket.send_json({"id": self._sent, "method": method, "params": params})
        while True:
            message = json.loads(await self._socket.receive_str())
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
                self.said.append(json.dumps(message["params"]))
            if message.get("id") == self._sent:
                assert "error" not in message, message
                return message["result"]

    async def open(self, url: str, width: int, height: int, *, is_dark: bool = False) -> None:
        """Show a page, at a size."""
        for domain in ("Page", "Runtime", "Log"):
            await self.do(f"{domain}.enable")
        await self.do(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        await self.do("Emulation.setEmulatedMedia", features=[scheme])
        await self.do("Page.navigate", url=url)

    async def value(self, expression: str) -> Any:
        """Return what an expression of JavaScript is, when it is done."""
        result = await self.do(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def until(self, expression: str) -> Any:
        """Wait until an expression is true, at every change of the page; return it."""
        return await self.value(
            f"""new Promise((resolve) => {{
                const look = () => {{ const found = {expression}; if (found) resolve(found); }};
                new MutationObserver(look).observe(document,
                    {{childList: true, subtree: true, attributes: true, characterData: true}});
                document.addEventListener("readystatechange", look);
                look();
            }})"""
        )

    async def click(self, selector: str) -> None:
        """Click into the middle of an element, as a pointer does."""
        x, y = await self.value(
            f"""(() => {{
                const element = document.querySelector({json.dumps(selector)});
                element.scrollIntoView({{block: "center"}});
                const box = element.getBoundingClientRect();
                return [box.x + box.width / 2, box.y + box.height / 2];
            }})()"""
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.do(
                "Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1
            )

    async def press(self, key: str) -> None:
        """Press a key: "Tab", "Enter"."""
        text = {"Enter": "\r"}.get(key, "")
        code = {"Tab": 9, "Enter": 13}[key]
        await self.do(
            "Input.dispatchKeyEvent", type="keyDown", key=key, windowsVirtualKeyCode=code, text=text
        )
        await self.do("Input.dispatchKeyEvent", type="keyUp", key=key, windowsVirtualKeyCode=code)

    async def picture(self) -> bytes:
        """Return a PNG of the whole page."""
        found = await self.do("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(found["data"])


@contextlib.asynccontextmanager
async def browsing() -> AsyncIterator[Tab]:
    """Start Chromium for the block, with a profile of its own."""
    assert CHROMIUM is not None
    # It writes into its profile until its last process is gone.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, *FLAGS, f"--user-data-dir={profile}", "about:blank",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE, start_new_session=True,
            env={"PATH": os.environ["PATH"], "HOME": profile},
        )  # fmt: skip
        assert process.stderr is not None
        reading: asyncio.Task[None] | None = None
        try:
            async with asyncio.timeout(SECONDS):
                port = await _port(process.stderr)
                # What it says later must not fill the pipe.
                reading = asyncio.create_task(_drain(process.stderr))
                async with aiohttp.ClientSession() as session:
                    async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                        tabs = await answer.json()
                    (url,) = [tab["webSocketDebuggerUrl"] for tab in tabs if tab["type"] == "page"]
                    async with session.ws_connect(url, max_msg_size=0) as socket:
                        yield Tab(socket)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            if reading is not None:
                await reading


async def _port(stream: asyncio.StreamReader) -> int:
    async for line in stream:
        if line.startswith(b"DevTools listening on ws://"):
            return int(line.split(b"/")[2].rpartition(b":")[2])
    raise RuntimeError("Chromium ended before it listened")


async def _drain(stream: asyncio.StreamReader) -> None:
    async for _ in stream:
        pass


def save(picture: bytes, name: str) -> None:
    """Keep a picture to be looked at, where ASYNCLOADER_PICTURES names a folder for it."""
    if folder := os.environ.get("ASYNCLOADER_PICTURES"):
        Path(folder, name).write_bytes(picture)
