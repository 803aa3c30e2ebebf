"""What to do about a graph, after it was examined.

This file is about ``Advice``: one recommendation with what it is expected to gain, or that the
differences are smaller than the noise; as text, as a page with plots in one file, and applied to
the program that makes the loader.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from html import escape
from pathlib import Path
from statistics import median
from typing import NamedTuple

from asyncloader.loader.stage_stats import StageStats

#: As many rates as a trial has at first. Of so few the whole range counts.
FEW = 5

#: A gain that is smaller than this is not worth a change.
LITTLE = 0.05


class Kind(IntEnum):
    """What workers are; what takes less memory comes first."""

    NONE = 0
    THREAD = 1
    PROCESS = 2
    ACTOR = 3

    def many(self) -> str:
        """Return the word for several."""
        words = {Kind.THREAD: "threads", Kind.PROCESS: "processes", Kind.ACTOR: "actors"}
        return words.get(self, "workers")


class Service(NamedTuple):
    """What runs a graph: so many workers of a kind. In order, what takes less comes first."""

    kind: Kind
    workers: int

    @classmethod
    def of(cls, kind: Kind, workers: int) -> Service:
        """Return so many of a kind; none are none of any kind."""
        return cls(kind if workers else Kind.NONE, workers)

    def __str__(self) -> str:
        word = self.kind.name.lower() if self.workers == 1 else self.kind.many()
        return f"{self.workers} {word}"

    def in_code(self) -> str:
        """Return what a program says."""
        number = f"num_workers={self.workers}"
        services = {Kind.THREAD: THREADS, Kind.ACTOR: ACTORS}
        return f"{services[self.kind]}({number})" if self.kind in services else number


#: What runs no worker.
HERE = Service(Kind.NONE, 0)

#: What programs name, for each kind of workers.
THREADS, PROCESSES = "MultiThreadingReadingService", "MultiProcessingReadingService"
ACTORS, FROM_DATASET = "RayReadingService", "from_dataset"


@dataclass(frozen=True)
class Trial:
    """The rates of a graph in some number of workers, in items a second."""

    #: What ran the graph.
    service: Service
    #: Empty if there was no item for each stretch.
    rates: Sequence[float]
    #: From starting the workers to the first item; None if none came.
    first_item_seconds: float | None

    @property
    def rate(self) -> float:
        """The median of the rates, 0 without any."""
        return median(self.rates) if self.rates else 0.0

    def range(self) -> tuple[float, float]:
        """Return between which rates the true one surely lies."""
        if len(self.rates) <= FEW:
            return min(self.rates), max(self.rates)
        # The usual notch of a box plot, which becomes narrow with many rates.
        ordered = sorted(self.rates)
        count = len(ordered)
        spread = ordered[(3 * count) // 4] - ordered[count // 4]
        notch = 1.57 * spread / count**0.5
        return self.rate - notch, self.rate + notch

    def overlaps(self, other: Trial) -> bool:
        """Whether the ranges of the two overlap, so that neither is surely better."""
        if not self.rates or not other.rates:
            return False
        (low, high), (its_low, its_high) = self.range(), other.range()
        return high >= its_low and its_high >= low

    def and_more(self, other: Trial) -> Trial:
        """Return the rates of both, of as many workers."""
        return replace(self, rates=[*self.rates, *other.rates])


@dataclass(frozen=True)
class Advice:
    """The bottleneck, and what to do."""

    #: The stage that takes the most time of its process, and whether it computes; None if no
    #: time was seen.
    stage: StageStats | None
    share: float
    is_computing: bool
    #: What runs the program's graph now, and should; the same where that is as good.
    now: Service
    service: Service
    #: How many times as many items a second there would be.
    gain: float
    #: What else would help, or "".
    instead: str

    def lines(self) -> Iterator[str]:
        """Yield the text."""
        if self.stage is not None:
            how = "computes" if self.is_computing else "waits"
            yield (
                f"the bottleneck is {self.stage.name}: {self.share:.0%} of the time is spent in"
                f" it, and it mostly {how}"
            )
        if self.service != self.now:
            of_workers = (
                f"use {self.service.in_code()}: about {self.gain:.1f} times as many items a"
                f" second as with {self.now.in_code()}"
            )
        else:
            of_workers = (
                f"keep {self.now.in_code()}: what other numbers gain or lose is smaller than the"
                " noise, or less than 5 %"
            )
        # Many calls may wait at a time in one process, which gains more than a few workers.
        others = [of_workers, *filter(None, [self.instead])]
        first, *others = others if self.is_computing else reversed(others)
        yield first
        yield from (f"or {other}" for other in others)


def advise(
    stages: Sequence[StageStats], trials: Sequence[Trial], *, now: Service, is_computing: bool
) -> Advice:
    """Return what to do, given what the stages took and how many workers were tried."""
    whole = sum(stage.seconds for stage in stages)
    slowest = max(stages, key=lambda stage: stage.seconds, default=None)
    stage = slowest if whole and slowest is not None else None
    service, gain = _better(trials, now)
    share = stage.seconds / whole if stage is not None else 0.0
    instead = "" if stage is None else _instead(stage, is_computing=is_computing)
    return Advice(stage, share, is_computing, now, service, gain, instead)


def _better(trials: Sequence[Trial], now: Service) -> tuple[Service, float]:
    """Return what to use, and how many times the present rate it gives."""
    measured = {trial.service: trial for trial in trials if trial.rates}
    if not measured:
        return now, 1.0
    best = max(measured.values(), key=lambda trial: trial.rate)
    present = measured.get(now)
    # Of those that may be best and surely differ from now, the fewest: each takes memory.
    others = [
        trial
        for trial in measured.values()
        if (trial is best or trial.overlaps(best))
        and not (present is not None and trial.overlaps(present))
    ]
    if not others:
        return now, 1.0
    chosen = min(others, key=lambda trial: trial.service)
    if present is None:
        return chosen.service, 1.0
    gain = chosen.rate / present.rate
    is_worth_it = gain >= 1 + LITTLE or chosen.service < now
    return (chosen.service, gain) if is_worth_it else (now, 1.0)


def _instead(stage: StageStats, *, is_computing: bool) -> str:
    if stage.holds_calls or stage.name.startswith("thread"):
        return f'give {stage.name} concurrency="auto"'
    if stage.is_source:
        return "read in parallel: yield names from the source, and read behind it with async_map"
    if is_computing:
        return "use thread_map in place of map, if the function releases the GIL"
    return (
        "use thread_map or async_map in place of map, with a high concurrency: calls that wait"
        " need no process"
    )


# Applying it ------------------------------------------------------------------------------

#: The calls of a program that say how many workers of a kind there are.
_CALLS = {
    Kind.THREAD: (THREADS, FROM_DATASET),
    Kind.PROCESS: (PROCESSES, FROM_DATASET),
    Kind.ACTOR: (ACTORS,),
}


def apply_to(path: Path, service: Service, now: Service = HERE) -> list[str]:
    """Write the number of workers into a program; return the changed lines, as a diff has them.

    No workers are written where those of ``now`` are. ValueError if the file has no call that
    says it.
    """
    kind = service.kind or now.kind or Kind.PROCESS
    calls = _CALLS[kind]
    source = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(source, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as Python: {error}") from error
    data = source.encode()
    places = sorted(_numbers_in(tree, data, kind), reverse=True)
    if not places:
        name, *others = calls
        missing = " or ".join([f"{name}(...)", *(f"{each}(num_workers=...)" for each in others)])
        raise ValueError(
            f"{path} has no {missing}; give the loader reading_service={name}({service.workers})"
        )
    for start, end, before in places:
        data = data[:start] + f"{before}{service.workers}".encode() + data[end:]
    path.write_bytes(data)
    lines = difflib.unified_diff(source.splitlines(), data.decode().splitlines(), n=0, lineterm="")
    return [line for line in lines if not line.startswith(("---", "+++", "@@"))]


def _numbers_in(tree: ast.AST, data: bytes, kind: Kind) -> Iterator[tuple[int, int, str]]:
    """Yield where a number of workers stands or has to stand, and what to write before it."""
    calls = _CALLS[kind]
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        if name == FROM_DATASET and _has_threads(call) != (kind is Kind.THREAD):
            continue
        given = [each.value for each in call.keywords if each.arg == "num_workers"]
        is_service = name == calls[0]
        if is_service and call.args and not isinstance(call.args[0], ast.Starred):
            given = [call.args[0]]
        for value in given if name in calls else ():
            yield (
                starts[value.lineno - 1] + value.col_offset,
                starts[(value.end_lineno or 1) - 1] + (value.end_col_offset or 0),
                "",
            )
        if is_service and not given and not call.args and call.end_lineno is not None:
            at = starts[call.end_lineno - 1] + (call.end_col_offset or 0) - 1
            # An empty call; other keywords, if any, are followed by the number.
            yield at, at, ", num_workers=" if call.keywords else "num_workers="


def _has_threads(call: ast.Call) -> bool:
    """Whether a call of ``from_dataset`` says that its workers are threads."""
    said = (each.value for each in call.keywords if each.arg == "workers")
    return any(isinstance(each, ast.Constant) and each.value == "threads" for each in said)


# A page -----------------------------------------------------------------------------------

_STYLE = (
    "body{font:15px/1.5 sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "pre{background:#f4f4f4;padding:1rem;overflow:auto}.do{font-size:1.2rem}"
    "svg text{font:13px sans-serif}.bar{fill:#4878a8}.best{fill:#c05010}"
    ".range{stroke:#222;stroke-width:2}"
)
_WIDTH, _ROW, _LEFT = 760, 26, 230


def page(text: str, advice: Advice, stages: Sequence[StageStats], trials: Sequence[Trial]) -> str:
    """Return the report as HTML: the advice, plots of stages and workers, and the text."""
    whole = sum(stage.seconds for stage in stages) or 1.0
    of_stages = [
        (stage.name, stage.seconds / whole, None, f"{stage.seconds / whole:.0%}")
        for stage in stages
    ]
    of_workers = [
        (str(trial.service), trial.rate, trial.range(), f"{trial.rate:,.4g} items/s")
        for trial in trials
        if trial.rates
    ]
    said = "".join(f'<p class="do">{escape(line)}</p>' for line in advice.lines())
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>asyncloader doctor</title>"
        f"<style>{_STYLE}</style><h1>What the doctor says</h1>{said}"
        f"<h2>Where the time goes</h2>{_bars(of_stages)}"
        f"<h2>Workers</h2>{_bars(of_workers)}"
        f"<h2>All of it</h2><pre>{escape(text)}</pre></html>\n"
    )


Bar = tuple[str, float, tuple[float, float] | None, str]


def _bars(rows: Sequence[Bar]) -> str:
    """Return horizontal bars, each with its range if it has one, as SVG."""
    most = max((max(value, *(span or (0.0,))) for _, value, span, _ in rows), default=1.0) or 1.0
    scale = (_WIDTH - _LEFT - 140) / most
    top = max((value for _, value, _, _ in rows), default=0.0)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_ROW * len(rows)}" role="img">']
    for number, (name, value, span, label) in enumerate(rows):
        y = _ROW * number
        kind = "best" if value == top else "bar"
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{escape(name)}</text>')
        size = f'height="18" width="{value * scale:.1f}"'
        parts.append(f'<rect class="{kind}" x="{_LEFT}" y="{y + 4}" {size}/>')
        end = value
        if span is not None:
            low, end = span
            parts.append(
                f'<line class="range" x1="{_LEFT + low * scale:.1f}" x2="{_LEFT + end * scale:.1f}"'
                f' y1="{y + 13}" y2="{y + 13}"/>'
            )
        x = _LEFT + max(value, end) * scale + 8
        parts.append(f'<text x="{x:.1f}" y="{y + 17}">{escape(label)}</text>')
    return "".join([*parts, "</svg>"])
