"""The order of a sampler's keys, whatever the sampler draws from and remembers."""

from __future__ import annotations

import contextlib
import itertools
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from asyncloader.datapipes import orders
from asyncloader.datapipes.orders import Order

COUNT = 1500


class Holding:
    """A sampler whose order is made by a function, of what it holds."""

    def __init__(self, keys: Callable[[Holding], Any], **held: Any) -> None:
        self.keys = keys
        self.__dict__.update(held)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.keys(self))


class Inside:
    """A sampler that holds another, or several."""

    def __init__(self, *inner: Any) -> None:
        self.inner = list(inner)

    def __iter__(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(self.inner)


def shuffled(generator: Any) -> list[int]:
    keys = list(range(COUNT))
    generator.shuffle(keys)
    return keys


def held(**generators: Any) -> Holding:
    return Holding(lambda self: shuffled(self.generator), **generators)


def shuffled_in_place(sampler: Any) -> Any:
    sampler.generator.shuffle(sampler.order)
    return list(sampler.order)


def shuffled_inside(sampler: Any) -> Any:
    for keys in sampler.buckets.values():
        random.shuffle(keys)
    return itertools.chain.from_iterable(sampler.buckets.values())


def one_by_one(sampler: Any) -> Iterator[int]:
    for _ in range(COUNT):
        yield random.randrange(COUNT) + numpy.random.randint(2) + int(torch.randint(2, ()))


SAMPLERS: dict[str, Callable[[], Any]] = {
    "random": lambda: Holding(lambda _: shuffled(random)),
    "numpy.random": lambda: Holding(lambda _: numpy.random.permutation(COUNT)),
    "torch": lambda: Holding(lambda _: torch.randperm(COUNT).tolist()),
    "all three, key by key": lambda: Holding(one_by_one),
    "a Random": lambda: held(generator=random.Random(0)),
    "a numpy Generator": lambda: held(generator=numpy.random.default_rng(0)),
    "a RandomState": lambda: held(generator=numpy.random.RandomState(0)),
    "a BitGenerator": lambda: Holding(
        lambda self: shuffled(numpy.random.Generator(self.bits)), bits=numpy.random.PCG64(0)
    ),
    "a torch Generator": lambda: Holding(
        lambda self: torch.randperm(COUNT, generator=self.any_name), any_name=torch.Generator()
    ),
    "generators in lists": lambda: Holding(
        lambda self: shuffled(self.of_all["a"][1]), of_all={"a": (0, random.Random(1))}
    ),
    "a sampler inside": lambda: Inside(Inside(held(generator=random.Random(0)))),
    "a sampler of torch's inside": lambda: Inside(RandomSampler(range(COUNT))),
    "a list that it shuffles": lambda: Holding(
        shuffled_in_place, order=list(range(COUNT)), generator=random.Random(0)
    ),
    "an array that it shuffles": lambda: Holding(
        shuffled_in_place, order=numpy.arange(COUNT), generator=numpy.random.default_rng(0)
    ),
    "a deque that it shuffles": lambda: Holding(
        shuffled_in_place, order=deque(range(COUNT)), generator=random.Random(0)
    ),
    "lists in a dict": lambda: Holding(
        shuffled_inside, buckets={each: [*range(each, COUNT, 3)] for each in range(3)}
    ),
    "RandomSampler": lambda: RandomSampler(range(COUNT)),
    "RandomSampler with a generator": lambda: RandomSampler(
        range(COUNT), generator=torch.Generator()
    ),
    "RandomSampler with replacement": lambda: RandomSampler(range(COUNT), replacement=True),
    "SubsetRandomSampler": lambda: SubsetRandomSampler(range(COUNT)),
    "WeightedRandomSampler": lambda: WeightedRandomSampler([1.0] * COUNT, COUNT),
    "BatchSampler": lambda: BatchSampler(RandomSampler(range(COUNT)), 4, drop_last=True),
    "BatchSampler of a user's": lambda: BatchSampler(
        held(generator=random.Random(0)),  # type: ignore[arg-type]  # it is iterable
        4,
        drop_last=True,
    ),
}


def keys(sampler: Any, seed: int, **settings: Any) -> list[Any]:
    return [
        key.tolist() if isinstance(key, torch.Tensor | numpy.generic) else key
        for key in Order(sampler, seed, **settings)
    ]


def states() -> Any:
    return random.getstate(), torch.get_rng_state().tolist(), repr(numpy.random.get_state())


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_seed_alone_decides_the_order_and_nothing_of_the_program_changes(name: str) -> None:
    sampler, other = SAMPLERS[name](), SAMPLERS[name]()
    before = states()
    first = keys(sampler, 1)

    # Iterated before, and not.
    assert keys(sampler, 1) == keys(other, 1) == first
    assert keys(sampler, 2**40) != first
    assert states() == before


def test_what_a_sampler_holds_is_as_it_was() -> None:
    generator, bits = random.Random(0), torch.Generator()
    sampler = Holding(shuffled_in_place, order=list(range(COUNT)), generator=generator, bits=bits)
    before = generator.getstate(), bits.get_state().tolist()
    keys(Inside(sampler, RandomSampler(range(9), generator=bits)), 1)

    assert (generator.getstate(), bits.get_state().tolist()) == before
    assert vars(sampler)["order"] == list(range(COUNT))


def test_orders_that_are_drawn_in_several_threads_do_not_mix() -> None:
    expected = [keys(SAMPLERS["all three, key by key"](), seed) for seed in range(4)]
    found: dict[int, list[Any]] = {}

    def draw(seed: int) -> None:
        found[seed] = keys(SAMPLERS["all three, key by key"](), seed)

    threads = [threading.Thread(target=draw, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[seed] for seed in range(4)] == expected


def test_generators_of_one_sampler_draw_different_numbers() -> None:
    sampler = Inside(held(generator=random.Random(0)), held(generator=random.Random(0)))
    drawn = keys(sampler, 1)
    assert drawn[:COUNT] != drawn[COUNT:]


def test_samplers_that_share_a_generator_draw_from_one() -> None:
    shared = random.Random(0)
    sampler = Inside(held(generator=shared), held(generator=shared))
    generator = random.Random(1)
    assert keys(sampler, 1) == shuffled(generator) + shuffled(generator)


def test_a_sampler_that_leads_back_to_itself_is_drawn() -> None:
    sampler = held(generator=random.Random(0))
    sampler.sampler = sampler  # type: ignore[attr-defined]
    sampler.all = [sampler, {"again": Inside(sampler)}]  # type: ignore[attr-defined]
    assert sorted(keys(sampler, 1)) == list(range(COUNT))


def test_a_sampler_without_an_end_is_drawn_as_far_as_it_is_asked() -> None:
    def endless(_: Any) -> Iterator[int]:
        while True:
            yield from torch.randperm(7).tolist()

    first, again = (list(islice(Order(Holding(endless), 3), 5000)) for _ in range(2))
    assert first == again
    assert sorted(first[:7]) == list(range(7))


def test_the_data_set_is_not_copied() -> None:
    data = [[number] for number in range(COUNT)]
    sampler = Holding(lambda self: (self.data is data for _ in range(3)), data=data)
    assert list(Order(sampler, 1, dataset=data)) == [True] * 3


def test_what_a_sampler_leaves_out_of_its_pickle_is_still_there() -> None:
    class Closed(Holding):
        def __getstate__(self) -> Any:
            return {}

    assert keys(Closed(lambda self: self.numbers, numbers=[3, 1]), 1) == [3, 1]


def test_an_iterator_is_drawn_as_it_is() -> None:
    assert keys((number for number in (3, 1, 2)), 1) == [3, 1, 2]


class Numbered:
    """Yields the number of the epoch that it was told."""

    epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        self.calls = 1
        return iter([self.epoch])


@pytest.mark.parametrize("wrapped", [lambda each: each, Inside, SequentialSampler])
def test_a_sampler_is_told_the_epoch(wrapped: Any) -> None:
    if wrapped is SequentialSampler:
        sampler: Any = BatchSampler(Numbered(), 1, drop_last=False)  # type: ignore[arg-type]
        assert keys(sampler, 1, epoch=6) == [[6]]
    else:
        assert keys(wrapped(Numbered()), 1, epoch=6) == [6]


class Counting:
    """Yields other keys each time, by what it has counted."""

    def __init__(self, at_end: bool) -> None:
        self.at_end, self.epoch = at_end, 0

    def __iter__(self) -> Iterator[int]:
        keys = random.Random(self.epoch).sample(range(COUNT), COUNT)
        self.epoch += not self.at_end
        yield from keys
        self.epoch += self.at_end


class Harmless(Counting):
    """Counts, and always yields the same."""

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(range(COUNT))


@pytest.mark.parametrize("at_end", [False, True])
def test_a_sampler_whose_keys_depend_on_its_own_count_is_refused_with_what_to_do(
    at_end: bool,
) -> None:
    with pytest.raises(RuntimeError, match=r"Counting .* its epoch.* set_epoch"):
        keys(Counting(at_end), 1)
    assert keys(Harmless(at_end), 1) == list(range(COUNT))


NUMBERS = itertools.count()

UNKNOWN: dict[str, Callable[[], Any]] = {
    "of the system": lambda: held(generator=random.SystemRandom()),
    "outside": lambda: Holding(lambda _: [next(NUMBERS)]),
    "in something else": lambda: Holding(
        lambda self: shuffled(self.luck[0].generator), luck=(Box(random.Random(0)),)
    ),
}


class Box:
    def __init__(self, generator: random.Random) -> None:
        self.generator = generator


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_sampler_that_cannot_be_repeated_is_refused_by_name(name: str) -> None:
    with pytest.raises(RuntimeError, match="Holding yields other keys each time"):
        keys(UNKNOWN[name](), 1)


@pytest.mark.parametrize("name", UNKNOWN)
def test_a_sampler_that_takes_long_and_cannot_be_repeated_is_refused_in_the_first_epoch(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "_CHEAP_SECONDS", -1.0)
    with pytest.raises(RuntimeError, match="Holding yields other keys each time"):
        keys(UNKNOWN[name](), 1)


def test_a_sampler_that_takes_long_is_asked_once_in_later_epochs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders, "_CHEAP_SECONDS", -1.0)
    asked: list[int] = []

    def ask(_: Any) -> list[int]:
        asked.append(1)
        return shuffled(random)

    keys(Holding(ask), 1)
    assert len(asked) == 2
    keys(Holding(ask), 1, epoch=1)
    assert len(asked) == 3


def test_a_thread_that_draws_meanwhile_spoils_no_order_in_silence() -> None:
    expected = keys(SAMPLERS["all three, key by key"](), 1)
    is_over = False

    def disturb() -> None:
        while not is_over:
            random.random(), numpy.random.rand(), torch.rand(())

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(5):
            with contextlib.suppress(RuntimeError):
                assert keys(SAMPLERS["all three, key by key"](), 1) == expected
    finally:
        is_over = True
        thread.join()
