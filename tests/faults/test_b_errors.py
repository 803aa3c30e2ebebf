"""Rows B: user code that fails, wherever it runs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from asyncloader import (
    DataLoader2,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
    get_worker_info,
)
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.errors import PipelineError, TransportError, WorkerDied, WorkerStartupError
from tests.eyes import PROC
from tests.faults.child import collected, loader_of, numbers, play, play_each
from tests.leaks import WORKER, descendants, worker_processes
from tests.processes.forks import nothing_forked

# B1 -------------------------------------------------------------------------------------


class Damaged(ValueError):
    """A user's error, with arguments and an attribute."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(path, line)
        self.hint = "look at it"


def fail_at_7(number: int) -> int:
    if number == 7:
        raise Damaged("a.txt", 7)
    return number


async def fail_at_7_soon(number: int) -> int:
    await asyncio.sleep(0)
    return fail_at_7(number)


def fail_for_a_batch(batch: list[int]) -> list[int]:
    return [fail_at_7(number) for number in batch]


class FailsItself(IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Any:
        for number in self.source:
            yield fail_at_7(number)


class FailsAtOnce(FailsItself):
    def __iter__(self) -> Any:
        fail_at_7(7)


GRAPHS: dict[str, tuple[Callable[[], Any], str]] = {
    "Mapper": (lambda: numbers(20).map(fail_at_7), "raised in map("),
    "async Mapper": (lambda: numbers(20).map(fail_at_7_soon), "raised in map("),
    "AsyncMapper": (lambda: numbers(20).async_map(fail_at_7_soon), "raised in async_map("),
    "ThreadMapper": (lambda: numbers(20).thread_map(fail_at_7), "raised in thread_map("),
    "Filter": (lambda: numbers(20).filter(lambda n: fail_at_7(n) >= 0), "raised in filter("),
    "Collator": (lambda: numbers(20).batch(1).collate(fail_for_a_batch), "raised in collate("),
    "user's": (lambda: FailsItself(numbers(20)), ""),
    "in the loader": (lambda: Stays(numbers(20)).map(fail_at_7), "raised in map("),
}


class Stays(IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def is_replicable(self) -> bool:
        return False

    def __iter__(self) -> Any:
        yield from self.source


async def a_pipe_fails(kind: str, num_workers: int) -> None:
    build, note = GRAPHS[kind]
    async with loader_of(build(), num_workers) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert [item[0] if isinstance(item, list) else item for item in taken] == [*range(7)]
            assert type(error) is Damaged
            assert error.args == ("a.txt", 7)
            assert error.hint == "look at it"
            notes = "\n".join(error.__notes__ if hasattr(error, "__notes__") else [])
            assert note in notes
            if kind != "in the loader":
                assert f"in worker {7 % num_workers} of {num_workers}" in notes
                assert 'File "' in notes
                assert "in fail_at_7" in notes


@pytest.mark.soak
@pytest.mark.parametrize("num_workers", [1, 2])
def test_b1_an_exception_in_a_pipe_comes_out_as_itself(num_workers, tmp_path):
    play_each(tmp_path, a_pipe_fails, [(kind, num_workers) for kind in GRAPHS])


async def a_pipe_fails_to_begin() -> None:
    async with loader_of(FailsAtOnce(numbers(20)), 2) as loader:
        taken, error = await collected(loader)
        assert (taken, type(error)) == ([], Damaged)


def test_b1_an_exception_before_the_first_item(tmp_path):
    play(tmp_path, a_pipe_fails_to_begin)


async def causes_come_along() -> None:
    async with loader_of(numbers(20).map(translate), 1) as loader:
        _, error = await collected(loader)
        assert type(error) is RuntimeError
        assert type(error.__cause__) is Damaged
        assert error.__cause__.hint == "look at it"


def translate(number: int) -> int:
    try:
        return fail_at_7(number)
    except Damaged as error:
        raise RuntimeError("no such number") from error


def test_b1_causes_come_along(tmp_path):
    play(tmp_path, causes_come_along)


# B2 -------------------------------------------------------------------------------------


class Odd(Exception):
    """An error whose constructor cannot be called with its args."""

    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path} is odd at {line}")


class Refuses(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("never")


class Unspeakable(Exception):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(path)

    def __str__(self) -> str:
        raise TypeError("no words")


def fail_oddly(kind: type[Exception], number: int) -> int:
    if number == 7:
        raise kind("a.txt", 7)
    return number


def fails_oddly(kind: type[Exception]) -> Callable[[int], int]:
    return lambda number: fail_oddly(kind, number)


def make_unpicklable(number: int) -> Any:
    return (i for i in range(3)) if number == 7 else number


async def an_error_cannot_travel(kind: str) -> None:
    odd = globals()[kind]
    async with loader_of(numbers(20).map(fails_oddly(odd)), 2) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == list(range(7))
            assert type(error) is PipelineError, error
            assert f"test_b_errors.{kind}" in str(error)
            assert "raised in map(" in str(error)
            assert "worker 1 of 2, after 3 items" in str(error)
            assert "in fail_oddly" in "".join(error.__notes__)


def test_b2_an_error_that_cannot_travel_is_named(tmp_path):
    kinds = ["Odd", "Refuses", "Unspeakable"]
    play_each(tmp_path, an_error_cannot_travel, [(kind,) for kind in kinds])


async def a_result_cannot_travel() -> None:
    async with loader_of(numbers(20).map(make_unpicklable), 2) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == list(range(7))
            assert type(error) is PipelineError, error
            assert "item 3 of map(make_unpicklable)" in str(error)
            assert "builtins.generator" in str(error)
            assert "in worker 1 of 2" in "".join(error.__notes__)


def test_b2_a_result_that_cannot_travel_is_named(tmp_path):
    play(tmp_path, a_result_cannot_travel)


# B3 -------------------------------------------------------------------------------------


class FailsToComeBack:
    def __init__(self, number: int) -> None:
        self.number = number

    def __setstate__(self, state: dict[str, Any]) -> None:
        if state["number"] == 7 and get_worker_info() is None:
            raise Damaged("a.txt", 7)
        self.__dict__.update(state)


async def a_result_fails_to_unpickle(in_order: bool) -> None:
    async with loader_of(numbers(1000).map(FailsToComeBack), 2, in_order=in_order) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            if in_order:
                assert [item.number for item in taken] == list(range(7))
            assert type(error) is TransportError, error
            assert error.worker == 1
            assert "Damaged" in str(error)
            assert type(error.__cause__) is Damaged
        pids = {pid for pid, what in descendants().items() if WORKER.match(what)}
        assert len(pids) == 2, "the workers live on"


@pytest.mark.parametrize("in_order", [True, False])
def test_b3_a_result_that_fails_to_unpickle_is_an_error_in_its_place(in_order, tmp_path):
    play(tmp_path, a_result_fails_to_unpickle, in_order)


# B4 -------------------------------------------------------------------------------------


ACTS: dict[str, Callable[[], Any]] = {
    "crash": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit": lambda: sys.exit(5),
    "error": lambda: fail_at_7(7),
}


def act(name: str) -> None:
    ACTS[name]()


class ActsOnPickle:
    """Travels from one side and acts when it is pickled there, or unpickled on the other."""

    def __init__(self, name: str, moment: str, here: int) -> None:
        self.name = name
        self.moment = moment
        self.here = here

    def __call__(self, number: int) -> int:
        return number

    def __getstate__(self) -> dict[str, Any]:
        if self.moment == "pickle" and self.is_to_act(os.getpid() == self.here):
            act(self.name)
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self.moment == "unpickle" and self.is_to_act(os.getpid() != self.here):
            act(self.name)

    def is_to_act(self, expected: bool) -> bool:
        return expected


class ResultActs(ActsOnPickle):
    def is_to_act(self, expected: bool) -> bool:
        return not expected


def run_act(name: str) -> Callable[[int], int]:
    def run(number: int) -> int:
        act(name)
        return number

    return run


def graph_that_acts(name: str, what: str, moment: str) -> Any:
    here = os.getpid()
    if what == "run":
        return numbers(20).map(run_act(name))
    if what == "command":
        return numbers(20).map(ActsOnPickle(name, moment, here))
    return numbers(20).map(lambda number: ResultActs(name, moment, here))


#: What is raised; a crash in the loader's own process is no worker's fault and not tried.
EXPECTED = {
    ("crash", "command", "unpickle"): WorkerStartupError,
    ("crash", "run", ""): WorkerDied,
    ("crash", "result", "pickle"): WorkerDied,
    ("exit", "command", "pickle"): WorkerStartupError,
    ("exit", "command", "unpickle"): WorkerStartupError,
    ("exit", "run", ""): WorkerDied,
    ("exit", "result", "pickle"): WorkerDied,
    ("exit", "result", "unpickle"): TransportError,
    ("error", "command", "pickle"): WorkerStartupError,
    ("error", "command", "unpickle"): WorkerStartupError,
    ("error", "run", ""): Damaged,
    ("error", "result", "pickle"): PipelineError,
    ("error", "result", "unpickle"): TransportError,
}


def matrix(method: str | None, forms: list[str]) -> None:
    for place, (cell, kind) in enumerate(EXPECTED.items()):
        if method == "fork" and "command" in cell:
            # Forked workers inherit the graph: nothing of it is pickled.
            continue
        loader = loader_of(graph_that_acts(*cell), 2, method)
        # Several forms take turns.
        with nothing_forked() if method is None else contextlib.nullcontext():
            meet(loader, cell, kind, forms[place % len(forms)])


def meet(loader: DataLoader2[Any], cell: tuple[str, ...], kind: type, form: str) -> None:
    if form == "for":
        with pytest.raises(kind):
            list(loader)
        loader.shutdown()
    else:
        error = asyncio.run(one_of_the_matrix(loader), debug=True)
        assert type(error) is kind, (cell, error)


async def one_of_the_matrix(loader: DataLoader2[Any]) -> BaseException | None:
    _, error = await collected(loader)
    await loader.aclose()
    return error


FORMS = ["for", "async for"]
#: Fresh interpreters take long to start, and do not know who reads what they send.
MATRICES = [(None, FORMS[:1]), (None, FORMS[1:]), ("fork", FORMS[:1]), ("fork", FORMS[1:])]
MATRICES += [("spawn", FORMS), ("forkserver", FORMS[::-1])]


@pytest.mark.sweep
@pytest.mark.parametrize(("method", "forms"), MATRICES)
def test_b4_crash_exit_error_at_every_moment_is_a_typed_error(method, forms, tmp_path):
    play(tmp_path, matrix, method, forms)


# B5 -------------------------------------------------------------------------------------


def fail_for_worker_1(pipe: Any, info: Any, generator: Any = None) -> Any:
    if info.worker_id == 1:
        raise Damaged("a.txt", 7)
    return pipe


async def fail_for_worker_1_soon(pipe: Any, info: Any, generator: Any = None) -> Any:
    await asyncio.sleep(0)
    return fail_for_worker_1(pipe, info)


def die_for_worker_1(pipe: Any, info: Any, generator: Any = None) -> Any:
    if info.worker_id == 1:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(1000)
    return pipe


class FailsToInitialize(ReadingServiceInterface):
    async def initialize(self, datapipe: Any) -> Any:
        raise Damaged("a.txt", 7)


class FailsToStartWorkers(MultiProcessingReadingService):
    async def initialize(self, datapipe: Any) -> Any:
        await super().initialize(datapipe)
        raise Damaged("a.txt", 7)


class FailsToReset(ReadingServiceInterface):
    def __init__(self, *, everywhere: bool) -> None:
        self.everywhere = everywhere

    async def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        everywhere = self.everywhere

        async def reset(datapipe: Any) -> Any:
            if everywhere or get_worker_info() is not None:
                raise Damaged("a.txt", 7)
            return datapipe

        return reset


class GivesWhatCannotTravel(ReadingServiceInterface):
    async def initialize_iteration(self, seed_generator: Any, iter_reset_fn: Any = None) -> Any:
        thing = (i for i in range(3))

        async def reset(datapipe: Any) -> Any:
            return thing and datapipe

        return reset


def service_that_fails(stage: str) -> Any:
    match stage:
        case "init":
            return MultiProcessingReadingService(3, worker_init_fn=fail_for_worker_1)
        case "async init":
            return MultiProcessingReadingService(3, worker_init_fn=fail_for_worker_1_soon)
        case "reset":
            return MultiProcessingReadingService(3, worker_reset_fn=fail_for_worker_1)
        case "async reset":
            return MultiProcessingReadingService(3, worker_reset_fn=fail_for_worker_1_soon)
        case "iter_reset_fn":
            service = FailsToReset(everywhere=False)
            return SequentialReadingService(service, MultiProcessingReadingService(3))
        case "iter_reset_fn everywhere":
            service = FailsToReset(everywhere=True)
            return SequentialReadingService(service, MultiProcessingReadingService(3))
        case "initialize before":
            return SequentialReadingService(FailsToInitialize(), MultiProcessingReadingService(3))
        case "initialize alone":
            return FailsToStartWorkers(3)
        case "pickling iter_reset_fn":
            cannot = GivesWhatCannotTravel()
            return SequentialReadingService(cannot, MultiProcessingReadingService(3))
        case "death in init":
            return MultiProcessingReadingService(3, worker_init_fn=die_for_worker_1)
        case "death in reset":
            return MultiProcessingReadingService(3, worker_reset_fn=die_for_worker_1)
        case _:
            return SequentialReadingService(MultiProcessingReadingService(3), FailsToInitialize())


START_UP = (WorkerStartupError, Damaged)

#: What fails, by where, with the error and the type of its cause.
STAGES: dict[str, dict[str, tuple[type, type]]] = {
    "setting up": {
        "init": START_UP,
        "async init": START_UP,
        "initialize after": START_UP,
        "initialize before": START_UP,
        "initialize alone": START_UP,
    },
    "an epoch": {
        "reset": START_UP,
        "async reset": START_UP,
        "iter_reset_fn": START_UP,
        "iter_reset_fn everywhere": START_UP,
        "pickling iter_reset_fn": (WorkerStartupError, TypeError),
    },
    "a death": {
        "death in init": (WorkerStartupError, WorkerDied),
        "death in reset": (WorkerDied, type(None)),
    },
}


async def a_start_fails(where: str, stage: str) -> None:
    kind, cause = STAGES[where][stage]
    loader = DataLoader2(numbers(30), None, service_that_fails(stage))
    for _ in range(2):
        taken, error = await collected(loader)
        assert taken == list(range(len(taken)))
        assert len(taken) < 2 or "death" in stage
        assert type(error) is kind, error
        assert isinstance(error.__cause__, cause), error.__cause__
        if "init" in stage:
            assert not worker_processes()
        if cause is Damaged:
            assert error.__cause__.args == ("a.txt", 7)
            assert "worker" in str(error)
    await loader.aclose()


@pytest.mark.soak
@pytest.mark.parametrize("where", STAGES)
def test_b5_what_fails_before_the_first_item_is_one_error_and_may_be_tried_again(where, tmp_path):
    play_each(tmp_path, a_start_fails, [(where, stage) for stage in STAGES[where]])


async def the_third_spawn_fails() -> None:
    loader = loader_of(numbers(30), 3)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A worker takes several descriptors: one can be started, three cannot.
    used = len(os.listdir(f"{PROC}/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 9, limits[1]))
    for _ in range(2):
        with pytest.raises(WorkerStartupError):
            await loader.start()
        assert not worker_processes()
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    async with loader:
        assert [item async for item in loader] == list(range(30))


async def test_b5_without_workers_it_is_the_users_exception_itself():
    with pytest.raises(Damaged):
        await DataLoader2(numbers(5), None, FailsToInitialize()).start()


def test_b5_when_a_later_spawn_fails_the_earlier_are_closed(tmp_path):
    play(tmp_path, the_third_spawn_fails)


# B6 -------------------------------------------------------------------------------------

ENDINGS = ["StopIteration", "StopAsyncIteration", "GeneratorExit", "KeyboardInterrupt"]


def raises_at_7(name: str) -> Callable[[int], int]:
    kind = asyncio.CancelledError if name == "CancelledError" else __builtins__[name]

    def maybe(number: int) -> int:
        if number == 7:
            raise kind("from user code")
        return number

    return maybe


class CallsIt(IterDataPipe[int]):
    def __init__(self, source: Any, function: Callable[[int], int]) -> None:
        self.source = source
        self.function = function

    def __iter__(self) -> Any:
        for number in self.source:
            yield self.function(number)


async def user_code_pretends_to_end(name: str, where: str) -> None:
    function = raises_at_7(name)
    graph = numbers(20).map(function) if where == "map" else CallsIt(numbers(20), function)
    async with loader_of(graph, 2) as loader:
        for _ in range(2):
            taken, error = await collected(loader)
            assert taken == list(range(7))
            assert type(error) is RuntimeError, repr(error)
            assert type(error.__cause__).__name__ in (name, "RuntimeError")
            assert name in "".join(error.__notes__)


@pytest.mark.parametrize("where", ["map", "a pipe"])
def test_b6_no_exception_of_user_code_is_the_end_of_data(where, tmp_path):
    names = [*ENDINGS, "CancelledError"]
    if where == "a pipe":
        # A generator may raise it: it comes out as itself.
        names.remove("StopAsyncIteration")
    play_each(tmp_path, user_code_pretends_to_end, [(name, where) for name in names])


@pytest.mark.parametrize("name", ["StopIteration", "StopAsyncIteration", "GeneratorExit"])
@pytest.mark.parametrize("prefetched", [False, True])
async def test_b6_nor_in_the_loaders_own_process(name, prefetched):
    graph = IterableWrapper(range(20)).map(raises_at_7(name))
    async with DataLoader2(graph.prefetch(2) if prefetched else graph) as loader:
        taken, error = await collected(loader)
        assert (taken, type(error)) == (list(range(7)), RuntimeError), repr(error)

    def by_for() -> list[int]:
        taken: list[int] = []
        loader = DataLoader2(graph.prefetch(2) if prefetched else graph)
        with loader, pytest.raises(RuntimeError):
            taken.extend(loader)
        return taken

    assert await asyncio.to_thread(by_for) == list(range(7))


class NoException(BaseException):
    """As pytest's own are, which ``pytest.fail`` raises."""


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("kind", [NoException, GeneratorExit, StopAsyncIteration])
@pytest.mark.parametrize("workers", [None, 0, 2])
@pytest.mark.parametrize("prefetched", [False, True])
async def test_b6_nor_what_a_pipe_raises(kind, workers, prefetched):
    def maybe(number: int) -> int:
        if number == 7:
            raise kind("from user code")
        return number

    def new_loader() -> DataLoader2[Any]:
        graph = CallsIt(numbers(20), maybe)
        whole = graph.prefetch(2) if prefetched else graph
        return DataLoader2(whole) if workers is None else loader_of(whole, workers)

    async def by_async_for(loader: DataLoader2[Any], taken: list[int]) -> None:
        async with loader:
            async for number in loader:
                taken.append(number)  # noqa: PERF401 - the items before the error count

    def by_for(loader: DataLoader2[Any], taken: list[int]) -> None:
        with loader:
            taken.extend(loader)

    for run in (by_async_for, partial(asyncio.to_thread, by_for)):
        taken: list[int] = []
        with pytest.raises((kind, RuntimeError), match=r"from user code|raised") as raised:
            await run(new_loader(), taken)
        assert taken == list(range(7))
        assert isinstance(raised.value, kind) or kind.__name__ in str(raised.value)


async def a_function_at_start_up_pretends_to_end(name: str) -> None:
    def init(pipe: Any, info: Any) -> Any:
        raises_at_7(name)(7)

    loader = DataLoader2(
        IterableWrapper(range(5)), None, MultiProcessingReadingService(1, worker_init_fn=init)
    )
    taken, error = await collected(loader)
    assert (taken, type(error)) == ([], WorkerStartupError)
    assert name in repr(error.__cause__)
    await loader.aclose()


def test_b6_nor_in_a_function_at_start_up(tmp_path):
    names = [*ENDINGS, "CancelledError"]
    play_each(tmp_path, a_function_at_start_up_pretends_to_end, [(name,) for name in names])
