"""What crosses between threads and loops, and is not kept when nobody takes it."""

from __future__ import annotations

import weakref

import pytest

from asyncloader.datapipes.exchange import Exchange, Nobody
from asyncloader.waiting import Stopped


class Item:
    """Something to be let go of."""


def exchange():
    return Exchange(Nobody(), lambda into: None, {})


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
