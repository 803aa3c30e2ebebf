"""Clients who ask again when they have their answer: their rate and their times, as JSON.

This file is about ``python -m tests.benchmarks.served.clients PORT CLIENTS SECONDS INPUT``.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
from time import perf_counter
from typing import Any

import aiohttp


async def asked(port: int, clients: int, seconds: float, question: Any) -> dict[str, float]:
    address = f"http://127.0.0.1:{port}/predict"
    times: list[float] = []

    async def ask_on(session: aiohttp.ClientSession, end: float) -> None:
        while perf_counter() < end:
            begun = perf_counter()
            async with session.post(address, json={"input": question}) as response:
                assert response.status == 200, await response.text()
                assert await response.json()
            times.append(perf_counter() - begun)

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        # What is done once is not counted.
        await asyncio.gather(
            *(ask_on(session, perf_counter() + seconds / 5) for _ in range(clients))
        )
        times.clear()
        begun = perf_counter()
        await asyncio.gather(*(ask_on(session, begun + seconds) for _ in range(clients)))
        took = perf_counter() - begun
    cuts = statistics.quantiles(times, n=100)
    return {"rate": len(times) / took, "p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}


if __name__ == "__main__":
    port, clients = map(int, sys.argv[1:3])
    found = asked(port, clients, float(sys.argv[3]), json.loads(sys.argv[4]))
    print(json.dumps(asyncio.run(found)))
