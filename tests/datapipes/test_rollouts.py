"""Rollouts: calls for prompts, by a policy that changes."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections import Counter

import pytest

from asyncloader import (
    Again,
    DataLoader2,
    DistributedReadingService,
    LoaderError,
    MultiProcessingReadingService,
    StarvedError,
    Version,
)
from asyncloader.datapipes import rollout_calls
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import SnapshotError
from tests.table import Tables, on_rank


async def echo(prompt):
    return prompt


async def echo_later(prompt):
    await asyncio.sleep(0)
    return prompt


class Server:
    """Answers each prompt when it is told to."""

    def __init__(self):
        self.asked = []
        self.most_at_once = 0
        self._running = 0
        self._answers = {}
        self._news = asyncio.Condition()

    async def generate(self, prompt, *, member, attempt, version, partial, number):
        self.asked.append((prompt, member, attempt, version, partial, number))
        self._running += 1
        self.most_at_once = max(self.most_at_once, self._running)
        try:
            await self._tell()
            answer = self._answers.setdefault((prompt, member), asyncio.Future())
            return await asyncio.shield(answer)
        finally:
            self._running -= 1

    async def _tell(self):
        async with self._news:
            self._news.notify_all()

    async def was_asked(self, count):
        """Wait until so many calls were made."""
        async with self._news:
            await asyncio.wait_for(
                self._news.wait_for(lambda: len(self.asked) >= count), timeout=20
            )

    def answer(self, prompt, result="", member=0):
        future = self._answers.setdefault((prompt, member), asyncio.Future())
        future.set_result(result or prompt)

    def unanswer(self, prompt, member=0):
        """Let the next call wait for an answer of its own."""
        del self._answers[prompt, member]

    def fail(self, prompt, error, member=0):
        self._answers.pop((prompt, member)).set_exception(error)

    @property
    def prompts(self):
        """The prompts that were asked for."""
        return [prompt for prompt, *_ in self.asked]


async def turns(count=20):
    """Let the loop turn some times."""
    for _ in range(count):
        await asyncio.sleep(0)


def lagged(generate, prompts, policy, **settings):
    defaults = {"concurrency": 64, "version": policy, "max_lag": 1, "per_step": 2}
    return IterableWrapper(prompts).rollout(generate, **{**defaults, **settings})


# Alone ------------------------------------------------------------------------------------


def test_one_result_comes_for_each_prompt():
    assert sorted(IterableWrapper(range(100)).rollout(echo_later)) == list(range(100))


async def test_a_group_has_a_result_of_each_member_in_their_order():
    async def generate(prompt, *, member):
        for _ in range(5 - member):
            await asyncio.sleep(0)
        return prompt, member

    groups = [each async for each in IterableWrapper("ab").rollout(generate, group=4)]
    assert sorted(groups) == [[(p, m) for m in range(4)] for p in "ab"]


async def test_the_function_is_given_only_what_it_takes():
    async def generate(prompt, **told):
        return sorted(told)

    (told,) = [each async for each in IterableWrapper([1]).rollout(generate)]
    assert told == ["attempt", "member", "number", "partial", "version"]
    bound = functools.partial(generate, more=1)
    assert [each async for each in IterableWrapper([1]).rollout(bound)] == [
        ["attempt", "member", "more", "number", "partial", "version"]
    ]


async def test_results_come_in_the_order_of_the_source():
    server = Server()
    prompts = IterableWrapper("abc").rollout(server.generate, order="source")
    items = aiter(prompts)
    first = asyncio.ensure_future(anext(items))
    await server.was_asked(3)
    server.answer("c")
    server.answer("b")
    await turns()
    assert not first.done()
    server.answer("a")
    assert [await first, await anext(items), await anext(items)] == ["a", "b", "c"]
    await items.aclose()


async def test_results_come_as_they_are_ready():
    server = Server()
    items = aiter(IterableWrapper("abc").rollout(server.generate))
    first = asyncio.ensure_future(anext(items))
    await server.was_asked(3)
    server.answer("c")
    assert await first == "c"
    server.answer("a")
    assert await anext(items) == "a"
    await items.aclose()


async def test_a_window_bounds_how_far_out_of_order_a_result_comes():
    server = Server()
    items = aiter(IterableWrapper("abcd").rollout(server.generate, order=2))
    first = asyncio.ensure_future(anext(items))
    await server.was_asked(4)
    server.answer("c")
    await turns()
    assert not first.done(), "two are before it, and it may be one out of order"
    server.answer("b")
    assert await first == "b"
    second = asyncio.ensure_future(anext(items))
    await turns()
    assert not second.done()
    server.answer("a")
    assert [await second, await anext(items)] == ["a", "c"]
    await items.aclose()


async def test_no_more_calls_run_than_concurrency_allows():
    running, most = 0, 0

    async def generate(prompt):
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return prompt

    graph = IterableWrapper(range(30)).rollout(generate, group=3, concurrency=7)
    groups = [each async for each in graph]
    assert len(groups) == 30
    assert most == 7


async def test_calls_end_with_the_iteration():
    ended = []

    async def generate(prompt):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(prompt)

    items = aiter(IterableWrapper("ab").rollout(generate))
    first = asyncio.ensure_future(anext(items))
    await turns()
    first.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await first
    await items.aclose()
    assert sorted(ended) == ["a", "b"]


@pytest.mark.skipif(not hasattr(asyncio, "eager_task_factory"), reason="Python 3.12 has it")
async def test_calls_are_made_where_tasks_begin_at_once():
    loop = asyncio.get_running_loop()
    loop.set_task_factory(asyncio.eager_task_factory)
    try:
        for generate in (echo, echo_later):
            graph = IterableWrapper(range(20)).rollout(generate, concurrency=4)
            async with DataLoader2(graph) as loader, asyncio.timeout(20):
                assert sorted([each async for each in loader]) == list(range(20))
    finally:
        loop.set_task_factory(None)


# What goes wrong --------------------------------------------------------------------------


async def test_a_call_that_fails_is_made_again_and_told_which_attempt_it_is():
    attempts = []

    async def generate(prompt, *, attempt):
        attempts.append(attempt)
        if attempt < 2:
            raise OSError("away")
        return prompt

    assert [each async for each in IterableWrapper([7]).rollout(generate, backoff=0.001)] == [7]
    assert attempts == [0, 1, 2]


async def failing_on_odd(prompt):
    if prompt % 2:
        raise ValueError("odd")
    await asyncio.sleep(prompt / 50)
    return prompt


async def test_a_prompt_that_always_fails_is_left_out_and_counted():
    graph = IterableWrapper(range(10)).rollout(failing_on_odd, backoff=0.001, attempts=2)
    async with DataLoader2(graph) as loader:
        assert sorted([each async for each in loader]) == [0, 2, 4, 6, 8]
        assert loader.stats().left_out == {"attempts": 5}


async def test_a_prompt_that_takes_too_long_is_left_out_with_its_own_reason():
    async def generate(prompt):
        await asyncio.sleep(prompt)
        return prompt

    prompts = IterableWrapper([60, 0.2, 0.2, 0.2])
    graph = prompts.rollout(generate, backoff=0.001, timeout=0.3, attempts=1, concurrency=2)
    async with DataLoader2(graph) as loader:
        assert sorted([each async for each in loader]) == [0.2, 0.2, 0.2]
        assert loader.stats().left_out == {"timeout": 1}


async def test_the_log_tells_once_why_a_prompt_was_left_out(caplog):
    async def reward(prompt):
        await asyncio.sleep(0)
        return 1 / (prompt % 5)

    graph = IterableWrapper(range(20)).rollout(reward, backoff=0.001)
    async with DataLoader2(graph) as loader:
        assert len([each async for each in loader]) == 16
        assert loader.stats().left_out == {"attempts": 4}
    (told,) = [each for each in caplog.records if "gives up a call" in each.getMessage()]
    assert "which has failed 3 times" in told.getMessage()
    assert told.exc_info[0] is ZeroDivisionError


async def test_the_log_tells_once_of_calls_that_fail_while_no_other_succeeds(caplog):
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if calls[prompt] < 6:
            raise NameError("a mistake")
        return prompt

    graph = IterableWrapper(range(5)).rollout(generate, backoff=0.001)
    async with DataLoader2(graph) as loader:
        assert sorted([each async for each in loader]) == [0, 1, 2, 3, 4]
    (told,) = caplog.records
    assert "has failed 3 times, and none has succeeded since" in told.getMessage()
    assert told.exc_info[0] is NameError


@pytest.mark.parametrize(("size", "is_told"), [(4, False), (2, True)])
async def test_the_log_tells_once_of_a_lag_that_steps_too_small_have_made(size, is_told, caplog):
    policy = Version()
    graph = IterableWrapper(range(24)).rollout(echo, version=policy, max_lag=1, per_step=4)
    async with DataLoader2(graph.batch(size), acknowledge=True) as loader:
        async for _ in loader:
            policy.advance()
            loader.ack()
        assert (max(loader.stats().rollouts[0].lags) > 1) == is_told
    told = [each.getMessage() for each in caplog.records]
    assert len(told) == is_told
    assert not told or "each version trains at least per_step=4 prompts" in told[0]


@pytest.mark.soak
async def test_nothing_is_left_out_while_the_server_answers_nobody():
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if sum(calls.values()) < 60:
            raise ConnectionError("away")
        return prompt

    graph = IterableWrapper(range(5)).rollout(generate, backoff=0.001, attempts=2, max_failures=100)
    async with DataLoader2(graph) as loader:
        assert sorted([each async for each in loader]) == [0, 1, 2, 3, 4]
        assert loader.stats().left_out == {}


async def test_many_failures_in_a_row_raise_the_last():
    async def generate(prompt):
        raise ConnectionError("away")

    graph = IterableWrapper(range(5)).rollout(generate, backoff=0.001, max_failures=12)
    with pytest.raises(ConnectionError, match="away") as raised:
        _ = [each async for each in graph]
    assert any("12 calls of rollout" in each for each in raised.value.__notes__)


def cancels_itself():
    asyncio.current_task().cancel()


def raises_cancelled():
    raise asyncio.CancelledError


@pytest.mark.parametrize("end", [cancels_itself, raises_cancelled])
async def test_a_cancellation_that_nobody_asked_for_is_a_failure(end):
    calls = Counter()

    async def generate(prompt, *, attempt):
        calls[prompt] += 1
        assert attempt == calls[prompt] - 1
        if prompt == 7:
            end()
        await asyncio.sleep(0)
        return prompt

    graph = IterableWrapper([7, 8]).rollout(generate, backoff=0.001, attempts=3, concurrency=1)
    async with DataLoader2(graph) as loader:
        assert [each async for each in loader] == [8]
        assert loader.stats().left_out == {"attempts": 1}
        assert loader.stats().rollouts[0].failed == calls[7] == 3
    raising = IterableWrapper([7]).rollout(generate, on_error="raise")
    calls.clear()
    with pytest.raises(RuntimeError, match=r"of rollout.* raised CancelledError"):
        assert [each async for each in raising] == []


async def test_calls_that_end_with_their_loop_have_not_failed():
    server = Server()

    async def prompts_that_end_slowly():
        yield "a"
        yield "b"
        try:
            await asyncio.Event().wait()
        finally:
            await turns()

    graph = IterableWrapper(prompts_that_end_slowly()).rollout(server.generate)
    loader = DataLoader2(graph, acknowledge=True)

    async def interrupted():
        coming = asyncio.ensure_future(anext(aiter(loader)))
        await server.was_asked(2)
        return coming

    await asyncio.to_thread(asyncio.run, interrupted())
    (stats,) = loader.stats().rollouts
    assert (stats.calls, stats.failed) == (2, 0)
    await loader.aclose()


async def test_the_first_failure_may_be_raised():
    graph = IterableWrapper([0, 2, 1, 4]).rollout(failing_on_odd, order="source", on_error="raise")
    items = aiter(graph)
    assert [await anext(items), await anext(items)] == [0, 2]
    with pytest.raises(ValueError, match="odd"):
        await anext(items)
    await items.aclose()


async def test_a_prompt_is_put_back_with_what_it_has_got():
    seen = []

    async def generate(prompt, *, partial, attempt):
        seen.append((partial, attempt))
        if partial is None:
            raise Again(partial=["one"])
        if len(partial) < 3:
            raise Again(partial=[*partial, "more"])
        return partial

    results = [each async for each in IterableWrapper([0]).rollout(generate)]
    assert results == [["one", "more", "more"]]
    assert seen == [(None, 0), (["one"], 0), (["one", "more"], 0), (["one", "more", "more"], 0)]


async def test_a_group_goes_on_without_its_slowest_member():
    cancelled = []

    async def generate(prompt, *, member):
        if member == 2:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(prompt)
                raise
        return member

    graph = IterableWrapper("a").rollout(generate, group=3, min_group=2, group_timeout=0.05)
    assert [each async for each in graph] == [[0, 1]]
    assert cancelled == ["a"]


async def test_a_group_without_enough_members_is_left_out():
    async def generate(prompt, *, member):
        if prompt and member:
            raise ValueError("no")
        await asyncio.sleep(member / 10)
        return member

    graph = IterableWrapper([0, 1]).rollout(
        generate, group=3, min_group=2, group_timeout=60, backoff=0.001, attempts=1
    )
    async with DataLoader2(graph) as loader:
        assert [each async for each in loader] == [[0, 1, 2]]
        assert loader.stats().left_out == {"attempts": 1}


# Lag --------------------------------------------------------------------------------------


async def test_no_prompt_begins_that_would_be_trained_too_late():
    server, policy = Server(), Version()
    graph = lagged(server.generate, range(100), policy).batch(2)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        batch = asyncio.ensure_future(anext(items))
        await server.was_asked(4)
        for prompt in range(4):
            server.answer(prompt, f"answer {prompt}")
        assert await batch == ["answer 0", "answer 1"]
        await turns()
        assert server.prompts == [0, 1, 2, 3]
        policy.advance()
        await turns()
        assert server.prompts == [0, 1, 2, 3], "an advance frees no place"
        loader.ack()
        assert server.prompts == [0, 1, 2, 3], "nothing begins in ack itself"
        await server.was_asked(6)
        assert [version for *_, version, _, _ in server.asked] == [0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("order", ["source", "ready", 3])
async def test_nothing_is_trained_by_a_policy_that_is_too_new(order):
    policy, latest = Version(), 0

    async def generate(prompt, *, version):
        await asyncio.sleep((prompt % 7) / 5000)
        return prompt, version

    graph = lagged(generate, range(60), policy, max_lag=2, per_step=4, order=order).batch(4)
    trained = []
    async with DataLoader2(graph, acknowledge=True) as loader:
        async for batch in loader:
            latest = max(latest, *(policy.number - version for _, version in batch))
            trained += [prompt for prompt, _ in batch]
            policy.advance()
            loader.ack()
    assert sorted(trained) == list(range(60))
    assert 0 < latest <= 2


@pytest.mark.parametrize("acks", ["after the advance", "before it", "never"])
async def test_without_a_bound_the_lag_is_counted_all_the_same(acks):
    policy = Version()

    async def generate(prompt, *, version):
        return version

    graph = IterableWrapper(range(12)).rollout(generate, version=policy, concurrency=1)
    lags = Counter()
    async with DataLoader2(graph, acknowledge=acks != "never") as loader:
        async for begun in loader:
            lags[policy.number - begun] += 1
            if acks == "before it":
                loader.ack()
            policy.advance()
            if acks == "after the advance":
                loader.ack()
        (stats,) = loader.stats().rollouts
    assert stats.lags == lags
    assert lags[0]


async def test_a_prompt_that_fails_for_long_is_named_and_not_the_trainer():
    failed = asyncio.Event()

    async def generate(prompt):
        if prompt == 1:
            failed.set()
            raise ValueError("never")
        return prompt

    policy = Version()
    graph = lagged(generate, range(20), policy, backoff=600).batch(2)
    async with DataLoader2(graph, acknowledge=True) as loader:
        coming = asyncio.ensure_future(anext(aiter(loader)))
        await failed.wait()
        # A thread reads the prompts.
        async with asyncio.timeout(60):
            while (stats := loader.stats().rollouts[0]).unsettled < 4 or not stats.resting:
                await turns()
        assert (stats.unsettled, stats.capacity, stats.resting) == (4, 4, 1)
        assert stats.waits_for == "the oldest prompt"
        wait = await asyncio.to_thread(loader.why)
        assert "which has failed and waits to be called again: item 1, attempt 2" in str(wait)
        assert "trainer" not in str(wait)
        coming.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await coming


@pytest.mark.parametrize("order", ["source", 3, "ready"])
@pytest.mark.parametrize("bad", [0, 1, 9])
async def test_one_prompt_that_never_succeeds_does_not_stop_the_others(bad, order):
    policy, calls = Version(), Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if prompt == bad:
            # All that may begin beside it are done before it fails first.
            await turns(200)
            raise TimeoutError
        return prompt

    graph = lagged(generate, range(10), policy, order=order, backoff=0.001).batch(2)
    trained = []
    async with DataLoader2(graph, acknowledge=True) as loader, asyncio.timeout(20):
        async for batch in loader:
            trained += batch
            policy.advance()
            loader.ack()
        assert loader.stats().left_out == {"timeout": 1}
    assert sorted(trained) == [each for each in range(10) if each != bad]
    assert calls[bad] < 20


async def test_one_prompt_that_never_succeeds_does_not_stop_the_others_without_a_loader():
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if prompt == 0:
            # All that may begin beside it are done before it fails first.
            await turns(200)
            raise TimeoutError
        return prompt

    prompts = IterableWrapper(range(20))
    graph = prompts.rollout(generate, order="source", concurrency=2, backoff=0.001)
    async with asyncio.timeout(20):
        assert [each async for each in graph] == list(range(1, 20))
    assert calls[0] < 20


async def test_whether_any_succeeds_is_asked_for_a_member_that_has_succeeded():
    async def generate(prompt, *, member):
        if prompt == "a" and member == 1:
            await turns()
            return prompt
        await turns(200 * (prompt == "b"))
        raise OSError("bad")

    settings = {"group": 2, "min_group": 1, "group_timeout": 60, "attempts": 1}
    settings |= {"per_step": 1, "backoff": 0.001, "max_failures": 20}
    graph = lagged(generate, "ab", Version(), **settings)
    async with DataLoader2(graph, acknowledge=True) as loader, asyncio.timeout(20):
        assert [each async for each in loader] == [["a"]]
        assert loader.stats().left_out == {"attempts": 1}


async def test_calls_for_an_answered_prompt_that_fail_are_among_the_failures_in_a_row():
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if calls[0] == 1 and prompt == 0:
            return prompt
        await turns()
        raise OSError("away")

    settings = {"per_step": 1, "backoff": 0.001, "attempts": 1, "max_failures": 8}
    graph = lagged(generate, range(2), Version(), **settings)
    async with DataLoader2(graph, acknowledge=True) as loader, asyncio.timeout(20):
        items = aiter(loader)
        assert await anext(items) == 0
        with pytest.raises(OSError, match="away"):
            await anext(items)
        # One of them was the answer.
        assert calls.total() == 9
        assert loader.stats().rollouts[0].failed == 8


async def test_failures_are_not_in_a_row_if_a_call_for_an_answered_prompt_succeeds_between():
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if prompt == 0:
            return prompt
        await turns(200)
        raise OSError("bad")

    graph = lagged(
        generate, range(6), Version(), per_step=3, backoff=0.001, attempts=1, max_failures=8
    )
    async with DataLoader2(graph, acknowledge=True) as loader, asyncio.timeout(20):
        assert [each async for each in loader] == [0]
        assert loader.stats().left_out == {"attempts": 5}
    assert calls[0] > 1


async def test_a_prompt_is_not_given_up_for_a_call_that_succeeds_just_after_it_failed():
    server = Server()
    graph = lagged(server.generate, "ab", Version(), per_step=1, backoff=0.001, attempts=1)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        coming = asyncio.ensure_future(anext(items))
        await server.was_asked(2)
        server.answer("a")
        assert await coming == "a"
        coming = asyncio.ensure_future(anext(items))
        server.unanswer("a")
        server.fail("b", OSError("bad"))
        # Nothing else can tell, so it is called for "a" again.
        await server.was_asked(4)
        assert sorted(server.prompts[2:]) == ["a", "b"]
        # In one turn of the loop.
        server.fail("b", OSError("bad"))
        server.answer("a")
        await server.was_asked(5)
        server.answer("b")
        assert await coming == "b"
        assert loader.stats().left_out == {}


async def test_no_call_for_an_answered_prompt_begins_in_a_pause():
    policy, is_bad, is_paused = Version(), asyncio.Event(), asyncio.Event()
    calls = []

    async def generate(prompt):
        calls.append((prompt, is_paused.is_set()))
        if prompt == 1 and not is_paused.is_set():
            await is_bad.wait()
            pausing.set_result(None)
            raise OSError("bad")
        return prompt

    pausing = asyncio.get_running_loop().create_future()
    graph = lagged(generate, range(2), policy, per_step=1, backoff=0.001, attempts=1)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        assert await anext(items) == 0
        coming = asyncio.ensure_future(anext(items))
        await turns()
        is_bad.set()
        await pausing
        # The call has ended, and the loader calls for 0 at the next turn.
        await turns(1)
        async with loader.paused(in_flight="keep"):
            is_paused.set()
            await turns()
            assert calls == [(0, False), (1, False)]
        assert await coming == 1


async def test_a_call_for_an_answered_prompt_that_exits_ends_the_pass():
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if prompt == 0:
            if calls[0] == 2:
                raise SystemExit(3)
            return prompt
        await turns(200)
        raise OSError("bad")

    graph = lagged(generate, range(2), Version(), per_step=1, backoff=0.001, attempts=1)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        assert await anext(items) == 0
        with pytest.raises(SystemExit):
            await anext(items)


async def test_a_server_that_is_away_is_asked_for_other_prompts_and_nothing_is_left_out():
    is_away, policy = asyncio.Event(), Version()
    calls = Counter()

    async def generate(prompt):
        calls[prompt] += 1
        if prompt == 2 and not is_away.is_set():
            is_away.set()
        if is_away.is_set() and sum(calls.values()) < 30:
            raise ConnectionError("away")
        return prompt

    graph = lagged(generate, range(12), policy, backoff=0.001, concurrency=1).batch(2)
    trained = []
    async with DataLoader2(graph, acknowledge=True) as loader, asyncio.timeout(20):
        async for batch in loader:
            trained += batch
            policy.advance()
            loader.ack()
        assert loader.stats().left_out == {}
    assert trained == list(range(12))


async def test_what_is_ready_and_too_old_is_called_for_again_or_dropped():
    for on_stale in ("again", "drop"):
        policy, server = Version(), Server()
        graph = lagged(
            server.generate,
            "abcdef",
            policy,
            max_lag=1,
            per_step=3,
            order="ready",
            on_stale=on_stale,
            concurrency=10,
        ).batch(1)
        async with DataLoader2(graph, acknowledge=True) as loader:
            items = aiter(loader)
            coming = asyncio.ensure_future(anext(items))
            await server.was_asked(6)
            server.answer("b")
            assert await coming == ["b"]
            policy.advance()
            policy.advance()
            server.answer("a", "old")
            loader.ack()
            if on_stale == "again":
                coming = asyncio.ensure_future(anext(items))
                assert await coming == ["old"]
                assert server.prompts.count("a") == 2, "it was called for with the new version"
            else:
                server.answer("c", "old as well")
                await turns(50)
                assert loader.stats().left_out["stale"] >= 1


async def test_a_call_that_ends_late_is_no_part_of_a_prompt_that_was_begun_anew():
    policy, calls = Version(), []
    has_begun, may_end, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def generate(prompt, *, member, version):
        calls.append((prompt, member, version))
        if (prompt, member, version) == (2, 1, 0):
            has_begun.set()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await may_end.wait()
            has_ended.set()
            return "too late"
        if (prompt, version) == (2, 2):
            may_end.set()
            await has_ended.wait()
            await turns()
        return prompt, member, version

    graph = lagged(
        generate,
        range(3),
        policy,
        max_lag=1,
        per_step=2,
        order="ready",
        group=2,
        min_group=1,
        group_timeout=0.5,
    ).batch(1)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        assert [await anext(items) for _ in range(2)] == [
            [[(prompt, 0, 0), (prompt, 1, 0)]] for prompt in range(2)
        ]
        await has_begun.wait()
        policy.advance()
        policy.advance()
        loader.ack()
        assert await anext(items) == [[(2, 0, 2), (2, 1, 2)]]
    assert calls[-2:] == [(2, 0, 2), (2, 1, 2)]


async def test_what_is_acknowledged_before_the_policy_advances_is_refused():
    policy = Version()
    graph = lagged(echo, range(10), policy).batch(2)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        await anext(items)
        with pytest.raises(RuntimeError, match=r"version.advance\(\), and then ack\(\)"):
            loader.ack()
        assert loader.unacknowledged == 1
        policy.advance()
        loader.ack()
        await anext(items)
        with pytest.raises(RuntimeError, match="was not advanced since"):
            loader.ack()
        with pytest.raises(ValueError, match="more items than wait for it: 1 were"):
            loader.ack(2)


async def test_a_pipe_that_holds_all_that_may_begin_is_named():
    policy = Version()
    graph = lagged(echo, range(100), policy, per_step=3).batch_tokens(1000, length=lambda _: 1)
    async with DataLoader2(graph, acknowledge=True) as loader:
        with pytest.raises(StarvedError, match=r"batch_tokens\(1000.*waits for more of them"):
            async with asyncio.timeout(60):
                await anext(aiter(loader))


@pytest.mark.soak
async def test_a_trainer_that_takes_its_time_starves_nobody():
    policy = Version()
    graph = lagged(echo, range(8), policy, per_step=2).prefetch(1).batch(2)
    trained = 0
    async with DataLoader2(graph, acknowledge=True) as loader:
        async for _ in loader:
            await asyncio.sleep(1.2)
            trained += 1
            policy.advance()
            loader.ack()
    assert trained == 4


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"keep_results": "x"}, "keep_results must be True or False, got 'x'"),
        ({"max_lag": 1}, "needs version=Version"),
        ({"max_lag": 1, "version": Version()}, "and per_step"),
        ({"max_lag": 1, "version": Version(), "per_step": 2, "order": 4}, "use order=3 at most"),
        ({"version": 1}, "must be an asyncloader.Version"),
        ({"order": "soon"}, '"source", "ready" or a number'),
        ({"on_stale": "keep"}, "'again' or 'drop'"),
        ({"on_error": "skip"}, "'again' or 'raise'"),
        ({"min_group": 2}, "go together, with group"),
        ({"group": 2, "min_group": 3, "group_timeout": 1.0}, "never reached"),
        ({"group": 0}, "group must be at least 1"),
        ({"attempts": 0}, "attempts must be at least 1"),
    ],
)
def test_settings_that_contradict_themselves_are_refused(settings, words):
    with pytest.raises((TypeError, ValueError), match=words):
        IterableWrapper([]).rollout(echo, **settings)


def test_the_prompt_may_be_called_as_one_likes():
    async def named(number, *, member):
        return number, member

    async def open_to_all(attempt, **told):
        return attempt, sorted(told)

    assert list(IterableWrapper([5]).rollout(named)) == [(5, 0)]
    others = ["member", "number", "partial", "version"]
    assert list(IterableWrapper([5]).rollout(open_to_all)) == [(5, others)]


def test_a_function_that_cannot_be_called_is_refused():
    async def two(prompt, other):
        return prompt

    with pytest.raises(ValueError, match="a prompt and, by name, any of version, attempt"):
        IterableWrapper([]).rollout(two)
    with pytest.raises(TypeError, match="async def"):
        IterableWrapper([]).rollout(len)


def as_ready(**more):
    return lagged(echo, range(9), Version(), order="ready", **more)


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (lambda: lagged(echo, [], Version()).batch(5), "begins at most 4 before one is acknow"),
        (lambda: lagged(echo, [], Version()).batch(3).batch(2), "would wait for 6 prompts"),
        (as_ready, "no pipe behind it makes batches"),
        (lambda: as_ready().batch(2, max_wait=1.0), "Add batch .without max_wait."),
        (lambda: as_ready().batch(2, max_wait=1.0).batch(2), "Add batch .without max_wait."),
        (lambda: as_ready().shuffle().batch(2), "Put shuffle.* before it"),
        (lambda: as_ready().groupby(id).batch(2), "Put groupby.* before it"),
        (lambda: lagged(echo, [], Version()).batch(2).shuffle(), "so max_lag would not hold"),
        (lambda: lagged(echo, [], Version()).async_map(echo, ordered=False), "let it keep the ord"),
        (lambda: lagged(echo, [], Version()).fork(2)[0], "Put fork"),
        (lambda: IterableWrapper([1]).rollout(echo).unbatch(), "Put unbatch"),
        (
            lambda: IterableWrapper([1]).async_map(echo, repeatable=False).batch(2).rollout(echo),
            "Put rollout",
        ),
    ],
)
def test_graphs_that_could_not_keep_the_promise_are_refused(graph, words):
    with pytest.raises(ValueError, match=words):
        DataLoader2(graph(), acknowledge=True)


def test_a_lag_needs_a_loader_that_is_told_what_was_trained():
    with pytest.raises(ValueError, match="Pass acknowledge=True"):
        DataLoader2(lagged(echo, [], Version()).batch(2))
    with pytest.raises(LoaderError, match="acknowledge=True"):
        list(lagged(echo, [], Version()))


# Pauses -----------------------------------------------------------------------------------


async def test_a_pause_waits_for_the_calls_in_flight_and_lets_none_begin():
    server = Server()
    graph = IterableWrapper("abcd").rollout(server.generate, concurrency=2)
    async with DataLoader2(graph) as loader:
        items = aiter(loader)
        first = asyncio.ensure_future(anext(items))
        await server.was_asked(2)
        pausing = asyncio.ensure_future(loader.paused().__aenter__())
        await turns()
        assert not pausing.done()
        server.answer("a")
        server.answer("b")
        pause = await pausing
        assert await first in "ab"
        await turns()
        assert server.prompts == ["a", "b"]
        await pause.__aexit__()
        await server.was_asked(4)
        await items.aclose()


async def test_a_pause_may_let_calls_run_on():
    server = Server()
    graph = IterableWrapper("abc").rollout(server.generate, concurrency=2)
    async with DataLoader2(graph) as loader:
        items = aiter(loader)
        first = asyncio.ensure_future(anext(items))
        await server.was_asked(2)
        async with loader.paused(in_flight="keep"):
            server.answer("a")
            assert await first == "a"
            await turns()
            assert server.prompts == ["a", "b"]
        await server.was_asked(3)


async def test_an_aborted_call_is_made_again_with_what_it_kept():
    calls, policy, all_begun = [], Version(), asyncio.Event()

    async def generate(prompt, *, attempt, partial, version):
        calls.append((prompt, attempt, partial, version))
        if version:
            return prompt, partial
        if len(calls) == 3:
            all_begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if prompt == "a":
                raise Again(partial="begun") from None
            if prompt == "b":
                return prompt, "finished all the same"
            raise

    graph = IterableWrapper("abc").rollout(generate, version=policy, order="source")
    async with DataLoader2(graph) as loader:
        items = aiter(loader)
        first = asyncio.ensure_future(anext(items))
        await asyncio.wait_for(all_begun.wait(), 60)
        async with loader.paused(in_flight="abort"):
            policy.advance()
        assert await first == ("a", "begun")
        assert await anext(items) == ("b", "finished all the same")
        assert await anext(items) == ("c", None)
    assert calls[3:] == [("a", 0, "begun", 1), ("c", 0, None, 1)]


async def test_a_call_that_delays_a_pause_is_named(monkeypatch, caplog):
    monkeypatch.setattr(rollout_calls, "_PAUSE_SECONDS", 0.1)
    begun, may_end = asyncio.Event(), asyncio.Event()

    async def stubborn(prompt):
        begun.set()
        while not may_end.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await may_end.wait()
        return prompt

    async with DataLoader2(IterableWrapper("ab").rollout(stubborn)) as loader:
        items = aiter(loader)
        first = asyncio.ensure_future(anext(items))
        await asyncio.wait_for(begun.wait(), 60)
        pausing = asyncio.ensure_future(loader.paused(in_flight="abort").__aenter__())
        done, _ = await asyncio.wait([pausing], timeout=0.5)
        may_end.set()
        assert not done
        pause = await pausing
        assert await first in "ab"
        await pause.__aexit__()
        await items.aclose()
    assert "2 calls to end; the oldest is rollout(" in caplog.text
    assert ".stubborn" in caplog.text


def test_a_pause_in_a_program_without_a_loop():
    graph = IterableWrapper(range(50)).rollout(echo_later, concurrency=3)
    with DataLoader2(graph) as loader:
        got = []
        for item in loader:
            got.append(item)
            with loader.paused(in_flight=("wait", "keep", "abort")[len(got) % 3]):
                pass
    assert sorted(got) == list(range(50))


async def test_a_pause_says_what_it_cannot_do():
    async with DataLoader2(IterableWrapper([1])) as loader:
        with pytest.raises(ValueError, match="this graph has none"):
            loader.paused()
    async with DataLoader2(IterableWrapper([1]).rollout(echo)) as loader:
        with pytest.raises(ValueError, match='"wait", "keep" or "abort"'):
            loader.paused("stop")
        with pytest.raises(RuntimeError, match="use `async with"), loader.paused():
            pass


async def test_a_pause_before_the_first_item_holds():
    async with DataLoader2(IterableWrapper([1, 2]).rollout(echo)) as loader:
        items = aiter(loader)
        async with loader.paused():
            first = asyncio.ensure_future(anext(items))
            await turns(100)
            assert not first.done()
        assert await first in (1, 2)


# States -----------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("order", ["source", "ready", 5])
async def test_each_prompt_is_trained_once_however_often_the_program_resumes(order, workers):
    async def generate(prompt):
        await asyncio.sleep((hash(prompt) % 5) / 2000)
        return prompt

    prompts = IterableWrapper(range(120)).shuffle().sharding_filter()
    graph = prompts.rollout(generate, group=2, concurrency=16, order=order)
    graph = graph.filter(is_wanted).batch(5)
    state, trained, left_out = None, Counter(), {}
    for stop in (3, 1, 4, 2, 100):
        service = MultiProcessingReadingService(workers) if workers else None
        loader = DataLoader2(graph, None, service, acknowledge=True, seed=1)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        async with loader:
            async for batch in loader:
                trained.update(first for first, _ in batch)
                loader.ack()
                state = loader.state_dict(include_datapipe=False)
                stop -= 1
                if not stop:
                    break
            left_out = loader.stats().left_out
    assert trained == Counter(number for number in range(120) if number % 3)
    assert left_out == {"filter": 40}


def is_wanted(pair):
    return pair[0] % 3 != 0


async def generate_for_a_state(prompt):
    return prompt


def test_a_state_may_have_the_graph():
    graph = IterableWrapper(range(6)).rollout(generate_for_a_state, version=Version(3))
    with DataLoader2(graph) as loader:
        first = next(iter(loader))
        state = loader.state_dict()
    with DataLoader2.from_state(state) as loader:
        assert sorted([first, *loader]) == list(range(6))
        assert loader.datapipe.version.number == 3


async def test_results_that_were_paid_for_are_kept():
    calls = Counter()

    async def generate(prompt, *, version):
        calls[prompt] += 1
        return {"prompt": prompt}

    policy = Version()
    graph = lagged(generate, range(12), policy, per_step=3, keep_results=True).batch(3)
    state, trained = None, []
    for _ in range(4):
        loader = DataLoader2(graph, acknowledge=True)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        async with loader:
            items = aiter(loader)
            trained += [each["prompt"] for each in await anext(items)]
            policy.advance()
            loader.ack()
            await turns(50)
            state = loader.state_dict(include_datapipe=False)
    assert trained == list(range(12))
    assert calls == Counter(range(12))


@pytest.mark.parametrize(("order", "again"), [("source", [4, 5, 6, 7]), (2, [3, 4, 5, 6, 7])])
async def test_kept_results_that_fewer_ranks_train_too_late_are_made_anew(order, again):
    calls = []

    def loader_on(rank, size, policy):
        async def generate(prompt, *, version):
            calls.append(prompt)
            return prompt, version

        graph = IterableWrapper(range(8)).sharding_filter()
        graph = graph.rollout(
            generate, version=policy, max_lag=1, per_step=2, order=order, keep_results=True
        )
        service = DistributedReadingService(group=(rank, size))
        return DataLoader2(graph.batch(2), reading_service=service, acknowledge=True)

    async def state_of(rank):
        on_rank(rank)
        async with loader_on(rank, 2, Version()) as loader:
            items = aiter(loader)
            await anext(items)
            while len(calls) < 8 - 2 * (order == 2):
                await turns()
            await turns()
            return loader.state_dict(include_datapipe=False)

    with Tables(2).laid():
        states = await asyncio.gather(state_of(0), state_of(1))
    begun, policy = sorted(calls), Version()
    calls.clear()
    trained, lags = [], []
    with Tables(1).laid():
        async with loader_on(0, 1, policy) as loader:
            loader.load_state_dict(states)
            async for batch in loader:
                trained += [prompt for prompt, _ in batch]
                lags += [policy.number - version for _, version in batch]
                policy.advance()
                loader.ack()
    assert sorted(trained) == list(range(8))
    assert max(lags) <= 1
    assert sorted(calls) == again, begun


async def test_results_of_a_later_policy_than_the_present_one_are_refused():
    policy = Version(3)
    graph = IterableWrapper(range(3)).rollout(echo, version=policy, keep_results=True)
    async with DataLoader2(graph, acknowledge=True) as loader:
        await anext(aiter(loader))
        state = loader.state_dict(include_datapipe=False)
    for number, is_early in ((2, True), (3, False), (4, False)):
        graph = IterableWrapper(range(3)).rollout(echo, version=Version(number), keep_results=True)
        async with DataLoader2(graph, acknowledge=True) as loader:
            loader.load_state_dict(state)
            if is_early:
                with pytest.raises(SnapshotError, match=r"version 3 .*, and it is now version 2"):
                    await anext(aiter(loader))
            else:
                assert len([each async for each in loader]) == 3


async def test_a_prompt_that_ends_the_program_again_and_again_is_left_out():
    server, state = Server(), None
    graph = IterableWrapper("ab").rollout(server.generate, attempts=2)
    for _ in range(2):
        loader = DataLoader2(graph, acknowledge=True)
        if state is not None:
            loader.load_state_dict(state)
        async with loader:
            coming = asyncio.ensure_future(anext(aiter(loader)))
            asked = len(server.asked)
            await server.was_asked(asked + 2)
            state = loader.state_dict(include_datapipe=False)
            coming.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await coming
    async with DataLoader2(graph, acknowledge=True) as loader:
        loader.load_state_dict(state)
        assert [each async for each in loader] == []
        assert loader.stats().left_out == {"attempts": 2}


def test_it_works_in_a_plain_for():
    with DataLoader2(IterableWrapper(range(20)).rollout(echo_later, group=2).batch(4)) as loader:
        batches = list(loader)
    assert sorted(first for batch in batches for first, _ in batch) == list(range(20))


# Stats ------------------------------------------------------------------------------------


async def test_stats_say_what_is_on_its_way_and_whom_it_waits_for():
    server, policy = Server(), Version()
    graph = lagged(server.generate, "abcdefgh", policy, concurrency=3).batch(2)
    async with DataLoader2(graph, acknowledge=True) as loader:
        items = aiter(loader)
        coming = asyncio.ensure_future(anext(items))
        await server.was_asked(3)
        (stats,) = loader.stats().rollouts
        assert (stats.in_flight, stats.unsettled, stats.capacity) == (3, 3, 4)
        assert stats.waits_for == "calls to end"
        assert stats.oldest is not None
        assert stats.oldest[0] in (0, 1, 2)
        assert "3 calls in flight (the oldest for 0.0 s, prompt" in str(loader.stats())
        for prompt in "abcd":
            server.answer(prompt)
        assert await coming == ["a", "b"]
        (stats,) = loader.stats().rollouts
        assert (stats.in_flight, stats.unsettled, stats.waits_for) == (0, 4, "the trainer")
        policy.advance()
        loader.ack()
        assert await anext(items) == ["c", "d"]
        policy.advance()
        loader.ack()
        (stats,) = loader.stats().rollouts
        assert stats.lags == {0: 2, 1: 2}
        names = {metric.name for metric in loader.stats().as_metrics()}
        assert {"asyncloader_rollout_in_flight", "asyncloader_rollout_trained_total"} <= names
        await items.aclose()


async def test_the_verdict_says_what_a_rollout_lacks():
    async def slow(prompt):
        await asyncio.sleep(0.3)
        return prompt

    async with DataLoader2(IterableWrapper(range(6)).rollout(slow, concurrency=2)) as loader:
        assert len([each async for each in loader]) == 6
        assert "waits for the policy" in loader.stats().verdict()


async def test_the_verdict_says_that_a_rollout_waits_for_the_trainer():
    async def at_once(prompt):
        return prompt

    graph = IterableWrapper(range(9)).rollout(at_once, version=Version(), max_lag=0, per_step=2)
    async with DataLoader2(graph.batch(2), acknowledge=True) as loader:
        items = aiter(loader)
        await anext(items)
        # Nothing is acknowledged, so nothing comes.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await anext(items)
        stats = loader.stats()
        assert stats.bottleneck().name == "rollout(at_once, max_lag=0, per_step=2, order='source')"
        assert "may begin no more prompts before some of 2 are trained" in stats.verdict()


# Batches of tokens ------------------------------------------------------------------------


def test_batches_have_at_most_so_many_tokens():
    words = ["a" * length for length in (3, 3, 3, 9, 1, 7, 2, 2, 2, 1)]
    batches = list(IterableWrapper(words).batch_tokens(8))
    assert [[len(word) for word in batch] for batch in batches] == [
        [3, 3],
        [3],
        [9],
        [1, 7],
        [2, 2, 2, 1],
    ]


def test_a_length_that_is_no_count_is_refused():
    with pytest.raises(TypeError, match="must return a number of tokens"):
        list(IterableWrapper(["a"]).batch_tokens(5, length=lambda _: -1))
    with pytest.raises(ValueError, match="max_tokens must be at least 1"):
        IterableWrapper([]).batch_tokens(0)


@pytest.mark.parametrize("stop", range(5))
def test_batches_of_tokens_resume_at_every_step(stop):
    graph = IterableWrapper(range(1, 12)).shuffle().batch_tokens(12, length=int)
    with DataLoader2(graph, seed=3) as loader:
        whole = list(loader)
    with DataLoader2(graph, seed=3) as loader:
        items = iter(loader)
        begun = [next(items) for _ in range(stop)]
        state = loader.state_dict()
    with DataLoader2.from_state(state, datapipe=graph) as loader:
        assert begun + list(loader) == whole
