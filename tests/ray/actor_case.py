"""Random graphs in actors of a cluster.

This file is about ``ActorCase``: one graph of ``tests/random_graphs`` whose workers are actors. It
has to give what as many processes and this process give, and its states resume in processes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.random_graphs.recipe import drawn
from tests.random_graphs.running import Report
from tests.random_graphs.ways import AHEAD, Case, Refused, Way
from tests.ray.standing_actors import StandingActors
from tests.standing import Staying

#: What is done with each graph and each number of actors.
KINDS = ("ledger", "workers", "limits", "resume")


class ActorCase(Case):
    """A graph to be run in actors."""

    def standing_service(self, way: Way) -> Staying:
        """Return a service whose actors stay for the next loader."""
        return StandingActors(way.workers, worker_prefetch_cnt=way.ahead)


def reports(seeds: Iterable[int], workers: Iterable[int]) -> Iterator[Report]:
    """Run the graphs of these seeds with each number of actors; yield what became of each."""
    for seed in seeds:
        report = Report(seed, drawn(seed))
        for number in workers:
            _run(report, number)
        yield report


def _run(report: Report, workers: int) -> None:
    actors, processes = (kind(report.recipe, report.seed) for kind in (ActorCase, Case))
    ahead = AHEAD[(report.seed + workers) % 3]
    try:
        for kind in KINDS:
            way = Way(kind, workers, ahead)
            try:
                actors.check(way)
                for number, items in enumerate(actors.expected(way)):
                    expected = processes.expected(way)[number]
                    actors.compare(f"epoch {number}, against processes", items, expected, way)
            except Refused as refusal:
                report.refused.append(f"{way}: {refusal}")
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                report.failures.append((way, f"{type(error).__name__}: {error}"))
            else:
                report.equal += 1
    finally:
        actors.close()
        processes.close()
