"""Try actors of a cluster for longer than the tests do.

python -m tests.ray --graphs 100 [--first 0]    random graphs with 1, 2 and 3 actors
python -m tests.ray --kills 20 [--first 0]      so many lost actors and nodes
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from tests.ray.actor_case import reports
from tests.ray.cluster import some_nodes
from tests.ray.kills import exact_rounds


def main() -> int:
    """Run what is asked for, print what failed, and the figures."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.ray",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--graphs", type=int, default=0, help="how many random graphs")
    parser.add_argument("--kills", type=int, default=0, help="how many rounds of kills")
    parser.add_argument("--first", type=int, help="the first seed; drawn, if not given")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    counts: Counter[str] = Counter()
    begun = time.monotonic()
    with some_nodes() as nodes:
        for report in reports(range(first, first + given.graphs), (1, 2, 3)):
            counts["graphs"] += 1
            counts["equal"] += report.equal
            counts["refused"] += len(report.refused)
            counts["failed"] += len(report.failures)
            if report.failures:
                print(f"\n{report}", flush=True)
        for told in exact_rounds(nodes, given.kills, first):
            counts["exact rounds"] += 1
            print(told, flush=True)
    figures = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(f"seed {first}: {figures} in {time.monotonic() - begun:.0f} s")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
