"""Play random programs by hand: ``python -m tests.rollouts --count 2000 [--first 0]``."""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
import warnings
from collections import Counter

from tests.rollouts.world import Line


def main() -> int:
    """Play them, and print what is wrong, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many programs")
    parser.add_argument("--first", type=int, help="the first one's seed; drawn, if not given")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    print(f"programs {first} to {first + given.count - 1}", flush=True)
    warnings.simplefilter("ignore")
    logging.disable()
    begun, failed, seconds = time.monotonic(), 0, 0.0
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for seed in range(first, first + given.count):
        line = Line(seed).play()
        wrong = list(line.wrong())
        failed += bool(wrong)
        counts["runs"] += line.runs
        counts["calls"] += line.ledger.calls
        counts["prompts trained"] += len(line.ledger.trained)
        seconds += line.seconds
        endings += line.endings
        left_out += line.left_out
        for each in wrong:
            print(f"program {seed}: {each}", flush=True)
    told = ", ".join(f"{count} {what}" for what, count in counts.items())
    print(
        f"{given.count} programs in {time.monotonic() - begun:.0f} s, which are"
        f" {seconds / 3600:.0f} hours of their own: {told}"
    )
    print("runs ended:", ", ".join(f"{count} {what}" for what, count in endings.most_common()))
    print("left out:", ", ".join(f"{count} {what}" for what, count in left_out.most_common()))
    print(f"{failed} programs wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
