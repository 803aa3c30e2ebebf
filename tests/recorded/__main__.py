"""Play random lines by hand: ``python -m tests.recorded --count 2000 [--first 0]``."""

from __future__ import annotations

import argparse
import random
import sys
import warnings

from tests.recorded.lines import Line


def main() -> int:
    """Play them, and print what is wrong, and the figures."""
    parser = argparse.ArgumentParser(prog="python -m tests.recorded", description=__doc__)
    parser.add_argument("--count", type=int, default=500, help="how many graphs")
    parser.add_argument("--first", type=int, help="the first one's seed; drawn, if not given")
    given = parser.parse_args()
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    print(f"lines {first} to {first + given.count - 1}", flush=True)
    runs = failed = delivered = left_out = 0
    warnings.simplefilter("ignore")
    for seed in range(first, first + given.count):
        line = Line(seed)
        line.play()
        wrong = list(line.wrong())
        runs, failed = runs + line.runs, failed + bool(wrong)
        delivered += sum(len(numbers) for _, numbers in line.delivered)
        left_out += line.left_out.total()
        for each in wrong:
            print(f"line {seed}: {each}", flush=True)
    print(
        f"{given.count} graphs in {runs} runs: {delivered} numbers delivered, {left_out} left out,"
        f" {failed} graphs wrong"
    )
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
