"""Measuring several ways to do one thing, fairly.

This file is about ``run``: comparisons are measured, printed one after the other, and
written down. A workload is a module with functions that return a number:

    CASES = [Case("limit: plain generators", plain), Case("asyncloader, for", sync)]
    COMPARISONS = [Comparison("W1: ...", "items/s", CASES, against=["limit: plain generators"])]

``python -m tests.benchmarks`` finds and runs those of all workloads. Names that begin with
"asyncloader" are ours, those that begin with "limit" nobody's, all others are peers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.comparison import Comparison, Outcome
from tests.benchmarks.environments import ROOT
from tests.benchmarks.facts import NOT_MEASURED, facts
from tests.benchmarks.plot import svg
from tests.benchmarks.report import as_json, header, markdown, text
from tests.benchmarks.rounds import measure

#: What a case takes, most of it to start, and to import torch.
SECONDS = 3


@dataclass(frozen=True)
class Settings:
    """How the comparisons are measured, and where what came out is written."""

    rounds: int
    only: str = ""
    is_quick: bool = False
    folder: Path = ROOT / "benchmark-results"

    def as_dict(self) -> dict[str, object]:
        return {"rounds": self.rounds, "only": self.only, "quick": self.is_quick}


def run(comparisons: Sequence[Comparison], settings: Settings) -> list[Outcome]:
    """Measure and print comparisons; the files are written anew after each of them."""
    known = facts()
    print(header(known), NOT_MEASURED, plan(comparisons, settings), sep="\n\n", flush=True)
    outcomes = []
    began = time.monotonic()
    for number, comparison in enumerate(comparisons, 1):
        outcome = measure(comparison, settings.rounds, settings.only, _show)
        _show("")
        if outcome.results or outcome.without:
            print(f"\n{text(outcome)}")
            outcomes.append(outcome)
            spent = (time.monotonic() - began) / 60
            print(f"({number} of {len(comparisons)} after {spent:.0f} minutes)", flush=True)
            write(outcomes, known, settings)
    if settings.is_quick:
        print("\nThis was a quick run: it shows that the cases run, its numbers mean nothing.")
    print(f"\nwritten to {settings.folder}: benchmark.json, benchmark.svg and benchmark.md")
    return outcomes


def plan(comparisons: Sequence[Comparison], settings: Settings) -> str:
    """Say how much is ahead."""
    chosen = [case for one in comparisons for case in one.cases if settings.only in case.name]
    count = settings.rounds * sum(case.is_possible() for case in chosen)
    return (
        f"{len(comparisons)} comparisons, {settings.rounds} rounds, {count} processes one after"
        f" the other: about {count * SECONDS / 60:.0f} minutes on a quiet machine"
    )


def write(outcomes: Sequence[Outcome], known: dict[str, str], settings: Settings) -> None:
    """Write the numbers as JSON, the picture as SVG, and a table for a page of text."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    found = as_json(known, settings.as_dict(), outcomes)
    (settings.folder / "benchmark.json").write_text(found)
    (settings.folder / "benchmark.md").write_text(markdown(known, outcomes))
    (settings.folder / "benchmark.svg").write_text(svg(outcomes))


def _show(progress: str) -> None:
    """Tell a person at a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r{progress[:110]:<110}\r", end="", file=sys.stderr, flush=True)
