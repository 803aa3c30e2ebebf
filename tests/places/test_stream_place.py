"""Where a dispatching process stood, for workers that may need it or not."""

from __future__ import annotations

import gc

from asyncloader.places.marks import FIRST, Mark, dump_mark
from asyncloader.places.stream_place import Dealing

PIPE = 3


def at(taken: int) -> Mark:
    """Where a worker is that has taken so many of the items that were dealt to it."""
    return Mark(taken, {PIPE: {"taken": taken}})


def test_dealing_goes_on_from_the_newest_mark_that_no_worker_is_behind():
    dealing = Dealing(PIPE)
    for position in (10, 20, 30):
        dealing.note(dump_mark(Mark(position, {})))
    # The next of the second worker is item 2 * 11 + 1, of the first 2 * 12.
    start = dealing.start([at(12), at(11)])
    assert (start.mark.position, start.dealt) == (20, (12, 11))
    assert dealing.start([FIRST, at(11)]).mark == FIRST


def test_marks_that_workers_may_need_for_ever_do_not_become_more_and_more():
    dealing = Dealing(PIPE)
    before = sum(isinstance(each, Mark) for each in gc.get_objects())
    for position in range(1, 20_001):
        dealing.note(dump_mark(Mark(position, {0: {"taken": position}})))
        dealing.forget_before([FIRST, FIRST])
    assert sum(isinstance(each, Mark) for each in gc.get_objects()) - before < 600
    assert dealing.start([FIRST, FIRST]).mark == FIRST
    # What is found for workers that are not far behind is not much too old.
    assert 19_700 <= dealing.start([at(9_900), at(9_900)]).mark.position <= 19_800
    assert dealing.start([at(10_000), at(10_000)]).mark.position == 20_000
