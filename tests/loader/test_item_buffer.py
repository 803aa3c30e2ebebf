"""The buffer: what came passes in order, as limit, pause and resume allow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.loader.item_buffer import ItemBuffer


def bring(buffer: ItemBuffer, *items: Any) -> None:
    buffer.incoming += items
    buffer.let_in()


def test_an_item_that_was_under_way_passes_a_closed_buffer_and_those_with_it_wait() -> None:
    buffer = ItemBuffer()
    buffer.pause()
    bring(buffer, 1, 2, 3)
    assert (list(buffer.ready), buffer.passed, buffer.is_closed()) == ([1], 1, True)


def test_what_waits_passes_in_order_once_the_buffer_is_open() -> None:
    buffer = ItemBuffer()
    bring(buffer, 1, 2, 3, 4)
    taken = [next(buffer.ready)]
    buffer.pause()
    assert list(buffer.ready) == []
    buffer.resume()
    assert taken + list(buffer.ready) == [1, 2, 3, 4]


def test_a_limit_counts_from_when_it_is_given_and_from_each_resume() -> None:
    buffer = ItemBuffer()
    bring(buffer, *range(6))
    next(buffer.ready)
    buffer.limit(2)
    assert list(buffer.ready) == [1, 2]
    buffer.resume()
    assert list(buffer.ready) == [3, 4]
    assert buffer.passed == 5


def test_a_buffer_that_was_shut_is_opened_by_nobody() -> None:
    buffer = ItemBuffer()
    bring(buffer, 1, 2)
    buffer.shut()
    buffer.limit(2)
    buffer.resume()
    assert (list(buffer.ready), buffer.passed) == ([], 0)


def test_nothing_more_is_wanted_while_something_is_at_hand() -> None:
    buffer = ItemBuffer()
    assert buffer.wants_more()
    bring(buffer, 1, 2)
    assert not buffer.wants_more()
    list(buffer.ready)
    assert buffer.wants_more()
    buffer.pause()
    assert not buffer.wants_more()


OPERATIONS = st.one_of(
    st.tuples(st.just("limit"), st.none() | st.integers(0, 5)),
    st.tuples(st.sampled_from(["pause", "resume", "next"]), st.just(None)),
    st.tuples(st.just("bring"), st.integers(1, 6)),
)


@given(st.lists(OPERATIONS, max_size=40))
def test_items_pass_in_order_and_as_many_as_may(operations: list[tuple[str, Any]]) -> None:
    """Against a model that counts: how many have passed, and how many more may."""
    buffer, came = ItemBuffer(), iter(range(10**6))
    passed, limit, may_pass, is_paused = 0, 10**6, 10**6, False
    for name, value in operations:
        if name == "limit":
            buffer.limit(value)
            limit = 10**6 if value is None else value
            may_pass = 0 if is_paused else limit
        elif name == "pause":
            buffer.pause()
            may_pass, is_paused = 0, True
        elif name == "resume":
            buffer.resume()
            may_pass, is_paused = limit, False
        elif name == "bring" and buffer.wants_more():
            bring(buffer, *(next(came) for _ in range(value)))
        elif name == "next":
            for item in buffer.ready:
                assert (item, may_pass > 0) == (passed, True)
                passed, may_pass = passed + 1, may_pass - 1
                break
        assert buffer.passed == passed
        assert buffer.is_closed() == (may_pass == 0)


def test_no_item_is_lost_or_doubled_while_another_thread_opens_and_closes() -> None:
    buffer, is_done = ItemBuffer(), threading.Event()

    def open_and_close() -> None:
        while not is_done.is_set():
            buffer.pause()
            buffer.resume()
            buffer.limit(3)
            buffer.limit(None)

    thread = threading.Thread(target=open_and_close)
    thread.start()
    try:
        assert list(_drawn(buffer, 5_000)) == list(range(5_000))
    finally:
        is_done.set()
        thread.join()
    assert buffer.passed == 5_000


def _drawn(buffer: ItemBuffer, count: int) -> Iterator[int]:
    """Yield what passes of so many items that come in groups of seven."""
    came = iter(range(count))
    while buffer.passed < count:
        yield from buffer.ready
        if buffer.wants_more():
            buffer.incoming += islice(came, 7)
            buffer.let_in()
