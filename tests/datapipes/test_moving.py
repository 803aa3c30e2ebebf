"""Moving items to a device: to_device, on a device whose copies are done when the test says so."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from queue import SimpleQueue
from typing import Any

import pytest
import torch

from asyncloader import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from asyncloader.adapters import FullSync, PinMemory, PrefetchPolicy
from asyncloader.datapipes import moving
from asyncloader.datapipes.devices import Copy
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.moving import DeviceMover
from asyncloader.datapipes.running.in_flight import HandedOver
from asyncloader.errors import ResourceExhausted
from asyncloader.graph import breadth_first
from asyncloader.loader.item_buffer import ItemBuffer
from tests.leaks import leaves_nothing

MOMENT = 20.0


class Moment:
    """An event of a device, to which it comes when a test says so."""

    def __init__(self) -> None:
        self._come = threading.Event()

    def query(self) -> bool:
        return self._come.is_set()

    def come(self) -> None:
        self._come.set()

    def wait(self) -> None:
        assert self._come.wait(MOMENT), "the device never came to this"


class Source:
    """What is copied from: an item in the host's memory."""

    def __init__(self, number: int) -> None:
        self.number = number


class ScriptedDevice:
    """A device that notes what is asked of it.

    It comes to the end of a copy, and to the use of an item, at once, or when a test says so.
    """

    def __init__(self, *, copies_at_once: bool = True, uses_at_once: bool = True) -> None:
        self.copies_at_once = copies_at_once
        self.uses_at_once = uses_at_once
        self.copies: list[Moment] = []
        self.uses: list[Moment] = []
        self.sources: list[weakref.ref[Source]] = []
        self.threads: list[int] = []
        self.most = 0
        self.fails_at = -1
        self._changed = threading.Condition()

    def __deepcopy__(self, memo: Any) -> ScriptedDevice:
        return self

    def copy(self, item: Source) -> Copy:
        with self._changed:
            if item.number == self.fails_at:
                raise torch.OutOfMemoryError("no room on the device")
            done = Moment()
            if self.copies_at_once:
                done.come()
            self.copies.append(done)
            self.sources.append(weakref.ref(item))
            self.most = max(self.most, len(self.copies) - len(self.uses))
            self._changed.notify_all()
        return Copy(item.number, done, [item])

    def hand_over(self, copy: Copy) -> Moment:
        with self._changed:
            reached = Moment()
            if self.uses_at_once:
                reached.come()
            self.uses.append(reached)
            self.threads.append(threading.get_ident())
            self._changed.notify_all()
        return reached

    def wait(self, event: Any) -> None:
        event.wait()

    def until_copied(self, count: int) -> None:
        """Wait until so many copies have begun."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.copies) >= count, MOMENT)

    def until_taken(self, count: int) -> None:
        """Wait until so many items were handed over."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.uses) >= count, MOMENT)

    def come_to_everything(self) -> None:
        self.copies_at_once = self.uses_at_once = True
        for each in [*self.copies, *self.uses]:
            each.come()


class ToScripted(DeviceMover[Any]):
    """A to_device whose device is scripted."""

    def __init__(self, source: Any, device: ScriptedDevice, ahead: int = 2) -> None:
        super().__init__(source, device, ahead)

    def open_device(self, current: int | None) -> ScriptedDevice:
        scripted: ScriptedDevice = self.device
        return scripted


def moved(device: ScriptedDevice, count: int = 20, ahead: int = 2) -> ToScripted:
    return ToScripted(IterableWrapper(range(count)).map(Source), device, ahead)


async def in_thread(function: Callable[[], object]) -> None:
    """Call a function in a thread that ends with it."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def run() -> None:
        function()
        loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=run)
    thread.start()
    await done.wait()
    thread.join(MOMENT)


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_it_is_so_many_items_ahead_of_its_consumer_and_no_more(ahead):
    device = ScriptedDevice()
    with DataLoader2(moved(device, ahead=ahead)) as loader:
        for taken, number in enumerate(loader, 1):
            assert number == taken - 1
            device.until_copied(min(20, taken + ahead))
    assert device.most == ahead


@pytest.mark.parametrize("ahead", [1, 2, 5])
async def test_an_async_for_has_the_same_bound(ahead):
    device = ScriptedDevice()
    async with DataLoader2(moved(device, ahead=ahead)) as loader:
        taken = 0
        async for number in loader:
            assert number == taken
            taken += 1
            await in_thread(lambda: device.until_copied(min(20, taken + ahead)))  # noqa: B023
    assert device.most == ahead


async def test_an_item_counts_until_the_device_is_done_with_those_before_it():
    device = ScriptedDevice(uses_at_once=False)
    async with DataLoader2(moved(device)) as loader:
        items = aiter(loader)
        assert [await anext(items), await anext(items)] == [0, 1]
        third = asyncio.ensure_future(anext(items))
        await asyncio.wait([third], timeout=0.05)
        assert not third.done()
        assert len(device.copies) == 2
        device.uses[0].come()
        assert await third == 2
        assert len(device.copies) == 3
        device.come_to_everything()


def test_an_item_is_handed_over_in_the_thread_that_takes_it():
    device = ScriptedDevice()
    with DataLoader2(moved(device)) as loader:
        items = iter(loader)
        threads = []

        def take() -> None:
            next(items)
            threads.append(threading.get_ident())

        for _ in range(3):
            thread = threading.Thread(target=take)
            thread.start()
            thread.join(MOMENT)
        take()
    assert device.threads == threads


async def test_an_async_for_hands_over_on_its_own_loop():
    device = ScriptedDevice()
    async with DataLoader2(moved(device)) as loader:
        assert [item async for item in loader] == list(range(20))
    assert [number async for number in moved(device)] == list(range(20))
    assert set(device.threads) == {threading.get_ident()}
    assert len(device.threads) == 40


def test_a_source_is_kept_until_its_copy_is_done_and_no_longer():
    device = ScriptedDevice(copies_at_once=False)
    with DataLoader2(moved(device)) as loader:
        items = iter(loader)
        assert list(islice(items, 3)) == [0, 1, 2]
        gc.collect()
        assert all(source() is not None for source in device.sources)
        gone = threading.Event()
        weakref.finalize(device.sources[0](), gone.set)
        device.copies[0].come()
        # Nobody asks the loader for anything.
        assert gone.wait(MOMENT)
        assert device.sources[1]() is not None
        device.come_to_everything()


@pytest.mark.parametrize("is_left", [False, True], ids=["at its end", "when it is left"])
def test_an_epoch_waits_for_its_copies(is_left):
    device = ScriptedDevice(copies_at_once=False)
    with DataLoader2(moved(device)) as loader:
        items = iter(loader)
        assert next(items) == 0
        device.until_copied(3)
        threading.Timer(0.2, device.come_to_everything).start()
        if not is_left:
            assert list(items) == list(range(1, 20))
    assert all(copy.query() for copy in device.copies)
    gc.collect()
    assert [source() for source in device.sources] == [None] * len(device.sources)


def test_an_error_of_a_copy_comes_in_its_items_place():
    device = ScriptedDevice()
    device.fails_at = 3
    with DataLoader2(moved(device)) as loader:
        items = iter(loader)
        assert list(islice(items, 3)) == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(torch.OutOfMemoryError, match="no room"):
                next(items)
        device.fails_at = -1
        assert list(loader) == list(range(20))


def test_where_no_thread_can_be_started_the_copy_is_waited_for(monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise ResourceExhausted(f"no thread for {thread.name}")

    class Coming(ScriptedDevice):
        def wait(self, event: Any) -> None:
            event.come()

    device = Coming(copies_at_once=False)
    monkeypatch.setattr(moving, "start_thread", refuse)
    with DataLoader2(moved(device)) as loader:
        with pytest.raises(ResourceExhausted, match="no thread for asyncloader"):
            next(iter(loader))
        assert [copy.query() for copy in device.copies] == [True]


async def test_an_error_of_the_source_comes_in_its_items_place():
    def fails_at_3(number: int) -> Source:
        if number == 3:
            raise LookupError(number)
        return Source(number)

    device = ScriptedDevice(copies_at_once=False)
    graph = ToScripted(IterableWrapper(range(9)).map(fails_at_3), device)
    async with DataLoader2(graph) as loader:
        items = aiter(loader)
        threading.Timer(0.1, device.come_to_everything).start()
        assert [await anext(items) for _ in range(3)] == [0, 1, 2]
        with pytest.raises(LookupError):
            await anext(items)


@pytest.mark.parametrize("form", ["sync", "async", "cancelled", "by itself"])
async def test_leaving_it_leaves_nothing_though_the_device_comes_to_nothing_more(form):
    device = ScriptedDevice(uses_at_once=False)
    threads = set(threading.enumerate())
    with leaves_nothing():
        if form == "sync":
            await in_thread(lambda: _left(device))
        elif form == "async":
            async with DataLoader2(moved(device)) as loader:
                await anext(aiter(loader))
            del loader
        elif form == "cancelled":
            await _cancelled(device)
        else:
            items = aiter(moved(device))
            await anext(items)
            await items.aclose()
            del items
        device.come_to_everything()
        for thread in set(threading.enumerate()) - threads:
            if thread.name.startswith("asyncloader"):
                thread.join(MOMENT)
    assert len(device.copies) <= 3


def _left(device: ScriptedDevice) -> None:
    with DataLoader2(moved(device)) as loader:
        assert next(iter(loader)) == 0


async def _cancelled(device: ScriptedDevice) -> None:
    async with DataLoader2(moved(device)) as loader:
        task = asyncio.ensure_future(_all_of(loader))
        # It has taken two, and waits for the device.
        await in_thread(lambda: device.until_taken(2))
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _all_of(loader: Any) -> list[Any]:
    return [item async for item in loader]


def test_by_itself_it_is_not_ahead_and_keeps_nothing():
    class Coming(ScriptedDevice):
        def wait(self, event: Any) -> None:
            event.come()

    device = Coming(copies_at_once=False)
    for taken, number in enumerate(moved(device), 1):
        assert (number, len(device.copies), len(device.uses)) == (taken - 1, taken, taken)
        assert device.copies[-1].query()
        # The source itself may keep what it yielded last.
        assert [source() for source in device.sources[:-1]] == [None] * (taken - 1)
    assert set(device.threads) == {threading.get_ident()}


def test_a_taken_item_is_kept_by_nobody_else():
    class Box:
        pass

    class Boxing(ScriptedDevice):
        def copy(self, item: Source) -> Copy:
            copy = super().copy(item)
            copy.item = Box()
            return copy

    device = Boxing()
    with DataLoader2(moved(device, ahead=4)) as loader:
        items = iter(loader)
        next(items)
        device.until_copied(5)
        taken = [weakref.ref(next(items)) for _ in range(2)]
        assert [box() for box in taken] == [None, None]


def test_a_limit_and_a_pause_keep_items_in_flight():
    device = ScriptedDevice()
    with DataLoader2(moved(device, ahead=5)) as loader:
        items = iter(loader)
        taken = [next(items)]
        device.until_copied(6)
        items.limit(2)
        taken += list(items)
        assert taken == [0, 1, 2]
        items.limit(None)
        items.resume()
        taken += islice(items, 2)
        items.pause()
        assert list(items) == []
        assert len(device.threads) == len(taken)
        items.resume()
        assert taken + list(items) == list(range(20))


def test_a_state_counts_what_the_consumer_has():
    device = ScriptedDevice()
    loader = DataLoader2(moved(device, ahead=5))
    with loader:
        items = iter(loader)
        assert list(islice(items, 4)) == [0, 1, 2, 3]
        device.until_copied(9)
        state = loader.state_dict(include_datapipe=False)
    resumed = DataLoader2(moved(device, ahead=5))
    resumed.load_state_dict(state)
    with resumed:
        assert list(resumed) == list(range(4, 20))


def test_an_item_is_not_lost_when_handing_it_over_fails():
    class Failing:
        tries = 0

        def hand_over(self) -> str:
            self.tries += 1
            if self.tries == 1:
                raise KeyboardInterrupt
            return "item"

    buffer = ItemBuffer()
    buffer.reader = HandedOver
    buffer.incoming += [Failing()]
    buffer.let_in()
    with pytest.raises(KeyboardInterrupt):
        next(buffer.ready)
    assert buffer.passed == 0
    assert list(buffer.ready) == ["item"]
    assert buffer.passed == 1


def test_its_stage_says_how_many_items_are_on_their_way():
    device = ScriptedDevice()
    with DataLoader2(moved(device, ahead=3)) as loader:
        items = iter(loader)
        assert next(items) == 0
        device.until_copied(4)
        (stage,) = [stage for stage in loader.stats().stages if "device" in stage.name.lower()]
        assert (stage.held, stage.room) == (3, 3)


# Its place in a graph -------------------------------------------------------------------


def make(number: int) -> dict[str, Any]:
    return {"x": torch.full((100_000,), number), "number": number}


def on_cpu(count: int = 12) -> IterDataPipe[dict[str, Any]]:
    return IterableWrapper(range(count)).sharding_filter().map(make).to_device("cpu")


def numbers_of(items: Any) -> list[int]:
    return [int(item["x"].sum()) // 100_000 for item in items]


def test_it_stays_with_the_loader_and_its_items_come_from_workers():
    service = MultiProcessingReadingService(2)
    with DataLoader2(on_cpu(), reading_service=service) as loader:
        assert numbers_of(loader) == list(range(12))
        assert numbers_of(loader) == list(range(12))
        (stage,) = [stage for stage in loader.stats().stages if "to_device" in stage.name]
        assert stage.where == "loader"


class SlowDevice(ScriptedDevice):
    """A device that copies in a thread of its own, a little later, and knows addresses only."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: SimpleQueue[tuple[int, int, int, Moment] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def copy(self, item: torch.Tensor) -> Copy:
        target, done = torch.empty_like(item), Moment()
        self._queue.put((target.data_ptr(), item.data_ptr(), item.nbytes, done))
        return Copy((target, done), done, [item])

    def _run(self) -> None:
        while (given := self._queue.get()) is not None:
            target, source, nbytes, done = given
            # The workers are quicker than this.
            threading.Event().wait(0.002)
            ctypes.memmove(target, source, nbytes)
            done.come()

    def end(self) -> None:
        self._queue.put(None)
        self._thread.join(MOMENT)


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_workers_write_into_memory_again_only_when_it_was_copied(form):
    device = SlowDevice()
    graph = ToScripted(IterableWrapper(range(100)).sharding_filter().map(filled), device, 4)
    loader = DataLoader2(graph, reading_service=MultiProcessingReadingService(2))
    found: list[Any] = []
    if form == "sync":
        await in_thread(lambda: found.extend(_shut_down(loader)))
    else:
        async with loader:
            found = [item async for item in loader]
    device.end()
    for number, (target, done) in enumerate(found):
        assert done.query()
        assert (target == number).all(), number


def _shut_down(loader: DataLoader2[Any]) -> list[Any]:
    with loader:
        return list(loader)


def filled(number: int) -> torch.Tensor:
    return torch.full((50_000,), number)


def test_it_has_to_be_the_last_pipe():
    loader = DataLoader2(on_cpu().map(str), reading_service=MultiProcessingReadingService(1))
    with pytest.raises(ValueError, match="must be the last pipe of a loader's graph"):
        next(iter(loader))
    loader.shutdown()


def test_it_has_to_be_last_in_what_a_service_makes_of_the_graph():
    service = InProcessReadingService(init_fn=lambda graph: graph.header(2))
    with (
        DataLoader2(on_cpu(), reading_service=service) as loader,
        pytest.raises(ValueError, match="must be the last pipe of a loader's graph"),
    ):
        next(iter(loader))


@pytest.mark.parametrize(
    "service", [InProcessReadingService(4), MultiProcessingReadingService(0, main_prefetch_cnt=4)]
)
def test_a_service_reads_nothing_ahead_of_it(service):
    with DataLoader2(on_cpu(), reading_service=service) as loader:
        assert numbers_of(loader) == list(range(12))


def test_adapters_put_their_pipes_before_it():
    graph = PrefetchPolicy(3)(FullSync(60)(on_cpu()))
    assert isinstance(graph, DeviceMover)
    names = [type(pipe).functional_name for pipe in breadth_first(graph)]
    assert names[:3] == ["to_device", "prefetch", "fullsync"]
    assert PinMemory()(graph) is graph


def test_adapters_add_nothing_twice_before_it():
    graph = FullSync(60)(on_cpu())
    assert FullSync(60)(graph) is graph


def test_a_device_that_is_not_there_is_an_error_before_the_first_item():
    made = []
    graph = IterableWrapper(range(3)).map(made.append).to_device("cuda:99")
    with DataLoader2(graph) as loader, pytest.raises(RuntimeError, match="found no such device"):
        next(iter(loader))
    with pytest.raises(RuntimeError, match="choose one that this machine has"):
        next(iter(graph))
    assert made == []


@pytest.mark.parametrize(("ahead", "error"), [(0, ValueError), (1.5, TypeError)])
def test_ahead_is_a_count(ahead, error):
    with pytest.raises(error, match="ahead must be"):
        IterableWrapper([]).to_device("cpu", ahead)


# What is moved --------------------------------------------------------------------------


class Movable:
    """Something of the user's that moves itself."""

    def __init__(self, device: str = "nowhere") -> None:
        self.device = device

    def to(self, device: Any, **how: Any) -> Movable:
        return Movable(str(device))


def test_containers_are_walked_and_objects_move_themselves():
    item = {"a": [torch.ones(2), Movable()], "b": ("text", b"bytes", 3, None)}
    (found,) = IterableWrapper([item]).to_device("cpu")
    assert found["a"][1].device == "cpu"
    assert found["b"] == item["b"]
    assert item["a"][1].device == "nowhere"


def test_a_subclass_that_is_iterated_in_its_own_way_is_just_iterated():
    class Own(DeviceMover[Any]):
        def __iter__(self) -> Iterator[Any]:
            yield from (1, 2)

    with DataLoader2(Own(IterableWrapper([0]))) as loader:
        assert list(loader) == [1, 2]
