"""An HTTP server in a process of its own, which answers everything with the same body."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from tests.benchmarks.measuring import loop_factory

BODY = 1 << 16
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % BODY + bytes(BODY)


def with_server(measure: Callable[[str], float]) -> float:
    """Return what is measured with the URL of a server."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            return measure(server.stdout.readline().strip())
        finally:
            server.kill()


class Answer(asyncio.Protocol):
    """Answers every request that arrives whole with the same body."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def data_received(self, data: bytes) -> None:
        if data.endswith(b"\r\n\r\n"):
            self.transport.write(ANSWER)


async def serve() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answer, "127.0.0.1", 0, backlog=2048)
    host, port = server.sockets[0].getsockname()
    print(f"http://{host}:{port}/body", flush=True)
    forever: Awaitable[None] = server.serve_forever()
    await forever


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=loop_factory("uvloop")) as runner:
        runner.run(serve())
