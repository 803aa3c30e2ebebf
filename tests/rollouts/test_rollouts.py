"""Prompts are settled once and trained in time along lines of states, in random programs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from asyncloader import DataLoader2, Version
from asyncloader.datapipes.iter import IterableWrapper
from tests.rollouts import bias
from tests.rollouts.clock import Hang, Killed, ScriptedLoop, kill
from tests.rollouts.killed import killed_line
from tests.rollouts.mutants import FIRST, MUTANTS, caught
from tests.rollouts.world import Line


@pytest.mark.sweep
@pytest.mark.parametrize("first", range(0, 300, 3))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_each_prompt_is_settled_once_and_none_is_trained_too_late(first):
    for seed in range(first, first + 3):
        line = Line(seed).play()
        assert not list(line.wrong()), line.in_words()


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
@pytest.mark.filterwarnings("ignore")
def test_a_rule_that_is_broken_is_seen(name):
    first = FIRST.get(name, 0)
    assert caught(MUTANTS[name], range(first, first + 800)) is not None


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
def test_a_program_and_its_server_that_are_killed_train_each_prompt_once(seed):
    kills, said = killed_line(seed)
    assert not said
    assert kills


def test_the_order_of_the_source_leaves_out_no_slow_prompt_and_dropping_leaves_out_most():
    prompts = 300
    in_order = bias.measured("source", prompts, seed=1)
    dropping = bias.measured("ready, drop", prompts, seed=1)
    assert in_order.left_out(prompts) == 0
    assert dropping.left_out(prompts // 10) > prompts // 10 // 2


# The scripted clock ---------------------------------------------------------------------


def test_hours_pass_at_once_and_a_loop_with_nothing_to_wait_for_hangs():
    async def wait():
        await asyncio.sleep(7200)
        await asyncio.get_running_loop().create_future()

    with ScriptedLoop() as loop:
        with pytest.raises(Hang, match="nothing to wait for"):
            loop.run_until_complete(wait())
        assert loop.time() == 7200


def test_time_stands_still_while_a_thread_works():
    async def times():
        graph = IterableWrapper(range(5)).map(lambda item: time_of(item)).prefetch(2)
        async with DataLoader2(graph) as loader:
            return [item async for item in loader]

    seen = []

    def time_of(item):
        seen.append(threading.current_thread())
        return loop.time()

    with ScriptedLoop() as loop:
        assert loop.run_until_complete(times()) == [0.0] * 5
    assert threading.main_thread() not in seen


def test_nothing_is_left_of_a_program_that_is_killed():
    ended = []

    async def generate(prompt):
        try:
            await asyncio.sleep(1)
        finally:
            ended.append(prompt)

    async def train():
        graph = IterableWrapper(range(100)).rollout(generate, concurrency=4, version=Version())
        async with DataLoader2(graph.filter(bool)) as loader:
            async for _ in loader:
                pass

    with ScriptedLoop() as loop:
        loop.at_turn(100, kill)
        with pytest.raises(Killed):
            loop.run_until_complete(train())
    assert loop.is_closed()
    assert len(ended) < 100
    assert not [each for each in threading.enumerate() if "filter" in each.name]
