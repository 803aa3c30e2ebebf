"""How much an archive may unpack to.

This file is about ``Limits``, and ``Meter``, which holds one archive against them. A
few kilobytes can unpack to more than any memory holds, and where data comes from is
not to be trusted. Every limit can be raised, also to ``math.inf``, by the keyword of
its name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncloader.errors import ResourceExhausted

GIB = 2**30

MAX_MEMBERS = 2_000_000
MAX_MEMBER_BYTES = 4 * GIB
MAX_BYTES = 1024 * GIB
MAX_RATIO = 200

#: A row group of a Parquet file is read at once.
MAX_GROUP_BYTES = 4 * GIB

#: A line of text is read at once.
MAX_LINE_BYTES = 2**28

#: Whatever the ratio, this much may come out of an archive: it does no harm.
FREE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class Limits:
    """What one archive or compressed file may unpack to.

    ``max_ratio`` is how many times its size it may grow; it counts from the first
    64 MiB on.
    """

    max_members: float = MAX_MEMBERS
    max_member_bytes: float = MAX_MEMBER_BYTES
    max_bytes: float = MAX_BYTES
    max_ratio: float = MAX_RATIO

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            checked_limit(name, value)


def checked_limit(name: str, value: float) -> float:
    """Return a number of at least 1, infinity included; raise an error otherwise."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not value >= 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
    return value


def checked_line_limit(max_line_bytes: float | None) -> float:
    """Return how long a line may be: without a limit for None."""
    if max_line_bytes is None:
        return float("inf")
    return checked_limit("max_line_bytes", max_line_bytes)


def line_too_long(path: str, line: int, max_line_bytes: float, what: str = "") -> ResourceExhausted:
    """Return the error for a line, or what begins with it, that is longer than it may be."""
    return ResourceExhausted(
        f"{path}, line {line}: {what or 'the line'} is longer than max_line_bytes={max_line_bytes}"
        " bytes (or characters, of text); pass a larger max_line_bytes, or None for no limit"
    )


class Meter:
    """Counts what comes out of one archive, and raises ResourceExhausted at a limit.

    ``packed`` tells how large the archive is, as far as that is known.
    """

    def __init__(self, path: str, limits: Limits, packed: Callable[[], int]) -> None:
        self.path = path
        self.limits = limits
        self.packed = packed
        self.members = 0
        self.unpacked = 0

    def add_member(self, name: str, size: int) -> None:
        """Count a member that says it has ``size`` bytes."""
        self.members += 1
        self.check_members(self.members)
        if size > self.limits.max_member_bytes:
            raise ResourceExhausted(
                f"{self.path}: its member {name!r} has {size} bytes, more than"
                f" max_member_bytes={self.limits.max_member_bytes}; {_trusted('max_member_bytes')}"
            )

    def check_members(self, count: int) -> None:
        """Raise if an archive has too many members, be they unpacked or not."""
        if count > self.limits.max_members:
            raise ResourceExhausted(
                f"{self.path} has more than max_members={self.limits.max_members} members;"
                f" {_trusted('max_members')}"
            )

    def add_bytes(self, count: int) -> None:
        """Count bytes that were unpacked."""
        self.unpacked += count
        limits = self.limits
        if self.unpacked > limits.max_bytes:
            raise ResourceExhausted(
                f"{self.path} unpacks to more than max_bytes={limits.max_bytes} bytes;"
                f" {_trusted('max_bytes')}"
            )
        if self.unpacked > FREE_BYTES and self.unpacked > limits.max_ratio * self.packed():
            raise ResourceExhausted(
                f"{self.path} unpacks to more than max_ratio={limits.max_ratio} times its size:"
                f" {self.unpacked} bytes of {self.packed()} so far; {_trusted('max_ratio')}"
            )


def _trusted(name: str) -> str:
    return f"if the archive is to be trusted, pass a larger {name}"
