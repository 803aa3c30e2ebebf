"""How long a loop waits to hear how a process has ended."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable

from asyncloader.workers.process.process import TOLD_SECONDS, DeathWatch


class Dead:
    """A process that has ended, of which somebody else will tell the exit code."""

    def __init__(self) -> None:
        self.death_fd, self._end = os.pipe()
        self.status_fd, self._told = os.pipe()
        os.close(self._end)
        self.exitcode: int | None = None

    def expects_exitcode(self, read: Callable[[int], None]) -> bool:
        read(self.status_fd)
        return True

    def tell(self, exitcode: int) -> None:
        self.exitcode = exitcode
        os.close(self._told)

    def close(self) -> None:
        os.close(self.death_fd)
        os.close(self.status_fd)


async def test_a_machine_that_stands_still_takes_no_time_from_who_tells_the_exit_code() -> None:
    process, heard = Dead(), asyncio.Event()
    found: list[int | None] = []
    watch = DeathWatch(
        asyncio.get_running_loop(), process, lambda: (found.append(process.exitcode), heard.set())
    )
    watch.watch()
    for _ in range(3):
        # It hears of the death, and begins to wait for the exit code.
        await asyncio.sleep(0)
    time.sleep(1.2 * TOLD_SECONDS)  # noqa: ASYNC251  nobody does anything meanwhile
    for _ in range(3):
        await asyncio.sleep(0)
    process.tell(-9)
    await heard.wait()
    assert found == [-9]
    process.close()
