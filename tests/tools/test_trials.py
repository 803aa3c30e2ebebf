"""Which number of workers to take, of rates that scatter."""

from __future__ import annotations

import pytest

from asyncloader.tools import trials as trials_file
from asyncloader.tools.trials import Stretches, Trial, counts_up_to, tried, verdict
from tests.tools import graphs


def trial(workers: int, *rates: float) -> Trial:
    return Trial(workers, rates, 0.1)


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        ([trial(0, 9, 10, 11), trial(1, 19, 20, 21)], "best here: 1 worker, 20 items/s"),
        ([trial(0, 19, 20, 21), trial(1, 9, 10, 11)], "best here: 0 workers, 20 items/s"),
        (
            [trial(0, 5, 6, 7), trial(1, 9, 10, 12), trial(2, 11, 12, 13)],
            "not resolved between 1 and 2 workers, whose ranges overlap: 1 takes the least",
        ),
        (
            [trial(0, 9, 12), trial(1, 9, 10), trial(2, 9, 11)],
            "not resolved between 0, 1 and 2 workers, whose ranges overlap: 0 takes the least",
        ),
        ([trial(0), trial(1, 9, 10, 12)], "best here: 1 worker, 10 items/s"),
        ([trial(0), trial(1)], "not resolved: no trial saw enough items"),
    ],
)
def test_the_fewest_workers_that_none_is_surely_better_than(trials, says):
    assert verdict(trials).startswith(says)


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, [0, 1]), (2, [0, 1, 2]), (5, [0, 1, 2, 3, 4, 5]), (20, [0, 1, 2, 3, 4, 6, 8, 12, 16, 20])],
)
def test_what_is_tried_ends_with_all_cores(cores, counts):
    assert counts_up_to(cores) == counts


def test_a_rate_is_of_whole_stretches_and_the_first_is_not_kept(monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(trials_file, "time", clock)
    stretches = Stretches(1.0)
    is_enough = stretches.note()
    steps = iter([0.01] * 100 + [0.5] * 100)  # what was held ready, and then what is made
    while not is_enough:
        clock.now += next(steps)
        is_enough = stretches.note()
    assert stretches.rates == pytest.approx([2.0] * trials_file.STRETCHES, rel=0.01)


async def test_a_graph_is_run_again_and_again_in_workers():
    found = await tried(graphs.doubled, [], 1, 0.25)
    assert found.workers == 1
    assert len(found.rates) == trials_file.STRETCHES
    assert found.first_item_seconds > 0
