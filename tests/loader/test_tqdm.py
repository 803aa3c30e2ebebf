"""tqdm works on a loader as it is, in both forms, and knows how long it takes."""

import io

import pytest
import tqdm
import tqdm.asyncio

from asyncloader import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

GRAPHS = {
    "plain": (lambda: IterableWrapper(range(10)), 10),
    "batches": (lambda: IterableWrapper(range(10)).shuffle().batch(4), 3),
    "whole batches": (lambda: IterableWrapper(range(10)).batch(4, drop_last=True), 2),
    "sharded": (lambda: IterableWrapper(range(10)).sharding_filter().batch(2), 5),
    "prefetched": (lambda: IterableWrapper(range(10)).map(str).prefetch(2), 10),
    "no length": (lambda: IterableWrapper(range(10)).filter(bool), None),
}


@pytest.fixture(params=GRAPHS)
def graph_and_length(request):
    build, length = GRAPHS[request.param]
    return build(), length


@pytest.mark.parametrize("service", [None, InProcessReadingService(prefetch_cnt=2)])
def test_a_bar_in_a_for_knows_the_length_and_counts_to_it(graph_and_length, service):
    graph, length = graph_and_length
    with DataLoader2(graph, reading_service=service) as loader:
        bar = tqdm.tqdm(loader, file=io.StringIO())
        assert bar.total == length
        assert bar.n == 0
        items = list(bar)
        assert bar.n == len(items) == (length or 9)


@pytest.mark.parametrize("service", [None, InProcessReadingService(prefetch_cnt=2)])
async def test_a_bar_in_an_async_for_knows_the_length_and_counts_to_it(graph_and_length, service):
    graph, length = graph_and_length
    async with DataLoader2(graph, reading_service=service) as loader:
        bar = tqdm.asyncio.tqdm(loader, file=io.StringIO())
        assert bar.total == length
        items = [item async for item in bar]
        assert bar.n == len(items) == (length or 9)


IN_WORKERS = {
    "items": (lambda: IterableWrapper(range(11)).sharding_filter().map(str), 11),
    "batches": (lambda: IterableWrapper(range(11)).sharding_filter().batch(2), 6),
    "whole batches": (lambda: IterableWrapper(range(11)).sharding_filter().batch(2, True), 5),
    "batches before": (lambda: IterableWrapper(range(11)).batch(2).sharding_filter(), 6),
}


@pytest.mark.parametrize("case", IN_WORKERS)
async def test_a_bar_over_two_workers_knows_the_length_and_counts_to_it(case, capfd):
    build, length = IN_WORKERS[case]
    async with DataLoader2(build(), None, MultiProcessingReadingService(2)) as loader:
        bar = tqdm.asyncio.tqdm(loader, file=io.StringIO())
        assert bar.total == length
        assert len([item async for item in bar]) == bar.n == length
        again = tqdm.tqdm(loader, file=io.StringIO())
        assert again.total == length
    assert capfd.readouterr() == ("", ""), "asyncloader and its processes print nothing"


async def test_each_bar_is_an_epoch():
    async with DataLoader2(IterableWrapper(range(3))) as loader:
        for _ in range(2):
            bar = tqdm.asyncio.tqdm(loader, file=io.StringIO())
            assert [item async for item in bar] == [0, 1, 2]


def test_asyncloader_itself_prints_nothing(capfd):
    with DataLoader2(IterableWrapper(range(3))) as loader:
        list(loader)
    assert capfd.readouterr() == ("", "")
