"""The example of a plain TCP server: who gets which answer, and SIGTERM."""

from __future__ import annotations

import asyncio
import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LONG = 60.0
#: Takes a worker some milliseconds.
PRIME = 1_000_003 * 1_000_033


async def test_sigterm_answers_what_was_accepted_and_ends():
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error", "examples/tcp_server.py", "0",
        cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(LONG):
            port = int(await process.stdout.readline())
            busy = asyncio.Event()
            talking = [asyncio.create_task(talk(port, which, busy)) for which in range(20)]
            await busy.wait()
            process.terminate()
            answers = sum(await asyncio.gather(*talking))
            printed, errors = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert errors.decode() == ""
    assert process.returncode == 0
    # What was answered has arrived, all of it.
    assert re.fullmatch(rf"answered {answers}, failed 0\n", printed.decode())


async def talk(port: int, which: int, busy: asyncio.Event) -> int:
    """Ask until the server says good-bye; return how many answers came, which are all right."""
    answers = 0
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return 0
    try:
        while True:
            number = PRIME + 2 * (1000 * which + answers)
            writer.write(f"{number}\n".encode())
            line = (await reader.readline()).decode()
            if not line or line.startswith("error: the feed is closed"):
                return answers
            assert math.prod(map(int, line.split())) == number
            answers += 1
            busy.set()
    except ConnectionError:
        return answers
    finally:
        writer.close()
