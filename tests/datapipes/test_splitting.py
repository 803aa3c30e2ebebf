from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from queue import SimpleQueue
from time import sleep
from typing import Any, ClassVar

import numpy
import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader import DataLoader2
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.iter import Forker, IterableWrapper, SampleMultiplexer
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.cursor_history import Pace
from asyncloader.datapipes.running.run_place import Home, run_at
from asyncloader.datapipes.running.watch.frames import latest_pass
from asyncloader.datapipes.split_pass import SplitPass, SplitStart
from asyncloader.errors import IteratorInvalidated, SnapshotError
from tests.datapipes.resuming import (
    assert_goes_on,
    assert_goes_on_twice,
)
from tests.datapipes.watched import Failing, Watched, WatchedAsync


def parity(number: int) -> int:
    return number % 2


class Passes(IterDataPipe[int]):
    """Yields the number of its pass, again and again."""

    edges = ()
    count = 0

    def __iter__(self) -> Iterator[int]:
        self.count += 1
        yield from [self.count] * 8


def odd_only(number: int) -> int | None:
    return 0 if number % 2 else None


#: Each splits a source in two.
SPLITTERS: dict[str, Any] = {
    "fork": lambda source, **settings: source.fork(2, **settings),
    "demux": lambda source, **settings: source.demux(2, parity, **settings),
    "round_robin_demux": lambda source, **settings: source.round_robin_demux(2, **settings),
}
every_splitter = pytest.mark.parametrize("name", SPLITTERS)
SHARES = {"fork": (range(8), range(8))}
SHARES |= dict.fromkeys(["demux", "round_robin_demux"], (range(0, 8, 2), range(1, 8, 2)))


def shares(name: str) -> list[list[int]]:
    return [list(share) for share in SHARES[name]]


@every_splitter
def test_branches_are_read_one_after_the_other_or_in_turn(name: str) -> None:
    left, right = SPLITTERS[name](IterableWrapper(range(8)))

    assert [list(left), list(right)] == shares(name)
    assert [list(right), list(left)] == shares(name)[::-1]
    assert [list(column) for column in zip(*left.zip(right), strict=True)] == shares(name)


@every_splitter
def test_a_splitter_is_one_pipe_between_the_source_and_its_branches(name: str) -> None:
    source = IterableWrapper(range(8))
    left, right = SPLITTERS[name](source)

    assert left.source is right.source
    assert left.source.source is source
    assert repr(right).endswith("[1]")
    with pytest.raises(TypeError, match="through its branches"):
        iter(left.source)


@every_splitter
async def test_branches_can_be_read_on_a_loop(name: str) -> None:
    left, right = SPLITTERS[name](WatchedAsync(range(8)))

    assert [n async for n in left] == shares(name)[0]
    assert [n async for n in right] == shares(name)[1]


@every_splitter
def test_a_branch_that_begins_again_invalidates_the_iterators_of_the_pass(name: str) -> None:
    source = Watched(range(8))
    left, right = SPLITTERS[name](source)
    first, second = iter(left), iter(right)
    next(first)
    again = iter(left)

    assert source.open == 0
    for iterator in (first, second, first):
        with pytest.raises(IteratorInvalidated, match="iterator has been invalidated"):
            next(iterator)
    joins = iter(right)
    assert [list(again), list(joins)] == shares(name)


@every_splitter
def test_a_pass_that_all_have_left_closes_the_source(name: str) -> None:
    source = Watched(range(8))
    left, right = SPLITTERS[name](source)
    first, second = iter(left), iter(right)
    next(first)
    first.close()
    assert source.open == 1
    assert next(second) == shares(name)[1][0]
    del second

    assert source.open == 0
    assert not any(latest_pass(left.source).queues)


@every_splitter
def test_a_branch_that_comes_when_the_others_have_left_gets_what_is_its_own(name: str) -> None:
    source = Watched(range(8))
    left, right = SPLITTERS[name](source)
    for _ in left:
        break

    # Read again it might yield other items.
    assert source.open == 1
    assert list(right) == shares(name)[1]
    assert source.open == 0
    assert list(left) == shares(name)[0]


class FromQueue(IterDataPipe[int]):
    """Yields what is in a queue, which nobody can read again."""

    def __init__(self, count: int) -> None:
        self.queue: SimpleQueue[int | None] = SimpleQueue()
        for number in [*range(count), None]:
            self.queue.put(number)

    def __iter__(self) -> Iterator[int]:
        yield from iter(self.queue.get, None)


#: Sources that are read once, or that would yield something else when they are read again.
ONCE: dict[str, Callable[[], Any]] = {
    "a queue": lambda: FromQueue(12),
    "a queue, read ahead": lambda: FromQueue(12).prefetch(2),
    "a generator": lambda: IterableWrapper((number for number in range(12)), deepcopy=False),
    "without order": lambda: IterableWrapper(range(12)).thread_map(
        lambda number: sleep(0.01 * (number % 4)) or number, concurrency=4, ordered=False
    ),
}


@pytest.mark.parametrize("name", ONCE)
@pytest.mark.parametrize("is_in_loader", [True, False])
@pytest.mark.filterwarnings("ignore:the length of header")
def test_the_source_is_read_once_though_a_branch_comes_when_the_others_have_left(
    name: str, is_in_loader: bool
) -> None:
    left, right = ONCE[name]().fork(2)
    graph = left.header(3).concat(right)
    if is_in_loader:
        with DataLoader2(graph) as loader:
            items = list(loader)
    else:
        items = list(graph)
    assert items[:3] == items[3:6]
    assert sorted(items[3:]) == list(range(12))


class Closing(IterDataPipe[int]):
    """Notes the end of each of its passes where copies of it do, too."""

    ended: ClassVar[list[int]] = []

    def __iter__(self) -> Iterator[int]:
        try:
            yield from range(8)
        finally:
            self.ended.append(8)


@every_splitter
async def test_an_epoch_closes_the_source_that_a_branch_never_came_for(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[int] = []
    monkeypatch.setattr(Closing, "ended", ended)
    left, right = SPLITTERS[name](Closing())
    many = IterableWrapper(range(10, 10**6))
    async with DataLoader2(left.header(1).concat(many, right)) as loader:
        epoch = aiter(loader)
        assert [await anext(epoch), await anext(epoch)] == [shares(name)[0][0], 10]
        assert not ended
        await epoch.aclose()
        assert ended == [8]


#: Sources whose passes differ, of which some run ahead of what says where they stand.
DRAWN: dict[str, Callable[[IterDataPipe[int]], IterDataPipe[int]]] = {
    "shuffled": lambda numbers: numbers.shuffle(),
    "shuffled ahead": lambda numbers: numbers.shuffle(buffer_size=7).prefetch(2),
    "in other rounds": lambda numbers: numbers.shuffle().cycle(1).prefetch(3),
}


@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_branches_read_one_after_the_other_get_every_item_once(name: str, taken: int) -> None:
    first, *others = DRAWN[name](IterableWrapper(range(21))).round_robin_demux(3)
    with DataLoader2(first.header(taken).concat(*others)) as loader:
        for items in (list(loader), list(loader)):
            assert len(items) == len(set(items)) == 14 + taken


def test_a_branch_that_begins_again_alone_draws_anew() -> None:
    left, _ = IterableWrapper(range(100)).shuffle().round_robin_demux(2)
    firsts = {next(iter(left)) for _ in range(20)}

    assert len(firsts) > 1


def test_an_epoch_hands_out_nothing_of_the_one_before() -> None:
    left, right = Passes().round_robin_demux(2)
    with DataLoader2(left.header(1).concat(right)) as loader:
        epochs = [set(loader) for _ in range(3)]

    assert epochs == [{1}, {2}, {3}]


@every_splitter
def test_who_has_left_gets_nothing_more_and_is_in_nobodys_way(name: str) -> None:
    left, right = SPLITTERS[name](IterableWrapper(range(100)), buffer_size=2)
    first, second = iter(left), iter(right)
    next(first)
    first.close()

    assert len(list(second)) == len(right if name == "fork" else range(50))
    assert list(first) == []


@every_splitter
def test_an_error_of_the_source_reaches_every_branch_in_its_place(name: str) -> None:
    left, right = SPLITTERS[name](Failing(range(8), KeyError("source")))

    for branch, share in ((iter(left), shares(name)[0]), (iter(right), shares(name)[1])):
        assert [next(branch) for _ in share] == share
        for _ in range(2):
            with pytest.raises(KeyError, match="source"):
                next(branch)


@pytest.mark.parametrize("ahead", [0, 1, 3])
@every_splitter
def test_the_buffer_overflows_where_that_of_torch_does(name: str, ahead: int) -> None:
    def items_before_overflow(source: Any) -> int:
        leading, _ = (iter(branch) for branch in SPLITTERS[name](source, buffer_size=ahead))
        count = 0
        with pytest.raises(BufferError):
            for count, _item in enumerate(leading, 1):  # noqa: B007
                pass
        return count

    ours = items_before_overflow(IterableWrapper(range(99)))
    if name == "round_robin_demux":
        assert ours == ahead + 1
    else:
        assert ours == items_before_overflow(torch_iter.IterableWrapper(range(99)))


@every_splitter
def test_an_overflow_says_what_to_do_and_is_final(name: str) -> None:
    left, right = SPLITTERS[name](IterableWrapper(range(8)), buffer_size=1)
    first, second = iter(left), iter(right)

    for _ in range(2):
        with pytest.raises(BufferError, match=r"more than 1 items .*buffer_size larger"):
            list(first)
    assert next(second) == shares(name)[1][0]
    for _ in range(2):
        with pytest.raises(BufferError, match=r"more than 1 items .*buffer_size larger"):
            list(first)


@pytest.mark.parametrize("ahead", [1, 2, 4])
@every_splitter
def test_the_others_overflow_where_those_of_torch_do(name: str, ahead: int) -> None:
    def after_overflow(source: Any) -> list[Any]:
        leading, other = (iter(branch) for branch in SPLITTERS[name](source, buffer_size=ahead))
        with pytest.raises(BufferError):
            list(leading)
        items = []
        try:
            for item in other:
                items.append(item)  # noqa: PERF402 - what came before an error counts
        except BufferError:
            items.append("overflow")
        return items

    ours = after_overflow(IterableWrapper(range(99)))
    assert ours[-1] == "overflow"
    if name != "round_robin_demux":
        assert ours == after_overflow(torch_iter.IterableWrapper(range(99)))


@every_splitter
def test_a_buffer_without_bound_draws_a_warning(name: str) -> None:
    with pytest.warns(UserWarning, match="without limit") as caught:
        left, right = SPLITTERS[name](IterableWrapper(range(5000)), buffer_size=-1)
    assert caught[0].filename == __file__
    assert len(list(left)) + len(list(right)) in (5000, 10_000)


@every_splitter
def test_a_branch_that_was_not_iterated_again_joins_the_pass_under_way(name: str) -> None:
    source = Watched(range(8))
    left, right = SPLITTERS[name](source)
    iterator = iter(left)
    next(iterator)

    assert list(right) == shares(name)[1]
    assert list(iterator) == shares(name)[0][1:]
    assert source.taken == 8


@every_splitter
def test_a_pass_shows_what_was_taken_and_what_waits(name: str) -> None:
    left, right = SPLITTERS[name](IterableWrapper(range(8)))
    first, second = iter(left), iter(right)
    next(first), next(first)
    state = latest_pass(left.source)

    assert state.taken == (2 if name == "fork" else 3)
    assert list(state.queues[1]) == ([0, 1] if name == "fork" else [1])
    assert next(second) == shares(name)[1][0]


@every_splitter
def test_branches_read_in_different_threads_share_the_items(name: str) -> None:
    source = Watched(range(3000))
    branches = SPLITTERS[name](source, buffer_size=3000)
    iterators = [iter(branch) for branch in branches]
    got: list[list[int]] = [[], []]
    ready = threading.Barrier(2)

    def read(index: int) -> None:
        ready.wait()
        got[index].extend(iterators[index])

    threads = [threading.Thread(target=read, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    expected = {"fork": (range(3000),) * 2}.get(name, (range(0, 3000, 2), range(1, 3000, 2)))
    assert got == [list(share) for share in expected]
    assert (source.taken, source.open) == (3000, 0)


@every_splitter
def test_an_iterator_that_is_collected_within_a_draw_does_no_harm(name: str) -> None:
    class Collecting(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            for number in range(8):
                if number == 3:
                    gc.collect()
                yield number

    left, right = SPLITTERS[name](Collecting())
    first, cycle = iter(left), [iter(right)]
    cycle.append(cycle)  # type: ignore[arg-type]
    del cycle

    assert list(first) == shares(name)[0]


def test_lengths_are_known_where_they_follow_from_that_of_the_source() -> None:
    source = IterableWrapper(range(8))

    assert [len(branch) for branch in source.fork(2)] == [8, 8]
    assert [len(branch) for branch in source.round_robin_demux(3)] == [3, 3, 2]
    with pytest.raises(TypeError, match="how many"):
        len(source.demux(2, parity)[0])


@pytest.mark.parametrize(("copy", "is_same"), [(None, True), ("shallow", False), ("deep", False)])
def test_fork_copies_items_as_it_is_told(copy: Any, is_same: bool) -> None:
    rows = [[[1]]]
    left, right = IterableWrapper(rows).fork(2, copy=copy)
    (one,), (other,) = left, right

    assert (one is other) == is_same
    assert (one[0] is other[0]) == (copy != "deep")
    with pytest.raises(ValueError, match='"shallow" or "deep", got 5'):
        IterableWrapper(rows).fork(2, copy=5)  # type: ignore[arg-type]


def test_one_branch_is_a_list_of_one() -> None:
    (branch,) = Forker([1, 2], 1)

    assert list(branch) == [1, 2]


def test_demux_drops_none_where_that_is_allowed() -> None:
    source = IterableWrapper(range(6))

    assert list(source.demux(1, odd_only, drop_none=True)[0]) == [1, 3, 5]
    with pytest.raises(ValueError, match="drop_none=True"):
        list(source.demux(1, odd_only)[0])


def test_demux_takes_bools_of_numpy_as_those_of_python() -> None:
    small, large = IterableWrapper(numpy.arange(4)).demux(2, lambda n: n > 1)

    assert (list(small), list(large)) == ([0, 1], [2, 3])


@pytest.mark.parametrize(("answer", "error"), [(2, ValueError), (-1, ValueError), ("a", TypeError)])
def test_a_branch_that_does_not_exist_is_an_error(answer: Any, error: type[Exception]) -> None:
    left, right = IterableWrapper([1]).demux(2, lambda n: answer)

    for branch in (left, right):
        with pytest.raises(error, match="classifier_fn must return"):
            list(branch)


async def test_demux_awaits_async_functions() -> None:
    async def classify(number: int) -> int:
        return number % 2

    left, right = IterableWrapper(range(8)).demux(2, classify)

    assert left.source.waits()
    assert [row async for row in left.zip(right)] == [(0, 1), (2, 3), (4, 5), (6, 7)]


def test_a_failing_classifier_names_its_pipe_in_a_note() -> None:
    left, _ = IterableWrapper([0]).demux(2, lambda n: 1 // n)

    with pytest.raises(ZeroDivisionError) as caught:
        list(left)
    assert caught.value.__notes__ == ["raised in demux(2, classifier_fn=<lambda>)"]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((0,), ValueError, "num_instances must be at least 1, got 0"),
        ((2, -2), ValueError, "buffer_size must be at least -1, got -2"),
        (("2",), TypeError, "num_instances must be an integer, got str"),
    ],
)
def test_bad_settings_are_refused(arguments: Any, error: type[Exception], message: str) -> None:
    for split in (IterableWrapper([1]).fork, IterableWrapper([1]).round_robin_demux):
        with pytest.raises(error, match=message):
            split(*arguments)


async def test_a_thread_that_stops_drawing_leaves_the_others_their_items() -> None:
    class Waiting(IterDataPipe[int]):
        async def __aiter__(self) -> AsyncIterator[int]:
            for number in range(20):
                await asyncio.sleep(0.001)
                yield number

    async def both_in_threads() -> list[int]:
        first, second = (aiter(branch) for branch in Waiting().fork(2))
        assert [await anext(first), await anext(second)] == [0, 0]
        await first.aclose()
        return [item async for item in second]

    home = Home(asyncio.get_running_loop())
    loop = asyncio.get_running_loop()
    assert await loop.create_task(both_in_threads(), context=run_at(home)) == list(range(1, 20))
    await home.aclose()


def even(number: int) -> bool:
    return number % 2 == 0


# The branches of these end at different times, or are read ahead to their ends.
ENDINGS: dict[str, Any] = {
    "ahead, first": lambda a, b: a.prefetch(8).map(str).zip(b),
    "ahead, second": lambda a, b: a.map(str).zip(b.prefetch(8)),
    "batches": lambda a, b: a.map(str).zip_longest(b.batch(2)),
    "batches, first": lambda a, b: a.batch(2).zip_longest(b.map(str)),
    "header": lambda a, b: a.header(3).zip_longest(b.map(str)),
    "header over filter": lambda a, b: a.filter(even).header(2).zip_longest(b.map(str)),
    "header, second": lambda a, b: a.map(str).zip_longest(b.header(3)),
    "filter": lambda a, b: a.map(str).zip_longest(b.filter(even)),
    "concat": lambda a, b: a.map(str).concat(b.filter(even)),
    "concat of what is ahead": lambda a, b: a.prefetch(3).concat(b.prefetch(2)),
    "mux_longest": lambda a, b: a.filter(even).map(str).mux_longest(b.map(str)),
    "mux_longest, ahead": lambda a, b: a.batch(3).prefetch(2).mux_longest(b.map(str)),
    "SampleMultiplexer": lambda a, b: SampleMultiplexer({a.batch(3): 3, b.map(str): 1}, seed=1),
    "shuffle": lambda a, b: a.shuffle(buffer_size=3).set_seed(1).zip_longest(b.batch(3)),
}


@pytest.mark.parametrize("name", ENDINGS)
def test_branches_go_on_where_some_have_ended(name: str) -> None:
    assert_goes_on(lambda: ENDINGS[name](*IterableWrapper(range(12)).fork(2)))


@pytest.mark.sweep
@pytest.mark.parametrize("name", ENDINGS)
def test_branches_go_on_twice_where_some_have_ended(name: str) -> None:
    source = IterableWrapper(range(12))
    assert_goes_on_twice(lambda: ENDINGS[name](*source.filter(bool).demux(2, is_low)))


# The first ends after it has taken one item more than it gives; the others give none.
ENDED_AHEAD: dict[str, Any] = {
    "zip": lambda a, b, c: b.zip_longest(a.zip(c)),
    "zip without an item": lambda a, b, c: b.zip_longest(a.zip(c.filter(is_below_0))),
    "packs without an item": lambda a, b, c: a.concat(
        b.zip_longest(c.filter(is_below_0).pack_sequences(6, len_fn=int, open_packs=2))
    ),
    "shuffle without an item": lambda a, b, c: a.concat(
        b.zip_longest(c.filter(is_below_0).shuffle(buffer_size=3).set_seed(1))
    ),
}


def is_below_0(number: int) -> bool:
    return number < 0


def of_three(number: int) -> int:
    return 2 if number in (3, 8) else number % 2


@pytest.mark.parametrize("splits", ["three", "all in two"])
@pytest.mark.parametrize("name", ENDED_AHEAD)
def test_branches_go_on_where_what_reads_one_ended_ahead_of_it(name: str, splits: str) -> None:
    choice = of_three if splits == "three" else parity
    assert_goes_on_twice(lambda: ENDED_AHEAD[name](*IterableWrapper(range(12)).demux(3, choice)))


def is_low(number: int) -> bool:
    return number < 4


def is_one(number: int) -> int:
    return int(number == 1)


def test_a_branch_that_stays_behind_does_not_make_a_pass_remember_more_and_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Pace, "is_due", lambda pace: True)

    def graph() -> Any:
        many, one = IterableWrapper(range(3_000)).demux(2, is_one)
        return many.concat(one)

    wanted = [0, *range(2, 3_000), 1]
    with DataLoader2(graph()) as loader:
        items = iter(loader)
        assert [next(items) for _ in range(2_000)] == wanted[:2_000]
        assert sum(isinstance(each, SplitStart) for each in gc.get_objects()) < 600
        state = loader.state_dict(include_datapipe=False)
        assert list(items) == wanted[2_000:]
    with DataLoader2.from_state(state, datapipe=graph()) as loader:
        assert list(loader) == wanted[2_000:]


def twofold(number: int) -> tuple[int, int]:
    return number, number


def test_branches_that_other_splitters_read_resume_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Whichever splitter draws first, the one above begins where the slowest of its branches was.
    monkeypatch.setattr(Pace, "made", lambda pace, begun: None)
    read: list[int] = []

    def noted(number: int) -> int:
        read.append(number)
        return number

    def graph() -> Any:
        even, odd = SequenceWrapper(range(30)).shuffle().map(noted).demux(2, parity)
        left, right = odd.map(twofold).unzip(2)
        first, second = even.repeat(2).map(twofold).unzip(2)
        return first.mux(right.zip_longest(left), second)

    with DataLoader2(graph()) as loader:
        items, states = [], []
        for item in loader:
            items.append(item)
            states.append(loader.state_dict(include_datapipe=False))
    made_again = []
    for step, state in enumerate(states, 1):
        read.clear()
        with DataLoader2.from_state(state, datapipe=graph()) as loader:
            assert list(loader) == items[step:]
        made_again.append(len(read))
    assert made_again[-1] < 30


def test_an_error_names_a_branch_after_its_splitter():
    left, right = IterableWrapper(range(8)).demux(2, parity)
    name = r"demux\(2, classifier_fn=parity\)\[0\] is read"
    loader: DataLoader2[Any] = DataLoader2(left.zip(left).concat(right))
    with loader, pytest.raises(SnapshotError, match=name):
        loader.state_dict()


class ReadTwice(IterDataPipe[Any]):
    """A user's pipe that reads what it has once more."""

    def __init__(self, source: Any, is_over: threading.Event | None = None) -> None:
        self.source = source
        self.is_over = is_over

    def __iter__(self) -> Iterator[Any]:
        try:
            yield from self.source
            yield from self.source
        finally:
            if self.is_over is not None:
                self.is_over.set()


class Late(IterDataPipe[Any]):
    """Begins when others have come to their end."""

    def __init__(self, source: Any, is_over: threading.Event) -> None:
        self.source = source
        self.is_over = is_over

    async def __aiter__(self) -> AsyncIterator[Any]:
        assert await asyncio.to_thread(self.is_over.wait, 60)
        async for item in self.source:
            yield item


async def itself_soon(item: Any) -> Any:
    return item


@every_splitter
def test_a_branch_that_is_read_again_before_another_began_is_refused_where_time_decides(name: str):
    left, right = SPLITTERS[name](IterableWrapper(range(8)))
    is_over = threading.Event()
    twice = ReadTwice(left, is_over).async_map(itself_soon)
    why = r"\[0\] is read twice.*\[1\] was not read.*async_map\(itself_soon\) reads ahead"
    graph = twice.zip_longest(Late(right, is_over))
    with DataLoader2(graph) as loader, pytest.raises(IteratorInvalidated, match=why):
        list(loader)


@every_splitter
@pytest.mark.parametrize("is_ahead", [False, True])
def test_a_branch_is_read_again_before_another_where_their_order_is_known(
    name: str, is_ahead: bool
):
    left, right = SPLITTERS[name](IterableWrapper(range(8)))
    twice: Any = ReadTwice(left)
    one, other = shares(name)
    with DataLoader2((twice.async_map(itself_soon) if is_ahead else twice).concat(right)) as loader:
        assert list(loader) == [*one, *one, *other]


class OneThenOther(IterDataPipe[Any]):
    """A user's pipe that reads one to its end and then another."""

    def __init__(self, one: Any, other: Any) -> None:
        self.one, self.other = one, other

    async def __aiter__(self) -> AsyncIterator[Any]:
        for source in (self.one, self.other):
            async for item in source:
                yield item


@every_splitter
def test_a_branch_that_came_to_its_end_is_not_in_the_way_of_another_that_begins_again(name: str):
    left, right = SPLITTERS[name](IterableWrapper(range(8)))
    again = ReadTwice(ReadTwice(left)).async_map(itself_soon)
    one, other = shares(name)
    with DataLoader2(OneThenOther(right, again)) as loader:
        for _ in range(2):
            assert list(loader) == [*other, *(4 * one)]


def test_passes_that_are_over_do_not_pile_up_in_an_endless_epoch():
    def passes() -> int:
        gc.collect()
        return sum(type(each) is SplitPass for each in gc.get_objects())

    even, odd = IterableWrapper(range(4)).shuffle().demux(2, lambda number: number % 2)
    with DataLoader2(even.cycle().concat(odd)) as loader:
        items, before = iter(loader), passes()
        for _ in range(100):
            next(items)
        assert passes() < before + 10


READ_TWICE: dict[str, Any] = {
    "beside another that has ended": lambda a, b: a.zip_longest(ReadTwice(b)),
    "in turn with another that has ended": lambda a, b: a.mux_longest(ReadTwice(b)),
    "long before another": lambda a, b: ReadTwice(b).concat(IterableWrapper([-1, -2]), a),
    "before another that is": lambda a, b: ReadTwice(b).concat(ReadTwice(a)),
    "before another": lambda a, b: ReadTwice(b).concat(a),
    "after another": lambda a, b: a.concat(ReadTwice(b)),
    "beside another and after it": lambda a, b: a.zip(b).concat(ReadTwice(b)),
}


def beside_branches_of_rounds(first: Any, second: Any) -> Any:
    third, fourth = first.batch(2).cycle(2).fork(2)
    return second.mux_longest(third.mux(fourth))


@pytest.mark.parametrize("name", ["fork", "round_robin_demux"])
def test_a_source_that_ended_before_its_sister_began_again_goes_on(name: str) -> None:
    def graph() -> Any:
        return beside_branches_of_rounds(
            *getattr(IterableWrapper(range(6)).shuffle().set_seed(1), name)(2)
        )

    assert_goes_on(graph)
    assert_goes_on_twice(graph)


@pytest.mark.parametrize("name", READ_TWICE)
def test_a_pipe_of_the_user_that_reads_a_branch_twice_goes_on(name: str) -> None:
    def graph() -> Any:
        return READ_TWICE[name](*IterableWrapper(range(4)).shuffle().set_seed(1).fork(2))

    assert_goes_on(graph)
    assert_goes_on_twice(graph)
