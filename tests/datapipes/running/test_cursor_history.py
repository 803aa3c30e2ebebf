"""How items are counted, and how often a source's cursors are collected."""

import threading
from itertools import pairwise

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.running import cursor_history
from asyncloader.datapipes.running.cursor_history import Count, CursorHistory, Pace
from tests.datapipes.resuming import cursors_along, new_pass, placed, plain


@pytest.mark.parametrize(
    ("milliseconds", "pause"),
    [(0.01, 0.01), (0.04, 0.04), (0.2, 0.1), (0.4, 0.1), (1.0, 0.25), (10.0, 2.5)],
)
def test_cheap_cursors_are_collected_ten_times_a_second_or_take_a_thousandth(
    milliseconds, pause, monkeypatch
):
    monkeypatch.setattr(cursor_history, "perf_counter", lambda: 100.0)
    monkeypatch.setattr(cursor_history, "thread_time", lambda: 7.0 + milliseconds / 1000)
    pace = Pace()
    assert pace.is_due()
    pace.made(7.0)
    assert pace.not_before == pytest.approx(100.0 + pause)
    assert not pace.is_due()


def failing(after):
    yield from range(after)
    raise ValueError("no more")


def test_items_are_counted_exactly_between_two_of_them():
    count = Count()
    assert [count.passed() for _ in count.counted(iter("abc"))] == [1, 2, 3]
    assert count.passed() == 3


def test_an_item_that_does_not_come_is_not_counted():
    count = Count()
    with pytest.raises(ValueError, match="no more"):
        list(count.counted(failing(after=2)))
    assert count.passed() == 2


def test_another_thread_may_ask_how_many_items_have_come():
    waits, may_end = threading.Event(), threading.Event()

    def items():
        yield from range(5)
        waits.set()
        may_end.wait()

    count = Count()
    reader = threading.Thread(target=list, args=(count.counted(items()),))
    reader.start()
    waits.wait()
    try:
        assert count.passed() == 5
    finally:
        may_end.set()
        reader.join()


@pytest.mark.parametrize("wrap", [Count().counted, CursorHistory(dict.clear, int).noting])
def test_closing_what_counts_or_notes_closes_the_items(wrap):
    closed = []

    def items():
        try:
            yield 1
        finally:
            closed.append(True)

    begun = items()
    assert next(begun) == 1
    args = () if wrap.__name__ == "counted" else (int,)
    wrap(begun, *args).close()
    assert closed


def noted_after(items, monkeypatch, *, seconds_for_each, pause):
    """Return after which items the cursors were collected, although they were always due."""
    now = iter(range(10**9))
    monkeypatch.setattr(cursor_history, "perf_counter", lambda: seconds_for_each * next(now))
    monkeypatch.setattr(Pace, "made", lambda pace, begun: setattr(pace, "pause", pause))
    count, noted = Count(), []
    history = CursorHistory(lambda into: noted.append(count.passed()), count.passed)
    assert list(history.noting(count.counted(iter(items)), count.passed)) == list(items)
    return noted


def test_at_most_64_quick_items_pass_without_a_look_at_the_clock(monkeypatch):
    noted = noted_after(range(1000), monkeypatch, seconds_for_each=0.0, pause=1.0)
    gaps = [after - before for before, after in pairwise([0, *noted])]
    assert gaps == [1, 2, 4, 8, 16, 32, *[64] * 14]


def test_items_that_take_long_are_each_followed_by_a_look_at_the_clock(monkeypatch):
    noted = noted_after(range(20), monkeypatch, seconds_for_each=1.0, pause=1.0)
    assert noted == list(range(1, 21))


def read_by_a_shuffle(source):
    """Return an edge to a source that is read by a pass that lags."""
    return new_pass(source.shuffle(buffer_size=3)).source


def test_a_run_that_has_not_moved_answers_with_the_place_it_began_with():
    began_with = {7: {"taken": 4}}
    run = read_by_a_shuffle(IterableWrapper(range(9)).filter(bool))
    run.resume(5, began_with)
    assert (run.count(), run.place(2), run.place(None)) == (5, began_with, began_with)
    items = run.begin()
    assert (run.count(), run.place(2), run.place(None)) == (5, began_with, began_with)
    next(items)
    assert run.count() == 6


def test_no_place_is_noted_while_held_items_are_read_again(monkeypatch):
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    began_with = {7: {"taken": 4}}
    run = read_by_a_shuffle(IterableWrapper(range(9)).filter(lambda number: True))
    run.resume(6, began_with)
    again, following = run.again([2, 3, 5])
    assert (again, run.count(), run.place(5)) == ([2, 3, 5], 6, began_with)
    assert list(following) == [6, 7, 8]


@pytest.mark.parametrize(
    "make",
    [
        lambda: IterableWrapper(range(9)).filter(is_any).groupby(by_three, buffer_size=7),
        lambda: IterableWrapper(["ab", "cd", "e"] * 3).filter(is_any).pack_sequences(3),
        lambda: IterableWrapper(["ab", "cd"] * 3).filter(is_any).shuffled_flatmap().set_seed(1),
        lambda: IterableWrapper("abcd").zip_with_iter(
            IterableWrapper("dcba").filter(is_any), key_fn=str
        ),
    ],
)
def test_a_pass_that_has_not_moved_is_not_changed_by_being_asked(make):
    items, along = cursors_along(make())
    for position in range(1, len(items)):
        run = placed(make())
        run.resume(position, plain(along[position]))
        following = run.begin()
        asked: dict[int, object] = {}
        run.put_cursors(asked)
        assert asked[0] == along[position][0]
        assert list(following) == items[position:]


def is_any(item):
    return True


def by_three(number):
    return number % 3
