"""The checks let right pipes, services and adapters pass, and say what is wrong with others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import pytest

from asyncloader import IterDataPipe, Pipe, ReadingServiceInterface, State
from asyncloader.adapters import Adapter
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.testing import PipeCase, check_adapter, check_pipe, check_service
from tests.processes.stage import run_script_forked

REPEATED = [1, 2, 1, 3, 4, 4, 5, 1, 6, 7, 2, 8, 9, 9, 1, 3]

# Pipes that are right ---------------------------------------------------------------------


class Dedupe(Pipe[int]):
    """Leave out what is among the last few items."""

    class State(State):
        held: list[int] = []  # noqa: RUF012 - one for each state

        def needs(self, taken: int) -> int:
            return self.held[0] if self.held else taken

    def __init__(self, source: Any, window: int = 3) -> None:
        self.source = source
        self.window = window

    def run(self, source: Any, state: Any) -> Iterator[int]:
        again, items = source.again(state.held)
        known = dict.fromkeys(again)
        for position, item in enumerate(items, state.taken):
            if item not in known:
                known[item] = None
                state.held.append(self.kept(position))
                if len(state.held) > self.window:
                    del state.held[0], known[next(iter(known))]
                yield item

    def kept(self, position: int) -> int:
        return position


class Total(State):
    total: int = 0


class Totals(Pipe[int]):
    """Yield the sum of the items so far."""

    State = Total

    def __init__(self, source: Any) -> None:
        self.source = source

    def run(self, source: Any, state: Any) -> Iterator[int]:
        for item in source:
            state.total += item
            yield state.total


class TotalsSoon(Totals):
    """The same, on an event loop."""

    async def arun(self, source: Any, state: Any) -> AsyncIterator[int]:
        async for item in source:
            await asyncio.sleep(0)
            state.total += item
            yield state.total


class Products(Pipe[int]):
    """Yield the sum of the products of the items of two sources so far."""

    State = Total

    def __init__(self, *sources: Any) -> None:
        self.sources = sources

    def run(self, sources: Any, state: Any) -> Iterator[int]:
        for one, other in zip(*sources, strict=False):
            state.total += one * other
            yield state.total


class Pairwise(IterDataPipe[Any]):
    """Yield each item together with the one before it."""

    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[Any]:
        earlier = None
        for item in self.source:
            yield earlier, item
            earlier = item


class Countdown(IterDataPipe[int]):
    """A source that says itself where it stands."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.left = self.first = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[int]:
        self.left, self.first = self.first, self.count
        while self.left:
            self.left -= 1
            yield self.left

    def state_dict(self) -> int:
        return self.left

    def load_state_dict(self, state: int) -> None:
        self.first = state


RIGHT: dict[str, tuple[Any, Any]] = {
    "a buffer": (Dedupe, REPEATED),
    "a sum": (Totals, range(12)),
    "async": (TotalsSoon, range(12)),
    "two sources": (lambda source: Products(source, IterableWrapper(range(9))), range(12)),
    "a generator": (Pairwise, range(12)),
    "a source": (lambda: Countdown(9), ()),
    "a graph": (lambda source: Dedupe(source).shuffle(buffer_size=4).batch(2), REPEATED),
}


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_pipe_passes(name):
    make, items = RIGHT[name]
    check_pipe(make, items)


# Pipes that are wrong ---------------------------------------------------------------------


class RemembersInSelf(Totals):
    """Has all of it in self."""

    def run(self, source: Any, state: Any) -> Iterator[int]:
        self.total = 0
        for item in source:
            self.total += item
            yield self.total


class NeverForgets(RemembersInSelf):
    """Goes on in its second epoch."""

    total = 0

    def run(self, source: Any, state: Any) -> Iterator[int]:
        for item in source:
            self.total += item
            yield self.total


class RemembersInALocal(Totals):
    def run(self, source: Any, state: Any) -> Iterator[int]:
        total = 0
        for item in source:
            total += item
            yield total


class ChangesTheStateLate(Totals):
    def run(self, source: Any, state: Any) -> Iterator[int]:
        for item in source:
            yield state.total + item
            state.total += item


class ReadsSelfSource(Totals):
    def run(self, source: Any, state: Any) -> Iterator[int]:
        for item in self.source:
            state.total += item
            yield state.total


class NeedsTooMuch(Dedupe):
    class State(Dedupe.State):
        def needs(self, taken: int) -> int:
            return taken


class HoldsOthers(Dedupe):
    def kept(self, position: int) -> int:
        return max(0, position - 1)


class CountsByTheState(Dedupe):
    def run(self, source: Any, state: Any) -> Iterator[int]:
        for item in super().run(source, state):
            state.held[-1] = state.taken
            yield item


class TooLong(Pairwise):
    def __len__(self) -> int:
        return len(self.source) + 1


class HasAnAddress(Pairwise):
    def __repr__(self) -> str:
        return object.__repr__(self)


class HasALongName(Pairwise):
    def __repr__(self) -> str:
        return "Pairwise " * 20


#: Iterators that nobody closes.
OPEN: list[Any] = []


class LeavesItsSourceOpen(Pairwise):
    def __iter__(self) -> Iterator[Any]:
        items = iter(self.source)
        OPEN.append(items)
        yield from map(str, items)


class LeavesAFileOpen(Pairwise):
    def __iter__(self) -> Iterator[Any]:
        file = open(os.devnull)  # noqa: SIM115 - that is the mistake
        for item in self.source:
            yield item, file.name


class EndsWhenItIsCancelled(TotalsSoon):
    async def arun(self, source: Any, state: Any) -> AsyncIterator[int]:
        with contextlib.suppress(asyncio.CancelledError):
            async for item in source:
                state.total += item
                yield state.total


class HasALock(Pairwise):
    def __init__(self, source: Any) -> None:
        self.source = source
        self.lock = threading.Lock()


class KnowsTheProcess(Pairwise):
    def __iter__(self) -> Iterator[Any]:
        return (os.getpid() for _ in self.source)


class Drawn(Pairwise):
    """Yields other numbers whenever it is made."""

    made = 0

    def __init__(self, source: Any) -> None:
        self.source = source
        Drawn.made += 1
        self.number = Drawn.made

    def __iter__(self) -> Iterator[Any]:
        return (self.number for _ in self.source)


class Windows(Pairwise):
    """Has a memory which it saves, and reads another pipe, whose place it cannot save."""

    def state_dict(self) -> None:
        return None

    def load_state_dict(self, state: None) -> None:
        pass


class Latest(State):
    items: list[int] = []  # noqa: RUF012 - as users write it


class YieldsWhatItKeeps(Pipe[Any]):
    State = Latest

    def __init__(self, source: Any) -> None:
        self.source = source

    def run(self, source: Any, state: Any) -> Iterator[Any]:
        for item in source:
            state.items = [*state.items, item][-3:] if len(state.items) < 3 else state.items
            state.items[-1] = item
            yield state.items


class ReadsWhenItIsMade(Pairwise):
    def __init__(self, source: Any) -> None:
        self.source = list(source)


class NeverEnds(Pairwise):
    def __iter__(self) -> Iterator[Any]:
        return itertools.count()


class ReadsNothing(Pipe[Any]):
    """Forgets to keep its source."""

    def __init__(self, source: Any) -> None:
        pass

    def run(self, source: Any, state: Any) -> Iterator[Any]:
        yield from source


class RemembersItemsByClass(Pairwise):
    seen: ClassVar[set[Any]] = set()

    def __iter__(self) -> Iterator[Any]:
        for item in self.source:
            if item not in self.seen:
                self.seen.add(item)
                yield item


class BlocksItsLoop(TotalsSoon):
    async def arun(self, source: Any, state: Any) -> AsyncIterator[int]:
        for item in source:
            state.total += item
            yield state.total


WRONG: dict[Any, str] = {
    ReadsNothing: r"ReadsNothing\(\) was given a source and does not read it: keep the source in",
    RemembersItemsByClass: "yields nothing, so nothing can be checked: .* in class or module",
    BlocksItsLoop: "blocks the event loop while its source waits: in arun .* by `async for`",
    ReadsWhenItIsMade: "reads its source when it is made: keep the source in self",
    NeverEnds: "yields more than 10,000 items: check what has no end with .header",
    YieldsWhatItKeeps: "(changes it later: yield a copy|nor may it change an item)",
    RemembersInSelf: "after 1 items of .* did not yield the rest: expected .*, got .*in self",
    NeverForgets: "yields something else in its second epoch: expected .* in self",
    RemembersInALocal: "did not yield the rest: .*in a local variable of run, and not in the state",
    ChangesTheStateLate: "did not yield the rest: .*the state is changed after the yield",
    ReadsSelfSource: "did not yield the rest: .*self.source is read instead of the source that",
    NeedsTooMuch: "a new loader that resumed from it .*needs is missing or returns too much",
    HoldsOthers: "a new loader that resumed from it .*does not read again what it held",
    CountsByTheState: "a new loader that resumed from it .* state.taken itself says only",
    TooLong: r"len\(TooLong\(\)\) is 17, and it yields 16 items: correct __len__",
    HasAnAddress: "must have no address, which differs each time: leave out __repr__",
    HasALongName: "must be one line of at most 80 characters",
    LeavesItsSourceOpen: "has left 1 iterators of its source open: read it by `for`",
    LeavesAFileOpen: "after a `break` in a `for`, .* leaves behind: unclosed file",
    EndsWhenItIsCancelled: "swallows a cancellation: .* nothing more came. .* raise it again",
    HasALock: "cannot be pickled, which worker processes need: .*not in __init__",
    KnowsTheProcess: "two workers that run .* do not yield what their shares of the items give",
    Drawn: "yields something else in epoch 1 of another loader with the same seed",
    Windows: r"no state of Windows\(\) can be taken after 0 items: .*pass resumes=False",
}


@pytest.fixture(autouse=True)
def _close_what_is_open():
    yield
    while OPEN:
        OPEN.pop().close()


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("mutant", WRONG, ids=lambda mutant: mutant.__name__)
def test_a_wrong_pipe_fails_with_its_reason(mutant):
    with pytest.raises(AssertionError, match=f"(?s){WRONG[mutant]}"):
        check_pipe(mutant, REPEATED)


class HoldsItems(Dedupe):
    """Remembers items in the place of their positions."""

    def run(self, source: Any, state: Any) -> Iterator[Any]:
        again, items = source.again(state.held)
        held = [*again]
        for item in items:
            held.append(item)
            state.held.append(item)
            if len(held) > 2:
                del state.held[0]
                yield held.pop(0)


def test_items_in_the_place_of_positions_are_found_by_the_items_of_a_check():
    with pytest.raises(AssertionError, match="positions that are saved are not those of the items"):
        check_pipe(HoldsItems, in_workers=False)
    with pytest.raises(TypeError, match="the position of an item, got str: remember positions"):
        check_pipe(HoldsItems, "abcdefgh", in_workers=False)


def test_the_message_of_a_wrong_resume_shows_what_was_expected_and_what_came():
    with pytest.raises(AssertionError) as failed:
        check_pipe(RemembersInALocal, [3, 4, 5])
    assert str(failed.value).startswith(
        "after 1 items of RemembersInALocal(), in `for`, a state was taken; a new loader that"
        " resumed from it did not yield the rest: expected [7, 12], got [4, 9].\n"
        "Look for one of these causes:\n"
    )


def test_what_is_no_pipe_is_refused():
    with pytest.raises(TypeError, match="a graph must end in a pipe, got NoneType"):
        check_pipe(lambda source: None)


def test_too_few_items_to_check_anything_are_refused():
    with pytest.raises(ValueError, match="got 1 items, too few to check anything"):
        check_pipe(lambda source: source.map(str), [1])


def test_a_pipe_whose_states_are_refused_passes_if_that_is_asked_for():
    check_pipe(Windows, resumes=False)
    with pytest.raises(AssertionError, match="gives a state: leave out resumes=False"):
        check_pipe(Totals, resumes=False)


# Services ---------------------------------------------------------------------------------


class InPairs(ReadingServiceInterface):
    async def initialize(self, datapipe: Any) -> Any:
        return datapipe.batch(2)


class ForgetsItsArgument(ReadingServiceInterface):
    def __init__(self, size: int) -> None:
        pass


class OpensAFile(ReadingServiceInterface):
    def initialize(self, datapipe: Any) -> Any:
        self.name = open(os.devnull).name  # noqa: SIM115 - that is the mistake
        return datapipe


def test_a_right_service_passes():
    check_service(InPairs, like=lambda graph: graph.batch(2))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: 5, "make.. must return a reading service, and returned int"),
        (lambda: InPairs, "must return a reading service, and returned the class InPairs"),
        (InPairs, "does not yield what the graph yields: .* says so by like=, and .* in its reset"),
        (lambda: ForgetsItsArgument(2), "keeps its argument 'size' nowhere: set self.size"),
        (OpensAFile, "after a loader with .* leaves behind: unclosed file"),
    ],
)
@pytest.mark.filterwarnings(
    "ignore:unclosed file", "ignore::pytest.PytestUnraisableExceptionWarning"
)
def test_a_wrong_service_fails_with_its_reason(make, words):
    with pytest.raises(AssertionError, match=words):
        check_service(make)


# Adapters ---------------------------------------------------------------------------------


class FirstThree(Adapter):
    def __call__(self, datapipe: Any) -> Any:
        return datapipe.header(3)


class AddsEachTime(Adapter):
    def __call__(self, datapipe: Any) -> Any:
        return datapipe.prefetch(2)


class HasNoName:
    def __call__(self, datapipe: Any) -> Any:
        return datapipe


def in_order(graph: Any) -> Any:
    return graph


def test_a_right_adapter_passes():
    check_adapter(FirstThree, keeps_items=False)
    check_adapter(lambda: in_order)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (FirstThree, r"FirstThree\(\) does not keep the items, .* pass keeps_items=False"),
        (AddsEachTime, r"AddsEachTime\(\) applied twice makes .*prefetch.*, and once"),
        (HasNoName, "a copy of .* is named"),
    ],
)
def test_a_wrong_adapter_fails_with_its_reason(make, words):
    with pytest.raises(AssertionError, match=words):
        check_adapter(make)


# Where it is called -----------------------------------------------------------------------


async def test_it_is_called_where_no_loop_runs():
    with pytest.raises(RuntimeError, match="an event loop is running: call this in plain sync"):
        check_pipe(Totals)
    await asyncio.to_thread(check_pipe, Totals, range(4), in_workers=False)


SCRIPT = """
import sys
from asyncloader import Pipe, State
from asyncloader.testing import check_pipe

class Totals(Pipe):
    class State(State):
        total: int = 0

    def __init__(self, source):
        self.source = source

    def run(self, source, state):
        for item in source:
            state.total += item
            yield state.total

if __name__ == "__main__":
    check_pipe(Totals)
    assert "pytest" not in sys.modules
"""


@pytest.mark.soak
def test_a_script_checks_a_pipe_of_its_own_without_a_test_framework(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = run_script_forked(tmp_path, script, limit=240, imported=())
    assert done.returncode == 0, done.stderr


def test_a_case_tells_whether_its_pipe_reads_the_source():
    assert PipeCase(Totals).reads()
    assert not PipeCase(lambda source: Countdown(3)).reads()
    assert not PipeCase(lambda: Countdown(3)).reads()
