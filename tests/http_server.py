"""An HTTP server on this machine that misbehaves as it is told.

This file is about ``HttpServer``: what it answers is in the path that is asked for, and it
counts what is asked and which connections are open.

    /body/7?size=100     100 bytes made of 7
    /fail/503/2/x        503 the first two times that x is asked for, then a body
    /cut/2/x             half a body the first two times, then a whole one
    /reset/2/x           no answer but a closed connection the first two times
    /redirect/3          three redirects, then a body
    /away                a redirect to ``location``
    /target?any          what was asked for, to the letter
    /moved               a redirect to nowhere, with a page that says so
    /interim/103/5       five interim answers of that status, then a body
    /interim/103/forever the same without end
    /upgrade             another protocol
    /garbage             what is no answer, after a redirect
    /silent              no answer at all
    /late/2/x            no answer the first two times that x is asked for, then a body
    /stall               the head and half a body, then nothing
    /squeezed            a megabyte of zeros, compressed
    /packed/gzip/2/x     a body that is compressed with gzip, without its length; cut short the
                         first two times
    /file/2/x            the file x or the part of it that is asked for; half of that (or
                         another share) the first two times
    /endless             zeros, as fast as they are read
    /cookie              whether a cookie came back; sets one
    /auth                the Authorization header
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import time
import zlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qs, urlsplit


@dataclass
class HttpServer:
    """The server, while it listens."""

    address: str = ""
    open: int = 0
    most_open: int = 0
    connections: int = 0
    asked: Counter[str] = field(default_factory=Counter)
    extra_head: str = ""
    #: What ``/file`` answers with, and the tags of the files that have one.
    files: dict[str, bytes] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    #: When files were changed, in seconds before they are asked for, where that is said.
    ages: dict[str, float] = field(default_factory=dict)
    #: What more is said of all files.
    extra_of_files: str = ""
    #: Where ``/away`` redirects to.
    location: str = ""
    #: Whether ``/file`` gives parts of files.
    gives_parts: bool = True
    #: Whether ``/file`` sends whole files in chunks, and so does not say how large they are.
    in_chunks: bool = False
    #: How much of it an answer has that is cut short.
    share: float = 0.5
    #: Where each answer of ``/file`` began.
    begun_at: list[int] = field(default_factory=list)
    #: How much of ``/endless`` was sent, and whether a reader made it wait.
    sent: int = 0
    waited: asyncio.Event = field(default_factory=asyncio.Event)
    born: float = field(default_factory=time.time)
    _all_closed: asyncio.Event = field(default_factory=asyncio.Event)

    def url(self, path: str) -> str:
        return f"http://{self.address}{path}"

    async def all_closed(self) -> None:
        """Wait until no connection is open."""
        async with asyncio.timeout(60):
            while self.open:
                self._all_closed.clear()
                await self._all_closed.wait()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer what comes over one connection."""
        self.open += 1
        self.connections += 1
        self.most_open = max(self.most_open, self.open)
        try:
            with contextlib.suppress(ConnectionError):
                while await self._answer(reader, writer):
                    await writer.drain()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            self.open -= 1
            self._all_closed.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection may be used again."""
        head = await self._head(reader)
        if not head:
            return False
        target = head.split(" ")[1]
        headers = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        path = urlsplit(target).path
        self.asked[path] += 1
        match path.split("/")[1:]:
            case ["body", name]:
                size = int(parse_qs(urlsplit(target).query).get("size", ["10"])[0])
                writer.write(whole(200, body(name, size), self.extra_head))
            case ["fail", status, times, _] if self.asked[path] <= int(times):
                writer.write(whole(int(status), b"not now", self.extra_head))
            case ["cut", times, name] if self.asked[path] <= int(times):
                writer.write(whole(200, body(name, 1000))[:-500])
                return False
            case ["reset", times, _] if self.asked[path] <= int(times):
                writer.transport.abort()
                return False
            case ["late", times, _] if self.asked[path] <= int(times):
                await reader.read()
                return False
            case ["redirect", "0"] | ["fail" | "cut" | "reset" | "late", *_]:
                writer.write(whole(200, body(path.split("/")[-1], 1000)))
            case ["redirect", "forever"]:
                writer.write(whole(302, b"", "Location: /redirect/forever\r\n"))
            case ["redirect", count]:
                writer.write(whole(302, b"", f"Location: /redirect/{int(count) - 1}\r\n"))
            case ["away", *_]:
                writer.write(whole(302, b"", f"Location: {self.location}\r\n"))
            case ["target", *_]:
                writer.write(whole(200, target.encode()))
            case ["interim", status, count]:
                await self._send_interim(writer, int(status), count)
                writer.write(whole(200, body("x", 1000)))
            case ["upgrade"]:
                writer.write(b"HTTP/1.1 101 Another\r\nUpgrade: another\r\n")
                writer.write(b"Connection: upgrade\r\n\r\n")
            case ["moved"]:
                writer.write(whole(302, b"a page"))
            case ["garbage"] if not urlsplit(target).query:
                writer.write(whole(302, b"", "Location: /garbage?signature=abc\r\n"))
            case ["garbage"]:
                writer.write(b"HTTP/1.1 n0ne\r\n\r\n")
                return False
            case ["silent"]:
                await reader.read()
                return False
            case ["stall"]:
                writer.write(whole(200, body("stall", 1000))[:-500])
                await reader.read()
                return False
            case ["squeezed"]:
                squeezed = zlib.compress(bytes(1 << 20))
                writer.write(whole(200, squeezed, "Content-Encoding: deflate\r\n"))
            case ["packed", form, times, name]:
                is_cut = self.asked[path] <= int(times)
                writer.write(packed(form, body(name, 1 << 19))[: -5 if is_cut else None])
                return False
            case ["file", times, name]:
                is_cut = self.asked[path] <= int(times)
                writer.write(self._part(name, headers, is_cut))
                return not is_cut
            case ["endless"]:
                await self._send_zeros(writer)
            case ["cookie"]:
                came = headers.get("Cookie", "none").encode()
                writer.write(whole(200, came, "Set-Cookie: a=b\r\n"))
            case ["auth"]:
                writer.write(whole(200, headers.get("Authorization", "none").encode()))
            case _:
                writer.write(whole(404, b"no such path"))
        return True

    def _part(self, name: str, headers: dict[str, str], is_cut: bool) -> bytes:
        content, tag = self.files[name], self.tags.get(name, "")
        more = f"ETag: {tag}\r\n" if tag else ""
        changed = formatdate(self.born - self.ages.get(name, 0), usegmt=True)
        if name in self.ages:
            more += f"Last-Modified: {changed}\r\nDate: {formatdate(self.born, usegmt=True)}\r\n"
        more += self.extra_of_files
        begin = int(headers.get("Range", "bytes=0-")[6:-1])
        if headers.get("If-Range", tag) not in (tag, changed) or not self.gives_parts:
            begin = 0
        if begin:
            more += f"Content-Range: bytes {begin}-{len(content) - 1}/{len(content)}\r\n"
        self.begun_at.append(begin)
        if self.in_chunks and not begin:
            answer = b"HTTP/1.1 200 Said So\r\nTransfer-Encoding: chunked\r\n" + more.encode()
            answer += b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(content), content)
        else:
            answer = whole(206 if begin else 200, content[begin:], more)
        rest = len(content) - begin
        return answer[: len(answer) - rest + int(rest * self.share)] if is_cut else answer

    async def _send_interim(self, writer: asyncio.StreamWriter, status: int, count: str) -> None:
        answer = f"HTTP/1.1 {status} Go On\r\n\r\n".encode()
        while count == "forever":
            writer.write(answer * 10_000)
            await writer.drain()
        writer.write(answer * int(count))

    async def _send_zeros(self, writer: asyncio.StreamWriter) -> None:
        writer.write(whole(200, b"").replace(b": 0", b": %d" % (1 << 50)))
        while True:
            writer.write(bytes(1 << 16))
            self.sent += 1 << 16
            if writer.transport.get_write_buffer_size():  # type: ignore[attr-defined]
                self.waited.set()
            await writer.drain()

    async def _head(self, reader: asyncio.StreamReader) -> str:
        try:
            return (await reader.readuntil(b"\r\n\r\n")).decode()
        except asyncio.IncompleteReadError:
            return ""


def body(name: str, size: int) -> bytes:
    """Return the body that a name stands for."""
    return (f"{name} ".encode() * (size // (len(name) + 1) + 1))[:size]


def packed(form: str, content: bytes) -> bytes:
    """Return an answer whose body is compressed, and whose length is not said."""
    half = len(content) // 2
    encoding, sent = {
        "gzip": ("gzip", gzip.compress(content)),
        "twice": ("X-GZip", gzip.compress(content[:half]) + gzip.compress(content[half:])),
        "padded": ("gzip", gzip.compress(content) + bytes(100)),
        "deflate": ("deflate", zlib.compress(content)),
        "raw": ("deflate", zlib.compress(content)[2:-4]),
        "damaged": ("gzip", gzip.compress(content)[:-8] + bytes(8)),
        "br": ("br", b"whatever"),
        "compress": ("compress", b"\x1f\x9dwhatever"),
        "unheard-of": ("unheard-of", b"whatever"),
        "gzip-of-gzip": ("gzip, gzip", gzip.compress(gzip.compress(content))),
        "gzip-in-two-lines": (
            "gzip\r\nContent-Encoding: gzip",
            gzip.compress(gzip.compress(content)),
        ),
        "gzip-of-deflate": ("deflate, gzip", gzip.compress(zlib.compress(content))),
        "gzip-and-no-more": ("identity, gzip,", gzip.compress(content)),
        "nothing": ("identity", content),
        "gzip-on-the-way": ("\r\nTransfer-Encoding: gzip", gzip.compress(content)),
    }[form]
    head = f"HTTP/1.1 200 Said So\r\nConnection: close\r\nContent-Encoding: {encoding}\r\n\r\n"
    return head.encode() + sent


def whole(status: int, content: bytes, more: str = "") -> bytes:
    """Return a whole answer as bytes."""
    head = f"HTTP/1.1 {status} Said So\r\nContent-Length: {len(content)}\r\n{more}\r\n"
    return head.encode() + content


@contextlib.asynccontextmanager
async def http_server() -> AsyncIterator[HttpServer]:
    """Serve on a free port of this machine, on the running loop."""
    served = HttpServer()
    listening = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    host, port = listening.sockets[0].getsockname()
    served.address = f"{host}:{port}"
    async with listening:
        yield served
        await served.all_closed()
