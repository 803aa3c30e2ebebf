"""The example server, over real HTTP: who gets which answer, refusals, deadlines, SIGTERM."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import random
import signal
import socket
import tempfile
import warnings
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.leaks import WORKER, descendants
from tests.processes.stage import ForkedProcess, run_script, start_forked

aiohttp = pytest.importorskip("aiohttp")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
Image = pytest.importorskip("PIL.Image")

ROOT = Path(__file__).parent.parent.parent
START_SECONDS = 60.0
#: What need not be imported anew for each server; torch takes longer than most of the tests.
IMPORTED = ("asyncloader.datapipes.iter", "torch", "uvicorn", "starlette.applications", __name__)

Colour = tuple[int, int, int]


def jpeg(colour: Colour) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (64, 64), colour).save(file, "JPEG", quality=95)
    return file.getvalue()


def is_answer_to(colour: Colour, scores: list[float]) -> bool:
    return all(abs(255 * score - value) < 6 for score, value in zip(scores, colour, strict=True))


def colours(seed: int) -> Any:
    chance = random.Random(seed)
    while True:
        yield tuple(chance.randrange(256) for _ in range(3))


@dataclass
class Served:
    """A running server, and a client of it."""

    url: str
    process: ForkedProcess
    session: Any
    #: What the server may print: the log's lines about workers that this many kills end.
    kills: int = 0

    async def health(self) -> int:
        async with self.session.get(f"{self.url}/health") as response:
            return int(response.status)

    async def predict(self, body: bytes) -> tuple[int, Any]:
        async with self.session.post(f"{self.url}/predict", data=body) as response:
            return response.status, await response.json()

    async def stats(self) -> dict[str, Any]:
        async with self.session.get(f"{self.url}/stats") as response:
            found: dict[str, Any] = await response.json()
            return found


@contextlib.asynccontextmanager
async def serving(**settings: str) -> AsyncIterator[Served]:
    """Run the example until the block ends, and then see it end well on SIGTERM."""
    port = free_port()
    with tempfile.TemporaryFile("w+") as stderr:
        environ = settings | {"PORT": str(port)}
        process = start_forked(
            f"{__name__}:{serve.__name__}", stderr=stderr, imported=IMPORTED, environ=environ
        )
        connector = aiohttp.TCPConnector(limit=0)
        try:
            async with aiohttp.ClientSession(connector=connector) as session:
                served = Served(f"http://127.0.0.1:{port}", process, session)
                async with asyncio.timeout(START_SECONDS):
                    while not await is_up(served):  # noqa: ASYNC110 - the port is another process's
                        await asyncio.sleep(0.05)
                yield served
            await ended_by_sigterm(served)
        finally:
            process.end()
        stderr.seek(0)
        told = stderr.read().splitlines()
        assert [line for line in told if "was killed by SIGKILL; it is replaced" not in line] == []
        assert len(told) == served.kills


async def ended_by_sigterm(served: Served) -> None:
    """Wait for the end of a server that is told to end, once or more often."""
    if served.process.returncode is None:
        os.kill(served.process.pid, signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await asyncio.to_thread(served.process.wait) in (0, -signal.SIGTERM)


def serve() -> None:
    """Be the server, in a process of its own."""
    warnings.resetwarnings()
    warnings.simplefilter("error", ResourceWarning)
    run_script(str(ROOT / "examples/inference_server.py"))


def free_port() -> int:
    """Return a port that is free, and that the system gives to nobody while a server starts."""
    ephemeral = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(ephemeral.read_text().split()[0]) if ephemeral.exists() else 0
    while True:
        port = random.randrange(10_000, max(first, 20_000))
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


async def is_up(served: Served) -> bool:
    try:
        return "queued" in await served.stats()
    except aiohttp.ClientConnectionError:
        return False


@pytest.mark.soak
async def test_each_client_gets_the_answers_to_its_own_requests():
    async with serving() as served:
        counts = await asyncio.gather(*(asked_and_right(served, n, 10) for n in range(64)))
        assert sum(counts) == 640
        stats = await served.stats()
        assert stats["answered"] == 640
        assert (stats["queued"], stats["under_way"], stats["failed"]) == (0, 0, 0)

        await what_is_no_image_disturbs_nobody(served)
        await clients_that_hang_up_leave_nothing(served)


async def asked_and_right(served: Served, number: int, count: int) -> int:
    """Return how many of a client's answers are right."""
    wanted = colours(number)
    right = 0
    for _ in range(count):
        colour = next(wanted)
        status, answer = await served.predict(jpeg(colour))
        assert status == 200, answer
        right += is_answer_to(colour, answer["scores"])
    return right


async def what_is_no_image_disturbs_nobody(served: Served) -> None:
    bodies = [b"no image" if n % 5 == 0 else jpeg((n, 0, 255)) for n in range(50)]
    answers = await asyncio.gather(*map(served.predict, bodies))
    for number, (status, answer) in enumerate(answers):
        if number % 5 == 0:
            assert (status, "cannot identify" in answer["error"]) == (400, True)
        else:
            assert is_answer_to((number, 0, 255), answer["scores"])


async def clients_that_hang_up_leave_nothing(served: Served) -> None:
    chance = random.Random(2)
    failed = (await served.stats())["failed"]

    async def client(number: int) -> None:
        wanted = colours(number)
        for _ in range(10):
            colour = next(wanted)
            asked = asyncio.create_task(served.predict(jpeg(colour)))
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.01)
                asked.cancel()
                await asyncio.wait([asked])
            else:
                status, answer = await asked
                assert status == 200
                assert is_answer_to(colour, answer["scores"])

    await asyncio.gather(*map(client, range(32)))
    async with asyncio.timeout(60):
        while (stats := await served.stats())["under_way"] or stats["queued"]:
            pass  # asking takes its time
    assert stats["failed"] == failed


@pytest.mark.soak
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="it finds the worker in /proc")
async def test_a_server_whose_only_worker_is_killed_under_load_goes_on():
    async with serving(WORKERS="1") as served:
        assert await served.health() == 200
        statuses: list[int] = []
        is_over = asyncio.Event()

        async def client(number: int) -> None:
            wanted = colours(number)
            while not is_over.is_set():
                colour = next(wanted)
                status, answer = await served.predict(jpeg(colour))
                statuses.append(status)
                assert status == 503 or is_answer_to(colour, answer["scores"]), answer

        async def kill() -> None:
            for kills in range(1, 4):
                os.kill(await anybody_new(served, killed), signal.SIGKILL)
                served.kills = kills
                answered = statuses.count(200)
                # The next one has to answer before it dies.
                while statuses.count(200) < answered + 20:  # noqa: ASYNC110 - another process's
                    await asyncio.sleep(0.01)
            is_over.set()

        killed: set[int] = set()
        async with asyncio.timeout(3 * START_SECONDS), asyncio.TaskGroup() as group:
            for number in range(16):
                group.create_task(client(number))
            group.create_task(kill())
        # Only what a worker had twice at its death fails.
        assert set(statuses) <= {200, 503}
        assert statuses.count(503) < 3 * 16
        assert await served.health() == 200
        assert await asked_and_right(served, 99, 10) == 10


async def anybody_new(served: Served, killed: set[int]) -> int:
    """Return the pid of the server's worker, which was not killed before."""
    while True:
        for pid, name in descendants(served.process.pid).items():
            if WORKER.match(name) and name.endswith("(alive)") and pid not in killed:
                killed.add(pid)
                return pid
        await asyncio.sleep(0.01)


async def test_overload_is_refused_with_503_and_the_others_are_right():
    async with serving(MAX_PENDING="8") as served:
        answers = []
        async with asyncio.timeout(60):
            # A client that is slow itself may be no overload.
            while {status for status, _ in answers} != {200, 503}:
                asks = [served.predict(jpeg((n, 9, 9))) for n in range(200)]
                answers = await asyncio.gather(*asks)
        status, answer = await served.predict(jpeg((1, 2, 3)))
        assert (status, is_answer_to((1, 2, 3), answer["scores"])) == (200, True)
    for number, (status, answer) in enumerate(answers):
        assert status == 503 or is_answer_to((number, 9, 9), answer["scores"])


async def test_late_answers_are_504():
    async with serving(PREDICT_TIMEOUT="0.0001") as served:
        status = 200
        while status == 200:
            # A server that stands still for a moment hears of the answer and of the time at once.
            status, answer = await served.predict(jpeg((1, 2, 3)))
    assert (status, answer["error"]) == (504, "there was no answer within 0.0001 s")


async def test_sigterm_finishes_what_was_accepted():
    async with serving() as served:
        asked = [asyncio.create_task(served.predict(jpeg((n, 7, 7)))) for n in range(100)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        ending = asyncio.create_task(ended_by_sigterm(served))
        answers = await asyncio.gather(*asked, return_exceptions=True)
        await ending
    whole = [answer for answer in answers if isinstance(answer, tuple)]
    assert len(whole) >= 1
    for number, answer in enumerate(answers):
        if isinstance(answer, tuple):
            status, body = answer
            assert status == 200, body
            assert is_answer_to((number, 7, 7), body["scores"])
        else:
            # What had not reached the server before it stopped listening.
            assert isinstance(answer, aiohttp.ClientError)
