"""thread_map's timeouts, retries and resources: those of async_map, in threads."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections import Counter
from typing import Any

import pytest

from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.datapipes import thread_calls
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.errors import ResourceExhausted

#: Longer than any test, and shorter than a hang.
LONG = 30.0

#: Longer than a call that is not stuck takes, on a machine that is busy.
SOON = 1.5


def numbers(count: int = 8) -> IterDataPipe[int]:
    return IterableWrapper(range(count))


class Stuck:
    """A function that does not return for some items until it is let go."""

    def __init__(self, *items: int) -> None:
        self.items = items
        self.may_end = threading.Event()
        self.called: Counter[int] = Counter()

    def __call__(self, item: int) -> int:
        self.called[item] += 1
        if item in self.items:
            assert self.may_end.wait(LONG)
        return item


@pytest.fixture
def stuck():
    function = Stuck(2)
    yield function
    function.may_end.set()


def test_a_call_that_takes_too_long_is_a_timeout_in_its_place(stuck):
    items = iter(numbers().thread_map(stuck, concurrency=2, timeout=SOON))
    assert [next(items), next(items)] == [0, 1]
    with (
        pytest.warns(ResourceWarning, match="calls of Stuck .* the pass: 1"),
        pytest.raises(TimeoutError, match=r"took longer than timeout=1\.5 s") as caught,
    ):
        next(items)
    assert "raised in thread_map(Stuck" in caught.value.__notes__[0]


# The calls that were given up may return a little later than the pass ends.
@pytest.mark.soak
@pytest.mark.filterwarnings("ignore:calls of:ResourceWarning")
def test_the_others_go_on_while_a_call_that_was_given_up_does_not_return():
    stuck = Stuck(0, 1, 2)
    left = []

    def note(error, item):
        left.append(item)
        if len(left) == 3:
            stuck.may_end.set()
        return -1

    pipe = numbers(40).thread_map(stuck, concurrency=1, timeout=SOON, on_error=note)
    assert list(pipe) == [-1, -1, -1, *range(3, 40)]
    assert left == [0, 1, 2]


# The calls that were given up may return a little later than the pass ends.
@pytest.mark.filterwarnings("ignore:calls of:ResourceWarning")
def test_calls_that_take_too_long_are_made_again():
    turns = Counter()
    may_end = threading.Event()

    def slow_at_first(item):
        turns[item] += 1
        if turns[item] == 1 and item == 1:
            may_end.wait(LONG)
        elif item == 1:
            may_end.set()
        return item

    pipe = numbers(4).thread_map(slow_at_first, timeout=SOON, retries=1, backoff=0.01)
    assert list(pipe) == [0, 1, 2, 3]
    assert turns == {0: 1, 1: 2, 2: 1, 3: 1}


def test_so_many_calls_that_never_return_end_the_pass_whatever_on_error_says(monkeypatch):
    monkeypatch.setattr(thread_calls, "MOST_GIVEN_UP", 3)
    stuck = Stuck(*range(100))
    pipe = numbers(100).thread_map(stuck, concurrency=1, timeout=0.05, on_error="skip")
    items = iter(pipe)
    try:
        with (
            pytest.warns(ResourceWarning),
            pytest.raises(ResourceExhausted, match="3 calls of Stuck"),
        ):
            next(items)
    finally:
        stuck.may_end.set()
    assert sum(stuck.called.values()) == 3


class Flaky:
    """A function that fails so often on each item."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.called: Counter[int] = Counter()

    def __call__(self, item: int) -> int:
        self.called[item] += 1
        if self.called[item] <= self.failures:
            raise ConnectionError(f"no answer for {item}")
        return item


@pytest.mark.parametrize("timeout", [None, LONG])
def test_errors_that_may_pass_are_tried_again(timeout, caplog):
    caplog.set_level(logging.INFO, "asyncloader")
    flaky = Flaky(2)
    pipe = numbers(3).thread_map(flaky, retries=2, backoff=0.001, timeout=timeout)
    assert list(pipe) == [0, 1, 2]
    assert flaky.called == {0: 3, 1: 3, 2: 3}
    assert len(caplog.messages) == 6
    assert all("Flaky is called again in" in message for message in caplog.messages)


def test_errors_that_do_not_pass_say_how_often_it_was_tried():
    with pytest.raises(ConnectionError) as caught:
        list(numbers(1).thread_map(Flaky(9), retries=2, backoff=0.001))
    tried, raised = caught.value.__notes__
    assert tried == "it was tried 3 times"
    assert raised.startswith("raised in thread_map(Flaky")


def test_other_errors_are_not_tried_again():
    flaky = Flaky(1)
    with pytest.raises(ConnectionError):
        list(numbers(1).thread_map(flaky, retries=2, retry_on=LookupError))
    assert flaky.called == {0: 1}


def test_leaving_early_ends_a_wait_before_a_retry():
    failed = threading.Event()

    def fails(item):
        if item == 0:
            return 0
        failed.set()
        raise ConnectionError

    items = iter(numbers().thread_map(fails, concurrency=2, retries=1, backoff=LONG))
    assert next(items) == 0
    assert failed.wait(LONG)
    before = threading.active_count()
    items.close()
    assert threading.active_count() < before


class Opened:
    """A resource that notes in which threads it is entered, used and left."""

    def __init__(self, fails_to: str = "") -> None:
        self.events: list[tuple[str, int]] = []
        self.fails_to = fails_to

    def note(self, what: str) -> None:
        self.events.append((what, threading.get_ident()))
        if what == self.fails_to:
            raise OSError(f"cannot {what}")

    @contextlib.contextmanager
    def __call__(self):
        self.note("open")
        yield self
        self.note("close")


def used(item: int, opened: Opened) -> int:
    opened.note("use")
    return item


@pytest.mark.parametrize("timeout", [None, LONG])
@pytest.mark.parametrize("ending", ["end", "early", "error"])
def test_each_thread_has_its_own_resource_whatever_ends_the_pass(timeout, ending):
    opened = Opened()

    def work(item, shared):
        if ending == "error" and item == 5:
            raise LookupError(item)
        return used(item, shared)

    items = iter(numbers().thread_map(work, concurrency=3, resource=opened, timeout=timeout))
    if ending == "end":
        assert list(items) == list(range(8))
    elif ending == "early":
        assert next(items) == 0
        items.close()
    else:
        with pytest.raises(LookupError):
            list(items)
    for thread in {thread for _, thread in opened.events}:
        what = [what for what, each in opened.events if each == thread]
        assert (what[0], what[-1]) == ("open", "close")
        assert set(what[1:-1]) <= {"use"}
        assert what.count("open") == what.count("close") == 1
    assert threading.get_ident() not in {thread for _, thread in opened.events}


def test_a_resource_that_does_not_open_is_an_error_of_the_pipe_and_of_no_item():
    pipe = numbers().thread_map(used, resource=Opened("open"), on_error="skip")
    with pytest.raises(OSError, match="cannot open") as caught:
        list(pipe)
    assert caught.value.__notes__[0].startswith("raised in thread_map(used")


def test_a_resource_that_does_not_close_is_an_error_at_the_end():
    items = iter(numbers(3).thread_map(used, concurrency=1, resource=Opened("close")))
    assert [next(items) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="cannot close"):
        next(items)


@contextlib.asynccontextmanager
async def awaited():
    yield 1


def test_what_is_no_resource_of_a_thread_is_named():
    with pytest.raises(TypeError, match="context manager, got _AsyncGeneratorContextManager"):
        list(numbers().thread_map(used, resource=awaited))


def test_columns_come_before_the_resource():
    def joined(first, second, opened):
        return f"{first}{second}"

    pipe = IterableWrapper([("a", 1, "b")])
    assert list(pipe.thread_map(joined, [0, 2], 1, resource=Opened())) == [("a", "ab", "b")]


def test_what_a_thread_uses_is_closed_when_fewer_threads_are_enough():
    opened = Opened()
    pipe = numbers(0).thread_map(used, concurrency=4, resource=opened)
    with contextlib.closing(pipe.threads(pipe.fn)) as threads:
        for _ in range(4):
            threads.start()
        threads.end(3)
        assert len(threads) == 1
    assert [what for what, _ in opened.events].count("close") == 4


@pytest.mark.parametrize("ordered", [True, False])
def test_in_workers_too(ordered):
    pipe = (
        numbers(30)
        .sharding_filter()
        .thread_map(Flaky(1), retries=1, backoff=0.001, timeout=LONG, ordered=ordered)
    )
    service = MultiProcessingReadingService(num_workers=2)
    with DataLoader2(pipe, reading_service=service) as loader:
        assert sorted(loader) == list(range(30))


@pytest.mark.parametrize("ordered", [True, False])
def test_a_state_resumes_with_all_of_them(ordered):
    def graph():
        pipe = (
            numbers(60)
            .shuffle()
            .thread_map(
                with_none,
                resource=contextlib.nullcontext,
                retries=1,
                timeout=LONG,
                on_error="skip",
                ordered=ordered,
            )
        )
        return pipe.batch(4)

    with DataLoader2(graph()) as loader:
        loader.seed(3)
        iterator = iter(loader)
        first = [next(iterator) for _ in range(5)]
        state = loader.state_dict()
        rest = list(iterator)
    with DataLoader2(graph()) as resumed:
        resumed.load_state_dict(state)
        again = list(resumed)
    kept = [each for batch in first + again for each in batch]
    assert sorted(kept) == [number for number in range(60) if number % 7]
    if ordered:
        assert again == rest


def with_none(item: int, nothing: Any) -> int:
    assert nothing is None
    if item % 7 == 0:
        raise LookupError(item)
    return item


# The calls that were given up may return a little later than the pass ends.
@pytest.mark.filterwarnings("ignore:calls of:ResourceWarning")
async def test_behind_a_feed_a_request_that_takes_too_long_gets_its_own_error(stuck):
    feed = Feed()
    opened = Opened()

    def work(item, shared):
        shared.note("use")
        return stuck(item)

    graph = feed.thread_map(work, concurrency=2, timeout=SOON, resource=opened)
    async with feed.serve(DataLoader2(graph)):
        answers = await asyncio.gather(*map(feed.ask, range(6)), return_exceptions=True)
        stuck.may_end.set()
    assert [answer for at, answer in enumerate(answers) if at != 2] == [0, 1, 3, 4, 5]
    assert isinstance(answers[2], TimeoutError)
    events = [what for what, _ in opened.events]
    # One more may have been opened, for calls after the one that was given up.
    assert 2 <= events.count("open") <= 3
    assert events.count("close") >= 2


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"timeout": 0}, ValueError, "timeout must be"),
        ({"retries": -1}, ValueError, "retries must be"),
        ({"retry_on": "OSError"}, TypeError, "retry_on must be"),
        ({"resource": 3}, TypeError, "resource must be callable"),
        ({"resource": contextlib.nullcontext}, ValueError, "cannot be called with 2 positional"),
    ],
)
def test_options_are_checked_when_the_pipe_is_made(settings, error, message):
    def one(item):
        return item

    with pytest.raises(error, match=message):
        numbers().thread_map(one, **settings)


class OpensAt:
    """A resource of which only one opening, counted from 1, succeeds or fails."""

    def __init__(self, fails_at: int) -> None:
        self.opened = 0
        self.fails_at = fails_at
        self.lock = threading.Lock()

    @contextlib.contextmanager
    def __call__(self):
        with self.lock:
            self.opened += 1
            if self.opened == self.fails_at:
                raise OSError("database is locked")
        yield self


@pytest.mark.parametrize("retries", [0, 3])
@pytest.mark.parametrize("timeout", [None, LONG])
def test_a_resource_that_no_thread_can_open_costs_no_item_in_silence(timeout, retries):
    pipe = numbers(100).thread_map(
        used_quietly,
        resource=OpensAt(1),
        concurrency=1,
        on_error="skip",
        timeout=timeout,
        retries=retries,
    )
    with pytest.raises(OSError, match="database is locked") as caught:
        list(pipe)
    assert "raised in thread_map(used_quietly" in caught.value.__notes__[0]


def used_quietly(item: int, opened: Any) -> int:
    return item


async def test_behind_a_feed_a_resource_that_does_not_open_ends_the_loader():
    feed = Feed()
    graph = feed.thread_map(used_quietly, concurrency=1, timeout=LONG, resource=OpensAt(1))

    async def ask_once():
        async with feed.serve(DataLoader2(graph)):
            await feed.ask(1)

    with pytest.raises(OSError, match="database is locked"):
        await ask_once()


def test_a_resource_may_take_longer_to_open_and_close_than_a_call_may_take(monkeypatch):
    monkeypatch.setattr("asyncloader.datapipes.running.run_place.GRACE_SECONDS", 0.01)
    closed = []

    @contextlib.contextmanager
    def slow():
        assert not threading.Event().wait(0.3)
        yield None
        assert not threading.Event().wait(0.3)
        closed.append(True)

    pipe = numbers(3).thread_map(used_quietly, resource=slow, timeout=0.2, concurrency=1)
    assert list(pipe) == [0, 1, 2]
    assert closed == [True]


@contextlib.contextmanager
def opening():
    yield None


@pytest.mark.parametrize("name", ["async_map", "thread_map"])
def test_a_resource_that_was_made_already_is_refused_when_the_pipe_is_made(name):
    async def later(item, shared):
        return item

    function = later if name == "async_map" else used_quietly
    with pytest.raises(TypeError, match=r"made already.* pass the function itself"):
        getattr(numbers(), name)(function, resource=opening())


def test_an_async_generator_is_no_function_for_threads():
    async def several(item):
        yield item

    with pytest.raises(TypeError, match="got the async generator several; use flatmap"):
        numbers().thread_map(several)


def test_a_resource_that_does_not_close_for_long_is_named(monkeypatch, caplog):
    monkeypatch.setattr(thread_calls, "LONG_SECONDS", 0.05)
    may_close = threading.Event()

    class Told(logging.Handler):
        def emit(self, record):
            may_close.set()

    @contextlib.contextmanager
    def slow_to_close():
        yield None
        assert may_close.wait(LONG)

    told = Told()
    logging.getLogger("asyncloader").addHandler(told)
    try:
        assert list(numbers(2).thread_map(used_quietly, resource=slow_to_close)) == [0, 1]
    finally:
        logging.getLogger("asyncloader").removeHandler(told)
    assert "has not closed what it used" in caplog.messages[0]
    assert "wait()" in caplog.messages[0]
