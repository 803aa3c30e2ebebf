"""A time in which a loader's rollout begins no call.

This file is about ``Paused``, which is entered by ``with`` or ``async with``.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Callable, Sequence
from typing import Self

from asyncloader.datapipes.rollout_calls import Gate, InFlight
from asyncloader.runtime import running_loop


class Paused:
    """Lets no call of a loader's rollouts begin while it is entered.

    ``gates()`` returns those of the rollouts that the loader runs.
    """

    def __init__(self, gates: Callable[[], Sequence[Gate]], in_flight: InFlight) -> None:
        self._gates = gates
        self._in_flight: InFlight = in_flight
        self._shut: list[Gate] = []

    async def __aenter__(self) -> Self:
        ended = self._begin()
        try:
            await asyncio.gather(*map(asyncio.wrap_future, ended))
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        self._end()

    def __enter__(self) -> Self:
        if running_loop() is not None and self._in_flight != "keep":
            raise RuntimeError(
                "this `with` would block the event loop that runs in its thread, and maybe the"
                " calls that it waits for; use `async with loader.paused(...)`"
            )
        ended = self._begin()
        try:
            concurrent.futures.wait(ended)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def _begin(self) -> list[concurrent.futures.Future[None]]:
        if self._shut:
            raise RuntimeError("this pause has begun already; call loader.paused() for another one")
        ended: list[concurrent.futures.Future[None]] = []
        for gate in self._gates():
            ended += gate.shut(self._in_flight)
            self._shut.append(gate)
        return ended

    def _end(self) -> None:
        shut, self._shut = self._shut, []
        for gate in shut:
            gate.open()
