"""What crosses between threads and loops, and is not kept when nobody takes it."""

from __future__ import annotations

import asyncio
import math
import threading
import weakref
from collections.abc import AsyncIterator
from functools import partial

import pytest

from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.running import exchange as exchange_module
from asyncloader.datapipes.running.cursor_history import CursorHistory
from asyncloader.datapipes.running.exchange import Exchange, Nobody
from asyncloader.datapipes.running.run_place import give_groups
from asyncloader.runtime import begin_task
from asyncloader.waiting import Stopped, do_nothing


class Item:
    """Something to be let go of."""


def exchange():
    return Exchange(Nobody(), partial(CursorHistory, do_nothing))


def test_a_stop_does_not_keep_what_was_read_before_it():
    crossing = exchange()
    crossing.end(Stopped())

    def read() -> weakref.ref[Item]:
        item = Item()
        with pytest.raises(Stopped):
            crossing.take()
        return weakref.ref(item)

    assert read()() is None


@pytest.mark.parametrize("gives_before", [True, False])
@pytest.mark.parametrize("error", [None, Stopped()], ids=["its end", "a stop"])
def test_what_nobody_will_take_is_let_go_of_whoever_is_first(gives_before, error):
    crossing, item = exchange(), Item()
    gone = weakref.ref(item)
    if gives_before:
        crossing.give(item)
        crossing.drop()
    else:
        crossing.drop()
        crossing.give_group([item])
    crossing.end(error)
    del item
    assert gone() is None


def test_what_was_given_before_the_end_may_be_taken_after_it():
    crossing = exchange()
    crossing.give(1)
    crossing.end(None)
    assert crossing.take() == [1]
    assert crossing.take() == []


class Waits(IterDataPipe[int]):
    """Gives one item, says so, and waits for ever."""

    async def __aiter__(self) -> AsyncIterator[int]:
        yield 0
        self.asked_again.set()
        await asyncio.get_running_loop().create_future()


def test_a_giver_that_is_collected_after_its_loop_was_closed_ends_in_silence(monkeypatch):
    # However slow the machine, there is room behind the first item.
    monkeypatch.setattr(exchange_module, "GROUP_SECONDS", math.inf)
    loop, crossing, waits = asyncio.new_event_loop(), exchange(), Waits()
    waits.asked_again = asyncio.Event()
    giving = give_groups(waits, crossing, loop)
    task = begin_task(loop, giving, "giver")
    loop.run_until_complete(waits.asked_again.wait())
    loop.close()
    giving.close()
    assert (crossing.take(), task.done()) == ([0], False)


def test_a_thread_that_reads_from_a_loop_keeps_nothing_that_it_passed_on():
    class Box:
        pass

    class Boxes(IterDataPipe):
        async def __aiter__(self):
            for _ in range(9):
                yield Box()

    items = iter(Boxes())
    for _ in range(9):
        # The loop's thread may be about to pass it on, and has it until then.
        gone = threading.Event()
        box = weakref.ref(next(items), lambda _, gone=gone: gone.set())  # noqa: F841 - kept
        assert gone.wait(10)
    items.close()
