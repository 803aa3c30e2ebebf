"""Measuring several ways to do one thing, fairly.

This file is about ``Case`` and ``compare``. Every measurement runs in a process of its
own, and the cases take turns, so that a machine that is slow for a while is slow for all
of them. What counts is the ratio of two cases in the same round; an absolute number says
as much about the machine.

A workload is a module with functions that return a number:

    CASES = [Case("plain generators", plain), Case("asyncloader, for", sync, args=(64,))]

    if __name__ == "__main__":
        compare(CASES, unit="items/s", against="plain generators")
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

ROOT = Path(__file__).parent.parent.parent

#: Below this ratio two cases whose ranges overlap are told apart by nothing.
RESOLVED = 1.5

Results = dict[str, list[float]]


@dataclass(frozen=True)
class Case:
    """A way to do it: a name, a function that measures it, and the modules it needs.

    ``args`` are plain values, which the function is called with.
    """

    name: str
    function: Callable[..., float]
    needs: tuple[str, ...] = ()
    args: tuple[str | int | float | None, ...] = ()

    def is_possible(self) -> bool:
        """Whether everything it needs is installed."""
        return all(importlib.util.find_spec(module) is not None for module in self.needs)

    def measure(self) -> float:
        """Run the function in a fresh process and return its number."""
        # A workload that is the command itself is known as __main__; its spec has its name.
        spec = importlib.util.find_spec(self.function.__module__)
        assert spec is not None, "run a workload with python -m"
        what = [spec.name, self.function.__name__, json.dumps(self.args)]
        command = [sys.executable, "-m", __name__, *what]
        done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        return float(done.stdout.split()[-1])


def compare(cases: Sequence[Case], *, unit: str, against: Sequence[str] = ()) -> Results:
    """Measure all cases in turns, print a table, and return the numbers of each.

    ``against`` names the cases that the others are put in relation to.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5, help="how often each case is measured")
    parser.add_argument("--only", default="", help="leave out cases without this in their name")
    options = parser.parse_args()
    rounds = options.rounds
    possible = [case for case in cases if options.only in case.name and case.is_possible()]
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start")
    results: Results = {case.name: [] for case in possible}
    for number in range(rounds):
        for case in possible:
            _show(f"round {number + 1} of {rounds}: {case.name}")
            results[case.name].append(case.measure())
    _show("")
    print(table(results, unit=unit, against=against))
    for case in cases:
        if not case.is_possible():
            print(f"{case.name}: left out, needs {', '.join(case.needs)}")
    return results


def _show(progress: str) -> None:
    """Tell a person at a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r{progress:<90}\r", end="", file=sys.stderr, flush=True)


def table(results: Results, *, unit: str, against: Sequence[str] = ()) -> str:
    """Return the numbers as text: medians, ranges, and ratios within the same rounds."""
    heads = [f"median {unit}", "range", *(f"to {name}" for name in against)]
    rows = [["", *heads]]
    for name, numbers in results.items():
        span = f"{_short(min(numbers))} - {_short(max(numbers))}"
        ratios = [_ratio_to(results, name, other) for other in against]
        rows.append([name, _short(median(numbers)), span, *ratios])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )


def _ratio_to(results: Results, name: str, other: str) -> str:
    if name == other or other not in results:
        return ""
    return _ratio(results[name], results[other])


def _ratio(numbers: list[float], others: list[float]) -> str:
    ratios = [one / other for one, other in zip(numbers, others, strict=True)]
    middle = median(ratios)
    overlap = min(numbers) <= max(others) and min(others) <= max(numbers)
    unclear = " not resolved" if overlap and 1 / RESOLVED < middle < RESOLVED else ""
    return f"{middle:.2f} ({min(ratios):.2f} - {max(ratios):.2f}){unclear}"


def _short(number: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def main() -> None:
    """Measure one case; ``compare`` starts this in a process of its own."""
    module, function, args = sys.argv[1:]
    print(getattr(importlib.import_module(module), function)(*json.loads(args)))


if __name__ == "__main__":
    main()
