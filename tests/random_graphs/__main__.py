"""Run random graphs by hand: ``python -m tests.random_graphs --count 2000 [--first 0]``."""

from __future__ import annotations

import argparse
import random
import re
import sys
import time
from collections import Counter

from tests.random_graphs.recipe import drawn
from tests.random_graphs.running import run, shrunk
from tests.random_graphs.ways import all_ways, some_ways


def main() -> int:
    """Run them, print what failed, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.random_graphs", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="how many graphs")
    parser.add_argument("--first", type=int, help="the first one's seed; drawn, if not given")
    parser.add_argument("--seeds", type=int, nargs="+", help="the seeds, instead")
    parser.add_argument("--some", action="store_true", help="only the ways that the tests take")
    parser.add_argument("--children", type=int, default=2, help="how many at a time")
    parser.add_argument("--shrink", type=float, default=60.0, help="seconds for each failure")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds for each way")
    parser.add_argument(
        "--without",
        nargs="+",
        default=[],
        help="leave out graphs in which one of these patterns is found",
    )
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    seeds = given.seeds or range(first, first + given.count)
    seeds = [
        seed
        for seed in seeds
        if not any(re.search(each, str(drawn(seed))) for each in given.without)
    ]
    print(f"random graphs {seeds[0]} to {seeds[-1]}", flush=True)
    counts: Counter[str] = Counter()
    begin = time.monotonic()

    def figures() -> str:
        told = ", ".join(f"{count} {what}" for what, count in counts.items())
        return f"{told} in {time.monotonic() - begin:.0f} s"

    for report in run(
        seeds, some_ways if given.some else all_ways, children=given.children, limit=given.limit
    ):
        counts["graphs"] += 1
        counts["equal"] += report.equal
        counts["refused"] += len(report.refused)
        counts["failed"] += len(report.failures)
        if report.failures:
            counts["failed graphs"] += 1
            print(f"\n{report}", flush=True)
            if given.shrink:
                print(f"\nshrunk: {shrunk(report, given.shrink, limit=given.limit)}", flush=True)
        if counts["graphs"] % 100 == 0:
            print(figures(), flush=True)
    print(f"\n{figures()}")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
