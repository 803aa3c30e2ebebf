"""The gate: what came passes in order, as limit, pause and resume allow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.loader.gate import Gate


def bring(gate: Gate, *items: Any) -> None:
    gate.coming += items
    gate.let_in()


def test_an_item_that_was_under_way_passes_a_closed_gate_and_those_with_it_wait() -> None:
    gate = Gate()
    gate.pause()
    bring(gate, 1, 2, 3)
    assert (list(gate.passing), gate.passed, gate.is_closed()) == ([1], 1, True)


def test_what_waits_passes_in_order_once_the_gate_is_open() -> None:
    gate = Gate()
    bring(gate, 1, 2, 3, 4)
    taken = [next(gate.passing)]
    gate.pause()
    assert list(gate.passing) == []
    gate.resume()
    assert taken + list(gate.passing) == [1, 2, 3, 4]


def test_a_limit_counts_from_when_it_is_given_and_from_each_resume() -> None:
    gate = Gate()
    bring(gate, *range(6))
    next(gate.passing)
    gate.limit(2)
    assert list(gate.passing) == [1, 2]
    gate.resume()
    assert list(gate.passing) == [3, 4]
    assert gate.passed == 5


def test_a_gate_that_was_shut_is_opened_by_nobody() -> None:
    gate = Gate()
    bring(gate, 1, 2)
    gate.shut()
    gate.limit(2)
    gate.resume()
    assert (list(gate.passing), gate.passed) == ([], 0)


def test_nothing_more_is_wanted_while_something_is_at_hand() -> None:
    gate = Gate()
    assert gate.wants_more()
    bring(gate, 1, 2)
    assert not gate.wants_more()
    list(gate.passing)
    assert gate.wants_more()
    gate.pause()
    assert not gate.wants_more()


OPERATIONS = st.one_of(
    st.tuples(st.just("limit"), st.none() | st.integers(0, 5)),
    st.tuples(st.sampled_from(["pause", "resume", "next"]), st.just(None)),
    st.tuples(st.just("bring"), st.integers(1, 6)),
)


@given(st.lists(OPERATIONS, max_size=40))
def test_items_pass_in_order_and_as_many_as_may(operations: list[tuple[str, Any]]) -> None:
    """Against a model that counts: how many have passed, and how many more may."""
    gate, came = Gate(), iter(range(10**6))
    passed, limit, may_pass, is_paused = 0, 10**6, 10**6, False
    for name, value in operations:
        if name == "limit":
            gate.limit(value)
            limit = 10**6 if value is None else value
            may_pass = 0 if is_paused else limit
        elif name == "pause":
            gate.pause()
            may_pass, is_paused = 0, True
        elif name == "resume":
            gate.resume()
            may_pass, is_paused = limit, False
        elif name == "bring" and gate.wants_more():
            bring(gate, *(next(came) for _ in range(value)))
        elif name == "next":
            for item in gate.passing:
                assert (item, may_pass > 0) == (passed, True)
                passed, may_pass = passed + 1, may_pass - 1
                break
        assert gate.passed == passed
        assert gate.is_closed() == (may_pass == 0)


def test_no_item_is_lost_or_doubled_while_another_thread_opens_and_closes() -> None:
    gate, is_done = Gate(), threading.Event()

    def open_and_close() -> None:
        while not is_done.is_set():
            gate.pause()
            gate.resume()
            gate.limit(3)
            gate.limit(None)

    thread = threading.Thread(target=open_and_close)
    thread.start()
    try:
        assert list(_drawn(gate, 5_000)) == list(range(5_000))
    finally:
        is_done.set()
        thread.join()
    assert gate.passed == 5_000


def _drawn(gate: Gate, count: int) -> Iterator[int]:
    """Yield what passes of so many items that come in groups of seven."""
    came = iter(range(count))
    while gate.passed < count:
        yield from gate.passing
        if gate.wants_more():
            gate.coming += islice(came, 7)
            gate.let_in()
