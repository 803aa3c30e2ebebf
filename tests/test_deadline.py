"""Tests of asyncloader.deadline: what is closed together shares its time."""

import asyncio
import contextvars
import math

from asyncloader.deadline import STEP_SECONDS, ends_within, give_time_left, leaving_time, time_left


def test_outside_of_a_close_a_wait_has_its_own_bound():
    assert time_left() == math.inf
    assert time_left(2.0) == 2.0


def test_in_a_close_no_wait_is_longer_than_the_whole():
    with ends_within(100.0):
        assert 90.0 < time_left() <= 100.0
        assert time_left(2.0) == 2.0
        with ends_within(1000.0):
            assert time_left() <= 100.0, "a part has no more than its whole"
        with ends_within(0.0):
            assert time_left(2.0) == 0.0
        assert time_left() > 90.0
    assert time_left() == math.inf


def test_time_is_kept_for_the_steps_that_follow():
    with ends_within(100.0), leaving_time(2):
        assert time_left() <= 100.0 - 2 * STEP_SECONDS
    with ends_within(100.0), leaving_time(10_000):
        assert 40.0 < time_left() <= 50.0, "half of it is kept at most"
    with leaving_time(2):
        assert time_left() == math.inf


async def test_what_a_close_begins_shares_its_time():
    async def left() -> float:
        return time_left()

    with ends_within(100.0):
        begun = asyncio.create_task(left())
    assert await begun <= 100.0
    assert await left() == math.inf


def test_time_may_be_given_to_what_was_begun_before():
    context = contextvars.copy_context()
    with ends_within(100.0):
        give_time_left(context)
    assert context.run(time_left) <= 100.0
    assert time_left() == math.inf


def test_what_closes_itself_needs_no_time_of_another():
    context = contextvars.copy_context()
    with ends_within(100.0):
        context.run(give_time_left, context)
