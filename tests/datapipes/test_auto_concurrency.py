"""thread_map and async_map that choose how many calls they make at a time."""

from __future__ import annotations

import logging

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes import ahead
from asyncloader.datapipes.ahead import Concurrency
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.tuning import Bounds
from tests.datapipes.watched import crew_of
from tests.samples import double, double_soon


class Pipe:
    """Something whose concurrency is chosen."""


class Simulated:
    """A consumer and calls that take their time on a clock of their own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first: int, most: int) -> None:
        self.now = 1000.0
        monkeypatch.setattr(ahead, "perf_counter", lambda: self.now)
        self.pipe = Pipe()
        self.chosen = Concurrency(self.pipe, first, Bounds(1, most))

    def run(self, seconds: float, *, call: float, consumer: float = 0.0) -> int:
        """Take results for so long; return the concurrency in the end."""
        end = self.now + seconds
        while self.now < end:
            self.now += consumer
            self.chosen.begin_wait()
            # What was made while the consumer was away need not be waited for.
            self.now += max(0.0, call / self.chosen.number - consumer)
            self.chosen.worked(0, call)
            self.chosen.took(1)
        return self.chosen.number


def test_more_calls_are_made_at_a_time_where_each_only_waits(monkeypatch):
    assert Simulated(monkeypatch, 2, 64).run(20, call=0.05) == 64


def test_few_calls_are_made_at_a_time_where_the_consumer_does_not_wait(monkeypatch):
    assert Simulated(monkeypatch, 16, 64).run(20, call=0.01, consumer=0.02) == 1


def test_a_consumer_that_does_something_else_for_a_while_changes_nothing(monkeypatch):
    simulated = Simulated(monkeypatch, 2, 8)
    number = simulated.run(30, call=0.05)
    for _ in range(10):
        simulated.now += 100
        assert simulated.run(5, call=0.05) == number


def test_what_was_found_is_known_to_the_next_pass(monkeypatch):
    simulated = Simulated(monkeypatch, 2, 64)
    number = simulated.run(30, call=0.05)
    assert Concurrency(simulated.pipe, 2, Bounds(1, 64)).number == number


def test_the_log_says_once_what_was_chosen_and_why(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "asyncloader")
    Simulated(monkeypatch, 2, 8).run(60, call=0.05)
    (message,) = caplog.messages
    assert "concurrency=8, chosen: the highest rate" in message


@pytest.mark.parametrize("numbers", [[1, 5, 2, 8, 1], [3, 3, 1, 4]])
def test_threads_come_and_go_in_the_middle_of_a_pass(numbers):
    done = []
    with crew_of(IterableWrapper([]).thread_map(double, concurrency=2)) as crew:
        for number in numbers:
            crew._use(number)
            for item in range(20):
                crew.hold(item)
                done.append(next(crew.jobs()).result)
            assert 1 <= len(crew._threads) <= max(number, 2)
    assert done == [2 * position for _ in numbers for position in range(20)]


@pytest.mark.parametrize("ordered", [True, False])
def test_a_state_resumes_under_any_concurrency(ordered):
    def graph(concurrency):
        numbers = IterableWrapper(range(40))
        return numbers.thread_map(double, concurrency=concurrency, ordered=ordered)

    with DataLoader2(graph("auto")) as loader:
        iterator = iter(loader)
        first = [next(iterator) for _ in range(15)]
        state = loader.state_dict(include_datapipe=False)
    resumed = DataLoader2(graph("auto"))
    resumed.load_state_dict(state)
    with resumed:
        items = first + list(resumed)
    assert (items if ordered else sorted(items)) == [2 * number for number in range(40)]


def test_results_are_those_of_any_other_concurrency():
    numbers = IterableWrapper(range(500))
    assert list(numbers.thread_map(double, concurrency="auto")) == list(range(0, 1000, 2))
    assert list(numbers.async_map(double_soon, concurrency="auto")) == list(range(0, 1000, 2))


@pytest.mark.parametrize(
    ("value", "error"), [("all", TypeError), (0, ValueError), (-1, ValueError)]
)
def test_other_values_are_refused_by_name(value, error):
    numbers = IterableWrapper(range(3))
    with pytest.raises(error, match="concurrency must be"):
        numbers.thread_map(double, concurrency=value)
    with pytest.raises(error, match="concurrency must be"):
        numbers.async_map(double_soon, concurrency=value)
