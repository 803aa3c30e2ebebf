"""Hold this asyncloader against an earlier one.

python -m tests.before REVISION [--count 500] [--first SEED]: the same random graphs, and every
sample of the contract tests, are run by both, in this process and in workers. Items have to be
equal; in this process, with places noted at every item, states too, or --states-may-change.
Wherever states differ each has to load in the other, and has to have the equal rest; those that
the earlier one resumes wrongly itself are counted. What differs is made smaller, and printed with
the command that runs it again.
"""

from __future__ import annotations

import argparse
import contextlib
import queue
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.before.comparing import Differs
from tests.before.running import ROOT, Side
from tests.before.subjects import Subject, of_samples, of_seeds
from tests.benchmarks.environments import earlier
from tests.random_graphs.recipe import smaller


@dataclass(frozen=True)
class Against:
    """What this asyncloader is held against."""

    package: Path
    #: The folder of the samples' files.
    files: Path
    is_forwards: bool = False

    @contextlib.contextmanager
    def sides(self) -> Iterator[Callable[[Subject], Counter[str]]]:
        """Return what compares subjects, one after another."""
        with (
            Side("the earlier one", self.package, files=self.files) as old,
            Side("this one", files=self.files) as new,
        ):
            yield partial(Subject.compare, old=old, new=new, is_forwards=self.is_forwards)


def main() -> int:
    """Compare, print what differs, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.before", description=__doc__)
    parser.add_argument("revision", help="the earlier one, as git knows it")
    parser.add_argument("--count", type=int, default=200, help="how many random graphs")
    parser.add_argument("--first", type=int, help="the first one's seed; drawn, if not given")
    parser.add_argument("--without-samples", action="store_true", help="only random graphs")
    parser.add_argument("--without-workers", action="store_true", help="only in this process")
    parser.add_argument("--states-may-change", action="store_true", help="only their rest counts")
    parser.add_argument("--forwards", action="store_true", help="load no new states in the old")
    parser.add_argument("--children", type=int, default=2, help="how many pairs at a time")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for each difference")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    seeds = range(first, first + given.count)
    package = _package(given.revision)
    print(
        f"{given.revision} and now: random graphs {first} to {first + given.count - 1}", flush=True
    )
    subjects = [
        *(() if given.without_samples else of_samples()),
        *of_seeds(seeds, without_workers=given.without_workers),
    ]
    counts: Counter[str] = Counter()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="before-") as files:
        against = Against(package, Path(files), given.forwards)
        for subject, found in compared(subjects, against, given.children):
            if isinstance(found, Counter):
                counts += found
                if found["states changed"] and not given.states_may_change:
                    print(f"\nstates changed: {_shown(subject)}", flush=True)
                continue
            counts["different"] += 1
            print(f"\n{_shown(subject)}\n  {found}", flush=True)
            if given.shrink and subject.recipe is not None:
                print(f"shrunk: {shrunk(subject, against, given.shrink)}", flush=True)
    counts["graphs"] = len({subject.lines for subject in subjects})
    counts["ways"] = len(subjects)
    figures = ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
    print(f"\n{figures} in {time.monotonic() - begin:.0f} s")
    is_changed = counts["states changed"] and not given.states_may_change
    return 1 if counts["different"] or is_changed else 0


def _package(revision: str) -> Path:
    """Install the revision into a folder of its own, and return that."""
    command = ["git", "-C", str(ROOT), "rev-parse", "--verify", f"{revision}^{{commit}}"]
    named = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    environment = earlier(named)
    environment.make()
    return environment.folder


def compared(
    subjects: list[Subject], against: Against, children: int = 2
) -> Iterator[tuple[Subject, Counter[str] | Differs]]:
    """Compare all of them, several at a time, and yield each with its figures or difference."""
    waiting: queue.SimpleQueue[Subject] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[Subject, Counter[str] | Exception]] = queue.SimpleQueue()
    for subject in subjects:
        waiting.put(subject)

    def work() -> None:
        with against.sides() as compare, contextlib.suppress(queue.Empty):
            while True:
                subject = waiting.get_nowait()
                try:
                    done.put((subject, compare(subject)))
                except Exception as error:  # noqa: BLE001 - raised where the answers are read
                    done.put((subject, error))

    threads = [threading.Thread(target=work, daemon=True) for _ in range(children)]
    for thread in threads:
        thread.start()
    try:
        for _ in subjects:
            subject, found = done.get()
            if isinstance(found, Exception) and not isinstance(found, Differs):
                raise found
            yield subject, found
    finally:
        # Whoever forks next refuses to beside a thread that is at its end.
        with contextlib.suppress(queue.Empty):
            while True:
                waiting.get_nowait()
        for thread in threads:
            thread.join()


def shrunk(subject: Subject, against: Against, seconds: float) -> str:
    """Return the smallest graph that was found in time and still differs, and how."""
    end, why = time.monotonic() + seconds, ""
    with against.sides() as compare:
        while (less := _smaller(subject, compare, end)) is not None:
            subject, why = less
    return f"{_shown(subject)}\n  {why}"


def _smaller(
    subject: Subject, compare: Callable[[Subject], Counter[str]], end: float
) -> tuple[Subject, str] | None:
    assert subject.recipe is not None
    for recipe in smaller(subject.recipe):
        if time.monotonic() > end:
            break
        less = Subject(subject.seed, str(recipe), subject.way, recipe)
        try:
            compare(less)
        except Differs as difference:
            return less, str(difference)
    return None


def _shown(subject: Subject) -> str:
    lines = "".join(f"\n    {line}" for line in subject.lines.splitlines())
    again = f"--first {subject.seed} --count 1 --without-samples" if subject.recipe else "--count 0"
    return f"{subject.way}:{lines}\n  {again} runs it again"


if __name__ == "__main__":
    sys.exit(main())
