"""Running many graphs in child processes, none of which can hang this one.

This file is about ``run``: each graph is run by a child, which has a hard time limit for every
way, so that a hang is a failure like any other; and about ``shrunk``, which looks for the
smallest graph that still fails.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import logging
import os
import queue
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import IO, Any, Self

from tests.processes.stage import ForkedProcess, start_forked
from tests.random_graphs.recipe import Effect, Recipe, Step, drawn, smaller
from tests.random_graphs.ways import Case, Refused, Way, all_ways

#: So long one way may take; most take less than a second, on a machine that is not busy.
WAY_SECONDS = 120.0
#: What graphs are built of. A child is forked from a process that has imported it.
IMPORTED = ("tests.random_graphs.ways",)
#: A failure that depends on time is looked for so often in a smaller graph.
_TRIES = 3


@dataclass
class Report:
    """What became of a graph."""

    seed: int
    recipe: Recipe
    #: How often each kind of way gave what it had to, or was refused.
    equal: int = 0
    refused: list[str] = field(default_factory=list)
    #: Ways that failed, and why.
    failures: list[tuple[Way, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"graph {self.seed}", *(f"    {line}" for line in str(self.recipe).splitlines())]
        lines += [f"  {way}: {why}" for way, why in self.failures]
        lines += [f"  python -m tests.random_graphs --seeds {self.seed} runs it again"]
        return "\n".join(lines)


def run(
    seeds: Iterable[int],
    ways_of: Callable[[int], list[Way]] = all_ways,
    *,
    children: int = 2,
    limit: float = WAY_SECONDS,
) -> Generator[Report, None, None]:
    """Run the graphs of these seeds, several at a time, and yield what became of each."""
    waiting, reports = queue.SimpleQueue[int](), queue.SimpleQueue[Report | Exception]()
    all_seeds = list(seeds)
    for seed in all_seeds:
        waiting.put(seed)

    def work() -> None:
        try:
            with Child(limit) as child, contextlib.suppress(queue.Empty):
                while True:
                    seed = waiting.get_nowait()
                    reports.put(child.run(seed, drawn(seed), ways_of(seed)))
        except Exception as error:  # noqa: BLE001 - raised where the reports are read
            reports.put(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(children)]
    for thread in threads:
        thread.start()
    try:
        for _ in all_seeds:
            report = reports.get()
            if isinstance(report, Exception):
                raise report
            yield report
    finally:
        # Whoever forks next refuses to beside a thread that is at its end.
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for thread in threads:
            thread.join()


def shrunk(report: Report, seconds: float = 60.0, *, limit: float = WAY_SECONDS) -> Report:
    """Return the report of the smallest graph that was found in time and fails in the same way."""
    way, _ = report.failures[0]
    end = time.monotonic() + seconds
    with Child(limit) as child:
        while (less := _smaller(child, report, way, end)) is not None:
            report = less
    return report


def _smaller(child: Child, report: Report, way: Way, end: float) -> Report | None:
    for recipe in smaller(report.recipe):
        for _ in range(_TRIES if way.kind == "kill" else 1):
            if time.monotonic() > end:
                return None
            found = child.run(report.seed, recipe, [way])
            if found.failures and _kind(found) == _kind(report):
                return found
    return None


def _kind(report: Report) -> str:
    """Say what is the same of failures that have one cause: a hang is none of a lost item."""
    return report.failures[0][1].split()[0]


class Child:
    """A process that runs one graph after another, and is replaced when it dies."""

    def __init__(self, limit: float = WAY_SECONDS) -> None:
        #: So many seconds one way may take.
        self._limit = limit
        self._process: ForkedProcess | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="random-graphs-")
        self._log: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()
        self._folder.cleanup()

    def run(self, seed: int, recipe: Recipe, ways: list[Way]) -> Report:
        """Run a graph in these ways."""
        report = Report(seed, recipe)
        left = list(ways)
        while left:
            died_with = self._run_until_it_dies(report, left)
            # The others with as many workers would die, too.
            left = (
                [way for way in left[left.index(died_with) :] if way.workers != died_with.workers]
                if died_with
                else []
            )
        return report

    def _run_until_it_dies(self, report: Report, ways: list[Way]) -> Way | None:
        """Return the way in which the child died, if it did."""
        process = self._alive()
        task = {
            "seed": report.seed,
            "limit": self._limit,
            "steps": list(map(_fields, report.recipe.steps)),
            "adapters": list(map(_fields, report.recipe.adapters)),
            "services": report.recipe.services,
            "ways": [[way.kind, way.workers, way.ahead] for way in ways],
        }
        process.stdin.write(json.dumps(task) + "\n")
        process.stdin.flush()
        for way in ways:
            line = process.stdout.readline()
            if not line:
                report.failures.append((way, self._last_words()))
                return way
            outcome, text = json.loads(line)
            match outcome:
                case "equal":
                    report.equal += 1
                case "refused":
                    report.refused.append(f"{way}: {text}")
                case _:
                    report.failures.append((way, text))
        return None

    def _alive(self) -> ForkedProcess:
        if self._process is None:
            self._log = tempfile.TemporaryFile("w+", dir=self._folder.name)  # noqa: SIM115
            self._process = start_forked(
                f"{__name__}:child",
                stderr=self._log,
                imported=IMPORTED,
                environ={"TMPDIR": self._folder.name},
            )
        return self._process

    def _last_words(self) -> str:
        """Say how the child has ended, and forget it."""
        assert self._log is not None
        self._log.seek(0)
        said = self._log.read()[-6000:]
        code = self._end()
        if "Timeout (" in said:
            return f"hangs\n{said[said.rindex('Timeout (') :]}"
        return f"dies with exit code {code}\n{said}"

    def _end(self) -> int | None:
        if self._process is None:
            return None
        process, self._process = self._process, None
        if self._log is not None:
            self._log.close()
        return process.end()


# In the child -----------------------------------------------------------------------------------


def child() -> None:
    """Run the graphs that come by stdin, and answer one line for each way."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable()
    for line in sys.stdin:
        task: dict[str, Any] = json.loads(line)
        steps, adapters = (tuple(map(_step, task[name])) for name in ("steps", "adapters"))
        case = Case(Recipe(steps, adapters, tuple(task["services"])), task["seed"])
        for way in task["ways"]:
            faulthandler.dump_traceback_later(task["limit"], exit=True)
            outcome = _outcome(case, Way(*way))
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(outcome), file=answers, flush=True)
        faulthandler.dump_traceback_later(task["limit"], exit=True)
        case.close()
        faulthandler.cancel_dump_traceback_later()


def _fields(step: Step) -> dict[str, Any]:
    return {**vars(step), "effect": step.effect.name}


def _step(fields: dict[str, Any]) -> Step:
    fields["effect"] = Effect[fields["effect"]]
    return Step(**{**fields, "sources": tuple(fields["sources"]), "outs": tuple(fields["outs"])})


def _outcome(case: Case, way: Way) -> tuple[str, str]:
    try:
        case.check(way)
    except Refused as refusal:
        return "refused", str(refusal)
    except Exception as error:  # noqa: BLE001 - that is what is looked for
        return "failed", f"{type(error).__name__}: {error}"
    return "equal", ""
