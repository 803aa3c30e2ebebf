"""What a request over HTTP costs that a model answers in batches, with several servers.

This file is about a command: ``python -m tests.benchmarks.served``. It starts each server that can
be imported (a feed under FastAPI; LitServe, which waits for company for no or five milliseconds;
BentoML) and lets 1, 32 and 256 clients ask it, in rounds. It needs ``fastapi``, ``uvicorn`` and
``aiohttp``, and of ``litserve`` and ``bentoml`` those that are to be measured.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from tests.benchmarks.environments import ROOT
from tests.benchmarks.sizes import sized

ROUNDS = sized(3, 1)
SECONDS = sized(4, 0.2)
CLIENTS = (1, 32, 256)
START_SECONDS = 120.0

_PYTHON = (sys.executable, "-m")


class Server(NamedTuple):
    """How a server is started, what it needs, and how it is asked."""

    needs: str
    #: A module, and its arguments.
    command: tuple[str, ...]
    input: Any = 1.0


SERVERS = {
    "asyncloader's Feed": Server("fastapi", ("tests.benchmarks.served.with_feed", "{port}")),
    "LitServe, 0 ms": Server("litserve", ("tests.benchmarks.served.with_litserve", "{port}", "0")),
    "LitServe, 5 ms": Server(
        "litserve", ("tests.benchmarks.served.with_litserve", "{port}", "0.005")
    ),
    "BentoML": Server(
        "bentoml",
        ("bentoml", "serve", f"{__package__}.with_bentoml:Answering", "--port", "{port}"),
        # It takes lists, and puts those of several requests together.
        [1.0],
    ),
}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@contextlib.contextmanager
def started(server: Server) -> Iterator[int]:
    """Start a server; give its port once it answers, and end it with all its processes."""
    port = free_port()
    with subprocess.Popen(
        [*_PYTHON, *(part.format(port=port) for part in server.command)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            end = time.monotonic() + START_SECONDS
            while _asking(server, port, 1, 0.1, stderr=subprocess.DEVNULL).returncode:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError(f"{server.command} did not come to answer")
            yield port
        finally:
            subprocess.run(["pkill", "-TERM", "-s", str(process.pid)], check=False)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            subprocess.run(["pkill", "-KILL", "-s", str(process.pid)], check=False)


def _asking(
    server: Server, port: int, clients: int, seconds: float, **settings: Any
) -> subprocess.CompletedProcess[bytes]:
    arguments = map(str, (port, clients, seconds, json.dumps(server.input)))
    command = [*_PYTHON, "tests.benchmarks.served.clients", *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, **settings)


def main() -> None:
    there = {
        name: server
        for name, server in SERVERS.items()
        if importlib.util.find_spec(server.needs) is not None
    }
    print("not installed:", ", ".join(SERVERS.keys() - there.keys()) or "none")
    found: dict[tuple[str, int], list[dict[str, float]]] = {}
    for _ in range(ROUNDS):
        for name, server in there.items():
            with started(server) as port:
                for clients in CLIENTS:
                    asking = _asking(server, port, clients, SECONDS, check=True)
                    found.setdefault((name, clients), []).append(json.loads(asking.stdout))
    print(f"{'':20}{'clients':>8}{'a second':>10}{'half within, ms':>17}{'99 % within, ms':>17}")
    for (name, clients), rounds in sorted(found.items(), key=lambda each: each[0][1]):
        rate, half, most = (
            statistics.median(each[what] for each in rounds) for what in ("rate", "p50", "p99")
        )
        print(f"{name:20}{clients:8}{rate:10,.0f}{half:17.1f}{most:17.1f}")


if __name__ == "__main__":
    main()
