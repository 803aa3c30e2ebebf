"""Items in the order of a sampler.

This file is about ``SampledItems``, for the samplers and batch samplers that torch's DataLoader
takes. Most draw random numbers from the process's global generators; here these are seeded for the
sampler alone, so that each worker draws the same keys, and a resumed pass draws them again.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.converting import LookupPass
from asyncloader.datapipes.cursor_forms import SEED, Form, fields
from asyncloader.datapipes.cursors import Cursor, Cursors, cursor_of
from asyncloader.datapipes.lookups import items_under
from asyncloader.datapipes.randomness import Seeded
from asyncloader.datapipes.run import Run, Stride
from asyncloader.datapipes.sources import keyed_source

T = TypeVar("T")

#: Setting the generators' states takes as long as drawing a hundred keys.
_KEYS_TOGETHER = 1024


class SampledItems(Seeded, IterDataPipe[T]):
    """Yield the items of a data set under the keys that a sampler yields.

    A batch sampler yields lists of keys: ``in_batches`` yields a list of items for each.
    """

    makes_again = False

    edges = ()

    def __init__(self, dataset: Any, sampler: Any, in_batches: bool = False) -> None:
        self.dataset = keyed_source(dataset)
        self.sampler = sampler
        self.in_batches = in_batches

    def __len__(self) -> int:
        return len(self.sampler)

    def new_pass(self, run: Run[Any]) -> SampledPass[T]:
        return SampledPass(run, self.sampler, seed=self.next_seed())

    def cursor_form(self) -> Form:
        return fields({"seed": SEED})

    def can_share(self) -> bool:
        return True

    def iter_share(self, run: Run[Any], share: Stride, cursors: Cursors) -> Iterator[T]:
        begun: Any = run.new_pass()
        begun.resume_at(share.before, cursor_of(self, cursors), cursors)
        begun.share = share
        return iter(begun)


@dataclass
class SampledPass(LookupPass[T]):
    """One pass over SampledItems, which draws the keys before its place again."""

    cursor_fields = ("seed",)

    seed: int = field(kw_only=True)
    #: The share to look up; None for all from ``yielded`` on.
    share: Stride | None = field(default=None, kw_only=True, repr=False)

    def __iter__(self) -> Iterator[T]:
        dataset, keys = self.pipe.dataset, self._keys_left()
        return (
            self._batches(dataset, keys) if self.pipe.in_batches else self.looked_up(dataset, keys)
        )

    def _batches(self, dataset: Any, keys: Iterator[Any]) -> Iterator[Any]:
        for batch in keys:
            items = list(items_under(dataset, batch))
            self.yielded += 1
            yield items
            # Do not keep the yielded batch alive while the next one is made.
            del items

    def _keys_left(self) -> Iterator[Any]:
        keys = drawn(self.keys, self.seed)
        if self.share is None:
            return islice(keys, self.yielded, None)
        start, step, width = self.share
        following = islice(keys, start, None)
        return (key for position, key in enumerate(following) if position % step < width)

    def resume_at(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is not None:
            self.seed = cursor["seed"]
            self.pipe.follow_seed(self.seed)
        return super().resume_at(position, cursor, cursors)


def drawn(sampler: Iterable[Any], seed: int) -> Iterator[Any]:
    """Yield a sampler's keys, drawn with random generators that are seeded for it."""
    _seed_own(sampler, seed)
    states: list[Any] = []
    with _seeded(seed, states):
        keys = iter(sampler)
    while True:
        with _seeded(seed, states):
            some = list(islice(keys, _KEYS_TOGETHER))
        yield from some
        if len(some) < _KEYS_TOGETHER:
            return


def _seed_own(sampler: Any, seed: int) -> None:
    """Seed the generators that a sampler, or the sampler inside it, was made with."""
    import torch

    while sampler is not None:
        generator = getattr(sampler, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
        sampler = getattr(sampler, "sampler", None)


@contextlib.contextmanager
def _seeded(seed: int, inside: list[Any]) -> Iterator[None]:
    """Let the global generators of the process be in states of their own.

    These are kept in ``inside``, which is empty the first time: then they are seeded.
    """
    outside = _states()
    if inside:
        _set_states(inside)
    else:
        _seed_all(seed)
    try:
        yield
    finally:
        inside[:] = _states()
        _set_states(outside)


def _states() -> list[Any]:
    import torch

    numpy_random = sys.modules.get("numpy.random")
    of_numpy = None if numpy_random is None else numpy_random.get_state()
    return [random.getstate(), torch.get_rng_state(), of_numpy]


def _set_states(states: list[Any]) -> None:
    import torch

    of_random, of_torch, of_numpy = states
    random.setstate(of_random)
    torch.set_rng_state(of_torch)
    if of_numpy is not None:
        sys.modules["numpy.random"].set_state(of_numpy)


def _seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if numpy_random := sys.modules.get("numpy.random"):
        numpy_random.seed(seed >> 32)
