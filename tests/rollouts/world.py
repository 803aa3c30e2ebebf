"""Lines of states over random programs that use ``rollout``.

This file is about ``Line``: a program that is killed, cancelled, interrupted or left, and resumed
from what it has saved, maybe some time before, until it comes to its end. It runs on a scripted
loop, so that a line takes as long as its work. What has become of each prompt is known outside.

The ranks of a program are tasks of this loop, each with a loader of its own. They train in step,
and what ends one of them ends all.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from asyncloader import Again, DataLoader2, DistributedReadingService, RankError, Version
from asyncloader.datapipes import rollout_calls
from asyncloader.errors import StarvedError
from asyncloader.graph import to_text
from tests.rollouts.clock import Hang, Killed, ScriptedLoop, kill
from tests.rollouts.ledger import Answer, Ledger, Noted, RankLedger, Save
from tests.rollouts.plan import LONGEST, SHORTEST, Plan, Weather, drawn
from tests.table import Tables, on_rank

#: After so many runs nothing disturbs the program any more.
_DISTURBED_RUNS = 8

#: A program that nothing disturbs comes to its end within so many.
_MOST_RUNS = 30


class Unlucky(Exception):
    """Ends a program in the middle, by an error of its own."""


class Refused(OSError):
    """The server is away, or does not like a prompt at the moment."""


class Policy:
    """A policy that answers as the weather is, and the reward that its answers get."""

    def __init__(self, seed: str, weather: Weather, ledger: RankLedger) -> None:
        self._draw = random.Random(f"policy {seed}")
        # Others than those of the policy, as they are drawn in threads.
        self._judge = random.Random(f"judge {seed}")
        self._weather = weather
        self._ledger = ledger
        self._back_at = 0.0
        self._leaves_at = math.inf
        if weather.goes_away:
            self._leaves_at = self._draw.expovariate(weather.goes_away / 60)

    async def generate(
        self, prompt: int, *, version: int, attempt: int, partial: Any, number: int, member: int
    ) -> Answer:
        """Answer after a while, or fail, or put the prompt back."""
        ledger = self._ledger
        if number != prompt:
            ledger.say(f"prompt {prompt} is called {number}")
        ledger.begin_call(number, member, version, attempt, partial)
        oldest = version if partial is None else partial["version"]
        so_far = {"number": number, "member": member, "version": oldest}
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            answer = await self._answer(so_far)
        except Again as again:
            ledger.end_call(number, member, [again.partial])
            raise
        except asyncio.CancelledError:
            is_late = loop.time() - begun > ledger.plan.more.get("timeout", math.inf) - 0.001
            if is_late and cancels_now() == 1:
                ledger.fail_call(number, member)
            else:
                # Somebody else than the clock, at least, wanted it to end.
                # It is called for again with what it began with.
                ledger.end_call(number, member, [partial])
            raise
        except Refused:
            ledger.fail_call(number, member)
            raise
        ledger.answer_call(number, member)
        return answer

    async def _answer(self, so_far: Answer) -> Answer:
        draw, weather = self._draw, self._weather
        try:
            if draw.random() < weather.stalls:
                await asyncio.sleep(10_000)
            await self._delay()
        except asyncio.CancelledError:
            if draw.random() < weather.ends_late_if_cancelled:
                self._ledger.tell_to_end(so_far["number"], so_far["member"])
                await self._delay()
                return so_far
            if draw.random() < weather.is_put_back_if_cancelled:
                raise Again(so_far) from None
            raise
        if self._is_away() or draw.random() < weather.fails:
            raise Refused
        if draw.random() < weather.is_put_back:
            raise Again(draw.choice((None, so_far)))
        return so_far

    async def _delay(self) -> None:
        await asyncio.sleep(math.exp(self._draw.gauss(0.0, self._weather.width)))

    def _is_away(self) -> bool:
        now, weather = asyncio.get_running_loop().time(), self._weather
        while now >= self._leaves_at:
            self._back_at = self._leaves_at + weather.is_away_for
            self._leaves_at = self._back_at + self._draw.expovariate(weather.goes_away / 60)
        return now < self._back_at

    def hand_on(self, item: Any) -> Any:
        """Note what comes out of the rollout."""
        self._ledger.hand_on(answers_in(item))
        return item

    def likes(self, item: Any) -> bool:
        """Say yes, most of the time."""
        is_liked = self._judge.random() < 0.7
        if not is_liked:
            self._ledger.leave_out(answers_in(item)[0]["number"])
        return is_liked

    def length(self, item: Any) -> int:
        """Return how long an item is."""
        return self._judge.randint(SHORTEST, LONGEST)

    async def reward(self, item: Any) -> Any:
        """Return the item after a while."""
        await asyncio.sleep(0.1)
        return item


def cancels_now() -> int:
    """Return how often the present task was told to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def answers_in(item: Any) -> list[Answer]:
    """Return the answers in an item, which may be one, or a group or a batch of them."""
    return (
        [item] if isinstance(item, dict) else [each for part in item for each in answers_in(part)]
    )


def numbers_in(item: Any) -> list[int]:
    """Return the numbers of an item, each once, in its order."""
    return list(dict.fromkeys(each["number"] for each in answers_in(item)))


class Run:
    """One run of a program: its ranks, what they have saved together, and how long they go on."""

    def __init__(self, size: int, draw: random.Random, ledger: Ledger) -> None:
        self.size = size
        self._ledger = ledger
        self._meeting = asyncio.Barrier(size)
        self._noted: dict[int, Noted] = {}
        #: What was saved, the oldest first.
        self.saves: list[Save] = []
        #: After how many steps the trainer fails, and after how many it leaves; None is for never.
        self.fails_after: int | None = None
        self.leaves_after: int | None = None
        self.saves_often = draw.random() < 0.5
        # What all ranks have to do alike.
        self._seed = draw.random()

    def alike(self) -> random.Random:
        """Return what draws the same on each rank."""
        return random.Random(self._seed)

    async def meet(self) -> None:
        """Wait for the other ranks."""
        await self._meeting.wait()

    def save(self, rank: int, noted: Noted, version: int) -> None:
        """Note the state of a rank; with those of all others the program has saved."""
        self._noted[rank] = noted
        if len(self._noted) == self.size:
            states = [self._noted.pop(each) for each in range(self.size)]
            if (save := self._ledger.saved(states, version)) is not None:
                self.saves.append(save)


class Trainer:
    """One rank of a run: it trains the batches of a loader, until something ends it."""

    def __init__(
        self,
        plan: Plan,
        draw: random.Random,
        ledger: RankLedger,
        run: Run,
        loader: Any,
        version: Version,
    ) -> None:
        self._plan = plan
        self._draw = draw
        self._ledger = ledger
        self._run = run
        self._loader = loader
        self._version = version
        self.steps = 0
        self.has_ended = False
        # Whether the policy has learned from what is not acknowledged: to save it would be wrong.
        self._is_ahead = False
        self._alike = run.alike()

    @property
    def left_out(self) -> Counter[str]:
        """How many the loader has left out, by the reason."""
        return left_out_of(self._loader)

    async def run(self) -> None:
        """Train until the end, or until something happens."""
        async with self._loader:
            try:
                if self._plan.queue is None:
                    await self._train(self._batches())
                else:
                    await self._train_by_queue(asyncio.Queue(self._plan.queue))
            finally:
                is_interrupted = self._ledger.looks and not self.has_ended
                if self._run.size == 1 and is_interrupted and self._draw.random() < 0.5:
                    self._save()
            if self.has_ended:
                self._look_at_end()

    async def _train_by_queue(self, queue: asyncio.Queue[Any]) -> None:
        async def feed() -> None:
            async for batch in self._batches():
                await queue.put(batch)
            await queue.put(None)

        async def batches() -> AsyncIterator[Any]:
            while (batch := await queue.get()) is not None:
                yield batch

        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(feed())]
            if self._plan.acknowledges and self._run.size == 1:
                others.append(tasks.create_task(self._save_meanwhile()))
            await self._train(batches())
            for task in others:
                task.cancel()

    async def _save_meanwhile(self) -> None:
        while True:
            await asyncio.sleep(self._draw.expovariate(0.2))
            self._save()

    async def _batches(self) -> AsyncIterator[Any]:
        items = aiter(self._loader)
        while (batch := await self._patiently(items)) is not None:
            own, told = numbers_in(batch), list(self._loader.numbers)
            if own != told:
                self._ledger.say(f"an item of {own} has the numbers {told}")
            self._look_at_unacknowledged()
            if not self._plan.acknowledges:
                self._ledger.acknowledge(own)
            yield batch

    async def _patiently(self, items: Any) -> Any:
        """Return the next item, or None at the end; some tries are cancelled before."""
        while self._plan.acknowledges and self._draw.random() < 0.2:
            asking = asyncio.ensure_future(anext(items, None))
            try:
                await asyncio.wait([asking], timeout=self._draw.choice((0, 0.1, 2)))
            finally:
                asking.cancel()
            await asyncio.wait([asking])
            if not asking.cancelled():
                return asking.result()
        return await anext(items, None)

    def _look_at_unacknowledged(self) -> None:
        plan, count = self._plan, self._loader.unacknowledged
        if plan.order == "ready" and plan.max_lag is not None and count > plan.max_lag + 1:
            self._ledger.say(f"{count} batches are not acknowledged, and max_lag is {plan.max_lag}")

    async def _train(self, batches: AsyncIterator[Any]) -> None:
        step: list[Any] = []
        async for batch in batches:
            step.append(batch)
            if len(step) == self._plan.batches_per_step:
                await self._step(step)
                step = []
                if self.steps == self._run.leaves_after:
                    return
        if step:
            await self._step(step)
        self.has_ended = True

    async def _step(self, batches: list[Any]) -> None:
        plan, ledger = self._plan, self._ledger
        for batch in batches:
            ledger.train(answers_in(batch))
        await asyncio.sleep(plan.training * self._draw.random())
        self._fail_maybe()
        await self._run.meet()
        self._is_ahead = True
        await self._send_weights()
        if plan.acknowledges:
            self._loader.ack(len(batches))
            for batch in batches:
                ledger.acknowledge(numbers_in(batch))
        self._is_ahead = False
        self.steps += 1
        if self._run.saves_often or self._alike.random() < 0.1:
            # After the same step on each rank.
            await self._run.meet()
            self._save()
            await self._run.meet()
        self._fail_maybe()

    async def _send_weights(self) -> None:
        if not self._plan.in_flight:
            self._version.advance()
            return
        in_flight = self._draw.choice(self._plan.in_flight)
        async with self._loader.paused(in_flight=in_flight):
            if in_flight != "keep":
                self._ledger.look_at_pause(in_flight)
            with self._ledger.pause():
                await asyncio.sleep(self._draw.random())
                self._fail_maybe()
                self._version.advance()

    def _fail_maybe(self) -> None:
        if self.steps == self._run.fails_after and self._draw.random() < 0.5:
            raise Unlucky

    def _save(self) -> None:
        if self._is_ahead:
            return
        state = json.loads(json.dumps(self._loader.state_dict(include_datapipe=False)))
        self._run.save(self._ledger.rank, self._ledger.note(state), self._version.number)

    def _look_at_end(self) -> None:
        if self._loader.unacknowledged:
            self._ledger.say(f"{self._loader.unacknowledged} are not acknowledged at the end")


class Line:
    """The runs of one random program, each resumed from what was saved before."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.plan = drawn(seed)
        self.ledger = Ledger(self.plan, len(list(self.plan.prompts(seed))))
        self.runs = 0
        #: How the runs ended.
        self.endings: Counter[str] = Counter()
        self.left_out: Counter[str] = Counter()
        #: Seconds of the scripted clock.
        self.seconds = 0.0
        self._draw = random.Random(f"line {seed}")
        self._saves = [Save()]

    def play(self) -> Line:
        """Run, end in some way and resume, until the end."""
        ending = ""
        while ending not in ("end", "hang", "starved"):
            ending = self._run()
            self.endings[ending] += 1
            self.runs += 1
            if self.runs == _MOST_RUNS:
                self.ledger.wrong.append(f"it does not come to its end: {dict(self.endings)}")
                break
        return self

    def in_words(self) -> str:
        """Return the program, and how to play it again."""
        rank = RankLedger(self.ledger, 0, Version(), Counter, float)
        graph = self.plan.graph(self.seed, self._policy(rank), Version())
        command = f"python -m tests.rollouts --first {self.seed} --count 1"
        return f"{command}\n{self.plan}\n{to_text(graph)}"

    def wrong(self) -> Iterator[str]:
        """Say what is not as promised."""
        yield from dict.fromkeys(self.ledger.wrong)

    def _policy(self, ledger: RankLedger) -> Policy:
        weather = self.plan.weather
        if self.runs >= _DISTURBED_RUNS:
            weather = replace(weather, width=0.0, fails=0.0, goes_away=0.0, stalls=0.0)
        rank = f" rank {ledger.rank}" if ledger.rank else ""
        return Policy(f"{self.seed} {self.runs}{rank}", weather, ledger)

    def _run(self) -> str:
        """Run once from what was saved last, or before; return how that ended."""
        draw, ledger = self._draw, self.ledger
        if draw.random() < 0.2:
            # The newer states are lost, and what they counted with them.
            del self._saves[draw.randrange(len(self._saves)) + 1 :]
        save, size = self._saves[-1], draw.choice(self.plan.ranks or (1,))
        run = Run(size, draw, ledger)
        # What waits for a random time has to wait as long the next time that this line is played.
        jitter = mock.patch.object(rollout_calls, "_jitter", random.Random(f"jitter {self.seed}"))
        try:
            with jitter, Tables(size).laid(), ScriptedLoop() as loop:
                ledger.begin_run(save)
                trainers = [self._trainer(run, rank, loop) for rank in range(size)]
                ending = self._played(loop, run, trainers)
                may_raise = any(rank.may_raise() for rank in ledger.ranks)
                is_told = ending == "told by another rank" and not self.plan.starves
                if (ending == "refused" or is_told) and not may_raise:
                    ledger.say(f"it ends, {ending}, after too few failures in a row")
                if all(each.has_ended for each in trainers):
                    self.left_out = sum((each.left_out for each in trainers), Counter())
                    ledger.end(self.left_out)
                    ending = "end"
                # What is left of the program is closed, which nobody looks at.
                ledger.end_run()
        except Hang as hang:
            ledger.wrong.append(f"it hangs: {hang}")
            return "hang"
        if ending == "starved" and not self.plan.starves:
            ledger.wrong.append("it starves")
        self.seconds += loop.time()
        self._saves += run.saves
        return ending

    def _trainer(self, run: Run, rank: int, loop: ScriptedLoop) -> Trainer:
        """Return a rank that goes on from what was saved last."""
        save = self.ledger.save
        version = Version(save.version)
        ledger = RankLedger(self.ledger, rank, version, lambda: left_out_of(loader), loop.time)
        divided = DistributedReadingService(group=(rank, run.size)) if self.plan.ranks else None
        loader = DataLoader2(
            self.plan.graph(self.seed, self._policy(ledger), version),
            reading_service=divided,
            seed=self.seed,
            acknowledge=self.plan.acknowledges,
        )
        if len(save.states) == run.size and self._draw.random() < 0.7:
            loader.load_state_dict(save.states[rank])
        elif save.states:
            loader.load_state_dict(list(save.states))
        return Trainer(self.plan, self._draw, ledger, run, loader, version)

    def _played(self, loop: ScriptedLoop, run: Run, trainers: list[Trainer]) -> str:
        """Play a program in one of the ways that there are; return how it ended."""
        program = loop.create_task(_all_ranks(trainers))
        ways = ("kill", "kill", "kill", "cancel", "fail", "leave", "end")
        way = self._draw.choice(ways) if self.runs < _DISTURBED_RUNS else "end"
        turn = int(math.exp(self._draw.uniform(0.0, 8.5))) + 1
        steps = int(math.exp(self._draw.uniform(0.0, 3.0))) - 1
        if way == "kill":
            loop.at_turn(turn, kill)
        elif way == "cancel":
            loop.at_turn(turn, program.cancel)
        elif way == "fail":
            run.fails_after = steps
        elif way == "leave":
            run.leaves_after = steps
        try:
            loop.run_until_complete(program)
        except Killed:
            return "killed"
        except asyncio.CancelledError:
            return "cancelled"
        except BaseException as error:  # noqa: BLE001 - raised again, if it is none of those
            return self._ending_by(error)
        return "left"

    def _ending_by(self, error: BaseException) -> str:
        errors = leaves_of(error)
        # Other ranks are told that one has failed, and may end before it does.
        errors = [each for each in errors if not isinstance(each, RankError)] or errors
        kinds: list[tuple[str, tuple[type[BaseException], ...]]] = [
            ("failed", (Unlucky,)),
            ("refused", (Refused, TimeoutError)),
            ("starved", (StarvedError,)),
            ("told by another rank", (RankError,)),
        ]
        for name, own in kinds:
            if all(isinstance(each, own) for each in errors):
                return name
        raise error


async def _all_ranks(trainers: list[Trainer]) -> None:
    """Run a program: all of its ranks, until they have ended, or one of them fails."""

    async def run(rank: int) -> None:
        on_rank(rank)
        await trainers[rank].run()

    if len(trainers) == 1:
        await run(0)
        return
    async with asyncio.TaskGroup() as tasks:
        for rank in range(len(trainers)):
            tasks.create_task(run(rank))


def left_out_of(loader: Any) -> Counter[str]:
    """Return how many a loader has left out, by the reason."""
    return Counter(loader.stats().left_out)


def leaves_of(error: BaseException) -> list[BaseException]:
    """Return the errors in a group, or the error."""
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in leaves_of(each)]
    return [error]
