"""Checks of pipes, reading services and adapters that you wrote.

This file is about ``check_pipe``, ``check_service`` and ``check_adapter``. Each runs what it is
given in the ways in which loaders run it, and raises an AssertionError that says what is wrong and
what to do. They need no test framework. Call them in plain sync code; where an event loop runs,
``await asyncio.to_thread(check_pipe, ...)``.

What is promised stands in ``PIPE_CHECKS``, ``SERVICE_CHECKS`` and ``ADAPTER_CHECKS``: functions
with one promise each, for a test framework that is to name them one by one:

    @pytest.mark.parametrize("check", PIPE_CHECKS, ids=lambda check: check.__name__)
    def test_dedupe(check):
        check(PipeCase(Dedupe))
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import inspect
import pickle
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, islice, zip_longest
from typing import Any

from asyncloader.arguments import kind_name
from asyncloader.datapipes.base import is_map_pipe
from asyncloader.datapipes.iter import IterDataPipe
from asyncloader.datapipes.running.cursor_history import noting_at_every_item
from asyncloader.datapipes.running.traits import (
    class_name,
    hands_over,
    is_async_pipe,
    is_dispatch,
    is_random,
    is_replicable,
    is_sharding,
    lives_with_loader,
    vars_of,
)
from asyncloader.errors import SnapshotError
from asyncloader.graph import apply_sharding, breadth_first, copy_graph
from asyncloader.graph.refusals import Purpose, first_refusal
from asyncloader.loader.dataloader2 import DataLoader2
from asyncloader.runtime import running_loop
from asyncloader.services.base import ReadingServiceInterface
from asyncloader.services.multi_processing import MultiProcessingReadingService
from asyncloader.services.multi_threading import MultiThreadingReadingService
from asyncloader.transport.code import dumps_code, loads_code

__all__ = [
    "ADAPTER_CHECKS",
    "PIPE_CHECKS",
    "SERVICE_CHECKS",
    "AdapterCase",
    "PipeCase",
    "ServiceCase",
    "check_adapter",
    "check_pipe",
    "check_service",
]


def __dir__() -> list[str]:
    return __all__


_SEED = 11
_FORMS = ("for", "async for")
#: What is told to end gets so long.
_SECONDS = 5.0
#: An event loop does this many steps before a pipe that reads nothing is cancelled.
_STEPS = 20
_MOST_SHOWN = 5


#: With fewer items than this a check says nothing.
_FEWEST = 3


def check_pipe(
    make: Callable[..., Any],
    items: Iterable[Any] = range(23, -1, -1),
    *,
    resumes: bool = True,
    in_any_order: bool = True,
    in_workers: bool = True,
) -> None:
    """Hold a pipe to what every pipe promises; AssertionError says what it does not keep.

    ``make`` is a function from a source, a pipe that yields ``items``, to the pipe or graph to be
    checked; it is called often. Where that reads nothing, ``make`` takes no argument. Let it yield
    some ten items or more: a state is taken after each of them, and what follows a resume has to be
    the exact rest. Nothing is checked of what does not happen: so make a pipe with a small buffer,
    and give it items that fill it and, if it leaves some out, items of which it does.

    With ``resumes=False`` its states have to be refused instead, with a SnapshotError that names
    the pipe. ``in_any_order=False`` is for a pipe that cannot read the items in a shuffled order,
    and ``in_workers=False`` for one that is not to run in worker processes.

    >>> from asyncloader import IterDataPipe
    >>> class Pairwise(IterDataPipe):
    ...     def __init__(self, source):
    ...         self.source = source
    ...     def __iter__(self):
    ...         earlier = None
    ...         for item in self.source:
    ...             yield earlier, item
    ...             earlier = item
    >>> check_pipe(Pairwise, items="abcdefgh", in_workers=False)
    >>> class Unlike(Pairwise):
    ...     earlier = None
    ...     def __iter__(self):
    ...         for item in self.source:
    ...             yield self.earlier, item
    ...             self.earlier = item
    >>> try:
    ...     check_pipe(Unlike, items="abcdefgh", in_workers=False)
    ... except AssertionError as error:
    ...     print(str(error).partition(":")[0])
    Unlike() yields something else in its second epoch
    """
    case = PipeCase(make, tuple(items), resumes, in_any_order, in_workers)
    if len(case.items) < _FEWEST and case.reads():
        raise ValueError(
            f"check_pipe got {len(case.items)} items, too few to check anything: give it ten or"
            " more, enough that buffers are full and something is left out"
        )
    _run(PIPE_CHECKS, case)


def check_service(
    make: Callable[[], Any],
    *,
    graph: Callable[[], Any] | None = None,
    like: Callable[[Any], Any] | None = None,
) -> None:
    """Hold a reading service to what every service promises; AssertionError says what is broken.

    ``make`` makes a new service. It is run with the graph that ``graph()`` returns, by default one
    that shuffles and shards some numbers. A service that changes the graph says by ``like`` what it
    is to yield: that is a function from graph to graph.

    >>> from asyncloader import ReadingServiceInterface
    >>> class InPairs(ReadingServiceInterface):
    ...     async def initialize(self, datapipe):
    ...         return datapipe.batch(2)
    >>> check_service(InPairs, like=lambda graph: graph.batch(2))
    """
    case = ServiceCase(make, graph or _numbers, like or _as_it_is)
    _run(SERVICE_CHECKS, case)


def check_adapter(
    make: Callable[[], Any],
    *,
    graph: Callable[[], Any] | None = None,
    keeps_items: bool = True,
) -> None:
    """Hold an adapter to what every adapter promises; AssertionError says what it does not keep.

    ``make`` makes a new adapter; that is used on the graph that ``graph()`` returns, by default one
    that shuffles some numbers and makes texts of them. With ``keeps_items=False`` it may yield
    other items, and may do so each time that it is applied.

    >>> from asyncloader.adapters import Shuffle
    >>> check_adapter(lambda: Shuffle(False))
    >>> def first_three(graph):
    ...     return graph.header(3)
    >>> check_adapter(lambda: first_three, keeps_items=False)
    """
    _run(ADAPTER_CHECKS, AdapterCase(make, graph or _texts, keeps_items))


def _run(checks: Iterable[Callable[[Any], None]], case: Any) -> None:
    if running_loop() is not None:
        raise RuntimeError(
            "an event loop is running: call this in plain sync code, or in a thread, as in"
            " `await asyncio.to_thread(check_pipe, make)`"
        )
    for check in checks:
        check(case)


# What is checked -------------------------------------------------------------------------


class Opens:
    """How many iterators of a source are open, and were; copies of a source share it."""

    now = 0
    ever = 0


class Items(IterDataPipe[Any]):
    """Yield the items of a check, and note how many iterators of it are open."""

    edges = ()

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.opens = Opens()

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Any]:
        self.opens.now += 1
        self.opens.ever += 1
        try:
            yield from self.items
        finally:
            self.opens.now -= 1


class WaitingItems(IterDataPipe[Any]):
    """Yield the first half of the items, and then wait until ``may_end`` is set."""

    edges = ()

    def __init__(self, items: Sequence[Any]) -> None:
        self.items = items
        self.opens = Opens()
        self.has_reached_end = asyncio.Event()
        self.may_end = asyncio.Event()
        self.is_closed = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None
        self.was_ended_from_outside = False

    def __len__(self) -> int:
        return len(self.items)

    def end_from_outside(self) -> None:
        """End in a thread, where the loop that should say so may stand still."""
        self.was_ended_from_outside = True
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.may_end.set)

    async def __aiter__(self) -> AsyncIterator[Any]:
        self.loop = asyncio.get_running_loop()
        self.opens.now += 1
        try:
            for item in islice(self.items, len(self.items) // 2):
                yield item
            self.has_reached_end.set()
            await self.may_end.wait()
        finally:
            self.opens.now -= 1
            self.is_closed.set()


def _as_it_is(source: Any) -> Any:
    return source


@dataclass(frozen=True)
class PipeCase:
    """A pipe to be checked; its fields are the parameters of ``check_pipe``.

    Each of ``PIPE_CHECKS`` is a function that takes one and holds the pipe to one promise.

    >>> from asyncloader.datapipes.iter import Batcher
    >>> from asyncloader.testing import PIPE_CHECKS, PipeCase
    >>> for check in PIPE_CHECKS:
    ...     if check.__name__ == "copies_begin_afresh":
    ...         check(PipeCase(lambda source: Batcher(source, 5)))
    """

    make: Callable[..., Any]
    # No item is its own position, so that it is found where one is remembered as the other.
    items: Sequence[Any] = range(23, -1, -1)
    resumes: bool = True
    in_any_order: bool = True
    in_workers: bool = True

    def graph(self, change: Callable[[Any], Any] = _as_it_is) -> Any:
        """Return a new graph, over the source as ``change`` returns it."""
        return self.over(change(Items(self.items)))

    def over(self, source: Any) -> Any:
        """Return a new graph over this source, if it reads any."""
        return self.make(source) if self.takes_source() else self.make()

    def takes_source(self) -> bool:
        """Whether it is given a source."""
        return bool(inspect.signature(self.make).parameters)

    def reads(self) -> bool:
        """Whether it reads the source."""
        return any(isinstance(pipe, Items) for pipe in breadth_first(self.graph()))

    def name(self) -> str:
        """Return its name in messages."""
        return repr(self.graph())

    def form(self) -> str:
        """Return the form in which it runs where it is read, so that each item has a place."""
        return "async for" if is_async_pipe(self.graph()) else "for"

    @cached_property
    def of_two_workers(self) -> tuple[list[Any], list[Any]]:
        """What two workers yield in an epoch, and the states before and after each item."""
        loader = _in_workers(self, 2)
        loader.seed(_SEED)
        with noting_at_every_item():
            return _along(self, loader, "for")

    def draws(self) -> bool:
        """Whether a pipe of it takes a seed, so that epochs may differ."""
        return any(map(is_random, breadth_first(self.graph())))


def _numbers() -> Any:
    return Items(range(24)).shuffle().sharding_filter()


def _texts() -> Any:
    return Items(range(24)).shuffle().map(str)


@dataclass(frozen=True)
class ServiceCase:
    """A service to be checked; its fields are the parameters of ``check_service``.

    Each of ``SERVICE_CHECKS`` takes one.

    >>> from asyncloader import InProcessReadingService
    >>> from asyncloader.testing import SERVICE_CHECKS, ServiceCase
    >>> for check in SERVICE_CHECKS:
    ...     check(ServiceCase(InProcessReadingService))
    """

    make: Callable[[], Any]
    graph: Callable[[], Any] = _numbers
    like: Callable[[Any], Any] = _as_it_is

    def expected(self, count: int) -> list[list[Any]]:
        """Return the first epochs that it has to yield."""
        return _epochs(DataLoader2(self.like(self.graph())), "for", count)


@dataclass(frozen=True)
class AdapterCase:
    """An adapter to be checked; its fields are the parameters of ``check_adapter``.

    Each of ``ADAPTER_CHECKS`` takes one.

    >>> from asyncloader.adapters import Shuffle
    >>> from asyncloader.testing import ADAPTER_CHECKS, AdapterCase
    >>> for check in ADAPTER_CHECKS:
    ...     check(AdapterCase(lambda: Shuffle(False)))
    """

    make: Callable[[], Any]
    graph: Callable[[], Any] = _texts
    keeps_items: bool = True


# Running it ------------------------------------------------------------------------------


def _epochs(loader: DataLoader2[Any], form: str, count: int = 2) -> list[list[Any]]:
    """Return a seeded loader's first epochs, and shut it down."""
    loader.seed(_SEED)
    return _next_epochs(loader, form, count)


def _next_epochs(loader: DataLoader2[Any], form: str, count: int) -> list[list[Any]]:
    if form == "for":
        with loader:
            return [list(loader) for _ in range(count)]
    return asyncio.run(_next_epochs_async(loader, count))


async def _next_epochs_async(loader: DataLoader2[Any], count: int) -> list[list[Any]]:
    async with loader:
        return [[item async for item in loader] for _ in range(count)]


async def _two_items_async(items: Any) -> None:
    async with contextlib.aclosing(aiter(items)) as iterator:
        for _ in range(2):
            await anext(iterator, None)


def _two_items(items: Any) -> None:
    for number, _ in enumerate(items):
        if number == 1:
            break


def _demand(holds: bool, words: str) -> None:
    # Not an assert statement, which `python -O` leaves out.
    if not holds:
        raise AssertionError(words)


def _same(one: Any, another: Any) -> bool:
    """Whether two items are equal; arrays and tensors if all of their elements are."""
    if one is another:
        return True
    if type(one) is not type(another):
        return False
    if isinstance(one, list | tuple):
        return len(one) == len(another) and all(map(_same, one, another))
    if isinstance(one, dict):
        return one.keys() == another.keys() and all(_same(one[key], another[key]) for key in one)
    if getattr(one, "shape", ()) != getattr(another, "shape", ()):
        return False
    equal = one == another
    return bool(equal.all().all() if hasattr(equal, "all") else equal)


def _brief(items: Sequence[Any]) -> str:
    """Return the first few items as text."""
    shown = [repr(item) for item in items[:_MOST_SHOWN]]
    shown = [text if len(text) <= 60 else f"{text[:57]}..." for text in shown]
    more = len(items) - _MOST_SHOWN
    return f"[{', '.join(shown)}{f', and {more} more' if more > 0 else ''}]"


def _unlike(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """Say what was expected and what came, from a little before where they part."""
    pairs = zip_longest(found, expected, fillvalue=_END)
    at = next((number for number, pair in enumerate(pairs) if not _same(*pair)), 0)
    first = max(0, at - 1)
    where = f" from item {first} on" if first else ""
    return f"expected{where} {_brief(expected[first:])}, got {_brief(found[first:])}"


_END: Any = object()


# What a pipe promises --------------------------------------------------------------------


def equal_seeds_give_equal_epochs(case: PipeCase) -> None:
    """In ``for`` and in ``async for``, loaders with equal seeds yield equal epochs."""
    expected = _epochs(DataLoader2(case.graph()), "for")
    _demand(
        bool(expected[0]),
        f"{case.name()} yields nothing, so nothing can be checked: give it other items, and keep"
        " nothing in class or module variables",
    )
    for form in _FORMS:
        found = _epochs(DataLoader2(case.graph()), form)
        for number, (one, other) in enumerate(zip(found, expected, strict=True), 1):
            _demand(
                _same(one, other),
                f"{case.name()} yields something else in epoch {number} of another loader with the"
                f" same seed, in `{form}`: {_unlike(one, other)}. Draw random numbers from a"
                " seed, compare nothing by identity, and keep nothing in class or module variables",
            )


def epochs_are_alike(case: PipeCase) -> None:
    """Where no order is drawn, every epoch has the same items."""
    if not case.draws():
        first, second = _epochs(DataLoader2(case.graph()), "for")
        _demand_like_the_first(case, second, first)


def it_yields_the_same_alone(case: PipeCase) -> None:
    """Where no order is drawn, the pipe without a loader yields what it yields in one."""
    if case.draws():
        return
    (expected,) = _epochs(DataLoader2(case.graph()), "for", 1)
    for form in _FORMS:
        graph = case.graph()
        if form == "async for" and is_map_pipe(graph):
            continue
        first, second = (_alone(graph, form) for _ in range(2))
        _demand(
            _same(first, expected),
            f"{case.name()} without a loader, in `{form}`, differs from what it yields in a loader:"
            f" {_unlike(first, expected)}",
        )
        _demand_like_the_first(case, second, first)


def _alone(graph: Any, form: str) -> list[Any]:
    async def collected() -> list[Any]:
        return [item async for item in graph]

    return list(graph) if form == "for" else asyncio.run(collected())


def _demand_like_the_first(case: PipeCase, second: list[Any], first: list[Any]) -> None:
    _demand(
        _same(second, first),
        f"{case.name()} yields something else in its second epoch: {_unlike(second, first)}."
        " Keep nothing of an iteration in self: use the state of a Pipe, or the local variables of"
        " __iter__. If it is meant to draw an order, give it a method set_seed",
    )


def a_length_is_the_number_of_items(case: PipeCase) -> None:
    """``len`` is how many items there are, if the pipe knows it."""
    graph = case.graph()
    try:
        length = len(graph)
    except TypeError:
        return
    ((items),) = _epochs(DataLoader2(graph), "for", 1)
    _demand(
        length == len(items),
        f"len({case.name()}) is {length}, and it yields {len(items)} items: correct __len__, or"
        " leave it out where the number is not known",
    )


def copies_begin_afresh(case: PipeCase) -> None:
    """A copy of a pipe that is being read, and a pickle of it, yield all that the pipe yields."""
    graph = case.graph()
    expected = _epochs(DataLoader2(graph), "for")
    begun = (item for item in graph)
    list(islice(begun, 2))
    try:
        twins = {"copy": copy_graph(graph), "pickle": _pickled(graph, case.name())}
        for kind, twin in twins.items():
            _demand(repr(twin) == repr(graph), f"a {kind} of {graph!r} is named {twin!r}")
            for one, other in zip(_epochs(DataLoader2(twin), "for"), expected, strict=True):
                _demand(
                    _same(one, other),
                    f"a {kind} of {case.name()}, made while that is read, does not begin afresh:"
                    f" {_unlike(one, other)}. Keep nothing of an iteration in self",
                )
    finally:
        begun.close()


def _pickled(value: Any, name: str) -> Any:
    try:
        return loads_code(dumps_code(value))
    except Exception as error:
        raise AssertionError(
            f"{name} cannot be pickled, which worker processes need: {error!r}. Open files, make"
            " locks and connect to servers where it is run, not in __init__"
        ) from error


#: So many items are no epoch that could be checked after each of them.
_MOST = 10_000


def a_new_pipe_has_read_nothing(case: PipeCase) -> None:
    """What it reads is read anew in each epoch and each worker, and not when it is made."""
    source = Items(case.items)
    graph = case.over(source)
    pipes = breadth_first(graph)  # what is no pipe is a TypeError here
    _demand(
        not source.opens.ever,
        f"{graph!r} reads its source when it is made: keep the source in self, and read it in"
        " __iter__, run or arun",
    )
    kept = chain(pipes, *(vars_of(pipe).values() for pipe in pipes))
    _demand(
        not case.takes_source() or any(each is source for each in kept),
        f"{graph!r} was given a source and does not read it: keep the source in self.source, in"
        " __init__. If it is a source itself, let make take no argument",
    )


def an_epoch_ends(case: PipeCase) -> None:
    """It ends where its source ends, or it cannot be checked."""
    with DataLoader2(case.graph()) as loader:
        count = sum(1 for _ in islice(loader, _MOST + 1))
    _demand(
        count <= _MOST,
        f"{case.name()} yields more than {_MOST:,} items: check what has no end with .header(20)"
        " behind it",
    )


def a_name_is_short(case: PipeCase) -> None:
    """``repr`` of a pipe is one short line that tells the pipe, without an address."""
    for pipe in breadth_first(case.graph()):
        _demand_short(pipe, class_name(pipe), 80)


def _demand_short(value: Any, start: str, most: int) -> None:
    name = repr(value)
    rule = f"the name of a {type(value).__name__}, {name!r}, must"
    remedy = "leave out __repr__ to get one made of its settings, which __init__ keeps in self"
    _demand(" at 0x" not in name, f"{rule} have no address, which differs each time: {remedy}")
    _demand(
        len(name) <= most and "\n" not in name,
        f"{rule} be one line of at most {most} characters: {remedy}",
    )
    # A branch of a splitter is called by the splitter and its own number.
    _demand(start in name or "[" in name, f"{rule} have {start!r} in it: {remedy}")


def a_break_closes_what_it_reads(case: PipeCase) -> None:
    """A loop that is left, and ``aclose``, close what the pipe reads."""
    gc.collect()
    for form in _FORMS:
        graph = case.graph()
        if form == "for":
            with _leaving_nothing(graph, "after a `break` in a `for`"):
                _two_items(graph)
        elif not is_map_pipe(graph):
            with _leaving_nothing(graph, "after `aclose` in an `async for`"):
                asyncio.run(_two_items_async(graph))


def a_loader_that_is_left_leaves_nothing(case: PipeCase) -> None:
    """A loader that is shut down in the middle of an epoch leaves nothing open."""
    for form in _FORMS:
        # What is started once for the whole process stays.
        _epochs(DataLoader2(case.graph()), form, 1)
    gc.collect()
    for form in _FORMS:
        graph = case.graph()
        with _leaving_nothing(graph, f"after a loader was shut down in a `{form}`"):
            if form == "for":
                with DataLoader2(graph) as loader:
                    _two_items(loader)
                del loader
            else:
                asyncio.run(_left(graph))


async def _left(graph: Any) -> None:
    before = asyncio.all_tasks()
    async with DataLoader2(graph) as loader:
        items = aiter(loader)
        for _ in range(2):
            await anext(items, None)
    del items, loader
    left = [task.get_name() for task in asyncio.all_tasks() - before if not task.done()]
    _demand(not left, f"{graph!r} leaves tasks behind: {', '.join(left)}; cancel and await them")


@contextlib.contextmanager
def _leaving_nothing(graph: Any, when: str) -> Iterator[None]:
    before = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always", ResourceWarning)
        yield
        gc.collect()
    left = [str(each.message) for each in warned if issubclass(each.category, ResourceWarning)]
    for thread in set(threading.enumerate()) - before:
        # It was told to end, and may need a moment.
        thread.join(_SECONDS)
        left += [f"thread {thread.name}"] * thread.is_alive()
    _demand(not left, f"{when}, {graph!r} leaves behind: {'; '.join(left)}")
    _demand_closed(graph, when)


def _demand_closed(graph: Any, when: str) -> None:
    pipes = breadth_first(graph)
    count = sum(pipe.opens.now for pipe in pipes if isinstance(pipe, Items | WaitingItems))
    _demand(
        count == 0,
        f"{when}, {graph!r} has left {count} iterators of its source open: read it by `for` or"
        " `async for` in __iter__, run or arun, and keep no iterator elsewhere",
    )


def a_cancelled_pipe_ends(case: PipeCase) -> None:
    """Cancelled while it waits, it ends at once, and what it reads is closed."""
    if is_map_pipe(case.graph()):
        return
    source = WaitingItems(case.items)
    # Longer than all that is waited for below.
    timer = threading.Timer(4 * _SECONDS, source.end_from_outside)
    timer.start()
    try:
        asyncio.run(_cancelled(case, source))
    finally:
        timer.cancel()
    _demand(
        not source.was_ended_from_outside,
        f"{case.name()} blocks the event loop while its source waits: in arun and __aiter__, read"
        " the source by `async for`, and await what waits",
    )


async def _cancelled(case: PipeCase, source: WaitingItems) -> None:
    graph = case.over(source)
    has_failed = False

    async def read() -> None:
        async for _ in graph:
            if has_failed:
                return

    reading = asyncio.create_task(read())
    await _until_it_waits(reading, source if case.reads() else None)
    if reading.done():
        reading.result()
        return
    reading.cancel()
    await asyncio.wait({reading}, timeout=_SECONDS)
    is_cancelled, how = reading.cancelled(), _how_it_ended(reading)
    if not reading.done():
        # So that this ends, with an error.
        has_failed = True
        source.may_end.set()
        await asyncio.wait({reading}, timeout=_SECONDS)
    _demand(
        is_cancelled,
        f"{case.name()} swallows a cancellation: its task was cancelled while it waited, and {how}."
        " Where asyncio.CancelledError is caught, raise it again",
    )
    del reading
    gc.collect()
    if source.opens.now:
        # A thread that reads it may still be closing it.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_SECONDS):
                await source.is_closed.wait()
    _demand_closed(graph, "after it was cancelled")


def _how_it_ended(task: asyncio.Task[None]) -> str:
    if not task.done():
        return f"did not end within {_SECONDS:g} s"
    error = None if task.cancelled() else task.exception()
    return "ended as if nothing more came" if error is None else f"raised {error!r}"


async def _until_it_waits(reading: asyncio.Task[None], source: WaitingItems | None) -> None:
    if source is None:
        for _ in range(_STEPS):
            await asyncio.sleep(0)
        return
    waiting = asyncio.create_task(source.has_reached_end.wait())
    await asyncio.wait({reading, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


# States ----------------------------------------------------------------------------------

_CAUSES = """
Look for one of these causes:
- something is remembered in self, or in a local variable of run, and not in the state;
- it is in a field of the state whose name begins with _: that is not saved;
- the state is changed after the yield: change it before;
- self.source is read instead of the source that run is given;
- a run does not begin at item state.taken, or does not read again what it held;
- positions that are saved are not those of the items: they count the source's items from 0, as
  enumerate(items, state.taken) does; state.taken itself says only where the run began;
- needs is missing or returns too much: it says how many items of the source are needed no more,
  and with several sources that is needs_each;
- it yields a list or dict and changes it later: yield a copy.
For a generator with __iter__ or __aiter__: equal items have to give equal results each time."""


def it_resumes_after_every_item(case: PipeCase) -> None:
    """From a state that was taken after any item, another loader yields the exact rest."""
    if not case.resumes:
        _demand_refused(case)
        return
    for form in _FORMS:
        _demand_resuming(case, case.graph, form)


def it_resumes_again(case: PipeCase) -> None:
    """A loader that has resumed gives states from which another one resumes."""
    if case.resumes:
        _demand_resuming(case, case.graph, case.form(), again=True)


def it_resumes_in_front_of_batches(case: PipeCase) -> None:
    """With ``batch`` behind it, it resumes after every batch."""
    if case.resumes and not hands_over(case.graph()):
        _demand_resuming(case, lambda: _stream(case.graph()).batch(2), case.form())


def it_resumes_while_it_is_read_ahead(case: PipeCase) -> None:
    """With ``prefetch`` behind it, it resumes after every item."""
    if case.resumes and not hands_over(case.graph()):
        _demand_resuming(case, lambda: _stream(case.graph()).prefetch(3), case.form())


def it_resumes_behind_a_shuffle(case: PipeCase) -> None:
    """With ``shuffle`` in front of it, it resumes after every item."""
    if case.resumes and case.reads() and case.in_any_order:
        _demand_resuming(case, lambda: case.graph(_shuffled), case.form())


def _shuffled(source: Any) -> Any:
    # Behind the filter no item can be made without those before it.
    return source.shuffle(buffer_size=4).filter(_is_any).set_length(len(source))


def _is_any(item: Any) -> bool:
    return True


def _stream(graph: Any) -> Any:
    return graph.to_iter_datapipe() if is_map_pipe(graph) else graph


def _demand_refused(case: PipeCase) -> None:
    with DataLoader2(case.graph()) as loader:
        next(iter(loader), None)
        try:
            loader.state_dict(include_datapipe=False)
        except SnapshotError as error:
            _demand_named(case, error)
            return
    raise AssertionError(f"{case.name()} gives a state: leave out resumes=False")


def _demand_named(case: PipeCase, error: SnapshotError) -> None:
    names = [class_name(pipe) for pipe in breadth_first(case.graph())]
    _demand(any(name in str(error) for name in names), f"a refusal names no pipe: {error}")


def _demand_resuming(
    case: PipeCase, make: Callable[[], Any], form: str, *, again: bool = False
) -> None:
    """Demand the rest from a state after each item; ``again`` also from one of each resumed."""
    name = repr(make())
    first, second = _epochs(DataLoader2(make()), form)
    with noting_at_every_item():
        loader = DataLoader2(make())
        loader.seed(_SEED)
        _, states = _along(case, loader, form)
        for count, state in enumerate(states):
            how = f"after {count} items of {name}, in `{form}`,"
            epochs = [first[count:]] if count < len(first) else [[], second]
            if not again:
                _demand_rest(_resumed(make, state), form, epochs, how)
                continue
            # One is enough of each, not always the same number of items later.
            more = 1 + count % 3
            _, later = _along(case, _resumed(make, state), form, more)
            if more < len(later):
                how = f"{how} and again after {more} items of a loader that had resumed there,"
                _demand_rest(_resumed(make, later[more]), form, [first[count + more :]], how)


def _resumed(make: Callable[[], Any], state: Any, service: Any = None) -> DataLoader2[Any]:
    loader: DataLoader2[Any] = DataLoader2(make(), reading_service=service)
    loader.load_state_dict(pickle.loads(pickle.dumps(state)))
    return loader


def _demand_rest(loader: DataLoader2[Any], form: str, expected: list[list[Any]], how: str) -> None:
    try:
        found = _next_epochs(loader, form, len(expected))
    except Exception as error:
        raise AssertionError(
            f"{how} a state was taken; a new loader that resumed from it raised {error!r}.{_CAUSES}"
        ) from error
    for one, other, what in zip(found, expected, ("the rest", "the next epoch"), strict=False):
        _demand(
            _same(one, other),
            f"{how} a state was taken; a new loader that resumed from it did not yield {what}:"
            f" {_unlike(one, other)}.{_CAUSES}",
        )


def _along(
    case: PipeCase, loader: DataLoader2[Any], form: str, most: int | None = None
) -> tuple[list[Any], list[Any]]:
    """Return what a loader yields, or the first of it, and its states before and after each."""
    items: list[Any] = []
    states: list[Any] = []

    def add_state() -> None:
        states.append(loader.state_dict(include_datapipe=False))

    def run() -> None:
        with loader:
            add_state()
            for item in islice(loader, most):
                items.append(item)
                add_state()

    async def run_async() -> None:
        async with loader:
            add_state()
            async for item in loader:
                items.append(item)
                add_state()
                if len(items) == most:
                    break

    try:
        if form == "for":
            run()
        else:
            asyncio.run(run_async())
    except SnapshotError as error:
        raise AssertionError(
            f"no state of {case.name()} can be taken after {len(items)} items:"
            f" {error}\nIf that is meant, pass resumes=False"
        ) from error
    return items, states


# Worker processes ------------------------------------------------------------------------


def workers_yield_what_their_shares_yield(case: PipeCase) -> None:
    """Behind a ``sharding_filter`` each of two workers yields what its share of the items gives."""
    if not case.in_workers:
        return
    expected = _expected_of_workers(case)
    for form in _FORMS:
        found = _epochs(_in_workers(case, 2), form)
        if expected is None:
            # What is drawn behind the division is known by another run only.
            expected = found
        for one, other in zip(found, expected, strict=True):
            _demand(
                _same(one, other),
                f"two workers that run {case.name()} do not yield what their shares of the items"
                f" give alone, in `{form}`: {_unlike(one, other)}. What it yields must"
                " follow from what it reads, and not from the process that it runs in; nor may it"
                " change an item after it has yielded it",
            )


def it_resumes_in_workers(case: PipeCase) -> None:
    """In two workers it resumes at once after any item, whoever made it."""
    if not (case.resumes and case.in_workers):
        return
    items, states = case.of_two_workers
    for count in sorted({1, len(items) // 2, len(items) - 1} & set(range(len(states)))):
        service = MultiProcessingReadingService(2)
        how = f"in two workers, after {count} items of {case.name()},"
        resumed = _resumed(lambda: _sharded(case), states[count], service)
        _demand_rest(resumed, "async for", [items[count:]], how)


def another_number_of_workers_resumes_or_refuses(case: PipeCase) -> None:
    """A state of two workers gives the exact rest in other numbers of them, or is refused."""
    if not (case.resumes and case.in_workers):
        return
    items, states = case.of_two_workers
    # Between two epochs any number begins with what it would yield itself.
    count = len(items) // 2
    for number in (0, 1, 3) if count else ():
        how = f"after {count} items of {case.name()} in two workers, resumed in {number},"
        service = MultiProcessingReadingService(number)
        try:
            resumed = _resumed(lambda: _sharded(case), states[count], service)
            (rest,) = _next_epochs(resumed, "async for", 1)
        except SnapshotError as error:
            _demand_named(case, error)
            continue
        _demand(
            _same(rest, items[count:]),
            f"{how} a new loader did not yield the rest: {_unlike(rest, items[count:])}",
        )


def threads_yield_what_processes_yield(case: PipeCase) -> None:
    """Two workers that are threads give the same, and a state of either is resumed by the other."""
    if not case.in_workers:
        return
    graph = _sharded(case)
    if first_refusal(graph, Purpose.THREADS, workers=2) is not None:
        return
    threads: DataLoader2[Any] = DataLoader2(graph, reading_service=MultiThreadingReadingService(2))
    if not case.resumes:
        processes = _in_workers(case, 2)
        _demand_like_processes(case, *_epochs(threads, "for", 1), *_epochs(processes, "for", 1))
        return
    items, states = case.of_two_workers
    threads.seed(_SEED)
    with noting_at_every_item():
        found, of_threads = _along(case, threads, "for")
    _demand_like_processes(case, found, items)
    count = len(items) // 2
    for before, service in (
        (states, MultiThreadingReadingService(2)),
        (of_threads, MultiProcessingReadingService(2)),
    ):
        how = f"after {count} items of {case.name()}, resumed in {service!r},"
        resumed = _resumed(lambda: _sharded(case), before[count], service)
        _demand_rest(resumed, "for", [items[count:]], how)


def _demand_like_processes(case: PipeCase, found: list[Any], expected: list[Any]) -> None:
    _demand(
        _same(found, expected),
        f"two workers that are threads yield otherwise than processes of {case.name()}:"
        f" {_unlike(found, expected)}. Threads share data and functions, and items are handed over"
        " as they are, so that what one changes all have changed",
    )


def _in_workers(case: PipeCase, number: int) -> DataLoader2[Any]:
    service = MultiProcessingReadingService(number)
    return DataLoader2(_sharded(case), reading_service=service)


def _sharded(case: PipeCase) -> Any:
    """Return a graph of which each worker makes its own share."""
    graph = case.graph()
    if any(map(is_sharding, breadth_first(graph))):
        return graph
    if case.reads():
        return case.graph(lambda source: source.sharding_filter())
    return _stream(graph).sharding_filter()


def _expected_of_workers(case: PipeCase) -> list[list[Any]] | None:
    """Return what two workers have to yield, None where that cannot be told."""
    pipes = breadth_first(case.graph())
    stays = any(lives_with_loader(pipe) or not is_replicable(pipe) for pipe in pipes)
    if stays or case.draws() or any(map(is_dispatch, pipes)):
        return None
    shares = [
        _epochs(DataLoader2(apply_sharding(_sharded(case), 2, worker)), "for")
        for worker in range(2)
    ]
    return [_in_turns(*epochs) for epochs in zip(*shares, strict=True)]


def _in_turns(one: list[Any], other: list[Any]) -> list[Any]:
    pairs = zip_longest(one, other, fillvalue=_END)
    return [item for item in chain.from_iterable(pairs) if item is not _END]


#: What every pipe promises.
PIPE_CHECKS: tuple[Callable[[PipeCase], None], ...] = (
    a_new_pipe_has_read_nothing,
    an_epoch_ends,
    a_name_is_short,
    equal_seeds_give_equal_epochs,
    epochs_are_alike,
    it_yields_the_same_alone,
    a_length_is_the_number_of_items,
    copies_begin_afresh,
    a_break_closes_what_it_reads,
    a_loader_that_is_left_leaves_nothing,
    a_cancelled_pipe_ends,
    it_resumes_after_every_item,
    it_resumes_again,
    it_resumes_in_front_of_batches,
    it_resumes_while_it_is_read_ahead,
    it_resumes_behind_a_shuffle,
    workers_yield_what_their_shares_yield,
    it_resumes_in_workers,
    another_number_of_workers_resumes_or_refuses,
    threads_yield_what_processes_yield,
)


# What a service promises -----------------------------------------------------------------


def it_hands_out_what_the_graph_yields(case: ServiceCase) -> None:
    """In both forms, and after an epoch that was left, it yields the graph's items in order."""
    first, *expected = case.expected(3)
    found = asyncio.run(_of_three_epochs(case))
    whole = ("`for`", "`async for`")
    for one, other, how in zip(found, [first[:1], *expected], ("", *whole), strict=True):
        after = f" in `{how.strip('`')}`, after an epoch that was left" if how else ""
        _demand(
            _same(one, other),
            f"{case.make()!r} does not yield what the graph yields{after}: {_unlike(one, other)}."
            " A service that changes the graph says so by like=, and one that runs copies of it"
            " gives them their seeds in its reset",
        )


async def _of_three_epochs(case: ServiceCase) -> list[list[Any]]:
    loader: DataLoader2[Any] = DataLoader2(case.graph(), reading_service=case.make())
    loader.seed(_SEED)
    # One loader for both forms, and for an epoch that is left: a service starts once.
    async with loader:
        left = [await anext(aiter(loader))]
        in_for = await asyncio.to_thread(lambda: list(loader))
        return [left, in_for, [item async for item in loader]]


def a_service_leaves_nothing(case: ServiceCase) -> None:
    """A loader with the service leaves nothing open, in both forms."""
    for form in _FORMS:
        # What one loader starts for all that follow stays.
        _epochs(DataLoader2(case.graph(), reading_service=case.make()), form)
        gc.collect()
        graph, service = case.graph(), case.make()
        with _leaving_nothing(graph, f"after a loader with {service!r}, in `{form}`"):
            _epochs(DataLoader2(graph, reading_service=service), form)


def a_service_copies_and_pickles(case: ServiceCase) -> None:
    """A copy and a pickle of the service have its name, and yield the same."""
    service, expected = case.make(), case.expected(2)
    twins = {"copy": copy.deepcopy(service), "pickle": _pickled(service, repr(service))}
    for kind, twin in twins.items():
        _demand(repr(twin) == repr(service), f"a {kind} of {service!r} is named {twin!r}")
        found = _epochs(DataLoader2(case.graph(), reading_service=twin), "async for")
        for one, other in zip(found, expected, strict=True):
            _demand(
                _same(one, other),
                f"a {kind} of {service!r} does not yield what that yields: {_unlike(one, other)}",
            )


def arguments_are_attributes(case: ServiceCase) -> None:
    """What the service was made with can be read from it."""
    service = case.make()
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    for name, parameter in inspect.signature(type(service)).parameters.items():
        _demand(
            parameter.kind in several or hasattr(service, name),
            f"{type(service).__name__} keeps its argument {name!r} nowhere: set self.{name} in"
            " __init__, so that its name shows it",
        )


def a_services_name_is_short(case: ServiceCase) -> None:
    """``repr`` of the service is one short line, which begins with its class."""
    service = case.make()
    _demand(
        isinstance(service, ReadingServiceInterface),
        f"make() must return a reading service, and returned {kind_name(service)}: return an object"
        " whose class derives from ReadingServiceInterface",
    )
    _demand_short(service, type(service).__name__, 200)


#: What every reading service promises.
SERVICE_CHECKS: tuple[Callable[[ServiceCase], None], ...] = (
    a_services_name_is_short,
    arguments_are_attributes,
    it_hands_out_what_the_graph_yields,
    a_service_leaves_nothing,
    a_service_copies_and_pickles,
)


# What an adapter promises ----------------------------------------------------------------


def an_adapter_keeps_the_items(case: AdapterCase) -> None:
    """The adapted graph yields the same items, maybe in another order, in both forms."""
    adapter = case.make()
    expected = _epochs(DataLoader2(case.graph()), "for")
    for form in _FORMS if case.keeps_items else ():
        found = _epochs(DataLoader2(case.graph(), adapter), form)
        for one, other in zip(found, expected, strict=True):
            ours, theirs = sorted(one, key=repr), sorted(other, key=repr)
            _demand(
                _same(ours, theirs),
                f"{adapter!r} does not keep the items, in `{form}`: {_unlike(ours, theirs)}. If"
                " that is meant, pass keeps_items=False",
            )


def an_adapter_leaves_its_argument(case: AdapterCase) -> None:
    """A loader's own graph is as it was before the adapter was applied."""
    adapter, graph = case.make(), case.graph()
    before = _names(graph)
    DataLoader2(graph, adapter)
    _demand(
        _names(graph) == before,
        f"{adapter!r} changed the loader's argument from {before} to {_names(graph)}: it is given"
        " a copy, so change only pipes of the graph that it was given",
    )


def applied_twice_is_applied_once(case: AdapterCase) -> None:
    """To apply the adapter again changes nothing."""
    if not case.keeps_items:
        return
    adapter = case.make()
    once = _names(DataLoader2(case.graph(), adapter).datapipe)
    twice = _names(DataLoader2(case.graph(), [adapter, adapter]).datapipe)
    _demand(
        once == twice,
        f"{adapter!r} applied twice makes {twice}, and once {once}: look first whether the graph"
        " has what the adapter adds. If it is meant to add it each time, pass keeps_items=False",
    )


def an_adapter_copies_and_pickles(case: AdapterCase) -> None:
    """A copy and a pickle of the adapter have its name, which has no address."""
    adapter = case.make()
    twins = {"copy": copy.deepcopy(adapter), "pickle": _pickled(adapter, repr(adapter))}
    if inspect.isfunction(adapter):
        return
    for kind, twin in twins.items():
        _demand(repr(twin) == repr(adapter), f"a {kind} of {adapter!r} is named {twin!r}")
    _demand_short(adapter, type(adapter).__name__, 200)


def _names(graph: Any) -> list[str]:
    return [repr(pipe) for pipe in breadth_first(graph)]


#: What every adapter promises.
ADAPTER_CHECKS: tuple[Callable[[AdapterCase], None], ...] = (
    an_adapter_copies_and_pickles,
    an_adapter_keeps_the_items,
    an_adapter_leaves_its_argument,
    applied_twice_is_applied_once,
)
