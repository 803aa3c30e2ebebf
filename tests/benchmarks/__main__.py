"""The benchmark: every workload, against every peer that is installed.

    python -m tests.benchmarks                      everything, three rounds: an hour or two
    python -m tests.benchmarks --main               the docs' first table: 20 minutes to an hour
    python -m tests.benchmarks w2 w3 --rounds 5     two workloads
    python -m tests.benchmarks --peers SPDL grain   against those two, and the limits
    python -m tests.benchmarks --earlier v0.1       beside what asyncloader was at that revision
    python -m tests.benchmarks --quick              only see that every case runs

``pip install -e .[bench]`` installs the peers; torchdata 0.9, the last one with DataLoader2,
does not go together with 0.11 and gets a folder of its own below ``build/``, made here.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, is_ours
from tests.benchmarks.environments import HERE, Environment, earlier
from tests.benchmarks.facts import facts
from tests.benchmarks.harness import Settings, run
from tests.benchmarks.series import REFERENCE, record
from tests.benchmarks.sizes import QUICK

#: Cases that every run has beside the peers: ours, and what no loader could exceed.
ALWAYS = ("asyncloader", "limit")
#: How the titles of the comparisons begin that the first table of docs/benchmarks.md shows.
MAIN = ("W1:", "W2", "W3:", "W4", "W5: waits", "W6", "W7", "latency")


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.record:
        options.main, options.peers = not options.workloads, [REFERENCE]
    if options.quick:
        # For the processes of the cases, and before the workloads' modules read it.
        os.environ[QUICK] = "1"
    chosen = [
        with_peers(comparison, options.peers)
        for name, comparison in all_comparisons(options.workloads)
        if options.table in comparison.title
        and (comparison.title.startswith(MAIN) or not options.main)
    ]
    if options.earlier:
        environment = earlier(options.earlier)
        chosen = [with_earlier(comparison, environment) for comparison in chosen]
    if options.list:
        show(chosen)
        return
    if options.install:
        make_environments(chosen)
    rounds = options.rounds or (1 if options.quick else 3)
    outcomes = run(chosen, Settings(rounds, options.only, options.quick, options.folder))
    if options.record:
        said = list(record(facts(), outcomes, options.earlier or ""))
        print("", *said or ["nothing is worse than before, beyond noise"], sep="\n")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    usual = Settings(rounds=3)
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("workloads", nargs="*", choices=[[], *workloads()], help="all by default")
    parser.add_argument("--peers", nargs="+", default=[""], help="only peers with this in a name")
    parser.add_argument("--earlier", metavar="REVISION", help="beside an earlier version")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    parser.add_argument("--table", default="", help="only tables with this in their title")
    parser.add_argument("--rounds", type=int, help="how often each case is measured: 3")
    parser.add_argument("--main", action="store_true", help="only the first table of the docs")
    parser.add_argument("--record", action="store_true", help="append to series.jsonl")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--folder", type=Path, default=usual.folder, help="for JSON and SVG")
    parser.add_argument("--list", action="store_true", help="name the cases and stop")
    parser.add_argument("--no-install", dest="install", action="store_false")
    options = parser.parse_args(arguments)
    if options.record and options.quick:
        parser.error("--record keeps numbers, and those of --quick mean nothing")
    return options


def workloads() -> list[str]:
    """Return the modules here that have comparisons, in the order of their numbers."""
    files = Path(__file__).parent.glob("*.py")
    names = [file.stem for file in files if "\nCOMPARISONS" in file.read_text()]
    return sorted(names, key=lambda name: (not name.startswith("w"), len(name), name))


def all_comparisons(names: Sequence[str]) -> Iterator[tuple[str, Comparison]]:
    for name in names or workloads():
        module = import_module(f"tests.benchmarks.{name}")
        for comparison in module.COMPARISONS:
            yield name, comparison


def with_peers(comparison: Comparison, peers: Sequence[str]) -> Comparison:
    """Return the comparison with those peers that have one of the words in their name."""

    def is_chosen(case: Case) -> bool:
        return case.name.startswith(ALWAYS) or any(word in case.name for word in peers)

    return replace(comparison, cases=[case for case in comparison.cases if is_chosen(case)])


def with_earlier(comparison: Comparison, environment: Environment) -> Comparison:
    """Return the comparison with an earlier version of ours in each case of ours."""
    cases = []
    for case in comparison.cases:
        cases.append(case)
        if is_ours(case.name) and case.environment is HERE:
            cases.append(replace(case, name=f"earlier {case.name}", environment=environment))
    return replace(comparison, cases=cases)


def make_environments(comparisons: Sequence[Comparison]) -> None:
    """Install what cases need in folders of their own; without it they are left out."""
    needed = {case.environment for comparison in comparisons for case in comparison.cases}
    for environment in needed:
        make(environment)


def make(environment: Environment) -> None:
    try:
        environment.make()
    except subprocess.CalledProcessError as error:
        print(f"{environment.name} could not be installed: {error.stderr.strip()}")


def show(comparisons: Sequence[Comparison]) -> None:
    for comparison in comparisons:
        print(comparison.title)
        for case in comparison.cases:
            print(f"    {case.name}")


if __name__ == "__main__":
    # The case that runs is to end with the command, whatever ends that.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    main()
