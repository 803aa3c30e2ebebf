"""One graph on both sides: equal items, equal states, and states that load across.

This file is about ``Comparison``. Equal graphs do not give equal bytes in workers, where a state
begins at the newest place that a frame brought; there, and wherever states differ, each has to
load on the other side and has to have the equal rest.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.before.running import Side
from tests.before.side import after, has_failed
from tests.random_graphs.recipe import Recipe

#: Of the states of one graph so many are loaded on both sides.
CROSSINGS = 4
#: So often each side is asked again for states that differ.
_AGAIN = 3
_OVERTAKEN = "raised IteratorInvalidated"


class Differs(Exception):
    """The two sides are not alike."""


@dataclass(frozen=True)
class Way:
    """Where the graph runs; 0 workers are the process itself."""

    workers: int
    #: How much is prefetched: items here, frames in workers.
    ahead: int = 1
    #: A service of another kind, as an expression.
    by: str = ""

    @property
    def service(self) -> str:
        if self.by:
            return self.by
        if self.workers:
            return f"Standing({self.workers}, worker_prefetch_cnt={self.ahead})"
        return f"InProcessReadingService({self.ahead})"

    def __str__(self) -> str:
        return self.by or f"{self.workers} workers, prefetch {self.ahead}"


class Comparison:
    """A graph that is run by both sides in one way."""

    def __init__(
        self,
        old: Side,
        new: Side,
        lines: str,
        way: Way,
        *,
        recipe: Recipe | None = None,
        is_forwards: bool = False,
    ) -> None:
        self._sides = old, new
        self._lines = lines
        self._way = way
        self._recipe = recipe
        #: Whether only states of the earlier side are loaded across.
        self._is_forwards = is_forwards
        #: What was compared.
        self.counts: Counter[str] = Counter()

    def run(self, luck: random.Random) -> None:
        """Hold the sides against each other; Differs says where they part."""
        old, new = self._sides
        before, after = (self._ask(side, self._way, do="record") for side in self._sides)
        if "refused" in before or "refused" in after:
            self._expect(f"by {new.name}", after.get("refused"), before.get("refused"))
            self.counts["refused by both"] += 1
            return
        epochs = [self._told(items, self._way) for items in before["epochs"]]
        if any(map(self._is_overtaken, (*epochs, *after["epochs"]))):
            self.counts["a matter of time"] += 1
            return
        self._expect("epochs", [self._told(items, self._way) for items in after["epochs"]], epochs)
        self.counts["epochs equal"] += len(epochs)
        pairs = list(zip(before["states"], after["states"], strict=True))
        changed = [pair for pair in pairs if _plain(pair[0]) != _plain(pair[1])]
        self.counts["states equal"] += len(pairs) - len(changed)
        if changed and not self._way.workers:
            self._judge([pair[0][:2] for pair in changed])
        # Those that differ say most.
        chosen = luck.sample(changed, min(len(changed), CROSSINGS)) or luck.sample(
            pairs, min(len(pairs), CROSSINGS)
        )
        for (number, step, was), (_, _, now) in chosen:
            if isinstance(was, str) or isinstance(now, str):
                self._expect(f"the state after {step} items of epoch {number}", now, was)
            else:
                states = [(new, was)] if was == now else [(new, was), (new, now)]
                if was != now and not self._is_forwards:
                    states.append((old, now))
                self._cross(states, number, step, epochs)
        if chosen and luck.random() < 0.5:
            self._elsewhere(luck, *luck.choice(chosen))

    def _judge(self, places: list[list[int]]) -> None:
        """Count the states that changed, and those that depend on time.

        Where threads or tasks run ahead, not even one side repeats all of its states.
        """
        old, new = (
            [self._ask(side, self._way, do="record")["states"] for _ in range(_AGAIN)]
            for side in self._sides
        )
        for place in places:
            was, now = (
                [_plain(state) for states in runs for *at, state in states if at == place]
                for runs in (old, new)
            )
            is_steady = all(state == was[0] for state in was) and was[0] not in now
            self.counts["states changed" if is_steady else "states that time decides"] += 1

    def _cross(
        self, states: list[tuple[Side, Any]], number: int, step: int, epochs: list[list[str]]
    ) -> None:
        """Load states of one place on sides, and hold what follows against the epochs."""
        expected = after(epochs, number, step)
        for side, state in states:
            answer = self._ask(side, self._way, do="rest", state=state, form=_form(step))
            found = [self._told(items, self._way) for items in answer.get("epochs", ())]
            where = f"a state after {step} items of epoch {number}, loaded by {side.name}"
            if any(map(self._is_overtaken, found)):
                self.counts["a matter of time"] += 1
                continue
            is_right = "refused" not in answer and found[: len(expected)] == expected[: len(found)]
            is_of_before = len(states) > 1 and state is states[0][1]
            if not is_right and is_of_before and not self._old_goes_on(state, step, expected):
                self.counts["states that the earlier one resumes wrongly itself"] += 1
                continue
            if "refused" in answer:
                raise Differs(f"{where}: {answer['refused']}: {answer['because']}")
            self._expect(where, found[: len(expected)], expected[: len(found)])
            self.counts["states loaded across"] += 1

    def _old_goes_on(self, state: Any, step: int, expected: list[list[str]]) -> bool:
        """Whether the earlier side goes on from its own state as it went on."""
        answer = self._ask(self._sides[0], self._way, do="rest", state=state, form=_form(step))
        found = [self._told(items, self._way) for items in answer.get("epochs", ())]
        return "refused" not in answer and found[: len(expected)] == expected[: len(found)]

    def _elsewhere(self, luck: random.Random, *pair: tuple[int, int, Any]) -> None:
        """Load the states of one place with another number of workers: the same everywhere."""
        others = luck.choice([each for each in range(4) if each != self._way.workers])
        other = Way(others, self._way.ahead)
        answers = []
        for number, step, state in pair:
            if isinstance(state, str):
                return
            for side in self._sides:
                if self._is_forwards and answers and side is self._sides[0]:
                    continue
                answer = self._ask(side, other, do="rest", state=state)
                rest = [self._told(items, other) for items in answer.get("epochs", ())]
                if any(map(self._is_overtaken, rest)):
                    self.counts["a matter of time"] += 1
                    return
                where = f"after {step} items of epoch {number}, with {others} workers, {side.name}"
                answers.append((where, (answer.get("refused"), rest)))
        for where, answer in answers[1:]:
            self._expect(where, answer, answers[0][1])
        self.counts["states loaded with other numbers"] += len(answers)

    def _ask(self, side: Side, way: Way, **task: Any) -> dict[str, Any]:
        answer = side.ask({"graph": self._lines, "service": way.service, **task})
        if "died" in answer:
            raise Differs(f"{side.name} dies or hangs: {answer['died']}")
        return answer

    def _told(self, items: list[str], way: Way) -> list[str]:
        return without_noise(items) if self._is_noise_of(way) else items

    def _is_noise_of(self, way: Way) -> bool:
        """Whether numbers that functions draw in this way are nobody's promise."""
        if self._recipe is None or not self._recipe.is_noisy:
            return False
        return way.workers != self._way.workers or not way.workers or self._is_noise_anywhere

    @cached_property
    def _is_noise_anywhere(self) -> bool:
        assert self._recipe is not None
        return self._recipe.stays_here or self._recipe.keeps_numbers or self._recipe.draws_at_once

    def _is_overtaken(self, items: list[str]) -> bool:
        reads_twice = self._recipe is not None and self._recipe.reads_twice
        return is_overtaken(items) or (has_failed(items) and reads_twice)

    def _expect(self, what: str, found: Any, expected: Any) -> None:
        if found != expected:
            raise Differs(f"{what}: {_shown(found)} instead of {_shown(expected)}")


_FLOAT = re.compile(r"\d+\.\d+(e-\d+)?")


def is_overtaken(items: list[str]) -> bool:
    """Whether another pass of the same pipe ended an epoch, which is a matter of time."""
    return items[-1:] == [_OVERTAKEN]


def without_noise(items: list[str]) -> list[str]:
    """Return items without the numbers that functions drew."""
    return [_FLOAT.sub("0.0", item) for item in items]


def _plain(state: Any) -> Any:
    """Return a state without what is another one in each release."""
    if isinstance(state, dict):
        return {name: each for name, each in state.items() if name not in ("release", "checksums")}
    return [_plain(each) for each in state] if isinstance(state, list) else state


def _form(step: int) -> str:
    return "async for" if step % 2 else "for"


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) < 2000 else f"{text[:2000]} …"
