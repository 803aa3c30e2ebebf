"""Running a graph on several ranks.

This file is about ``DistributedReadingService``: each rank of a torch.distributed run loads
its own share of the items, in one order that all ranks know, and as many as the others.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any, get_args

from asyncloader.adapters.endings import FullSync
from asyncloader.arguments import checked_seconds
from asyncloader.datapipes import full_sync
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.full_sync import Meeting, Uneven
from asyncloader.datapipes.running.traits import acts_for, is_filter_of_shards
from asyncloader.datapipes.sampling import SampledItems
from asyncloader.datapipes.sharding import SHARDING_PRIORITIES
from asyncloader.errors import RankError
from asyncloader.graph.edit import copy_graph
from asyncloader.graph.fingerprint import Fingerprint
from asyncloader.graph.refusals import Purpose, check_graph
from asyncloader.graph.settings import apply_sharding
from asyncloader.graph.walk import breadth_first
from asyncloader.ranks import (
    Alone,
    Flags,
    RankGroup,
    Statement,
    Topic,
    decline_group,
    is_initialized,
    open_group,
    own_rank,
    place_in,
    ranks_in_words,
    world_size,
)
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import IterResetFn, ReadingServiceInterface, unchanged
from asyncloader.services.from_workers import FromWorkers
from asyncloader.services.hooks import ServiceHooks

#: The length of what does not know it.
_UNKNOWN = 2**64 - 1


class DistributedReadingService(ReadingServiceInterface, ServiceHooks):
    """Load a share of the items on every rank of a torch.distributed run.

    A ``sharding_filter`` in the graph says where items are divided among the ranks. All
    ranks shuffle in the same order, by the seed of rank 0. Each yields as many items as the
    rank with the fewest, by a ``fullsync`` at the end of the graph. The loader of every rank
    must have the same graph. ``timeout`` is how many seconds the ranks wait for one another.

    For worker processes on every rank put it first:
    ``SequentialReadingService(DistributedReadingService(), MultiProcessingReadingService(2))``.

    To resume later, keep the ``state_dict()`` of every rank, taken after the same number of
    items. With as many ranks as before, each rank loads its own state, or all load a list of
    all states, ``loader.load_state_dict([of_rank_0, of_rank_1])``. From that list any other
    number of ranks and workers can resume if only one-to-one pipes follow the
    ``sharding_filter`` (batch before it); otherwise a SnapshotError names the pipe that
    prevents it.

    With ``group`` only the ranks of that group divide the items: a process group, a dimension
    of a DeviceMesh (``mesh["dp"]``), or ``(rank, size)``. Ranks of the run that have the same
    rank in their group, as those of one tensor-parallel group, load the same items in the same
    order. All ranks of the run must make the loader, also those. A state is that of a rank of
    the group: keep one of each. ``uneven`` says what happens to items that not all
    ranks have: ``"drop"`` leaves them out, and ``"error"`` raises a RankError on every rank. With
    ``"pad"`` every rank yields as many as the one with the most: a rank whose share has ended
    repeats copies of its last item, for which ``loader.is_padding`` is true, so that an
    evaluation counts each sample once. A rank that had no item is a RankError on every rank.

    Under torchrun, a plain ``init_process_group("gloo")`` is enough. This is a run of one rank:

    >>> import torch.distributed as dist
    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> pipe = IterableWrapper(range(4)).sharding_filter()
    >>> with DataLoader2(pipe, reading_service=DistributedReadingService()) as loader:
    ...     list(loader)
    [0, 1, 2, 3]
    >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        timeout: float = 1800,
        *,
        group: Any = None,
        uneven: Uneven = "drop",
    ) -> None:
        self.timeout = checked_seconds("timeout", timeout)
        if uneven not in get_args(Uneven):
            raise ValueError(f'uneven must be "drop", "pad" or "error", got {uneven!r}')
        self.uneven = uneven
        #: This rank's place in the group, ``(rank, size)``: a group itself cannot be copied.
        self.group = None if group is None else place_in(group)
        self._meeting = Meeting(Alone())
        self._synced: list[Any] = []
        #: A digest of what the samplers of the graph yield first.
        self._keys = 0
        #: How many items each source has whose items are divided among ranks, if it knows.
        self._lengths: list[int] = []

    async def initialize(self, datapipe: Any) -> Any:
        _check_run()
        pipes = breadth_first(datapipe)
        is_alone = world_size() == 1
        # Before ranks meet: one that is refused later would be lost to those that still come.
        try:
            _check_order(pipes)
            if not is_alone:
                datapipe = self._checked(datapipe)
        except BaseException:
            await self.decline()
            raise
        self._meeting = self._meeting_of(await open_group(self.timeout))
        rank, size = self.rank()
        apply_sharding(datapipe, size, rank, SHARDING_PRIORITIES.DISTRIBUTED)
        if is_alone:
            return datapipe
        if size > 1:
            _warn_of_repeats(pipes)
        sampled = [pipe.first_keys() for pipe in pipes if isinstance(pipe, SampledItems)]
        self._keys = _digest(_plain(sampled))
        self._lengths = [_length_of(pipe) for pipe in _divided_sources(pipes)] if size > 1 else []
        await self._equip(datapipe)
        return datapipe

    def _checked(self, datapipe: Any) -> Any:
        """Return a graph that ends with a fullsync; ValueError for one that ranks cannot run."""
        check_graph(datapipe, Purpose.RANKS)
        if self.group is not None and self.group[1] < world_size():
            check_graph(datapipe, Purpose.SAME_ITEMS)
        datapipe = FullSync(self.timeout)(datapipe)
        if self.uneven == "pad":
            check_graph(datapipe, Purpose.PADDED)
        return datapipe

    async def decline(self) -> None:
        await decline_group()

    async def verify(self, graph: Fingerprint, workers: int, *, in_order: bool) -> None:
        said = await self._meeting.agree(Topic.GRAPH, window=1, count=_digest(graph))
        if others := _differing(said):
            raise RankError(
                f"the graph on {ranks_in_words(others)} differs from that on rank 0, and all ranks"
                f" must have the same graph; on this rank, {self._meeting.group.rank}, it is"
                f" {_graph_in_words(graph)}",
                ranks=tuple(others),
            )
        keys = await self._meeting.agree(Topic.GRAPH, window=2, count=self._keys)
        if others := _differing(keys):
            raise RankError(
                f"the sampler on {ranks_in_words(others)} yields other keys than that on rank 0,"
                " and ranks divide the keys of one order. If it yields the share of its rank"
                " alone, let either it or the loader divide: leave out distributed, or give all"
                " ranks a sampler that yields all keys",
                ranks=tuple(others),
            )
        rank, size = self.rank()
        if size < self._meeting.group.size and not in_order:
            raise ValueError(
                "workers with in_order=False yield items as they are ready, so ranks that should"
                " load the same items would have them in different orders; leave out"
                " in_order=False, or divide the items among all ranks"
            )
        sizes = await self._meeting.agree(Topic.GROUP, count=size)
        places = await self._meeting.agree(Topic.GROUP, window=1, count=rank)
        _check_groups([each.count for each in places], [each.count for each in sizes])
        own = get_args(Uneven).index(self.uneven)
        _check_uneven(await self._meeting.agree(Topic.GROUP, window=2, count=own))
        # Ranks of one graph, in groups of one size, have as many sources.
        for window, length in enumerate(self._lengths, 3):
            _check_lengths(await self._meeting.agree(Topic.GROUP, window=window, count=length))
        said = await self._meeting.agree(Topic.WORKERS, count=workers)
        if others := _differing(said):
            raise RankError(
                f"the number of workers on {ranks_in_words(others)} differs from that on rank 0"
                f"{_by_rank(said)}; give num_workers the same value on every rank",
                ranks=tuple(others),
            )

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        said = await self._meeting.begin_epoch(seed_generator.key, _flags(seed_generator))
        if any(Flags.RESUMED in each.flags for each in said):
            await self._check_places(said, seed_generator.resumed_after or 0)
        _check_seeds(said)
        for pipe in self._synced:
            pipe.meeting.epoch = self._meeting.epoch
        self._meeting.padding, self._meeting.own_items = seed_generator.padding, None
        # The generator is this epoch's own: later services draw from what is set here.
        seed_generator.adopt(said[0].count)
        seed_generator.spawn(self.rank()[0], inplace=True)
        return iter_reset_fn

    async def finalize(self) -> None:
        groups = [self._meeting.group]
        for pipe in self._synced:
            if pipe.meeting is not None and pipe.meeting is not self._meeting:
                groups.append(pipe.meeting.group)
            pipe.meeting = None
        self._meeting, self._synced = Meeting(Alone()), []
        await asyncio.gather(*(group.aclose() for group in groups))

    def needs_finalize(self) -> bool:
        return self._meeting.group.size > 1

    def rank(self) -> tuple[int, int]:
        return self.group or (own_rank(), world_size())

    def meets_others(self) -> bool:
        return world_size() > 1

    def pads(self) -> bool:
        return self.uneven == "pad" and self.meets_others()

    def own_items(self) -> int | None:
        return self._meeting.own_items

    def share(self, datapipe: Any) -> Any:
        # The first rank has the most items, the last one the fewest; all yield as many as that one.
        _, size = self.rank()
        rank = 0 if self.uneven == "pad" else size - 1
        return apply_sharding(copy_graph(datapipe), size, rank, SHARDING_PRIORITIES.DISTRIBUTED)

    def __repr__(self) -> str:
        group = "" if self.group is None else f", group={self.group}"
        uneven = "" if self.uneven == "drop" else f", uneven={self.uneven!r}"
        return f"DistributedReadingService(timeout={self.timeout:g}{group}{uneven})"

    def _meeting_of(self, group: RankGroup) -> Meeting:
        return Meeting(group, self.uneven)

    async def _check_places(self, said: Sequence[Statement], step: int) -> None:
        """Check that all ranks resume their epoch after the same number of items."""
        places = await self._meeting.agree(Topic.PLACE, count=step)
        if others := _differing(places):
            raise RankError(
                f"{ranks_in_words(others)} would resume after another item of the epoch than rank"
                f" 0{_by_rank(places)}; load states of the same moment on every rank",
                ranks=tuple(others),
            )
        # The ranks agree on a seed at the first item. Until then, each has its own.
        if step and (others := _differing(said)):
            raise RankError(
                f"{ranks_in_words(others)} would resume an epoch with another seed than rank 0;"
                " load states of the same moment on every rank",
                ranks=tuple(others),
            )

    async def _equip(self, end: Any) -> None:
        """Give each fullsync pipe a meeting of its own; the last one shares this service's."""
        pipes = [pipe for pipe in breadth_first(end) if isinstance(pipe, full_sync.FullSync)]
        # Each opens a group, in which a rank that has one more would wait for the others.
        said = await self._meeting.agree(Topic.GRAPH, count=len(pipes))
        if others := _differing(said):
            raise RankError(
                f"the graph on {ranks_in_words(others)} differs from that on rank 0 in how many"
                f" fullsync pipes it has{_by_rank(said)}; all ranks must have the same graph",
                ranks=tuple(others),
            )
        for pipe in pipes:
            self._synced.append(pipe)
            # Two pipes with one meeting could come to it in another order on each rank.
            is_last = pipe is end
            if is_last:
                pipe.meeting = self._meeting
            else:
                pipe.meeting = self._meeting_of(await open_group(pipe.timeout))


def _check_run() -> None:
    if not is_initialized():
        raise RuntimeError(
            "DistributedReadingService needs an initialized torch.distributed; call"
            " torch.distributed.init_process_group(...) before the loader starts"
        )


def _check_order(pipes: Sequence[Any]) -> None:
    if any(isinstance(pipe, FromWorkers) for pipe in pipes):
        raise ValueError(
            "the graph runs in worker processes already and cannot be divided among ranks any"
            " more; put DistributedReadingService before MultiProcessingReadingService"
        )


def _warn_of_repeats(pipes: Sequence[Any]) -> None:
    if not any(is_filter_of_shards(pipe) for pipe in pipes):
        warnings.warn(
            "nothing shards the graph, so every rank will load all its items. Put"
            " .sharding_filter() where items are to be divided (after shuffle), or give the loader"
            " a ShardingPolicy adapter. If each rank reads different data, use"
            " .sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)",
            stacklevel=2,
        )


def _divided_sources(pipes: Sequence[Any]) -> list[Any]:
    """Return the pipes from which the items come that are divided among the ranks."""
    group = SHARDING_PRIORITIES.DISTRIBUTED
    filters = [pipe for pipe in pipes if is_filter_of_shards(pipe) and acts_for(pipe, group)]
    before = {id(pipe): pipe for each in filters for pipe in breadth_first(each)}
    return [pipe for pipe in before.values() if not edges_of(pipe)]


def _length_of(source: Any) -> int:
    try:
        return len(source)
    except Exception:  # noqa: BLE001 - a user's ``__len__`` ran; most say TypeError
        return _UNKNOWN


def _check_lengths(said: Sequence[Statement]) -> None:
    """Check that ranks divide as many items: the orders of others would not fit together."""
    others = _differing(said)
    if others and all(each.count != _UNKNOWN for each in said):
        raise RankError(
            f"the data on {ranks_in_words(others)} has another number of items than that on rank 0"
            f"{_by_rank(said)}, and ranks divide the items of one order, so some would come twice"
            " and others never; give every rank the same data. If each rank reads different data,"
            " use .sharding_filter(SHARDING_PRIORITIES.MULTIPROCESSING)",
            ranks=tuple(others),
        )


def _check_uneven(said: Sequence[Statement]) -> None:
    if others := _differing(said):
        values = get_args(Uneven)
        listed = ", ".join(repr(values[each.count]) for each in said)
        raise RankError(
            f"uneven on {ranks_in_words(others)} differs from that on rank 0 (by rank: {listed});"
            " give it the same value on every rank",
            ranks=tuple(others),
        )


def _check_groups(ranks: Sequence[int], sizes: Sequence[int]) -> None:
    """Check that all groups have the same size, and each share as many ranks that load it."""
    shares = Counter(ranks)
    is_complete = len(shares) == sizes[0] and len(set(shares.values())) == 1
    if len(set(sizes)) > 1 or not is_complete:
        listed = ", ".join(f"{rank} of {size}" for rank, size in zip(ranks, sizes, strict=True))
        raise RankError(
            "the items cannot be divided among these groups: all must have the same size, and each"
            f" rank of a group as many ranks of the run; in order, the run's ranks are {listed}"
        )


def _flags(seed_generator: SeedGenerator) -> Flags:
    chosen = Flags.CHOSEN if seed_generator.is_chosen else Flags.NONE
    return chosen | (Flags.NONE if seed_generator.resumed_after is None else Flags.RESUMED)


def _check_seeds(said: Sequence[Statement]) -> None:
    overruled = [rank for rank in _differing(said) if Flags.CHOSEN in said[rank].flags]
    if overruled:
        raise RankError(
            f"the seed that was given to {ranks_in_words(overruled)} for this epoch differs from"
            " the seed of rank 0, which is used; call seed() with the same number on every rank, or"
            " only on rank 0",
            ranks=tuple(overruled),
        )


def _differing(said: Sequence[Statement]) -> list[int]:
    return [rank for rank, each in enumerate(said) if each.count != said[0].count]


def _by_rank(said: Sequence[Statement]) -> str:
    return f" (by rank: {', '.join(str(each.count) for each in said)})"


def _digest(value: Any) -> int:
    text = json.dumps(value, sort_keys=True, default=repr)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _plain(key: Any) -> Any:
    """Return what is the same of a key, or of keys, on every rank: of an object its type alone."""
    if isinstance(key, list | tuple):
        return [_plain(each) for each in key]
    if isinstance(key, str | bytes | int | float):
        return repr(key)
    return _plain(key.tolist()) if hasattr(key, "tolist") else type(key).__qualname__


def _graph_in_words(graph: Fingerprint) -> str:
    return " - ".join(_pipe_in_words(entry) for entry in reversed(graph))


def _pipe_in_words(entry: dict[str, Any]) -> str:
    settings = ", ".join(f"{name}={value!r}" for name, value in entry["settings"].items())
    return f"{entry['class'].rpartition('.')[2]}({settings})"
