"""Where the workers of a service run.

This file is about ``Workplace``: what a service that has workers asks of the place where they are,
and ``ThisMachine``, where they are processes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from asyncloader.graph.walk import Graph
from asyncloader.services.tuned_workers import room_in_memory
from asyncloader.workers.process.process import WorkerEngine
from asyncloader.workers.process.start import ProcessEngine


class Workplace(ABC):
    """A place where workers run: who starts them, and for how many there is room."""

    #: The fewest workers there may be; with none the graph runs in the loader's process.
    least: ClassVar[int] = 0

    #: The most that may be chosen, and with how many to begin; None for what suits this machine.
    most: ClassVar[int | None] = None
    first: ClassVar[int | None] = None

    #: Whether workers read the program's own data, which may grow while they run.
    shares_data: ClassVar[bool] = False

    #: How long another number of workers may take to be ready, beyond the limits of each worker.
    change_seconds: float | None = None

    @abstractmethod
    def engine(self, workers: int) -> WorkerEngine:
        """Return what starts so many workers."""

    async def begin(self, datapipe: Any) -> int | None:
        """Check that a graph can run here, before its workers are started.

        Returns for how many workers there is room, if that matters.
        """
        return None

    def check(self, graph: Graph, workers: int) -> None:  # noqa: B027 - most refuse nothing more
        """Raise ValueError for a graph that cannot be divided among so many workers here."""

    def in_messages(self, function: Callable[..., Any]) -> Any:
        """Return what stands for a function of the user's in messages to the workers."""
        return function

    async def look(self) -> None:  # noqa: B027 - the room on this machine is known at any time
        """Look for how many workers there is room now, before an epoch begins."""

    @abstractmethod
    def room(self, running: int, pids: Sequence[int]) -> int | None:
        """Return for how many workers there is room, with those that run; None if not known."""

    async def has_room_beside(self, workers: int) -> bool | None:
        """Whether so many can be started while those that run go on; None if none can be now."""
        return True


class ThisMachine(Workplace):
    """Processes of this machine."""

    def __init__(self, method: str | None) -> None:
        self._method = method

    def engine(self, workers: int) -> WorkerEngine:
        return ProcessEngine(self._method)

    def room(self, running: int, pids: Sequence[int]) -> int | None:
        return room_in_memory(pids)
