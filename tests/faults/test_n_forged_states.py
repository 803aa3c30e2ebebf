"""Rows N: states that were forged, their checksums made to fit.

Thousands of states of every sample are changed somewhere: a value of another kind, a huge or a
negative number, a field that is missing or one too many, parts that were swapped, cut off, or
taken from another pipe. Each is refused by a SnapshotError that leaves the loader as it was, or
yields what a truthful state could yield; never another error, more than some seconds, or 64 MiB.

The tests try some 5,000 of them. More, with other seeds, by hand:

    python -m tests.faults.test_n_forged_states --each 2000 --seed 7
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import random
import signal
import time
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest
import torch  # noqa: F401 - so that the first tensor in a state does not import it

from asyncloader import DataLoader2, InProcessReadingService, MultiProcessingReadingService
from asyncloader.datapipes.iter import (
    IterableWrapper,
    IterDataPipe,
    IterKeyZipper,
    SampleMultiplexer,
)
from asyncloader.errors import SnapshotError
from asyncloader.places.checksums import checksum
from tests import samples
from tests.places.kept_forms import as_of_6
from tests.services.test_resuming import ZOO

SEED = 5
#: How many states are tried of each sample, and of each graph in workers.
EACH, EACH_IN_WORKERS = 55, 20
MOST_BYTES = 64 << 20
#: On a slow machine a truthful one takes a second.
MOST_SECONDS = 10.0
#: When something that does not end is ended.
TOO_LONG = 30

# Forging ----------------------------------------------------------------------------------

NUMBERS = (-1, 0, 1, 2, 3, 7, 100, 2**20, 2**31, 2**40, 2**57, 2**63, 2**64, 10**30)
JUNK = (None, True, False, 0.5, float("nan"), float("inf"), "", "text", "0", [], [0], [[]], {})
BYTES = {"__plain__": "bytes", "data": "AAAA"}
TENSORS = tuple(
    {"__plain__": "tensor", "dtype": dtype, "shape": shape, "data": data}
    for dtype in ("float32", "qint8", "bits8", "no dtype")
    for shape in ([2], [2**40], [2**31, 2**31, 0], [-1], [1, 0], 8, ["a"], None)
    for data in ("", "AAAAAAAAAAA=", "AAA")
)


@dataclass
class Forger:
    """Changes states, the same way each time for one seed."""

    random: random.Random
    #: Parts of other states.
    parts: list[Any] = field(default_factory=list)

    def forged(self, state: Any) -> tuple[Any, str]:
        """Return a state with one to three changes, and what was changed.

        Every fourth is in the form of an earlier release.
        """
        document = _document(state)
        changes = [self._change(document) for _ in range(self.random.choice((1, 1, 1, 2, 3)))]
        forged = _state_of(document, state)
        if self.random.random() < 0.25:
            forged, changes = as_of_6(forged), ["number 6", *changes]
        return forged, "; ".join(changes)

    def _change(self, document: Any) -> str:
        # Cursors are the most of it.
        names = ["cursors"] * 8 + ["position"] * 2 + ["randomness_state", "fingerprint"]
        name = self.random.choice(names)
        places = list(_places(document, name))
        if not places:
            return "nothing"  # all of it is gone already
        inside, key = self.random.choice(places)
        return f"{name}…[{key!r}] {self._changed(inside, key)}"

    def _changed(self, inside: Any, key: Any) -> str:
        change = self.random.choice((
            self._other, self._other, self._number, self._number, self._number, self._gone,
            self._more, self._swapped, self._cut, self._grafted, self._tensor,
        ))  # fmt: skip
        before = inside[key]
        change(inside, key)
        after = inside[key] if _has(inside, key) else "(gone)"
        return f"{change.__name__}: {str(before)[:60]} -> {str(after)[:60]}"

    def _other(self, inside: Any, key: Any) -> None:
        inside[key] = copy.deepcopy(self.random.choice((*JUNK, *NUMBERS, BYTES)))

    def _number(self, inside: Any, key: Any) -> None:
        before = inside[key]
        if type(before) is int:
            near = (before + 1, before - 1, -before, 2 * before, 10 * before)
            inside[key] = self.random.choice((*near, *near, *NUMBERS))
        else:
            inside[key] = self.random.choice(NUMBERS)

    def _gone(self, inside: Any, key: Any) -> None:
        del inside[key]

    def _more(self, inside: Any, key: Any) -> None:
        if isinstance(inside, list):
            inside[key:key] = [copy.deepcopy(inside[key])] * self.random.choice((1, 2, 500))
        else:
            name = self.random.choice(("more", "splitter", "above", "begun", "taken", "0", "00"))
            inside[name] = copy.deepcopy(self.random.choice((inside[key], *JUNK)))

    def _swapped(self, inside: Any, key: Any) -> None:
        other = self.random.choice(list(inside) if isinstance(inside, dict) else range(len(inside)))
        inside[key], inside[other] = inside[other], inside[key]

    def _cut(self, inside: Any, key: Any) -> None:
        if isinstance(inside[key], list | str):
            inside[key] = inside[key][: len(inside[key]) // 2]
        else:
            inside[key] = None

    def _grafted(self, inside: Any, key: Any) -> None:
        inside[key] = copy.deepcopy(self.random.choice(self.parts or [None]))

    def _tensor(self, inside: Any, key: Any) -> None:
        inside[key] = copy.deepcopy(self.random.choice(TENSORS))


def _has(inside: Any, key: Any) -> bool:
    return key in inside if isinstance(inside, dict) else key < len(inside)


def _document(state: Any) -> dict[str, Any]:
    """Return what is forged of a state, with the texts in it taken apart."""
    position = dict(state["position"])
    return {
        "cursors": {"cursors": json.loads(position.pop("cursors"))},
        "position": position,
        "randomness_state": dict(state["randomness_state"]),
        "fingerprint": {"fingerprint": json.loads(state["fingerprint"])},
    }


def _state_of(document: Any, state: Any) -> Any:
    cursors = document["cursors"].get("cursors", {})
    forged = {
        **state,
        "position": {**document["position"], "cursors": json.dumps(cursors)},
        "randomness_state": document["randomness_state"],
        "fingerprint": json.dumps(document["fingerprint"].get("fingerprint")),
    }
    sums = {
        name: checksum(forged[name]) if name in document else before
        for name, before in state["checksums"].items()
    }
    return {**forged, "checksums": sums}


def _places(value: Any, *keys: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the containers and keys of all there is below."""
    inside = value[keys[0]] if keys else value
    if isinstance(inside, dict):
        for key in inside:
            yield inside, key
            yield from _places(inside[key])
    elif isinstance(inside, list):
        for key in range(len(inside)):
            yield inside, key
            # Of a long list a few elements are as good.
            if len(inside) < 50 or key < 5:
                yield from _places(inside[key])


#: Where other items are right as well: a share may have been read by another seed, which a reset
#: may set, than those beside it; texts that were made of random numbers; and the share of a worker
#: of which nothing had come, since such a state says nothing of its seed but that of the epoch.
LOOSE = ("RandomSplitter", "all generators", "as they come")

# Trying -----------------------------------------------------------------------------------


@dataclass
class Subject:
    """A graph, how it is run, and truthful states of it."""

    name: str
    make: Callable[[], Any]
    service: Callable[[], Any]
    steps: tuple[int, ...]
    items: list[Any] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)

    def loader(self) -> DataLoader2[Any]:
        loader = DataLoader2(self.make(), None, self.service())
        loader.seed(SEED)
        return loader

    def learn(self) -> None:
        """Run the graph once, taking its states."""
        with self.loader() as loader:
            for count, item in enumerate(loader, 1):
                self.items.append(item)
                if count in self.steps:
                    self.states.append(loader.state_dict(include_datapipe=False))


@dataclass
class Trial:
    """What became of forged states."""

    subject: Subject
    forger: Forger
    found: Counter[str] = field(default_factory=Counter)

    def run(self, count: int) -> None:
        """Try so many; an AssertionError for one that does harm."""
        while self.found.total() < count:
            with self.subject.loader() as loader:
                self._try_with(loader, count)

    def _try_with(self, loader: DataLoader2[Any], count: int) -> None:
        """Try states until one is accepted, and see what that loader yields."""
        before = loader.state_dict(include_datapipe=False)
        while self.found.total() < count:
            state, changes = self.forger.forged(self.forger.random.choice(self.subject.states))
            if state == _without_change(state, self.subject.states):
                continue
            with self._harmless(changes):
                if not _accepts(loader, state, before):
                    self.found["refused"] += 1
                    continue
                self._read(loader)
            break
        else:
            # None of those refused has left anything.
            assert len(list(loader)) == len(self.subject.items)
            return

    def _read(self, loader: DataLoader2[Any]) -> None:
        most = len(self.subject.items)
        try:
            items = list(islice(iter(loader), most + 1))
        except SnapshotError:
            self.found["refused at the first item"] += 1
            assert len(list(loader)) == most, "the next epoch is not whole"
            return
        except BufferError:
            # Which keys wait no state says: the partner of an item may not be among them.
            assert self.subject.name == "IterKeyZipper"
            return
        self.found["accepted"] += 1
        assert len(items) <= most, "it yields more than an epoch has"
        strange = Counter(_leaves(items)) - Counter(_leaves(self.subject.items))
        loose = self.subject.name in LOOSE
        assert loose or not strange, f"no epoch has {list(strange)[:3]} so often"

    @contextlib.contextmanager
    def _harmless(self, changes: str) -> Iterator[None]:
        tracemalloc.reset_peak()
        before, begun = tracemalloc.get_traced_memory()[0], time.process_time()
        try:
            with _ended_at_last():
                yield
        except BaseException as error:
            error.add_note(f"{self.subject.name}: {changes}")
            raise
        seconds = time.process_time() - begun
        nbytes = tracemalloc.get_traced_memory()[1] - before
        assert seconds < MOST_SECONDS, f"{self.subject.name}: {seconds:.1f} s for {changes}"
        assert nbytes < MOST_BYTES, f"{self.subject.name}: {nbytes >> 20} MiB for {changes}"


def _leaves(value: Any) -> Iterator[Any]:
    """Yield what items are made of, as far as that can be compared.

    None fills a place: how often, depends on how the items of two sources come together.
    """
    if value is None:
        return
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        yield value if isinstance(value, int | str | bytes) else type(value)
        return
    for part in value:
        yield from _leaves(part)


def _without_change(state: Any, states: list[Any]) -> Any:
    return next((each for each in states if each == state), None)


def _accepts(loader: DataLoader2[Any], state: Any, before: Any) -> bool:
    try:
        loader.load_state_dict(state)
    except SnapshotError:
        assert loader.state_dict(include_datapipe=False) == before
        return False
    return True


@contextlib.contextmanager
def _ended_at_last() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise TimeoutError(f"it did not end within {TOO_LONG} s")

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, TOO_LONG)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _traced() -> Iterator[None]:
    tracemalloc.start(1)
    try:
        yield
    finally:
        tracemalloc.stop()


def tried(subject: Subject, count: int, seed: int) -> Counter[str]:
    """Return what became of so many forged states of a graph."""
    print(f"{subject.name}: {count} forged states, seed {seed}")
    forger = Forger(random.Random(f"{subject.name} {seed}"), PARTS)
    with _traced(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        subject.learn()
        _keep_parts(subject)
        trial = Trial(subject, forger)
        trial.run(count)
    print(dict(trial.found))
    return trial.found


#: Cursors and parts of them, of whatever was run before.
PARTS: list[Any] = []


def _keep_parts(subject: Subject) -> None:
    for state in subject.states:
        places = islice(_places(_document(state), "cursors"), 20)
        PARTS.extend(inside[key] for inside, key in places)
    del PARTS[:-500]


# In this process --------------------------------------------------------------------------


def here() -> Any:
    return None


def sample(pipe: type) -> Subject:
    return Subject(pipe.__name__, lambda: samples.graph_with(pipe), here, (1, 4, 7))


PIPES = [*samples.ITER_PIPES, *samples.MAP_PIPES]


@pytest.mark.sweep
@pytest.mark.parametrize("pipe", PIPES, ids=lambda pipe: f"{pipe.__module__[-4:]}{pipe.__name__}")
def test_n8_a_forged_state_of_a_sample_is_refused_or_does_no_harm(pipe):
    tried(sample(pipe), EACH, SEED)


# By name ----------------------------------------------------------------------------------

HUGE = 2**57
TENSOR = {"__plain__": "tensor", "dtype": "float32", "shape": [2**40], "data": ""}


def mixed() -> Any:
    return samples.graph_with(SampleMultiplexer)


def joined() -> Any:
    return samples.graph_with(IterKeyZipper)


MIXED = {"seed": 1, "drawn": 5, "yielded": 5, "taken": [4, 1], "ended": []}

CASES: dict[str, tuple[Callable[[], Any], dict[str, Any], str]] = {
    "2^57 draws": (
        lambda: IterableWrapper(range(40)).shuffle(buffer_size=7),
        {"cursors/0": {"seed": 1, "drawn": HUGE, "taken": HUGE}},
        r"\['drawn'\] must be a number from 0 to",
    ),
    "more draws than items": (
        lambda: IterableWrapper(range(40)).shuffle(buffer_size=7),
        {"cursors/0": {"seed": 1, "drawn": 39, "taken": 40}},
        r"position.items is 5, but shuffle.* had yielded 39 items",
    ),
    "more draws than items there are": (
        lambda: IterableWrapper(range(40)).shuffle(buffer_size=7),
        {"cursors/0": {"seed": 1, "drawn": 2**40, "taken": 2**40}, "position/items": 2**40},
        r"\['taken'\] must be a number from 0 to 40",
    ),
    "more draws than batches have items": (
        lambda: IterableWrapper(range(40)).batch(2).in_batch_shuffle(),
        {"cursors/0": {"seed": 1, "drawn": 2**40, "yielded": 5}},
        "each item of a batch took one draw",
    ),
    "draws for nothing": (
        mixed,
        {"cursors/0": MIXED | {"drawn": 2**40}},
        "each draw is for an item",
    ),
    "a tensor of a TiB": (mixed, {"cursors/0": MIXED | {"taken": TENSOR}}, "a tensor of 0 bytes"),
    "2^57 that wait": (
        joined,
        {"cursors/0": {"yielded": 5, "ref_taken": HUGE, "waiting": [0, HUGE]}},
        r"\['ref_taken'\] must be a number from 0 to",
    ),
    "2^40 that wait": (
        joined,
        {"cursors/0": {"yielded": 5, "ref_taken": 2**40, "waiting": [0, 2**40 - 5]}},
        r"\['waiting'\] must be runs of at most 10000 numbers",
    ),
    "a round too many": (
        lambda: IterableWrapper(range(9)).cycle(2),
        {"cursors/0": {"rounds": 3, "taken": 5, "yielded": 5, "seeds": [], "following": []}},
        r"\['rounds'\] must be a number from 0 to 2, got 3",
    ),
    "another pipe's cursor": (mixed, {"cursors/0": {"taken": 4, "yielded": 4}}, "has no 'seed'"),
    "a cursor of a pipe without one": (mixed, {"cursors/1": {"taken": 4}}, "that has no cursor"),
    "fewer items than were yielded": (
        lambda: IterableWrapper(range(40)).filter(samples.is_odd).map(str),
        {"position/items": 2, "cursors/1": {"taken": 10, "yielded": 5, "errors": 0}},
        "position.items is 2, but filter.* had yielded 5 items by then",
    ),
    "a piece of what is not cut": (
        lambda: IterableWrapper(["abc", "de", "f"] * 9).pack_sequences(4),
        {"cursors/0/offset": 1},
        "offset are what this way of splitting leaves",
    ),
    "more workers than there are": (mixed, {"position/workers": HUGE}, "position.workers must be"),
    "a rank of no run": (mixed, {"position/rank": 1}, "position.rank must be a number from 0 to 0"),
    "no whole number": (mixed, {"position/items": True}, "position.items must be a number"),
}


@pytest.mark.parametrize("case", CASES)
def test_n8_a_forged_state_is_refused_by_name_and_the_loader_stays_as_it_was(case):
    make, changes, message = CASES[case]
    subject = Subject(case, make, here, (5,))
    subject.learn()
    document = _document(subject.states[0])
    for way, value in changes.items():
        *keys, last = way.split("/")
        inside = document["cursors"] if keys[0] == "cursors" else document
        for key in keys:
            inside = inside[key]
        inside[last] = value
    with subject.loader() as loader:
        with pytest.raises(SnapshotError, match=message):
            loader.load_state_dict(_state_of(document, subject.states[0]))
        assert list(loader) == subject.items


def test_n8_a_replay_that_is_long_is_no_forgery():
    # An endless source may have yielded so many: a year's work may be 2^47.
    endless = IterableWrapper(range(3)).cycle()
    with DataLoader2(endless) as loader:
        items = iter(loader)
        assert list(islice(items, 4)) == [0, 1, 2, 0]
        state = loader.state_dict(include_datapipe=False)
    document = _document(state)
    document["position"]["items"] = 2**47
    counts = {"rounds": 2**47 // 3, "taken": 2, "yielded": 2**47}
    document["cursors"]["cursors"]["0"] = {**counts, "seeds": [], "following": []}
    with DataLoader2(IterableWrapper(range(3)).cycle()) as loader:
        loader.load_state_dict(_state_of(document, state))
        assert list(islice(iter(loader), 3)) == [2, 0, 1]


class Refusing(IterDataPipe[int]):
    """A source with a state of its own, which it wants to be a small number."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        at, self.at = self.at, 0
        for self.at in range(at + 1, 10):
            yield self.at

    def state_dict(self) -> Any:
        return {"at": self.at}

    def load_state_dict(self, state: Any) -> None:
        self.at = range(10)[state["at"]]


def test_n8_a_source_that_refuses_its_own_state_says_so_at_the_first_item():
    with DataLoader2(Refusing()) as loader:
        assert list(islice(iter(loader), 3)) == [1, 2, 3]
        state = loader.state_dict(include_datapipe=False)
    document = _document(state)
    document["cursors"]["cursors"]["0"] = {"yielded": 3, "state": {"at": 99}}
    with DataLoader2(Refusing()) as loader:
        loader.load_state_dict(_state_of(document, state))
        with pytest.raises(SnapshotError, match=r"Refusing.load_state_dict refused its state"):
            next(iter(loader))


def test_n8_a_shuffle_that_drew_before_its_buffer_was_full_is_refused_at_the_first_item():
    with DataLoader2(IterableWrapper(range(40)).shuffle()) as loader:
        loader.seed(SEED)
        assert len(list(islice(iter(loader), 3))) == 3
        state = loader.state_dict(include_datapipe=False)
        document = _document(state)
        document["cursors"]["cursors"]["0"]["taken"] = 39
    with DataLoader2(IterableWrapper(range(40)).shuffle()) as loader:
        loader.load_state_dict(_state_of(document, state))
        with pytest.raises(SnapshotError, match="had taken 39 items, and no more were left"):
            next(iter(loader))


def test_n8_a_branch_whose_reader_has_no_place_is_refused_at_the_first_item():
    with DataLoader2(forked()) as loader:
        assert len(list(islice(iter(loader), 3))) == 3
        state = loader.state_dict(include_datapipe=False)
    document = _document(state)
    del document["cursors"]["cursors"]["3"]  # that of the filter
    with DataLoader2(forked()) as loader:
        loader.load_state_dict(_state_of(document, state))
        with pytest.raises(SnapshotError, match="not where the pipe was that reads it"):
            next(iter(loader))


# In workers -------------------------------------------------------------------------------


def two_workers() -> Any:
    return MultiProcessingReadingService(2)


def as_they_come() -> Any:
    return MultiProcessingReadingService(2, in_order=False)


def soon() -> Any:
    return ZOO["shuffled in each"]().async_map(samples.double_soon, ordered=False)


def in_parts() -> Any:
    source = IterableWrapper(range(60)).shuffle().sharding_filter()
    parts = source.async_map(samples.double_soon, ordered=False).flatmap(samples.twice)
    return parts.shuffle(buffer_size=5).batch(2)


def two(_: Any) -> list[int]:
    return [0, 0]


def kept() -> Any:
    source = IterableWrapper(range(60)).shuffle().sharding_filter().filter(samples.is_odd)
    kept = source.map(samples.twice, repeatable=False, keep_results=True)
    # A kept result is the user's data: a state may say what it likes of it.
    return kept.flatmap(two).shuffle(buffer_size=9)


def split() -> Any:
    source = IterableWrapper(range(60)).shuffle().sharding_filter().filter(samples.is_odd)
    # The parts are the user's too, and a state may have more of them.
    parts = source.flatmap(samples.twice, repeatable=False).map(zero_of).shuffle(buffer_size=9)
    return parts.batch(2, across_workers=True).header(20)


def zero_of(_: Any) -> int:
    return 0


async def answer(prompt: Any, *, attempt: int) -> Any:
    if not attempt and prompt % 3 == 0:
        raise OSError("away")
    return prompt


def rolled_out() -> Any:
    source = IterableWrapper(range(60)).shuffle().sharding_filter()
    # A state may say that a prompt has ended the program too often.
    groups = source.rollout(answer, group=2, concurrency=8, backoff=0.001, attempts=None)
    return groups.shuffle(buffer_size=5).batch(2)


def rolled_out_and_kept() -> Any:
    source = IterableWrapper(range(60)).shuffle().sharding_filter()
    # As above, the results are the user's.
    return source.rollout(zero, order="source", keep_results=True).map(two).batch(3)


async def zero(_: Any) -> int:
    return 0


def forked() -> Any:
    left, right = IterableWrapper(range(40)).shuffle().sharding_filter().fork(2)
    # As many of each, whatever the seed: a state of another seed is a right one too.
    return left.zip_longest(right.filter(samples.is_odd)).batch(2)


IN_WORKERS = {
    **{name: Subject(name, make, two_workers, (1, 5, 12)) for name, make in ZOO.items()},
    "in parts": Subject("in parts", in_parts, two_workers, (1, 9, 40)),
    "kept": Subject("kept", kept, two_workers, (1, 9, 30)),
    "split": Subject("split", split, two_workers, (1, 9, 14)),
    "split here": Subject("split here", split, InProcessReadingService, (1, 9, 14)),
    "rolled out": Subject("rolled out", rolled_out, two_workers, (1, 5, 12)),
    "rolled out here": Subject("rolled out here", rolled_out, InProcessReadingService, (1, 9)),
    "answers kept": Subject("answers kept", rolled_out_and_kept, InProcessReadingService, (1, 9)),
    "soon": Subject("soon", soon, two_workers, (1, 9, 50)),
    "forked": Subject("forked", forked, two_workers, (1, 5)),
    "as they come": Subject("as they come", ZOO["batches"], as_they_come, (1, 5, 12)),
}


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("name", IN_WORKERS)
def test_n8_a_forged_state_of_workers_is_refused_or_does_no_harm(name):
    tried(copy.deepcopy(IN_WORKERS[name]), EACH_IN_WORKERS, SEED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--each", type=int, default=EACH)
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--only", default="")
    told = parser.parse_args()
    for subject in (*map(sample, PIPES), *IN_WORKERS.values()):
        if told.only in subject.name:
            try:
                tried(subject, told.each, told.seed)
            except BaseException as error:
                import traceback

                traceback.print_exc(limit=-3)
                if isinstance(error, KeyboardInterrupt):
                    raise
