"""What comes out of a loader, in both forms."""

import asyncio
import copy
import gc
import inspect
import pickle
import sys
import threading
import time
import weakref

import pytest
import torch

from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    LoopMismatchError,
    MultiProcessingReadingService,
    waiting,
)
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.exchange import Exchange
from asyncloader.datapipes.running.run_place import Home
from asyncloader.errors import ConcurrentIterationError, ForkedError, LoaderClosed
from asyncloader.loader.epoch import EpochLife, LoopEpoch
from asyncloader.transport.code import dumps_code
from asyncloader.waiting import call_soon
from tests.collecting import drain, drain_async


def numbers(count: int = 100) -> IterDataPipe[int]:
    return IterableWrapper(range(count))


def shuffled(count: int = 100) -> IterDataPipe[int]:
    return numbers(count).shuffle().sharding_filter()


class Waiting(IterDataPipe):
    """An async pipe that lets the loop run between its items."""

    def __init__(self, source):
        self.source = source

    async def __aiter__(self):
        async for item in self.source:
            await asyncio.sleep(0)
            yield item


GRAPHS = {
    "sync": lambda: numbers().map(lambda x: x + 1).batch(3),
    "async": lambda: Waiting(numbers()),
    "sync over async": lambda: Waiting(numbers()).map(lambda x: x + 1),
    "async over sync over async": lambda: Waiting(Waiting(numbers()).map(str)).batch(7),
    "prefetched": lambda: numbers().prefetch(5).map(str).prefetch(2),
}


@pytest.fixture(params=GRAPHS.values(), ids=GRAPHS.keys())
def graph(request):
    return request.param()


async def test_for_and_async_for_hand_out_what_the_graph_alone_yields(graph):
    expected = list(graph)
    assert await drain_async(DataLoader2(graph)) == expected
    assert await asyncio.to_thread(drain, DataLoader2(graph)) == expected


async def test_for_and_async_for_may_alternate_on_one_loader(graph):
    expected = list(graph)
    async with DataLoader2(graph) as loader:
        for _ in range(2):
            assert [item async for item in loader] == expected
            assert await asyncio.to_thread(list, loader) == expected


def test_a_loader_outlives_the_loop_it_was_iterated_on():
    loader = DataLoader2(Waiting(numbers(10)))
    for _ in range(3):
        assert asyncio.run(_collected(loader)) == list(range(10))
        assert list(loader) == list(range(10))
    loader.shutdown()


async def _collected(loader):
    return [item async for item in loader]


def test_iterating_leaves_a_break_in_one_loop_behind_when_the_next_begins():
    loader = DataLoader2(numbers())

    async def first_only():
        async for item in loader:
            return item

    assert asyncio.run(first_only()) == 0
    assert asyncio.run(first_only()) == 0
    assert list(loader) == list(range(100))
    loader.shutdown()


@pytest.mark.parametrize("service", [None, InProcessReadingService(), InProcessReadingService(4)])
async def test_equal_seeds_give_equal_sequences_of_epochs_in_both_forms(service):
    def seeded() -> DataLoader2[int]:
        loader = DataLoader2(shuffled(), reading_service=service)
        loader.seed(7)
        return loader

    with pytest.warns(RuntimeWarning, match="blocks the event loop"), seeded() as loader:
        first, second = list(loader), list(loader)
    assert first != second
    assert sorted(first) == sorted(second) == list(range(100))
    async with seeded() as loader:
        assert [item async for item in loader] == first
        assert [item async for item in loader] == second
        loader.seed(7)
        assert [item async for item in loader] == first


async def test_a_seed_for_the_constructor_is_that_of_the_method():
    later = DataLoader2(shuffled())
    later.seed(7)
    async with later, DataLoader2(shuffled(), seed=7) as loader:
        for _ in range(2):
            assert [item async for item in loader] == [item async for item in later]
    with pytest.raises(ValueError, match="seed must be an integer from 0"):
        DataLoader2(numbers(), seed=-1)


async def test_what_blocks_the_loop_is_told_at_its_own_line():
    blocks = "this `with` blocks .* use `async with`"
    with pytest.warns(RuntimeWarning, match=blocks) as told, DataLoader2(numbers()) as loader:
        assert list(loader) == list(range(100))
    assert [warning.filename for warning in told] == [__file__]
    loader = DataLoader2(numbers())
    with pytest.warns(RuntimeWarning, match="this `for` blocks .* use `async for`") as told:
        assert list(loader) == list(range(100))
    assert [warning.filename for warning in told] == [__file__]
    await loader.aclose()


def test_unseeded_epochs_differ_and_follow_torch():
    def epochs() -> list[list[int]]:
        torch.manual_seed(3)
        with DataLoader2(IterableWrapper(range(100)).shuffle()) as loader:
            return [list(loader) for _ in range(3)]

    first, second, third = epochs()
    assert first != second != third != first
    assert epochs() == [first, second, third]


@pytest.mark.parametrize("seed", [-1, 2**64, 1.5, "1", True])
def test_a_seed_is_a_number_of_64_bits(seed):
    with pytest.raises(ValueError, match="seed must be an integer from 0"):
        DataLoader2(numbers()).seed(seed)


def test_iter_before_anything_was_read_gives_the_same_epoch():
    def epochs(loader):
        loader.seed(1)
        iter(loader)
        next(iter(loader))
        return list(iter(loader))

    with DataLoader2(shuffled()) as loader:
        loader.seed(1)
        list(loader)
        second = list(loader)
        assert epochs(loader) == second


async def test_a_new_iterator_invalidates_the_older():
    async with DataLoader2(numbers()) as loader:
        older = aiter(loader)
        assert await anext(older) == 0
        newer = aiter(loader)
        assert await anext(newer) == 0
        with pytest.raises(RuntimeError, match="iterator has been invalidated"):
            await anext(older)
        assert await anext(newer) == 1


def test_a_new_sync_iterator_invalidates_the_older():
    with DataLoader2(numbers()) as loader:
        older = iter(loader)
        assert next(older) == 0
        newer = iter(loader)
        with pytest.raises(RuntimeError, match="iterator has been invalidated"):
            next(older)
        assert next(newer) == 0


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("resumed_at", [0, 5])
async def test_an_iterator_that_yielded_everything_has_ended_for_whoever_comes_after(
    workers, resumed_at
):
    def loader() -> DataLoader2[int]:
        return DataLoader2.from_dataset(range(12), num_workers=workers)

    async with loader() as first:
        items = aiter(first)
        for _ in range(resumed_at):
            await anext(items)
        state = first.state_dict()
    async with loader() as resumed:
        resumed.load_state_dict(state)
        older = aiter(resumed)
        for _ in range(resumed_at, 12):
            await anext(older)
        assert len([item async for item in resumed]) == 12
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(older)


def test_an_iterator_at_its_end_has_ended_also_where_the_length_is_known_or_not():
    for graph in (numbers(4), numbers(8).filter(lambda number: number < 4)):
        with DataLoader2(graph) as loader:
            older = iter(loader)
            assert len(list(older)) == 4
            next(iter(loader))
            assert next(older, "end") == "end"
    with DataLoader2(numbers(4)) as loader:
        older = iter(loader)
        assert [next(older) for _ in range(4)] == [0, 1, 2, 3]
        next(iter(loader))
        assert next(older, "end") == "end"


def test_length_is_that_of_the_graph_or_a_type_error():
    assert len(DataLoader2(numbers(10).batch(3))) == 4
    with pytest.raises(TypeError):
        len(DataLoader2(numbers(10).filter(bool)))


def test_a_map_pipe_is_read_in_the_order_of_its_indices():
    with DataLoader2(SequenceWrapper(["a", "b", "c"])) as loader:
        assert list(loader) == ["a", "b", "c"]


@pytest.mark.parametrize("data", [[1, 2], torch.utils.data.TensorDataset(torch.ones(2)), 5])
def test_what_is_no_pipe_is_refused_with_the_wrapper_to_use(data):
    with pytest.raises(TypeError, match=r"Wrapper.*or use DataLoader2\.from_dataset"):
        DataLoader2(data)


@pytest.mark.parametrize("name", ["num_workers", "batch_size", "shuffle", "collate_fn", "dataset"])
def test_an_argument_of_torchs_loader_leads_to_from_dataset(name):
    wrong = {name: 2}
    with pytest.raises(TypeError, match=rf"no parameter '{name}'; .*DataLoader2\.from_dataset"):
        DataLoader2(IterableWrapper(range(3)), **wrong)


def test_another_argument_is_pythons_own_error():
    wrong = {"reading_servce": None}
    with pytest.raises(TypeError, match="unexpected keyword argument 'reading_servce'"):
        DataLoader2(IterableWrapper(range(3)), **wrong)
    parameters = inspect.signature(DataLoader2).parameters
    assert list(parameters) == [
        *("datapipe", "datapipe_adapter_fn", "reading_service", "seed", "acknowledge")
    ]


def test_the_class_of_a_pipe_is_told_from_a_pipe():
    with pytest.raises(
        TypeError, match=r"got the class IterableWrapper; make an object of it: Iterable"
    ):
        DataLoader2(IterableWrapper)


def test_the_graph_is_copied_and_its_data_is_not():
    rows = [[1], [2]]
    pipe = IterableWrapper(rows, deepcopy=False).shuffle()
    with DataLoader2(pipe) as loader:
        loader.datapipe.set_shuffle(False)
        items = list(loader)
    assert items[0] in rows
    assert {id(item) for item in items} == {id(row) for row in rows}


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps, dumps_code])
def test_a_loader_is_not_copied_and_says_what_to_do_instead(copied):
    loader = DataLoader2(IterableWrapper(range(3)))
    with pytest.raises(TypeError, match="from_state"):
        copied(loader)
    items = iter(loader)
    with pytest.raises(TypeError, match="state_dict"):
        copied(items)
    assert list(items) == [0, 1, 2]


def test_adapters_are_applied_once_and_in_order():
    calls = []

    def first(pipe):
        calls.append("first")
        return pipe.map(lambda x: x + 1)

    def second(pipe):
        calls.append("second")
        return pipe.map(lambda x: 2 * x)

    with DataLoader2(numbers(3), [first, second]) as loader:
        assert list(loader) == [2, 4, 6]
        assert list(loader) == [2, 4, 6]
    assert calls == ["first", "second"]
    with DataLoader2(numbers(3), first) as loader:
        assert list(loader) == [1, 2, 3]


def test_an_adapter_that_returns_no_pipe_is_named():
    with pytest.raises(TypeError, match=r"must return a pipe, but .* returned NoneType"):
        DataLoader2(numbers(), lambda pipe: None)


# Errors ---------------------------------------------------------------------------------


def fails_at_5(item):
    if item == 5:
        raise LookupError("no five", item)
    return item


@pytest.mark.parametrize("prefetched", [False, True])
async def test_an_error_comes_in_the_place_of_its_item_and_stays(prefetched):
    graph = numbers(10).map(fails_at_5)
    async with DataLoader2(graph.prefetch(20) if prefetched else graph) as loader:
        for _ in range(2):
            iterator = aiter(loader)
            assert [await anext(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
            for _ in range(2):
                with pytest.raises(LookupError) as caught:
                    await anext(iterator)
                assert caught.value.args == ("no five", 5)
                assert "raised in map(fails_at_5)" in caught.value.__notes__


def test_an_error_comes_in_its_place_in_a_thread_too():
    with DataLoader2(numbers(10).map(fails_at_5)) as loader:
        for _ in range(2):
            iterator = iter(loader)
            assert [next(iterator) for _ in range(5)] == [0, 1, 2, 3, 4]
            for _ in range(2):
                with pytest.raises(LookupError):
                    next(iterator)


def frames(error):
    count, traceback = 0, error.__traceback__
    while traceback is not None:
        count, traceback = count + 1, traceback.tb_next
    return count


@pytest.mark.parametrize("prefetched", [False, True])
async def test_an_error_that_stays_is_the_same_and_does_not_grow(prefetched):
    graph = numbers(10).map(fails_at_5)
    graph = graph.prefetch(20) if prefetched else graph

    async def in_async_for(loader):
        iterator = aiter(loader)
        [await anext(iterator) for _ in range(5)]
        return [await _error_of(anext(iterator)) for _ in range(4)]

    def in_for():
        with DataLoader2(graph) as loader:
            iterator = iter(loader)
            [next(iterator) for _ in range(5)]
            return [_error_of_call(next, iterator) for _ in range(4)]

    async with DataLoader2(graph) as loader:
        results = [await in_async_for(loader), await asyncio.to_thread(in_for)]
    for (first, _), *later in results:
        assert all(error is first for error, _ in later)
        assert len({depth for _, depth in later}) == 1


async def _error_of(work):
    with pytest.raises(LookupError) as caught:
        await work
    return caught.value, frames(caught.value)


def _error_of_call(function, *args):
    with pytest.raises(LookupError) as caught:
        function(*args)
    return caught.value, frames(caught.value)


def test_a_refusal_does_not_grow_either():
    with DataLoader2(numbers()) as loader:
        older = iter(loader)
        next(iter(loader))
        depths = set()
        for _ in range(3):
            with pytest.raises(RuntimeError, match="iterator has been invalidated") as caught:
                next(older)
            depths.add(frames(caught.value))
        assert len(depths) == 1


def test_a_stop_iteration_from_user_code_is_not_the_end():
    def stops(item):
        raise StopIteration

    with DataLoader2(numbers().map(stops)) as loader, pytest.raises(RuntimeError):
        list(loader)


# Limits ---------------------------------------------------------------------------------


async def test_limit_ends_iteration_and_resume_goes_on():
    async with DataLoader2(numbers(10)) as loader:
        iterator = aiter(loader)
        iterator.limit(num_batches=3)
        assert [item async for item in iterator] == [0, 1, 2]
        assert [item async for item in iterator] == []
        iterator.resume()
        assert [item async for item in iterator] == [3, 4, 5]
        iterator.limit(None)
        assert [item async for item in iterator] == [6, 7, 8, 9]


def test_limit_of_the_loader_holds_for_each_epoch():
    with DataLoader2(numbers(10)) as loader:
        loader.limit(num_batches=4)
        assert list(loader) == [0, 1, 2, 3]
        assert list(loader) == [0, 1, 2, 3]
        loader.limit(None)
        assert list(loader) == list(range(10))


def test_pause_ends_iteration_until_resume():
    with DataLoader2(numbers(5)) as loader:
        iterator = iter(loader)
        assert next(iterator) == 0
        loader.pause()
        assert list(iterator) == []
        loader.resume()
        assert list(iterator) == [1, 2, 3, 4]


def test_a_pause_of_the_loader_holds_for_later_iterators_too():
    with DataLoader2(numbers(5)) as loader:
        loader.pause()
        assert list(loader) == []
        assert list(loader) == []
        loader.resume()
        iterator = iter(loader)
        assert next(iterator) == 0
        iterator.pause()
        assert list(iterator) == []
        # That was the iterator's own.
        assert list(loader) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("limit", "error"), [(-1, ValueError), (1.5, TypeError), ("3", TypeError)])
def test_a_limit_that_is_no_count_is_refused(limit, error):
    for limited in DataLoader2(numbers()), iter(DataLoader2(numbers())):
        with pytest.raises(error, match="limit must be"):
            limited.limit(limit)


# Ends -----------------------------------------------------------------------------------


async def test_a_closed_loader_says_so():
    loader = DataLoader2(numbers())
    iterator = aiter(loader)
    await anext(iterator)
    await asyncio.gather(loader.aclose(), loader.aclose())
    await loader.aclose()
    loader.shutdown()
    with pytest.raises(LoaderClosed):
        await anext(iterator)
    with pytest.raises(LoaderClosed):
        await anext(aiter(loader))
    with pytest.raises(LoaderClosed):
        next(iter(loader))
    with pytest.raises(LoaderClosed):
        await loader.start()


async def test_shutdown_in_the_loop_that_iterates_says_what_to_do_instead():
    async with DataLoader2(numbers()) as loader:
        await anext(aiter(loader))
        iterator = aiter(loader)
        await anext(iterator)
        with pytest.raises(LoopMismatchError, match="aclose"):
            loader.shutdown()


class Recording(IterDataPipe):
    """Tells when its iterator was closed."""

    def __init__(self, note):
        self.note = note

    def __iter__(self):
        try:
            yield from range(1000)
        finally:
            self.note("closed")


def test_a_bare_break_closes_the_source():
    log = []
    loader = DataLoader2(Recording(log.append))
    for _ in loader:
        break
    gc.collect()
    assert log == ["closed"]
    loader.shutdown()


async def test_a_break_closes_the_source_when_the_loader_is_left():
    log = []
    async with DataLoader2(Recording(log.append).map(str)) as loader:
        async for _ in loader:
            break
    assert log == ["closed"]


def test_a_loader_is_garbage_once_nobody_holds_it():
    loader = DataLoader2(numbers())
    list(loader)
    watched = weakref.ref(loader)
    del loader
    gc.collect()
    assert watched() is None


# Misuse ---------------------------------------------------------------------------------


async def test_two_tasks_cannot_wait_for_one_iterator():
    async with DataLoader2(Waiting(numbers())) as loader:
        iterator = aiter(loader)
        results = await asyncio.gather(*(anext(iterator) for _ in range(4)), return_exceptions=True)
        assert results[0] == 0
        assert all(isinstance(result, ConcurrentIterationError) for result in results[1:])
        assert await anext(iterator) == 1


def test_a_thread_that_comes_in_between_is_told():
    entered, leave = threading.Event(), threading.Event()

    def slow(item):
        entered.set()
        leave.wait(10)
        return item

    with DataLoader2(numbers(1).map(slow)) as loader:
        iterator = iter(loader)
        items = []
        thread = threading.Thread(target=lambda: items.append(next(iterator)))
        thread.start()
        entered.wait(10)
        with pytest.raises(ConcurrentIterationError):
            next(iterator)
        leave.set()
        thread.join()
        assert items == [0]


def test_an_iterator_belongs_to_one_loop():
    loader = DataLoader2(Waiting(numbers()))

    async def take(iterator):
        return await anext(iterator)

    iterator = aiter(loader)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        assert first.run(take(iterator)) == 0
        with pytest.raises(LoopMismatchError):
            second.run(take(iterator))
        assert first.run(take(iterator)) == 1
        first.run(loader.aclose())


def test_an_iterator_is_of_no_use_in_a_forked_child():
    import os

    loader = DataLoader2(numbers())
    iterator = iter(loader)
    assert next(iterator) == 0
    child = os.fork()
    if child == 0:
        try:
            next(iterator)
        except ForkedError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert next(iterator) == 1
    loader.shutdown()


async def test_a_for_in_a_running_loop_works_and_warns_once():
    loader = DataLoader2(Waiting(numbers(3)))
    with pytest.warns(RuntimeWarning, match="async for"):
        assert list(loader) == [0, 1, 2]
    assert list(loader) == [0, 1, 2]
    await loader.aclose()


class AsyncCounted:
    def __init__(self):
        self.seen = 0

    def __aiter__(self):
        return self

    async def __anext__(self):
        self.seen += 1
        return self.seen


async def test_unknown_attributes_are_those_of_an_async_iterator_too():
    async with DataLoader2(IterableWrapper(AsyncCounted(), deepcopy=False)) as loader:
        iterator = aiter(loader)
        with pytest.raises(AttributeError, match="seen"):
            _ = iterator.seen
        await anext(iterator)
        assert iterator.seen >= 1
        with pytest.raises(AttributeError, match="nonsense"):
            _ = iterator.nonsense


def test_unknown_attributes_in_a_for_over_an_async_graph():
    with DataLoader2(IterableWrapper(AsyncCounted(), deepcopy=False)) as loader:
        iterator = iter(loader)
        next(iterator)
        assert iterator.seen >= 1


def test_unknown_attributes_are_those_of_the_graphs_iterator():
    class Counted:
        def __init__(self):
            self.seen = 0

        def __iter__(self):
            return self

        def __next__(self):
            self.seen += 1
            return self.seen

    with DataLoader2(IterableWrapper(Counted())) as loader:
        iterator = iter(loader)
        next(iterator)
        assert iterator.seen == 1
        with pytest.raises(AttributeError, match="nonsense"):
            _ = iterator.nonsense


async def test_an_item_that_came_quickly_is_handed_over_while_the_next_takes_long():
    seen = threading.Event()

    def wait_before_the_last(number):
        # The items before it come so quickly that several are handed over together.
        if number == 9:
            assert seen.wait(60)
        return number

    items = []
    async with DataLoader2(numbers(10).map(wait_before_the_last)) as loader:
        async for number in loader:
            items.append(number)
            if number == 8:
                seen.set()
    assert items == [*range(10)]


def test_a_for_asks_its_loop_for_more_at_most_once_after_each_group_it_took(monkeypatch):
    asked, groups = [], []
    take = Exchange.take

    def taken(exchange, into=None):
        groups.append(exchange)
        return take(exchange, into)

    def ask_soon(loop, function, *args):
        if threading.current_thread() is threading.main_thread():
            asked.append(function)
        call_soon(loop, function, *args)

    monkeypatch.setattr(Exchange, "take", taken)
    monkeypatch.setattr(waiting, "call_soon", ask_soon)
    graph = IterableWrapper(range(100)).sharding_filter()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        for _ in range(30):
            assert sorted(loader) == list(range(100))
    assert len(asked) <= len(groups)


def test_an_epoch_that_ends_while_the_consumer_looks_for_items_has_them(monkeypatch):
    do_asked = Home.do_asked

    def late(home):
        do_asked(home)
        epoch, end = sys._getframe(1).f_locals.get("self"), time.monotonic() + 5
        while isinstance(epoch, LoopEpoch) and time.monotonic() < end:
            if epoch.life is EpochLife.OVER:
                break
            time.sleep(0.001)

    monkeypatch.setattr(Home, "do_asked", late)
    with DataLoader2(IterableWrapper([7]).to_device("cpu")) as loader:
        assert list(loader) == [7]
