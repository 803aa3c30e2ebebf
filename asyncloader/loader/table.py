"""A loader's stats, for a person to read.

This file is about ``table``: the stats as a few lines of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncloader.loader.stats import LoaderStats, StageStats
    from asyncloader.workers.worker_stats import WorkerStats

#: What is said of a loader that nobody has iterated.
NOT_BEGUN = "no epoch was begun yet"

_UNITS = ("B", "KiB", "MiB", "GiB")


def table(stats: LoaderStats) -> str:
    """Return the stats as a table of the stages and one of the processes."""
    lines = [_headline(stats)]
    if stats.stages:
        lines += ["", *_aligned([_STAGE, *map(_stage, stats.stages)])]
    if stats.workers:
        lines += ["", *_aligned([_WORKER, *map(_worker, stats.workers)])]
    return "\n".join(lines)


def percent(share: float) -> str:
    """Return a part of a whole in words."""
    return f"{100 * share:.0f} %"


def _headline(stats: LoaderStats) -> str:
    if not stats.epochs:
        return NOT_BEGUN
    text = f"epoch {stats.epochs}: {stats.items:,} items in {stats.seconds:.1f} s"
    text += f" ({_rate(stats.rate)})"
    if stats.restarts:
        text += f", {stats.restarts} restarts"
    share = stats.waited / stats.seconds if stats.seconds else 0.0
    return f"{text}; the consumer waited {percent(share)} of the time"


_STAGE = ("stage", "runs in", "items", "rate", "errors", "time", "share", "held")


def _stage(stage: StageStats) -> tuple[str, ...]:
    return (
        stage.name,
        stage.where,
        "" if stage.items is None else f"{stage.items:,}",
        "" if stage.rate is None else _rate(stage.rate),
        str(stage.errors or ""),
        f"{stage.seconds:.2f} s" if stage.seconds else "",
        percent(stage.share) if stage.seconds else "",
        f"{stage.held} of {stage.room}" if stage.room else "",
    )


_WORKER = (
    "process",
    "pid",
    "items",
    "rate",
    "works",
    "sends",
    "waits",
    "ready",
    "shared",
    "restarts",
)


def _worker(worker: WorkerStats) -> tuple[str, ...]:
    total = (worker.working + worker.waiting) or 1.0
    return (
        worker.name,
        str(worker.pid),
        f"{worker.items:,}",
        _rate(worker.rate),
        percent((worker.working - worker.handing) / total),
        percent(worker.handing / total),
        percent(worker.waiting / total),
        str(worker.ready),
        f"{_bytes(worker.shared_used)} of {_bytes(worker.shared_bytes)}",
        str(worker.restarts or ""),
    )


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows with names to the left and numbers to the right of their columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        cells[:2] = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        yield "  ".join(cells).rstrip()


def _rate(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.2g}/s"


def _bytes(count: float) -> str:
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    return (
        f"{count:.0f} {_UNITS[unit]}" if count >= 10 or not unit else f"{count:.1f} {_UNITS[unit]}"
    )
