"""A number that is found by measuring, against a simulated load and a simulated clock."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from asyncloader.tuning import Bounds, Tuning, Window

#: How long one window is.
STEP = 0.4


@dataclass
class Load:
    """What so many workers make, and what the consumer takes.

    ``each`` is what one worker makes in a second, ``top`` what all can make together, and
    ``consumer`` what the consumer takes if it need not wait.
    """

    each: float = 100.0
    top: float = 1e9
    consumer: float = 1e9
    alone: float = 0.0
    #: The number after which more make it slower, and by how much each does.
    crowd: int = 10**9
    loss: float = 0.0

    def made(self, number: int) -> float:
        if not number:
            return self.alone or self.each
        made = min(number * self.each, self.top)
        return made * max(1e-3, 1 - self.loss * max(0, number - self.crowd))

    def window(self, number: int, *, lost: float = 0.0, noise: float = 0.0) -> Window:
        made = self.made(number)
        rate = min(made, self.consumer)
        waited = 0.0 if self.consumer <= made else 1 - rate / self.consumer
        busy = min(1.0, rate / (number * self.each)) if number else 1.0
        return Window(STEP, round(rate * (1 + noise) * STEP), waited, busy, self.alone, lost)


@dataclass
class Simulation:
    """A tuning that follows a load which may change, with a clock of its own."""

    bounds: Bounds
    start: int
    #: How many seconds a change costs.
    cost: float = 0.2
    noise: float = 0.0
    seed: int = 0
    clock: float = 0.0
    #: When the number was changed, and to what.
    changes: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tuning = Tuning(self.start)
        self._random = random.Random(self.seed)
        self._lost = 0.0

    def run(self, seconds: float, load: Load | Callable[[float], Load]) -> Simulation:
        end = self.clock + seconds
        while self.clock < end:
            number = self.tuning.number
            now = load if isinstance(load, Load) else load(self.clock)
            noise = self._random.gauss(0, self.noise)
            window = now.window(number, lost=self._lost, noise=noise)
            self.clock += window.seconds + window.lost
            self.tuning = self.tuning.after(window, self.bounds)
            self._lost = 0.0
            if self.tuning.number != number:
                assert self.bounds.least <= self.tuning.number <= self.bounds.most
                self.changes.append((self.clock, self.tuning.number))
                self._lost = self.cost
        return self

    def made(self, load: Load) -> float:
        """What the load gives with the present number, as a part of the most it could give."""
        most = range(self.bounds.least, self.bounds.most + 1)
        best = max(load.window(number).rate for number in most)
        return load.window(self.tuning.number).rate / best


def loads() -> Iterator[tuple[str, Load]]:
    yield "two cores", Load(top=200.0)
    yield "waits", Load()
    yield "tiny items", Load(each=1e5, top=1.5e5, alone=1e6)
    yield "memory is slow", Load(top=150.0)
    yield "a slow consumer", Load(consumer=50.0)
    yield "a consumer as fast as three", Load(consumer=300.0)
    yield "more get in the way", Load(crowd=3, loss=0.1)


LOADS = dict(loads())


@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize(("cores", "start"), [(2, 2), (16, 8), (64, 8), (300, 8)])
def test_it_is_within_a_twentieth_of_the_best_after_ten_seconds(name, cores, start):
    load = LOADS[name]
    simulation = Simulation(Bounds(0, max(4, cores)), start).run(10, load)
    assert simulation.made(load) >= 0.95


@pytest.mark.sweep
@pytest.mark.parametrize("name", LOADS)
@pytest.mark.parametrize("cores", [4, 64, 300])
def test_it_keeps_its_number_for_ever_while_nothing_changes(name, cores):
    simulation = Simulation(Bounds(0, cores), 4).run(20, LOADS[name])
    settled = simulation.changes[:]
    simulation.run(1500, LOADS[name])
    assert simulation.changes == settled


@pytest.mark.sweep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("noise", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("name", LOADS)
def test_it_never_oscillates_with_64_workers_and_a_noisy_load(name, noise, seed):
    load = LOADS[name]
    simulation = Simulation(Bounds(0, 64), 8, noise=noise, seed=seed).run(30, load)
    before = len(simulation.changes)
    simulation.run(3600, load)
    # Each search takes fewer than ten changes, and there are few of them in an hour.
    assert len(simulation.changes) - before <= 60
    lost = simulation.cost * len(simulation.changes)
    assert lost <= 0.03 * simulation.clock + 3


def test_a_load_that_alternates_for_ever_is_not_followed_for_ever():
    def load(clock: float) -> Load:
        return Load(top=200.0) if clock // 15 % 2 else Load(top=6400.0)

    simulation = Simulation(Bounds(0, 64), 8).run(3600, load)
    assert len([at for at, _ in simulation.changes if at > 1800]) <= 40


@pytest.mark.parametrize("cores", [4, 64, 300])
def test_a_load_that_changes_in_the_middle_is_followed(cores):
    light, heavy = Load(each=1000.0, consumer=900.0), Load(each=20.0, consumer=900.0)
    simulation = Simulation(Bounds(0, cores), 4).run(30, light)
    assert simulation.tuning.number <= 2
    simulation.run(20, heavy)
    assert simulation.made(heavy) >= 0.95
    simulation.run(60, light)
    assert simulation.made(light) >= 0.95
    assert simulation.tuning.number <= max(2, cores // 8)


def test_it_takes_little_where_the_consumer_does_not_wait():
    simulation = Simulation(Bounds(0, 300), 8).run(30, Load(consumer=250.0))
    assert simulation.tuning.number == 3
    assert "hardly waits" in simulation.tuning.why


#: More workers than one get in the way: two make nine tenths of what one makes, four three fifths.
TINY = Load(each=1e6, top=1e6, crowd=1, loss=0.13)


def test_it_tries_again_what_is_too_alike_so_that_noise_seldom_decides():
    tried = [Simulation(Bounds(0, 4), 2, noise=0.2, seed=n).run(25, TINY) for n in range(40)]
    assert sum(each.made(TINY) >= 0.95 for each in tried) >= 36
    # Each time a window tells by chance that the first is worse, it stays with the worst of all.
    assert max(len(each.changes) for each in tried) <= 8


def test_it_says_how_much_rates_vary_and_which_numbers_may_be_better():
    sure = Simulation(Bounds(0, 4), 2, noise=0.01, seed=1).run(25, TINY).tuning
    assert sure.number == 1
    assert "not sure" not in sure.why
    assert "1: 1" in sure.why
    assert "%" in sure.why
    unsure = Simulation(Bounds(0, 4), 2, noise=0.4, seed=1).run(25, TINY).tuning
    assert "not sure, as the rates vary: " in unsure.why


def test_a_consumer_that_is_slowed_down_by_its_workers_has_not_enough():
    def window(number: int) -> Window:
        # Two workers leave it half a core: it does not wait then, and gets less.
        rate, waited = {1: (1000.0, 0.2), 2: (600.0, 0.01), 4: (500.0, 0.0)}[number]
        return Window(STEP, rate * STEP, waited, busy=0.4)

    tuning = Tuning(2)
    while tuning.kept is None:
        tuning = tuning.after(window(tuning.number), Bounds(1, 4))
    assert tuning.number == 1


def test_it_says_that_more_were_hardly_better_where_it_takes_fewer():
    simulation = Simulation(Bounds(1, 4), 2).run(30, Load(each=100.0, top=202.0))
    assert simulation.tuning.number == 2
    assert "the smallest within 3% of the highest rate" in simulation.tuning.why


def test_it_takes_none_where_items_take_less_than_passing_them_on():
    simulation = Simulation(Bounds(0, 8), 2).run(30, LOADS["tiny items"])
    assert simulation.tuning.number == 0


def test_more_are_tried_before_none_where_none_is_better_than_few():
    load = Load(each=70.0, alone=220.0)
    simulation = Simulation(Bounds(0, 8), 2).run(30, load)
    assert simulation.tuning.number == 8


def test_it_stays_in_its_bounds_and_follows_them():
    simulation = Simulation(Bounds(1, 6), 4).run(30, Load())
    assert simulation.tuning.number == 6
    simulation.bounds = Bounds(1, 3)
    simulation.run(1, Load())
    assert simulation.tuning.number == 3
    assert simulation.tuning.why == "the bounds have changed"


def test_changes_that_cost_much_become_rare():
    simulation = Simulation(Bounds(0, 64), 8, cost=10.0, noise=0.3, seed=1).run(7200, Load(top=2e3))
    assert 10.0 * len(simulation.changes) <= 0.03 * simulation.clock + 60.0


def test_one_number_is_kept_at_once():
    simulation = Simulation(Bounds(1, 1), 1).run(30, Load())
    assert simulation.changes == []
    assert simulation.tuning.kept is not None


def test_what_is_known_is_never_changed_in_place():
    first = Tuning(2)
    second = first.after(Load().window(2), Bounds(0, 4))
    assert first == Tuning(2)
    assert second != first
