"""Many calls at once: async_map and thread_map."""

import asyncio
import logging
import queue
import threading

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.errors import ResourceExhausted
from tests.datapipes.watched import Failing, crew_of


def numbers(count: int = 20) -> IterDataPipe[int]:
    return IterableWrapper(range(count))


async def test_async_map_keeps_the_order_whatever_ends_first():
    turns = {number: asyncio.Event() for number in range(4)}

    async def backwards(number):
        if number < 3:
            await turns[number + 1].wait()
        turns[number].set()
        return number

    assert [n async for n in numbers(4).async_map(backwards)] == [0, 1, 2, 3]


async def test_async_map_without_order_yields_what_is_ready():
    first_may_end = asyncio.Event()

    async def first_is_late(number):
        if number == 0:
            await first_may_end.wait()
        return number

    stream = aiter(numbers(4).async_map(first_is_late, ordered=False))
    assert {await anext(stream) for _ in range(3)} == {1, 2, 3}
    first_may_end.set()
    assert [n async for n in stream] == [0]


async def test_async_map_is_a_window_and_no_barrier():
    under_way, most = 0, 0

    async def counted(number):
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return number

    assert [n async for n in numbers(50).async_map(counted, concurrency=5)] == list(range(50))
    assert most == 5


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_only_the_error_that_ended_the_iteration_is_heard_of(form, caplog):
    async def fails(number):
        raise LookupError(number)

    pipe = numbers().async_map(fails)
    with caplog.at_level(logging.ERROR), pytest.raises(LookupError) as caught:
        await (asyncio.to_thread(list, pipe) if form == "sync" else _drained(pipe))
    assert caught.value.args == (0,)
    assert caught.value.__notes__ == ["raised in async_map(fails)"]
    assert caplog.records == []


async def same(number):
    return number


async def cancels(number):
    raise asyncio.CancelledError


def cancels_plainly(number):
    raise asyncio.CancelledError


@pytest.mark.parametrize(
    "pipe",
    [
        numbers().async_map(cancels),
        numbers().map(cancels),
        numbers().map(cancels_plainly),
        numbers().thread_map(cancels_plainly),
    ],
    ids=["async_map", "async", "map", "thread_map"],
)
async def test_a_function_that_raises_cancelled_error_by_itself_has_failed(pipe):
    with pytest.raises(RuntimeError, match="raised CancelledError"):
        await _drained(pipe)
    with pytest.raises(RuntimeError, match="raised CancelledError"):
        await asyncio.to_thread(list, pipe)


class Cancelled(IterDataPipe[int]):
    """Awaits, after two items, something that was cancelled."""

    async def __aiter__(self):
        yield 0
        yield 1
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    "pipe",
    [
        Cancelled().async_map(same),
        Cancelled().prefetch(2),
        Cancelled().batch(1, max_wait=60).unbatch(),
        Cancelled().map(same).prefetch(2),
        Cancelled().thread_map(int),
    ],
    ids=["async_map", "prefetch", "batch", "map", "thread_map"],
)
async def test_a_source_that_raises_cancelled_error_by_itself_has_not_ended(pipe):
    stream = aiter(pipe)
    assert [await anext(stream), await anext(stream)] == [0, 1]
    with pytest.raises(RuntimeError, match="raised CancelledError"):
        await anext(stream)
    with pytest.raises(RuntimeError, match="raised CancelledError"):
        await asyncio.to_thread(list, pipe)


async def test_nor_has_one_that_a_loader_reads_itself():
    async with DataLoader2(Cancelled()) as loader:
        with pytest.raises(RuntimeError, match="raised CancelledError"):
            await _drained(loader)


async def _drained(pipe):
    return [item async for item in pipe]


def test_thread_map_keeps_the_order_whatever_ends_first():
    second_is_done = threading.Event()

    def first_is_late(number):
        if number == 0:
            assert second_is_done.wait(10)
        if number == 1:
            second_is_done.set()
        return number

    assert list(numbers().thread_map(first_is_late, concurrency=2)) == list(range(20))


class OneByOne(IterDataPipe[int]):
    """Yields the next number when somebody has the one before."""

    def __init__(self) -> None:
        self.taken = queue.SimpleQueue()

    def __iter__(self):
        for number in range(5):
            yield number
            assert self.taken.get(timeout=30) == str(number)


@pytest.mark.parametrize("ordered", [True, False])
def test_thread_map_yields_what_is_done_while_its_source_is_idle(ordered):
    source = OneByOne()
    for item in source.thread_map(str, concurrency=3, ordered=ordered):
        source.taken.put(item)


async def test_thread_map_does_so_on_a_loop():
    source = OneByOne()
    async for item in source.thread_map(str, concurrency=3):
        source.taken.put(item)


def test_the_reader_of_thread_map_waits_until_half_of_the_jobs_are_taken():
    with crew_of(numbers().thread_map(abs, concurrency=2)) as crew:
        for number in range(6):
            assert crew.may_read()
            crew.hold(number)
        assert not crew.may_read()
        jobs = crew.jobs()
        assert [(next(jobs).result, crew.may_go_on()) for _ in range(3)] == [
            (0, False),
            (1, False),
            (2, True),
        ]


def test_threadpool_map_goes_on_with_room_for_one():
    assert list(numbers().threadpool_map(abs, scheduled_tasks=1)) == list(range(20))


def test_an_error_of_the_source_of_thread_map_comes_in_its_place():
    items = iter(Failing([1, 2], LookupError("three")).thread_map(str, concurrency=3))
    assert [next(items), next(items)] == ["1", "2"]
    with pytest.raises(LookupError, match="three"):
        next(items)


def test_a_source_that_cannot_be_begun_is_an_error_of_thread_map_and_no_wait():
    pipe = IterableWrapper(iter([1, 2])).thread_map(str)
    assert list(pipe) == ["1", "2"]
    with pytest.raises(TypeError, match="read only once"):
        list(pipe)


def test_thread_map_leaves_no_threads_behind():
    before = threading.active_count()
    stream = iter(numbers().thread_map(str, concurrency=3))
    assert next(stream) == "0"
    stream.close()
    assert threading.active_count() <= before


def test_a_thread_that_cannot_be_started_is_an_error_and_no_wait(monkeypatch):
    start = threading.Thread.start

    def start_unless_it_maps(thread):
        if "thread_map" in thread.name:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_unless_it_maps)
    with pytest.raises(ResourceExhausted, match="can't start new thread"):
        list(numbers().thread_map(str))


def test_thread_map_of_a_function_that_returns_a_coroutine_names_async_map():
    async def later(number):
        return number

    def plain(number):
        coroutine = later(number)
        coroutine.close()
        return coroutine

    with pytest.raises(TypeError, match=r"thread_map\(.*use async_map"):
        list(numbers().thread_map(plain))


def test_the_wrong_kind_of_function_is_named_with_the_pipe_for_it():
    async def later(number):
        return number

    with pytest.raises(TypeError, match="use map for a plain function"):
        numbers().async_map(str)
    with pytest.raises(TypeError, match="use async_map"):
        numbers().thread_map(later)


@pytest.mark.parametrize("name", ["async_map", "thread_map"])
@pytest.mark.parametrize(
    ("concurrency", "error"), [(0, ValueError), (1.5, TypeError), ("2", TypeError)]
)
def test_concurrency_is_a_count(name, concurrency, error):
    async def later(number):
        return number

    function = later if name == "async_map" else str
    with pytest.raises(error, match="concurrency must be"):
        getattr(numbers(), name)(function, concurrency=concurrency)


@pytest.mark.parametrize("name", ["async_map", "thread_map"])
def test_what_is_no_function_is_refused(name):
    with pytest.raises(TypeError, match="fn must be callable, got int"):
        getattr(numbers(), name)(3)
