"""A process before and at its birth.

This file is about what a child process is to be, and what a start method hands
over when it has come to be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class ProcessPlan:
    """What a child process is to be.

    ``main`` is ``"package.module:function"``, imported in the child and called as
    ``function(sock, *args)``. ``args`` is plain data. ``preload`` names modules
    that a template process imports once, before it forks; plans that name the same
    ones share a template process.
    """

    name: str
    main: str
    args: tuple[Any, ...] = ()
    preload: tuple[str, ...] = ()


class Status(Protocol):
    """Where the exit code of a process comes from, once its pidfd says that it is dead."""

    @property
    def fd(self) -> int:
        """Readable when ``collect`` has an answer."""
        ...

    def collect(self) -> int | None:
        """The exit code (negative: the signal), or None if it is not known yet."""
        ...

    def close(self) -> None:
        """Release what is held; after death only."""
        ...


@dataclass(frozen=True)
class Born:
    """A process that was just started. The receiver owns the pidfd and the status."""

    pid: int
    pidfd: int
    status: Status
