"""How epochs end: closed, abandoned, left by their loop, begun again in the midst."""

import asyncio
import gc
import logging
import sys
import threading
import warnings
from itertools import pairwise

import pytest

from asyncloader import (
    DataLoader2,
    LoopMismatchError,
    MultiProcessingReadingService,
    ReadingServiceInterface,
)
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.running.exchange import Exchange
from asyncloader.errors import IteratorInvalidated, LoaderClosed, ResourceExhausted
from asyncloader.loader import engine, epoch
from asyncloader.loader.epoch import LoopEpoch, SyncEpoch
from asyncloader.loader.iterators import SyncIterator
from asyncloader.runtime import LoopThread
from asyncloader.waiting import LoopWaiter, ThreadWaiter
from tests.descriptors import only_free
from tests.leaks import leaves_nothing
from tests.needs import LOOPS


def numbers(count: int = 1000) -> IterDataPipe[int]:
    return IterableWrapper(range(count))


class Waiting(IterDataPipe):
    """An async pipe that lets the loop run between its items."""

    def __init__(self, source):
        self.source = source

    async def __aiter__(self):
        async for item in self.source:
            await asyncio.sleep(0)
            yield item


GRAPHS = {
    "sync": lambda: numbers(),
    "async": lambda: Waiting(numbers()),
    "prefetched": lambda: numbers().prefetch(3),
    "prefetched async": lambda: Waiting(numbers()).prefetch(3),
}


@pytest.fixture(params=GRAPHS.values(), ids=GRAPHS.keys())
def graph(request):
    return request.param()


async def one(iterator):
    return await anext(iterator)


@pytest.mark.parametrize("factory", LOOPS)
def test_a_loop_closed_under_an_epoch_is_one_warning(factory, graph, caplog):
    loop = factory()
    loader = DataLoader2(graph)
    iterator = aiter(loader)
    with caplog.at_level(logging.WARNING):
        assert loop.run_until_complete(one(iterator)) == 0
        loop.close()
        del loop
        with pytest.warns(ResourceWarning, match="event loop was closed") as caught:
            del iterator
        gc.collect()
    assert len(caught) == 1
    assert caplog.records == []
    loader.shutdown()


def test_asyncio_run_leaves_nothing_to_report_after_a_break(graph, caplog):
    async def first(loader):
        async for item in loader:
            return item

    loader = DataLoader2(graph)
    with caplog.at_level(logging.WARNING):
        assert asyncio.run(first(loader)) == 0
        gc.collect()
    assert caplog.records == []
    loader.shutdown()


def test_an_interrupt_while_an_epoch_ends_comes_once(graph, monkeypatch, caplog):
    finish, interrupts = LoopEpoch._finish, [KeyboardInterrupt()]

    def interrupted(ending):
        finish(ending)
        if interrupts:
            raise interrupts.pop()

    async def all_of(loader):
        return [item async for item in loader]

    monkeypatch.setattr(LoopEpoch, "_finish", interrupted)
    loader = DataLoader2(graph)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(KeyboardInterrupt):
            asyncio.run(all_of(loader))
        gc.collect()
    assert caplog.records == []
    loader.shutdown()


def test_shutdown_does_not_wait_for_a_loop_that_stands_still(graph, monkeypatch):
    for module in (engine, epoch):
        # Who waits for the loop waits as long as that.
        monkeypatch.setattr(module, "CLOSE_SECONDS", 1000.0)
    loader = DataLoader2(graph)
    iterator = aiter(loader)
    with asyncio.Runner() as runner:
        assert runner.run(one(iterator)) == 0
        finished = threading.Event()
        threading.Thread(target=lambda: (loader.shutdown(), finished.set())).start()
        assert finished.wait(60)
        with pytest.raises(LoaderClosed):
            runner.run(one(iterator))


async def test_a_for_amid_an_async_for_of_the_same_loop_says_what_to_do():
    async with DataLoader2(Waiting(numbers())) as loader:
        iterator = aiter(loader)
        await anext(iterator)
        with pytest.raises(LoopMismatchError, match=r"await iterator.aclose\(\)"):
            list(loader)
        await iterator.aclose()
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            assert next(iter(loader)) == 0


class Recording(ReadingServiceInterface):
    """Tells of the moments of epochs, which take a turn of the loop each."""

    def __init__(self, log):
        self.log = log

    def __deepcopy__(self, memo):
        return self

    async def initialize_iteration(self, seed_generator, iter_reset_fn):
        self.log.append("begins")
        await asyncio.sleep(0)
        self.log.append("begun")
        return iter_reset_fn

    async def finalize_iteration(self):
        self.log.append("ends")
        await asyncio.sleep(0)
        self.log.append("ended")


async def test_of_many_iterators_begun_at_once_the_latest_lives():
    log = []
    async with DataLoader2(numbers(), reading_service=Recording(log)) as loader:
        await anext(aiter(loader))
        tasks = []
        for _ in range(3):
            tasks.append(asyncio.create_task(one(aiter(loader))))
            await asyncio.sleep(0)
        *older, latest = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(result) for result in older] == [IteratorInvalidated] * 2
        assert latest == 0
    assert log == ["begins", "begun", "ends", "ended"] * 2


async def test_a_task_that_waits_is_told_that_its_iterator_was_invalidated():
    never = asyncio.Event()

    async def stuck(item):
        if item == 1:
            await never.wait()
        return item

    async with DataLoader2(numbers(3).async_map(stuck)) as loader:
        older = aiter(loader)
        assert await anext(older) == 0
        waiting = asyncio.create_task(one(older))
        await asyncio.sleep(0)
        assert await anext(aiter(loader)) == 0
        with pytest.raises(IteratorInvalidated):
            await waiting


def test_shutdown_while_another_thread_is_inside_a_users_function():
    entered, leave, closed = threading.Event(), threading.Event(), threading.Event()

    def stuck(item):
        if item == 1:
            entered.set()
            leave.wait(10)
        return item

    class Source(IterDataPipe):
        def __iter__(self):
            try:
                yield from range(10)
            finally:
                closed.set()

    loader = DataLoader2(Source().map(stuck))
    seen = []

    def consume():
        try:
            for item in loader:
                seen.append(item)  # noqa: PERF402 - what came before the error counts
        except LoaderClosed as error:
            seen.append(type(error))

    thread = threading.Thread(target=consume)
    thread.start()
    assert entered.wait(10)
    loader.shutdown()
    leave.set()
    thread.join(10)
    assert closed.is_set()
    assert seen == [0, 1, LoaderClosed]


@pytest.mark.parametrize("form", ["async for", "for"])
def test_a_thread_inside_a_long_call_is_left_behind_with_a_warning(form):
    entered, leave = threading.Event(), threading.Event()

    def decode_for_ever(item):
        entered.set()
        leave.wait(60)
        return item

    graph = numbers().map(decode_for_ever)

    async def in_async_for():
        async with DataLoader2(graph) as loader:
            waiting = asyncio.create_task(one(aiter(loader)))
            await asyncio.to_thread(entered.wait, 10)
            waiting.cancel()

    def in_for():
        with DataLoader2(graph.prefetch(2)) as loader:
            thread = threading.Thread(target=lambda: list(loader_items(loader)))
            thread.start()
            entered.wait(10)
        thread.join(10)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        asyncio.run(in_async_for()) if form == "async for" else in_for()
    leave.set()
    messages = [str(each.message) for each in caught if each.category is ResourceWarning]
    assert len(messages) == 1
    assert "is still inside" in messages[0]


@pytest.mark.soak
@pytest.mark.parametrize("service", [None, MultiProcessingReadingService])
def test_an_async_function_that_blocks_is_left_behind_with_a_warning(service):
    entered, leave = threading.Event(), threading.Event()

    async def block_for_ever(item):
        entered.set()
        leave.wait(60)
        return item

    graph = numbers().map(as_it_is).async_map(block_for_ever)
    if service is not None:
        # So that it runs here, behind the workers.
        graph = numbers().map(as_it_is).pin_memory(pin_memory_fn=without_device)
        graph = graph.async_map(block_for_ever)
    loader = DataLoader2(graph, reading_service=None if service is None else service(1))
    reading = threading.Thread(target=lambda: list(loader_items(loader)))
    reading.start()
    assert entered.wait(20)
    with pytest.warns(
        ResourceWarning, match=r"still inside .*\(\) 3.0 s after the loader was closed"
    ):
        loader.shutdown()
    leave.set()
    reading.join(20)
    assert not reading.is_alive()


def as_it_is(item):
    return item


def without_device(item, device):
    return item


def loader_items(loader):
    try:
        yield from loader
    except LoaderClosed:
        return


@pytest.mark.parametrize("how", ["closed", "iterated again"])
async def test_who_waits_for_an_epoch_that_is_ended_before_its_first_step_is_told(how, graph):
    async with DataLoader2(graph) as loader:
        iterator = aiter(loader)
        waiting = asyncio.ensure_future(one(iterator))
        # Now the epoch has a task, which has not had its turn yet.
        await asyncio.sleep(0)
        if how == "closed":
            await iterator.aclose()
        else:
            assert len([item async for item in loader]) == 1000
        with pytest.raises(LoaderClosed if how == "closed" else IteratorInvalidated):
            await asyncio.wait_for(waiting, 60)


class Asked(IterDataPipe):
    """A pipe that stays with the loader: a thread that begins an epoch asks it something."""

    def __init__(self, source, when_asked, when_read):
        self.source = source
        self.when_asked = when_asked
        self.when_read = when_read

    def __deepcopy__(self, memo):
        return self

    def is_replicable(self):
        return False

    def waits(self):
        self.when_asked()
        return False

    def __iter__(self):
        self.when_read()
        yield from self.source


def test_of_two_threads_that_begin_an_epoch_neither_waits_for_ever():
    is_asked, is_read = threading.Event(), threading.Event()

    def when_asked():
        if threading.current_thread().name == "first":
            is_asked.set()
            # Long enough for the other to overtake, if it could.
            is_read.wait(0.5)

    def read():
        name = threading.current_thread().name
        assert name == "first" or is_asked.wait(60)
        try:
            outcomes[name] = sum(1 for _ in loader)
        except IteratorInvalidated:
            outcomes[name] = 0

    outcomes = {}
    graph = Asked(numbers(20_000).sharding_filter(), when_asked, is_read.set)
    service = MultiProcessingReadingService(1, main_prefetch_cnt=0)
    with DataLoader2(graph, reading_service=service) as loader:
        names = ("first", "second")
        threads = [threading.Thread(target=read, name=name, daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)

    assert 20_000 in outcomes.values()
    assert len(outcomes) == 2, "one of them waits"


class Held(ReadingServiceInterface):
    """Begins and ends when it is let go, and tells that it waits for that."""

    def __init__(self, moment):
        self.moment = moment
        self.is_entered, self.may_leave = threading.Event(), threading.Event()

    def __deepcopy__(self, memo):
        return self

    async def initialize(self, datapipe):
        await self.hold("initialize")
        return datapipe

    async def finalize(self):
        await self.hold("finalize")

    async def hold(self, moment):
        if moment == self.moment:
            self.is_entered.set()
            await asyncio.to_thread(self.may_leave.wait, 60)


async def test_shutdown_in_the_loop_that_closes_says_what_to_do_instead():
    service = Held("finalize")
    loader = DataLoader2(numbers(3), reading_service=service)
    await loader.start()
    closing = asyncio.create_task(loader.aclose())
    await asyncio.to_thread(service.is_entered.wait, 60)
    with pytest.raises(LoopMismatchError, match=r"await loader.aclose\(\)"):
        loader.shutdown()
    service.may_leave.set()
    await closing
    loader.shutdown()


def test_loops_in_two_threads_may_start_one_loader():
    service = Held("initialize")
    loader = DataLoader2(numbers(3), reading_service=service)
    outcomes = []

    async def start():
        starting = asyncio.create_task(loader.start())
        await asyncio.to_thread(service.is_entered.wait, 60)
        # Now both have asked, and one of them waits for the other.
        if barrier.wait(60) == 0:
            service.may_leave.set()
        await starting
        outcomes.append("started")

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=asyncio.run, args=(start(),), daemon=True) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == ["started"] * 2
    loader.shutdown()


@pytest.mark.parametrize(
    "use", [lambda loader: loader.__enter__(), lambda loader: next(iter(loader))]
)
def test_a_thread_whose_loader_is_shut_down_while_it_starts_is_told(use):
    service = Held("initialize")
    loader = DataLoader2(numbers(3), reading_service=service)
    errors = []

    def start():
        try:
            use(loader)
        except Exception as error:  # noqa: BLE001 - it is looked at below
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    assert service.is_entered.wait(60)
    loader.shutdown()
    service.may_leave.set()
    thread.join(60)
    assert [type(error) for error in errors] == [LoaderClosed]


class Unlucky(ReadingServiceInterface):
    """Cannot be initialized as often as it was told."""

    def __init__(self, failures):
        self.failures = failures

    def initialize(self, datapipe):
        self.failures -= 1
        if self.failures >= 0:
            raise OSError("no luck")
        return datapipe


async def begun_in_a_loop(loader):
    async with loader:
        """It does not come here."""


@pytest.mark.parametrize(
    "use", [list, lambda loader: loader.__enter__(), lambda it: asyncio.run(begun_in_a_loop(it))]
)
def test_a_start_that_fails_leaves_nothing_and_may_be_tried_again(use):
    # The first uvloop of a process opens descriptors that stay open.
    thread = LoopThread()
    thread.start()
    thread.close()
    with leaves_nothing():
        loader = DataLoader2(numbers(3), reading_service=Unlucky(failures=2))
        for _ in range(2):
            with leaves_nothing(), pytest.raises(OSError, match="no luck"):
                use(loader)
        assert list(loader) == list(loader) == [0, 1, 2]
        loader.shutdown()


def test_a_shutdown_that_has_no_descriptor_for_its_loop_may_be_tried_again():
    service = Held("finalize")
    service.may_leave.set()
    loader = DataLoader2(numbers(3), reading_service=service)
    asyncio.run(loader.start())
    with only_free(0), pytest.raises(ResourceExhausted):
        loader.shutdown()
    assert not service.is_entered.is_set()
    loader.shutdown()
    assert service.is_entered.is_set()


@pytest.mark.parametrize("how", ["iterated again", "shut down"])
def test_what_a_for_left_is_closed_in_its_own_thread(how):
    closed_in = []

    class Source(IterDataPipe):
        def __iter__(self):
            try:
                yield from range(3)
            finally:
                closed_in.append(threading.current_thread())

    with DataLoader2(Source()) as loader:
        left = iter(loader)
        assert next(left) == 0
        if how == "iterated again":
            assert list(loader) == [0, 1, 2]
    assert set(closed_in) == {threading.current_thread()}


def test_a_loader_is_closed_although_what_a_for_left_fails_to_close():
    class Source(IterDataPipe):
        def __iter__(self):
            try:
                yield 0
            finally:
                raise OSError("no more")

    service = Held("finalize")
    service.may_leave.set()
    loader = DataLoader2(Source(), reading_service=service)
    left = iter(loader)
    assert next(left) == 0
    with pytest.raises(OSError, match="no more"):
        loader.shutdown()
    assert service.is_entered.is_set()


#: What a ``next`` is made of, where something is called.
PARTS = {
    part.__code__
    for part in (
        SyncIterator.__next__,
        SyncIterator._next,
        SyncEpoch.next,
        LoopEpoch._take,
        LoopEpoch._end,
        Exchange.take,
        LoopWaiter.wake,
        ThreadWaiter.until,
        ThreadWaiter.wake,
    )
}


def take_until_interrupted(items, moment):
    """Yield items; at the call or return of that number this thread is interrupted."""

    def look(frame, event, argument):
        nonlocal moment
        moment -= frame.f_code in PARTS
        if moment < 0:
            sys.setprofile(None)
            raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        while True:
            yield next(items)
    except KeyboardInterrupt:
        return
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_goes_on_after_an_interrupt_at_any_moment(workers):
    taken = [0]

    def take():
        service = MultiProcessingReadingService(workers) if workers else None
        graph = numbers(10**9) if workers else numbers(10**9).prefetch(2)
        with DataLoader2(graph, reading_service=service) as loader:
            items = iter(loader)
            assert next(items) == 0
            for moment in range(300):
                taken.extend(take_until_interrupted(items, moment))
                # An item that was on its way may have been lost.
                taken.append(next(items))
        taken.append(None)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(60)
    assert taken.pop() is None
    assert max(later - earlier for earlier, later in pairwise(taken)) <= 2


@pytest.mark.parametrize("graph", [numbers(20).shuffle(), numbers(20).shuffle().prefetch(2)])
def test_an_epoch_that_was_interrupted_before_anything_was_seen_is_begun_again(graph):
    interrupts = iter([KeyboardInterrupt])

    def interrupt(number):
        for error in interrupts:
            raise error
        return number

    def first_epoch(loader):
        loader.seed(1)
        return list(loader)

    with DataLoader2(graph) as loader:
        expected = first_epoch(loader)
    with DataLoader2(graph.map(interrupt)) as loader:
        with pytest.raises(KeyboardInterrupt):
            first_epoch(loader)
        assert list(loader) == expected


def test_a_close_that_begins_as_its_loop_ends_is_finished_by_that_loop():
    finalized = []

    class Noting(ReadingServiceInterface):
        async def finalize(self):
            finalized.append(self)

    def interrupt():
        raise KeyboardInterrupt

    async def main():
        async with DataLoader2(numbers(), reading_service=Noting()) as loader:
            async for _ in loader:
                break
            # Strikes when the task that closes has been made, and has not run yet.
            asyncio.get_running_loop().call_soon(interrupt)

    with leaves_nothing(), pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert len(finalized) == 1


async def test_a_shutdown_that_is_refused_changes_nothing():
    async with DataLoader2(Waiting(numbers(3))) as loader:
        items = aiter(loader)
        assert await anext(items) == 0
        with pytest.raises(LoopMismatchError):
            loader.shutdown()
        assert [item async for item in items] == [1, 2]


@pytest.mark.parametrize(
    ("use", "error"),
    [(DataLoader2.shutdown, LoopMismatchError), (list, IteratorInvalidated)],
)
def test_a_function_of_the_graph_that_would_wait_for_itself_is_refused(use, error):
    async def wait_for_oneself(number):
        use(loader)

    loader = DataLoader2(numbers().async_map(wait_for_oneself))
    with pytest.raises(error):
        next(iter(loader))
    loader.shutdown()
