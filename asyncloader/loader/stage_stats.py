"""How one pipe is doing.

This file is about ``StageStats``, and how numbers are written for people.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Where a pipe may run.
LOADER, WORKERS, DISPATCHER = "loader", "workers", "dispatcher"


@dataclass(frozen=True)
class StageStats:
    """Items, errors and time of one pipe in the present epoch, in all processes together.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper(range(7)).batch(2)) as loader:
    ...     assert len(list(loader)) == 4
    ...     source, batches = loader.stats().stages
    >>> batches.name, batches.where, batches.items, source.is_source
    ('batch(2)', 'loader', 4, True)
    """

    #: The name of the pipe: ``map(decode)``.
    name: str
    #: "loader", "workers" or "dispatcher": where it runs.
    where: str
    #: How many items it yielded, or None if neither it nor its reader counts them.
    items: int | None
    #: Items a second, or None.
    rate: float | None
    #: How many items its function failed on, if it tolerates failures.
    errors: int
    #: How many seconds threads spent in it, or waited for what it does. The consumer counts as
    #: one where the last pipe runs on an event loop.
    seconds: float
    #: Those seconds as a part of the time of the threads or processes that run it, from 0 to 1.
    share: float
    #: How many items it holds or works on.
    held: int
    #: How many it may; 0 if there is no bound.
    room: int
    #: Whether those are calls in progress, so that the pipe is busy when it is full.
    holds_calls: bool
    #: Whether it reads from no other pipe.
    is_source: bool
    #: Its number in the graph, breadth-first from the end; None for one that a service added.
    number: int | None = None


def percent_text(share: float) -> str:
    """Return a part of a whole, from 0 to 1, as a text.

    >>> percent_text(0.817)
    '82 %'
    """
    # What is left of a time may be a little less than nothing.
    return f"{100 * max(0.0, share):.0f} %"


def rate_text(rate: float) -> str:
    """Return a number of items a second as a text.

    >>> rate_text(12345.6), rate_text(0.5)
    ('12,346/s', '0.5/s')
    """
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


_UNITS = ("B", "KiB", "MiB", "GiB")


def bytes_text(count: float) -> str:
    """Return an amount of memory as a text.

    >>> bytes_text(1536), bytes_text(64 << 20)
    ('1.5 KiB', '64 MiB')
    """
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    digits = 0 if count >= 10 or not unit else 1
    return f"{count:.{digits}f} {_UNITS[unit]}"
