"""A policy server on this machine: ``python -m tests.rollouts.server --notes FILE``.

It answers over HTTP after a log-normal time, and sometimes with an error, never, or with a closed
connection. Each call is noted in a file before anything comes of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import random
from pathlib import Path
from typing import Any

#: Half of the answers take less than so many seconds.
_SECONDS = 0.005


class Notes:
    """A file to which several processes write lines, each whole and after those before it."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def note(self, *what: Any) -> None:
        """Write one line."""
        os.write(self._file, f"{json.dumps(what)}\n".encode())


def notes_in(path: Path) -> list[list[Any]]:
    """Return the lines that were written."""
    text = path.read_text("ascii") if path.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


async def answered(notes: Notes, reader: asyncio.StreamReader, writer: Any) -> None:
    """Answer one request, in one of the ways."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        asked = json.loads(await reader.readexactly(length))
        notes.note("call", asked["number"], asked["member"])
        await asyncio.sleep(_SECONDS * math.exp(random.gauss(0.0, 1.0)))
        chance = random.random()
        if chance < 0.01:
            await asyncio.sleep(3600)
        elif chance < 0.05:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
        elif chance > 0.02:
            body = json.dumps(asked).encode()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
    except (OSError, EOFError):
        # The client has gone.
        pass
    finally:
        writer.close()


async def serve(path: Path, port: int) -> None:
    """Serve until the process is killed."""
    notes = Notes(path)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await answered(notes, reader, writer)

    server = await asyncio.start_server(answer, "127.0.0.1", port)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


class ServerIsAway(OSError):
    """The server gave no answer."""


async def asked(port: int, question: dict[str, Any]) -> dict[str, Any]:
    """Ask the server."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        body = json.dumps(question).encode()
        writer.write(b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        answer = await reader.read()
    finally:
        writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise ServerIsAway(f"the server answered {head[:30]!r}")
    found: dict[str, Any] = json.loads(body)
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts.server", description=__doc__)
    parser.add_argument("--notes", type=Path, required=True, help="where calls are noted")
    parser.add_argument("--port", type=int, default=0, help="a free one, if not given")
    given = parser.parse_args()
    asyncio.run(serve(given.notes, given.port))
