"""How many prompts a rollout may begin, and the version of the policy that answers."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading

import pytest

from asyncloader import Again, Version
from asyncloader.datapipes.admission import Admission, Load


def admission(**settings):
    defaults = {
        "concurrency": 4,
        "max_lag": 1,
        "per_step": 8,
        "window": 1,
        "most_ahead": 50,
    }
    return Admission.of(**{**defaults, **settings})


@pytest.mark.parametrize(
    ("settings", "capacity"),
    [
        ({}, 16),
        ({"max_lag": 0}, 8),
        ({"window": 5}, 12),
        ({"max_lag": 0, "per_step": 1}, 1),
        ({"max_lag": None, "per_step": None}, None),
    ],
)
def test_as_many_prompts_are_begun_as_can_be_trained_in_time(settings, capacity):
    assert admission(**settings).capacity == capacity


@pytest.mark.parametrize(
    "load",
    [Load(calls=4), Load(unsettled=16), Load(held=12), Load(ahead=50)],
    ids=["calls", "unsettled", "held", "ahead"],
)
def test_each_bound_alone_keeps_the_next_prompt_waiting(load):
    assert not admission().admits(load)


def test_a_prompt_begins_below_all_bounds():
    assert admission().admits(Load(calls=3, unsettled=15, held=11, ahead=49))


def test_nothing_but_the_lag_uses_a_capacity_up():
    assert admission().is_used_up(Load(unsettled=16))
    assert not admission().is_used_up(Load(calls=4, held=12, unsettled=15))
    assert not admission(max_lag=None, per_step=None).is_used_up(Load(unsettled=10**6))


def test_a_version_is_advanced_from_any_thread():
    policy = Version(7)
    threads = [threading.Thread(target=policy.advance) for _ in range(20)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert policy.number == 27


async def test_a_version_is_waited_for():
    policy = Version()
    reached = asyncio.ensure_future(policy.reached(2))
    policy.advance()
    for _ in range(3):
        await asyncio.sleep(0)
    assert not reached.done()
    await asyncio.to_thread(policy.advance)
    await asyncio.wait_for(reached, 10)
    await policy.reached(1)


async def test_who_waits_for_a_version_may_be_cancelled():
    policy = Version()
    waiting = asyncio.ensure_future(policy.reached(1))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert policy.advance() == 1


def test_a_version_that_is_pickled_keeps_its_number():
    assert pickle.loads(pickle.dumps(Version(3))).number == 3


@pytest.mark.parametrize("number", [-1, 1.5, True, "1"])
def test_a_version_is_a_count(number):
    with pytest.raises((TypeError, ValueError), match="number"):
        Version(number)


def test_what_was_put_back_is_copied_with_its_part():
    assert copy.copy(Again(["part"])).partial == ["part"]
    assert Again().partial is None
