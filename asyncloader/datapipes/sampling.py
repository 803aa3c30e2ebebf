"""Items in the order of a sampler.

This file is about ``SampledItems``, for the samplers and batch samplers that torch's DataLoader
takes. Its seed gives their ``Order``, so that each worker draws the same keys, and a resumed pass
draws them again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.converting import LookupPass
from asyncloader.datapipes.lookups import items_under
from asyncloader.datapipes.orders import Order
from asyncloader.datapipes.randomness import Seeded
from asyncloader.datapipes.running.cursor_forms import Seeding
from asyncloader.datapipes.running.cursors import Cursors, cursor_of
from asyncloader.datapipes.running.run import Edge, Stride
from asyncloader.datapipes.sources import keyed_source

T = TypeVar("T")

#: How many keys tell two orders apart.
_FIRST = 64


class SampledItems(Seeded, IterDataPipe[T]):
    """Yield the items of a data set under the keys that a sampler yields.

    A batch sampler yields lists of keys: ``in_batches`` yields a list of items for each.
    """

    makes_again = False
    State = Seeding

    edges = ()

    def __init__(self, dataset: Any, sampler: Any, in_batches: bool = False) -> None:
        self.dataset = keyed_source(dataset)
        self.sampler = sampler
        self.in_batches = in_batches
        #: The number of the epoch that the next pass is in, for samplers that ask for it.
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def order(self, seed: int) -> Iterator[Any]:
        """Return the keys of the present epoch, in the order that a seed gives."""
        return iter(Order(self.sampler, seed, epoch=self.epoch, dataset=self.dataset))

    def first_keys(self) -> list[Any]:
        """Return the first keys for a seed that is always the same; none if that raises."""
        # The first pass says what is wrong with the sampler.
        with contextlib.suppress(Exception):
            return list(islice(self.order(0), _FIRST))
        return []

    def new_pass(self, edge: Edge[Any]) -> SampledPass[T]:
        return SampledPass(edge, self.sampler, state=Seeding(seed=self.next_seed()))

    def can_share(self) -> bool:
        return True

    def iter_share(self, edge: Edge[Any], share: Stride, cursors: Cursors) -> Iterator[T]:
        begun: Any = edge.new_pass()
        begun.resume_at(share.before, cursor_of(self, cursors), cursors)
        begun.share = share
        return iter(begun)


@dataclass
class SampledPass(LookupPass[T]):
    """One pass over SampledItems, which draws the keys before its place again."""

    state: Seeding = field(kw_only=True)
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
        keys = self.pipe.order(self.state.seed)
        if self.share is None:
            return islice(keys, self.yielded, None)
        start, step, width = self.share
        following = islice(keys, start, None)
        return (key for position, key in enumerate(following) if position % step < width)
