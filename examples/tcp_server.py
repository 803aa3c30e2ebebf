"""Answer lines over plain TCP, with asyncio alone: two worker processes do the work.

Start:  python examples/tcp_server.py         (or with a port, 8000: serves until SIGTERM)
Expect: it asks itself for the prime factors of 500 numbers, and all answers are right.

A client sends a number in a line and is answered with its prime factors. The factoring keeps a
processor busy, so it runs in two worker processes; the graph itself ends in the answers, so
`feed.serve(loader)` does all the replying. On SIGTERM what was accepted is answered first. A
worker that dies is replaced, and what it worked on is tried once more.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.errors import LoaderError

CLIENTS = 20
REQUESTS = 25


def prime_factors(number: int) -> list[int]:
    factors, divisor = [], 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return [*factors, number] if number > 1 else factors


async def answer(feed: Feed, line: str) -> str:
    try:
        return " ".join(map(str, await feed.ask(line, timeout=10, idempotent=True)))
    except (LoaderError, TimeoutError, ValueError) as error:
        return f"error: {error}"


#: Whoever reads the port from a pipe waits for it, and a pipe is not flushed by itself.
announce = partial(print, flush=True)


async def serve(port: int, on_ready: Callable[[int], None] = announce) -> None:
    """Serve until SIGTERM; ``on_ready`` is told the port."""
    feed = Feed(max_pending=1000)
    graph = feed.map(int).map(prime_factors)
    loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(num_workers=2))
    talks: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        talks[task] = writer
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(f"{await answer(feed, line.decode())}\n".encode())
                await writer.drain()
        del talks[task]

    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with feed.serve(loader):
        server = await asyncio.start_server(talk, "127.0.0.1", port)
        on_ready(server.sockets[0].getsockname()[1])
        await stopped.wait()
        server.close()
    # Everything that was accepted was answered. Clients that are still connected are disconnected.
    for writer in talks.values():
        writer.close()
    await asyncio.gather(*talks)
    print(f"answered {feed.stats().answered}, failed {feed.stats().failed}")


async def main() -> None:
    if len(sys.argv) > 1:
        await serve(int(sys.argv[1]))
        return
    ready = asyncio.get_running_loop().create_future()
    serving = asyncio.create_task(serve(0, ready.set_result))
    port = await ready
    right = await asyncio.gather(*(client(port, each) for each in range(CLIENTS)))
    print(f"{sum(right)} of {CLIENTS * REQUESTS} answers are right")
    print("an error:", await ask(port, "seven"))
    os.kill(os.getpid(), signal.SIGTERM)
    await serving


async def client(port: int, which: int) -> int:
    """Ask one after the other; return how many answers are those to the questions."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    right = 0
    for turn in range(REQUESTS):
        number = 10_000 * which + turn + 2
        writer.write(f"{number}\n".encode())
        right += (await reader.readline()).decode().split() == [*map(str, prime_factors(number))]
    writer.close()
    await writer.wait_closed()
    return right


async def ask(port: int, question: str) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{question}\n".encode())
    found = (await reader.readline()).decode().strip()
    writer.close()
    await writer.wait_closed()
    return found


if __name__ == "__main__":
    asyncio.run(main())
