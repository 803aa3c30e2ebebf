"""Answer lines over plain TCP, with asyncio alone: work in worker processes, one answer each.

A client sends a number in a line and is answered with its prime factors. The factoring
keeps a processor busy, so it runs in two worker processes; the graph itself ends in the
answers, so `feed.serve(loader)` does all the replying. This example is its own client, too.

    python examples/tcp_server.py
"""

import asyncio

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.errors import Overloaded

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


async def main() -> None:
    feed = Feed(max_pending=1000)
    graph = feed.map(int).map(prime_factors)
    service = MultiProcessingReadingService(num_workers=2)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            try:
                factors = await feed.ask(line.decode(), timeout=10)
                text = " ".join(map(str, factors))
            except (Overloaded, TimeoutError, ValueError) as error:
                text = f"error: {error}"
            writer.write(f"{text}\n".encode())
            await writer.drain()
        writer.close()

    async with feed.serve(DataLoader2(graph, reading_service=service)):
        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            right = await asyncio.gather(*(client(port, each) for each in range(CLIENTS)))
            print(f"{sum(right)} of {CLIENTS * REQUESTS} answers are right")
            print("an error:", await ask(port, "seven"))
    print(f"answered {feed.stats().answered}, failed {feed.stats().failed}")


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
    answer = (await reader.readline()).decode().strip()
    writer.close()
    await writer.wait_closed()
    return answer


if __name__ == "__main__":
    asyncio.run(main())
