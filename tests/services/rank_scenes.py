"""What is played on every rank for ``tests/services/test_distributed.py``."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import threading
import time
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    IterDataPipe,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from asyncloader.adapters import FullSync
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import RankError, SnapshotError
from asyncloader.ranks import GlooGroup, Statement, Topic, open_group
from tests.leaks import leaves_nothing
from tests.processes.ranks import scene

COUNT = 24
TIMEOUT = 30.0


def rank() -> int:
    return dist.get_rank()


def shuffled() -> Any:
    return IterableWrapper(range(COUNT)).shuffle().sharding_filter()


def on_this_rank(*counts: int) -> Any:
    """A source with another number of items on each rank, which nothing shards."""
    return IterableWrapper(range(counts[rank()])).sharding_filter(3)


def loader_of(
    graph: Any, workers: int = 0, timeout: float = TIMEOUT, **settings: Any
) -> DataLoader2[Any]:
    service: ReadingServiceInterface = DistributedReadingService(timeout)
    if workers:
        service = SequentialReadingService(service, MultiProcessingReadingService(workers))
    return DataLoader2(graph, reading_service=service, **settings)


def double(item: int) -> int:
    return 2 * item


def say(word: str) -> None:
    """Say a word that all ranks of the run can hear."""
    _board().set(word, b"")


def until_said(*words: str) -> None:
    """Wait until all these words were said on some rank."""
    _board().wait(list(words), timedelta(seconds=60))


def _board() -> Any:
    return dist.PrefixStore("said", dist.distributed_c10d._get_default_store())


async def collected(loader: Any) -> tuple[list[Any], str]:
    """Return the items up to the end or an error, and the error in words."""
    items: list[Any] = []
    try:
        async for item in loader:
            items.append(item)  # noqa: PERF401 - those before an error count
    except Exception as error:  # noqa: BLE001 - the test looks at it
        return items, f"{type(error).__name__}: {error}"
    return items, ""


# Shares and seeds -----------------------------------------------------------------------


@scene
async def shares_of_a_seed(seed: int, workers: int) -> Any:
    async with loader_of(shuffled(), workers) as loader:
        loader.seed(seed)
        return [[item async for item in loader] for _ in range(2)], len(loader)


@scene
def from_a_dataset(workers: int) -> Any:
    settings: dict[str, Any] = {"batch_size": 2, "shuffle": True, "distributed": True, "seed": 5}
    data = range(COUNT)
    with DataLoader2.from_dataset(data, num_workers=workers, **settings) as loader:
        return [[batch.tolist() for batch in loader] for _ in range(2)], len(loader)


@scene
def from_a_sampler(workers: int) -> Any:
    settings: dict[str, Any] = {"batch_size": 2, "distributed": True, "seed": 5}
    data, sampler = range(COUNT), Drawing()
    with DataLoader2.from_dataset(data, sampler=sampler, num_workers=workers, **settings) as loader:
        epochs = [[batch.tolist() for batch in loader]]
        batches = iter(loader)
        epochs.append([next(batches).tolist() for _ in range(2)])
        state = loader.state_dict()
    with DataLoader2.from_dataset(data, sampler=sampler, num_workers=workers, **settings) as loader:
        loader.load_state_dict(state)
        epochs[1] += [batch.tolist() for batch in loader]
    return epochs


class Drawing:
    """A sampler that draws from a generator of its own and from a global one."""

    def __init__(self) -> None:
        self.generator = random.Random(rank())

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        keys = random.sample(range(COUNT), COUNT)
        self.generator.shuffle(keys)
        return iter(keys)


@scene
def from_a_stream() -> Any:
    with DataLoader2.from_dataset(Stream(), 2, distributed=True, num_workers=2) as loader:
        return [batch.tolist() for batch in loader]


class Stream(torch.utils.data.IterableDataset[int]):
    """Takes a worker's share, and knows nothing of ranks."""

    def __iter__(self) -> Iterator[int]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        return iter(range(worker.id, COUNT, worker.num_workers))


@scene
def shares_by_for() -> Any:
    with loader_of(shuffled()) as loader:
        loader.seed(5)
        by_for = list(loader)
        loader.seed(5)
        by_async = asyncio.run(collected(loader))[0]
        loader.seed(5)
        return by_for, by_async, list(loader)


@scene
async def unseeded() -> Any:
    torch.manual_seed(rank())
    random.seed(rank())
    before = random.getstate()
    async with loader_of(shuffled()) as loader:
        epochs = [[item async for item in loader] for _ in range(2)]
    assert random.getstate() == before
    # One seed was drawn, as by any loader, and nothing else.
    drawn = torch.empty((), dtype=torch.int64).random_().item()
    torch.manual_seed(rank())
    torch.empty((), dtype=torch.int64).random_()
    assert torch.empty((), dtype=torch.int64).random_().item() == drawn
    return epochs


@scene
async def seeded_on_rank_0() -> Any:
    async with loader_of(shuffled()) as loader:
        if rank() == 0:
            loader.seed(5)
        return await collected(loader)


@scene
async def seeded_differently() -> Any:
    async with loader_of(shuffled()) as loader:
        loader.seed(1 if rank() == 1 else 0)
        began = time.monotonic()
        failed = await collected(loader)
        assert time.monotonic() - began < TIMEOUT / 2
        loader.seed(2)
        return failed, await collected(loader)


def draw(_: Any) -> tuple[int, float]:
    return os.getpid(), random.random()


@scene
async def randomness_of_workers() -> Any:
    async with loader_of(shuffled().map(draw), 2) as loader:
        loader.seed(5)
        return [item async for item in loader]


@scene
async def shares_of_torch_pipes() -> Any:
    import torch.utils.data.datapipes.iter as torch_iter

    graph = torch_iter.IterableWrapper(range(COUNT)).shuffle().sharding_filter()
    async with loader_of(graph) as loader:
        return [item async for item in loader]


@scene
async def shares_by_forked_workers() -> Any:
    service = SequentialReadingService(
        DistributedReadingService(TIMEOUT), MultiProcessingReadingService(2, "fork")
    )
    async with DataLoader2(shuffled(), reading_service=service) as loader:
        loader.seed(5)
        return [[item async for item in loader] for _ in range(2)], len(loader)


# Going on -------------------------------------------------------------------------------


async def taken(loader: DataLoader2[Any], count: int) -> list[Any]:
    items: list[Any] = []
    async for item in loader:
        items.append(item)
        if len(items) == count:
            break
    return items


@scene
async def resumed_in_the_middle() -> Any:
    async with loader_of(shuffled().map(double).fullsync(TIMEOUT)) as loader:
        loader.seed(5)
        begun = await taken(loader, 3)
        state = loader.state_dict()
    async with loader_of(shuffled().map(double).fullsync(TIMEOUT)) as loader:
        loader.load_state_dict(state)
        return begun, *[(await collected(loader))[0] for _ in range(2)]


def by_chance(_: int) -> bool:
    return random.random() < 0.7


@scene
async def recorded_and_resumed(workers: int) -> Any:
    graph = shuffled().filter(by_chance, repeatable=False)
    async with loader_of(graph, workers) as loader:
        loader.seed(5)
        begun = await taken(loader, 2)
        state = loader.state_dict(include_datapipe=False)
    async with loader_of(graph, workers) as loader:
        loader.load_state_dict(state)
        rest, error = await collected(loader)
    return begun, rest, error, state


@scene
async def recorded(workers: int, count: int, states: list[dict[str, Any]] | None) -> Any:
    """Return the numbers and items of so many, or of the rest, with what was left out by then."""
    graph = IterableWrapper(range(COUNT)).shuffle().sharding_filter()
    # Without fullsync a rank may have more items than others.
    graph = graph.filter(by_chance, repeatable=False).batch(2, across_workers=True)
    numbers: list[int] = []
    items: list[int] = []
    async with loader_of(graph, workers) as loader:
        if states is None:
            loader.seed(5)
        else:
            loader.load_state_dict(states)
        async for batch in loader:
            numbers += loader.numbers
            items += batch
            count -= 1
            if not count:
                break
        left_out = sum(loader.stats().left_out.values())
        return numbers, items, left_out, loader.state_dict(include_datapipe=False)


@scene
async def generated(count: int, states: list[dict[str, Any]] | None) -> Any:
    """Return what a rollout is told of so many prompts, or of the rest, and their own numbers."""

    async def generate(prompt: int, *, number: int) -> tuple[int, int]:
        return prompt, number

    graph = IterableWrapper(range(COUNT)).sharding_filter().rollout(generate, concurrency=1)
    found: list[Any] = []
    async with loader_of(graph, acknowledge=True) as loader:
        if states is not None:
            loader.load_state_dict(states)
        async for prompt, number in loader:
            found.append((prompt, number, *loader.numbers))
            loader.ack()
            if len(found) == count:
                break
        return found, loader.state_dict(include_datapipe=False)


@scene
async def recorded_where_ranks_have_more(workers: int) -> Any:
    """Return the numbers of an epoch, how many were left out, a state of its end, and the rest."""
    graph = on_this_rank(5, 40, 12).map(double, repeatable=False)
    async with loader_of(graph, workers, acknowledge=True) as loader:
        numbers = [number async for _ in loader for number in loader.numbers]
        left_out = loader.stats().left_out
        loader.ack(3)
        state = loader.state_dict(include_datapipe=False)
    async with loader_of(graph, workers, acknowledge=True) as loader:
        loader.load_state_dict(state)
        rest = [number async for _ in loader for number in loader.numbers]
    return numbers, left_out, state, rest


@scene
async def resumed_after_what_was_acknowledged(workers: int, count: int) -> Any:
    """Return five items, and what comes after a state of which none was acknowledged, or some."""
    graph, states = shuffled().map(double).fullsync(TIMEOUT), []
    async with loader_of(graph, workers, acknowledge=True) as loader:
        loader.seed(5)
        begun = await taken(loader, 5)
        states.append(loader.state_dict(include_datapipe=False))
        loader.ack(count)
        states.append(loader.state_dict(include_datapipe=False))
    found = []
    for state in states:
        async with loader_of(graph, workers) as loader:
            loader.load_state_dict(state)
            found.append((await collected(loader))[0])
    return begun, *found


@scene
async def resumed_from_several_moments() -> Any:
    """Each rank has a state of its own unseeded epoch, and rank 1 one of another moment."""
    states = []
    async with loader_of(shuffled()) as loader:
        for count in (2, 3, 3):
            await taken(loader, count)
            states.append(loader.state_dict(include_datapipe=False))
    found = []
    for others, of_rank_1 in ((states[0], states[1]), (states[1], states[2]), (states[0], None)):
        async with loader_of(shuffled()) as loader:
            if rank() != 1:
                loader.load_state_dict(others)
            elif of_rank_1 is not None:
                loader.load_state_dict(of_rank_1)
            found.append(await collected(loader))
    async with loader_of(shuffled()) as loader:
        loader.load_state_dict(states[0])
        return found, await collected(loader)


@scene
async def set_back_in_the_midst(workers: int) -> Any:
    """Return a seed's first epochs, and what comes after states of the first one are loaded."""
    graph = shuffled().map(double).fullsync(TIMEOUT)
    async with loader_of(graph, workers, seed=5) as loader:
        whole = [[item async for item in loader] for _ in range(2)]
    async with loader_of(graph, workers, seed=5) as loader:
        states, items, found = [loader.state_dict(include_datapipe=False)], aiter(loader), []
        for _ in range(5):
            await anext(items)
            states.append(loader.state_dict(include_datapipe=False))
        for step in (2, 0, 5):
            loader.load_state_dict(states[step])
            begun_again = await taken(loader, 1)
            loader.load_state_dict(states[step])
            found.append((step, begun_again, [(await collected(loader))[0] for _ in range(2)]))
    return whole, found


@scene
async def set_back_on_one_rank() -> Any:
    """Rank 1 alone loads a state, and every rank goes on."""
    async with loader_of(shuffled().map(double), timeout=10) as loader:
        state, items = loader.state_dict(include_datapipe=False), aiter(loader)
        for _ in range(3):
            await anext(items)
        if rank() == 1:
            loader.load_state_dict(state)
            return await collected(loader)
        return await collected(items)


@scene
async def saved_by_distributed_checkpoint(folder: str, count: int, workers: int) -> Any:
    import torch.distributed.checkpoint as dcp

    async with loader_of(shuffled().map(double), workers) as loader:
        if rank() == 0:
            loader.seed(5)
        items = await taken(loader, count)
        dcp.save({f"loader-{rank()}": loader}, checkpoint_id=folder)
    return items


@scene
async def loaded_by_distributed_checkpoint(folder: str, ranks: int, workers: int) -> Any:
    import torch.distributed.checkpoint as dcp

    async with loader_of(shuffled().map(double), workers) as loader:
        states = {f"loader-{each}": loader.state_dict() for each in range(ranks)}
        dcp.load(states, checkpoint_id=folder)
        loader.load_state_dict(list(states.values()))
        return [(await collected(loader))[0] for _ in range(2)]


# What must be the same ------------------------------------------------------------------


def half(item: int) -> float:
    return item / 2


@scene
async def another_graph_on_rank_1() -> Any:
    began = time.monotonic()
    loader = loader_of(shuffled().map(half if rank() == 1 else double))
    failed = await collected(loader)
    await loader.aclose()
    return failed, time.monotonic() - began < TIMEOUT / 2


@scene
async def rank_1_opens_a_group_too_late() -> Any:
    """Return what each finds out, and what all say when they try again."""
    began = time.monotonic()
    if rank() == 1:
        await asyncio.to_thread(until_said, *words_of_others("missed rank 1"))
        began = time.monotonic()
    try:
        await open_group(2.0)
    except RankError as error:
        found = type(error).__name__, str(error), error.ranks, time.monotonic() - began
    say(f"missed rank 1 on {rank()}")
    await all_have("found that out")
    group = await open_group(TIMEOUT)
    said = await group.exchange(Statement(1, Topic.WINDOW, count=rank()))
    await group.aclose()
    return found, [each.count for each in said]


class CannotStart(ReadingServiceInterface):
    def initialize(self, datapipe: Any) -> Any:
        raise ValueError("the service cannot start")


def refused_loader(what: str) -> DataLoader2[Any]:
    ranks = DistributedReadingService(TIMEOUT)
    if what == "graph of ranks":
        return loader_of(shuffled().fullsync().map(double, repeatable=False))
    if what == "graph":
        branch, other = shuffled().fork(2)
        return loader_of(branch.prefetch(1).zip(branch, other))
    first = MultiProcessingReadingService(1) if what == "order" else CannotStart()
    return DataLoader2(shuffled(), reading_service=SequentialReadingService(first, ranks))


@scene
async def refused_on_rank_1(what: str) -> Any:
    loader = refused_loader(what) if rank() == 1 else loader_of(shuffled())
    began = time.monotonic()
    _, error = await collected(loader)
    await loader.aclose()
    seconds = time.monotonic() - began
    async with loader_of(shuffled()) as loader:
        return error, seconds, len((await collected(loader))[0])


@scene
async def starting_two_loaders_at_once() -> Any:
    async def read(first: int) -> list[int]:
        graph = IterableWrapper(range(first, first + COUNT)).sharding_filter()
        async with loader_of(graph) as loader:
            return [item async for item in loader]

    return await asyncio.gather(*(read(100 * number) for number in range(4)))


@scene
async def other_workers_on_the_last_rank() -> Any:
    async def start(workers: int) -> Any:
        loader = loader_of(shuffled(), workers)
        try:
            return await collected(loader)
        finally:
            await loader.aclose()

    return await start(2 if rank() == dist.get_world_size() - 1 else 1)


# Equal counts ---------------------------------------------------------------------------


@scene
async def uneven() -> Any:
    found = []
    many = [(7, 4, 5), (0, 5, 5), (5, 0, 5), (300, 200, 1000)]
    for workers, all_counts in ((0, many), (2, many[:2])):
        for counts in all_counts:
            async with loader_of(on_this_rank(*counts), workers) as loader:
                found.append([len((await collected(loader))[0]) for _ in range(2)])
    return found


@scene
def uneven_by_for() -> Any:
    with loader_of(on_this_rank(7, 4, 5)) as loader:
        return list(loader), list(loader)


@scene
async def uneven_without_a_service() -> Any:
    graph = IterableWrapper(range((7, 4, 5)[rank()]))
    async with DataLoader2(graph, FullSync(TIMEOUT)) as loader:
        by_loader = [(await collected(loader))[0] for _ in range(2)]
    pipe = graph.fullsync(TIMEOUT)
    return *by_loader, (await collected(pipe))[0]


@scene
def uneven_by_itself() -> Any:
    with leaves_nothing():
        return list(IterableWrapper(range((7, 4, 5)[rank()])).fullsync(TIMEOUT))


@scene
async def two_of_them() -> Any:
    left, right = on_this_rank(9, 8, 7).fullsync(TIMEOUT), on_this_rank(5, 6, 7).fullsync(TIMEOUT)
    async with loader_of(left.map(double).zip(right)) as loader:
        return [(await collected(loader))[0] for _ in range(2)]


@scene
async def agreeing_on_many(count: int) -> Any:
    """How many collectives an epoch took."""
    exchange, exchanges = GlooGroup.exchange, 0

    async def counted(group: GlooGroup, statement: Any) -> Any:
        nonlocal exchanges
        exchanges += 1
        return await exchange(group, statement)

    GlooGroup.exchange = counted  # type: ignore[method-assign]  # it is only watched
    try:
        async with loader_of(on_this_rank(count, count, count)) as loader:
            items, error = await collected(loader)
    finally:
        GlooGroup.exchange = exchange  # type: ignore[method-assign]
    assert not error
    return len(items), exchanges


# Errors ---------------------------------------------------------------------------------


class Failing(IterDataPipe[int]):
    """Fail at item 3 on rank 1, in the first epoch."""

    edges = ()

    def __init__(self) -> None:
        self.passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        for number in range(6):
            if number == 3 and rank() == 1 and self.passes == 1:
                raise LookupError("no item 3")
            yield number


@scene
async def failing_on_rank_1() -> Any:
    async with loader_of(Failing().sharding_filter(3)) as loader:
        return [await collected(loader) for _ in range(2)]


@scene
async def leaving_at_the_same_item() -> Any:
    found = []
    async with loader_of(shuffled()) as loader:
        for _ in range(5):
            async for _ in loader:
                break
        loader.seed(5)
        found.append(await collected(loader))
    return found


@scene
async def leaving_earlier_on_rank_0() -> Any:
    async with loader_of(on_this_rank(9000, 9000, 9000)) as loader:
        items = aiter(loader)
        await anext(items)
        if rank() != 0:
            # They come to where rank 0 has gone on.
            left = await collected(items)
            return left[1], await collected(loader)
        return "", await collected(loader)


class WaitingOnRank1(IterDataPipe[int]):
    """Yield 0, and on rank 1 not go on before the others have said something."""

    edges = ()

    def __init__(self, *words: str) -> None:
        self.words = words

    def __iter__(self) -> Iterator[int]:
        yield 0
        if rank() == 1:
            until_said(*self.words)
        yield 1


def words_of_others(word: str) -> list[str]:
    return [f"{word} on {each}" for each in range(dist.get_world_size()) if each != 1]


@scene
async def waiting_for_rank_1() -> Any:
    async def tick() -> None:
        for _ in range(20):
            await asyncio.sleep(0.001)
        # A loop that waited in a collective would never come so far.
        say(f"ticked on {rank()}")

    async with loader_of(WaitingOnRank1(*words_of_others("ticked")).sharding_filter(3)) as loader:
        items = aiter(loader)
        first = await anext(items)
        ticking = asyncio.create_task(tick())
        rest = await collected(items)
        await ticking
        return first, rest


@scene
async def waiting_too_long_for_rank_1() -> Any:
    source = WaitingOnRank1(*words_of_others("gave up"))
    loader = loader_of(source.sharding_filter(3), timeout=3.0)
    try:
        return await collected(loader)
    finally:
        say(f"gave up on {rank()}")
        await loader.aclose()


class SayingWhatIsLogged(logging.Handler):
    """Let all ranks hear how many warnings were logged, and keep them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        say(f"{len(self.messages)} logged on {rank()}")


@scene
def log_while_rank_1_is_late() -> Any:
    from asyncloader import ranks

    patience, ranks.WARN_SECONDS = ranks.WARN_SECONDS, 0.3
    log = SayingWhatIsLogged()
    ranks.logger.addHandler(log)
    try:
        if rank() == 1:
            until_said("1 logged on 0")
        with loader_of(IterableWrapper(range(4)).sharding_filter()) as loader:
            list(loader)
            if rank() == 1:
                until_said("2 logged on 0")
            list(loader)
    finally:
        ranks.logger.removeHandler(log)
        ranks.WARN_SECONDS = patience
    return patience, log.messages


# What services do -----------------------------------------------------------------------


class Telling(ReadingServiceInterface):
    """Tell every Told of the graph which epoch it is, by a reset."""

    epoch = 0

    async def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        self.epoch += 1
        epoch = self.epoch

        async def reset(datapipe: Any) -> Any:
            from asyncloader.graph import breadth_first

            datapipe = await iter_reset_fn(datapipe)
            for pipe in breadth_first(datapipe):
                if isinstance(pipe, Told):
                    pipe.epoch = epoch
            return datapipe

        return reset


class Told(IterDataPipe[Any]):
    """Yield each item with the epoch that this pipe was told, and its process."""

    def __init__(self, source: Any, replicable: bool) -> None:
        self.source = source
        self.replicable = replicable
        self.epoch = 0

    def is_replicable(self) -> bool:
        return self.replicable

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            yield item, self.epoch, os.getpid()


@scene
async def resets_everywhere() -> Any:
    graph = Told(Told(shuffled(), True), False)
    service = SequentialReadingService(
        DistributedReadingService(TIMEOUT), Telling(), MultiProcessingReadingService(2)
    )
    async with DataLoader2(graph, reading_service=service) as loader:
        epochs = [[item async for item in loader] for _ in range(2)]
    return os.getpid(), epochs


# Leaving nothing ------------------------------------------------------------------------


@scene
async def ten_epochs_leave_nothing() -> Any:
    of_the_user = dist.new_group()
    async with loader_of(shuffled(), 2) as loader:
        await collected(loader)  # the template process stays
    with leaves_nothing():
        async with loader_of(shuffled()) as loader:
            for _ in range(5):
                assert len((await collected(loader))[0]) == COUNT // dist.get_world_size()
                async for _ in loader:
                    break
        async with loader_of(shuffled(), 2) as loader:
            for _ in range(5):
                await collected(loader)
    # The groups of others are as they were.
    for group in (None, of_the_user):
        ranks = torch.tensor(1)
        dist.all_reduce(ranks, group=group)
        assert ranks == dist.get_world_size()


@scene
async def closing_in_the_middle() -> Any:
    with leaves_nothing():
        began = time.monotonic()
        async with loader_of(on_this_rank(9000, 9000, 9000)) as loader:
            async for _ in loader:
                break
        return time.monotonic() - began


class NoMore(IterDataPipe[int]):
    """Yield 0, and 1 on other ranks than rank 1; then nothing for longer than any test."""

    edges = ()

    def numbers(self) -> range:
        # A worker is on no rank, but its environment is that of the loader.
        return range(1 if os.environ["RANK_OF_SCENE"] == "1" else 2)

    async def __aiter__(self) -> AsyncIterator[int]:
        for number in self.numbers():
            yield number
        await asyncio.Event().wait()


class Stuck(NoMore):
    """Keep a worker in a call that it does not come out of."""

    __aiter__ = None  # type: ignore[assignment]  # a plain generator

    def __iter__(self) -> Iterator[int]:
        yield from self.numbers()
        time.sleep(1000)


@scene
async def closing_while_rank_1_is_silent(workers: int) -> Any:
    os.environ["RANK_OF_SCENE"] = str(rank())
    word = f"closed with {workers} workers"
    loader = loader_of((Stuck() if workers else NoMore()).sharding_filter(3), workers)
    items = aiter(loader)
    await anext(items)
    asked = asyncio.create_task(collected(items))
    if rank() == 1:
        await asyncio.to_thread(until_said, *words_of_others(word))
    else:
        # It has another item and waits for rank 1 to have one.
        await asyncio.sleep(0.1)
    began = time.monotonic()
    await loader.aclose()
    seconds = time.monotonic() - began
    for thread in threading.enumerate():
        if thread.name == "asyncloader ranks":
            thread.join(TIMEOUT / 2)
            assert not thread.is_alive()
    say(f"{word} on {rank()}")
    return (await asked)[1], seconds


@scene
async def rank_1_ends(how: str, timeout: float) -> Any:
    loader = loader_of(on_this_rank(90_000, 90_000, 90_000), timeout=timeout)
    items = aiter(loader)
    await anext(items)
    if rank() == 1:
        os.kill(os.getpid(), signal.Signals[how])
    began = time.monotonic()
    _, error = await collected(items)
    seconds = time.monotonic() - began
    _, again = await collected(loader)
    # Whoever leaves is missed as well.
    say(f"found out on {rank()}")
    await asyncio.to_thread(until_said, *words_of_others("found out"))
    await loader.aclose()
    return error, again, seconds


@scene
async def rank_1_ends_when_only_rank_2_has_heard_it() -> Any:
    """Return what ranks find out who wait for one that has lost another."""
    group = await open_group(TIMEOUT)
    assert isinstance(group, GlooGroup)
    statement = Statement(1, Topic.WINDOW)
    await group.exchange(statement)
    if rank() == 1:
        words = torch.tensor(statement.words())
        for work in (
            dist.irecv(words.clone(), 2, group=group._group),
            dist.isend(words, 2, group=group._group),
        ):
            work.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    if rank() == 2:
        await group.exchange(statement)
    began = time.monotonic()
    try:
        await group.exchange(statement)
    except RankError as error:
        return str(error), error.ranks, time.monotonic() - began
    finally:
        # Whoever leaves is missed as well.
        say(f"found out on {rank()}")
        await asyncio.to_thread(until_said, *words_of_others("found out"))
        await group.aclose()


async def found_out(group: Any) -> tuple[str, tuple[int, ...], float]:
    """Exchange something with others in vain; return why, because of whom, and after how long."""
    began = time.monotonic()
    try:
        await group.exchange(Statement(1, Topic.WINDOW))
    except RankError as error:
        return str(error), error.ranks, time.monotonic() - began
    raise AssertionError("all ranks were heard")


async def all_have(done: str) -> None:
    """Say that this rank has done something, and wait until all have."""
    say(f"{done} on {rank()}")
    everywhere = [f"{done} on {each}" for each in range(dist.get_world_size())]
    await asyncio.to_thread(until_said, *everywhere)


@scene
async def rank_1_leaves_a_group_that_is_referred_to() -> Any:
    """Return what others find out where something keeps the object, as an old frame may."""
    group = await open_group(TIMEOUT)
    assert isinstance(group, GlooGroup)
    await group.exchange(Statement(1, Topic.WINDOW))
    kept, found = group._group, None
    if rank() == 1:
        await group.aclose()
    else:
        found = await found_out(group)
    await all_have("left what was kept")
    await group.aclose()
    del kept
    return found


@scene
async def rank_1_says_nothing_in_time() -> Any:
    group = await open_group(2.0)
    await group.exchange(Statement(1, Topic.WINDOW))
    found = None if rank() == 1 else await found_out(group)
    await all_have("waited in vain")
    await group.aclose()
    return found


@scene
async def recorded_behind_fullsync() -> Any:
    """Return why work that cannot be repeated is refused there, and a state where order is lost."""
    synced = on_this_rank(7, 4, 5).fullsync(TIMEOUT)
    refused: list[Any] = []
    try:
        async with loader_of(synced.map(double, repeatable=False)) as loader:
            await collected(loader)
    except ValueError as error:
        refused.append(str(error))
    async with loader_of(synced.async_map(double_soon, ordered=False)) as loader:
        try:
            loader.state_dict()
        except SnapshotError as error:
            refused.append(str(error))
        refused.append(sorted((await collected(loader))[0]))
    return refused


async def double_soon(item: int) -> int:
    return 2 * item
