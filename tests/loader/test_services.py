"""A loader calls its service at the right moments, whatever style it is written in."""

import asyncio
import gc
import subprocess
import sys
import threading
from functools import partial

import pytest

from asyncloader import (
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SeedGenerator,
    SequentialReadingService,
    WorkerStartupError,
)
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.errors import LoaderError
from asyncloader.graph.walk import Graph
from asyncloader.loader.item_buffer import ItemBuffer
from asyncloader.loader.lifecycle import Lifecycle
from asyncloader.places.states import EpochSeeds
from asyncloader.services.hooks import ServiceHooks
from asyncloader.workers.graph_part import dump_resets, load_resets


class Recorder(ReadingServiceInterface):
    """Writes down what it is called with; copies share the log."""

    def __init__(self, log, name="service"):
        self.log = log
        self.name = name

    def __deepcopy__(self, memo):
        return type(self)(self.log, self.name)

    async def initialize(self, datapipe):
        self.log.append(f"{self.name} initialize")
        return datapipe

    async def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        self.log.append(f"{self.name} initialize_iteration")

        async def reset(datapipe):
            datapipe = await iter_reset_fn(datapipe)
            self.log.append(f"{self.name} reset")
            return datapipe

        return reset

    async def finalize_iteration(self):
        self.log.append(f"{self.name} finalize_iteration")

    async def finalize(self):
        self.log.append(f"{self.name} finalize")


EPOCH = ["initialize_iteration", "reset", "finalize_iteration"]


async def test_the_moments_come_in_order():
    log = []
    async with DataLoader2(IterableWrapper([1]), reading_service=Recorder(log)) as loader:
        for _ in range(2):
            assert [item async for item in loader] == [1]
    moments = [line.removeprefix("service ") for line in log]
    assert moments == ["initialize", *EPOCH, *EPOCH, "finalize"]


async def test_the_end_of_an_epoch_that_comes_late_does_not_end_the_next():
    log = []
    lifecycle = Lifecycle(Recorder(log))
    lifecycle.use_graph(Graph(IterableWrapper([1])))
    start, _ = EpochSeeds(1).next_epoch()
    first, second = [await lifecycle.begin_epoch(start, ItemBuffer()) for _ in range(2)]
    assert log.count("service finalize_iteration") == 1
    # As where an iterator is dropped, and its end waits for a loop that is late.
    await lifecycle.end_epoch(first.tree)
    assert log.count("service finalize_iteration") == 1
    await lifecycle.end_epoch(second.tree)
    assert log.count("service finalize_iteration") == 2


@pytest.mark.parametrize("form", ["async", "sync"])
async def test_an_abandoned_epoch_is_finalized_once(form):
    log = []
    loader = DataLoader2(IterableWrapper(range(500)), reading_service=Recorder(log))
    if form == "async":
        async for _ in loader:
            break
        async for _ in loader:
            break
    else:
        with pytest.warns(RuntimeWarning, match="blocks the event loop"):
            next(iter(loader))
        next(iter(loader))
    await loader.aclose()
    assert [line.removeprefix("service ") for line in log] == [
        "initialize",
        *EPOCH,
        *EPOCH,
        "finalize",
    ]


class EndsSlowly(Recorder):
    async def finalize_iteration(self):
        await asyncio.sleep(0.05)
        await super().finalize_iteration()


def test_an_epoch_begins_when_the_service_has_ended_the_one_that_was_left():
    log = []
    with DataLoader2(IterableWrapper(range(3)), reading_service=EndsSlowly(log, "")) as loader:
        for _ in loader:
            break
        log.clear()
        assert list(loader) == [0, 1, 2]
        assert [each.strip() for each in log] == [EPOCH[-1], *EPOCH]


class Comparing(Recorder, ServiceHooks):
    """Notes what it may compare, and may refuse it."""

    refuses = False

    async def verify(self, graph, workers, *, in_order):
        self.log.append((f"{self.name} verify", workers, len(graph)))
        if self.refuses:
            raise LookupError("it differs")


class Refusing(Comparing):
    refuses = True


async def test_services_verify_what_is_known_once_all_are_initialized():
    log = []
    service = SequentialReadingService(Comparing(log, "a"), Comparing(log, "b"))
    async with DataLoader2(IterableWrapper([1]).batch(1), reading_service=service):
        pass
    assert log[:2] == ["a initialize", "b initialize"]
    assert log[2:4] == [("a verify", 0, 2), ("b verify", 0, 2)]


async def test_a_loader_does_not_start_on_what_a_service_refuses():
    log = []
    loader = DataLoader2(IterableWrapper([1]), reading_service=Refusing(log, "a"))
    for _ in range(2):
        with pytest.raises(LookupError, match="it differs"):
            await loader.start()
    await loader.aclose()
    assert log == ["a initialize", ("a verify", 0, 1), "a finalize"] * 2


async def test_services_in_sequence_go_forwards_and_are_finalized_backwards():
    log = []
    service = SequentialReadingService(Recorder(log, "a"), Recorder(log, "b"))
    async with DataLoader2(IterableWrapper([1]), reading_service=service) as loader:
        assert [item async for item in loader] == [1]
    assert log == [
        "a initialize",
        "b initialize",
        "a initialize_iteration",
        "b initialize_iteration",
        "a reset",
        "b reset",
        "b finalize_iteration",
        "a finalize_iteration",
        "b finalize",
        "a finalize",
    ]


@pytest.mark.parametrize("wrong", [3, [InProcessReadingService()], InProcessReadingService])
def test_what_is_no_service_is_refused_where_it_is_given(wrong):
    with pytest.raises(TypeError, match="derive from ReadingServiceInterface, got"):
        SequentialReadingService(InProcessReadingService(), wrong)


class FailsToFinalize(Recorder):
    async def finalize(self):
        await super().finalize()
        raise OSError(self.name)


async def test_finalize_reaches_every_service_when_some_fail():
    log = []
    services = [FailsToFinalize(log, "a"), Recorder(log, "b"), FailsToFinalize(log, "c")]
    service = SequentialReadingService(*services)
    loader = DataLoader2(IterableWrapper([1]), reading_service=service)
    await loader.start()
    with pytest.raises(ExceptionGroup) as caught:
        await loader.aclose()
    assert [str(error) for error in caught.value.exceptions] == ["c", "a"]
    assert log[-3:] == ["c finalize", "b finalize", "a finalize"]


class FailsToInitialize(Recorder):
    async def initialize(self, datapipe):
        await super().initialize(datapipe)
        raise OSError("no luck")


async def test_a_failed_start_is_rolled_back_and_says_the_same_again():
    log = []
    service = SequentialReadingService(
        Recorder(log, "a"), FailsToInitialize(log, "b"), Recorder(log, "c")
    )
    loader = DataLoader2(IterableWrapper([1]), reading_service=service)
    for _ in range(2):
        log.clear()
        with pytest.raises(OSError, match="no luck"):
            await anext(aiter(loader))
        assert log == ["a initialize", "b initialize", "b finalize", "a finalize"]
    await loader.aclose()


class Plain(ReadingServiceInterface):
    """The original's style: plain methods, resets that may be None."""

    def initialize(self, datapipe):
        return datapipe.map(lambda x: x + 1)

    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        def reset(datapipe):
            if iter_reset_fn is not None:
                datapipe = iter_reset_fn(datapipe)
            return datapipe.map(lambda x: 10 * x)

        return reset

    def finalize_iteration(self):
        return None

    def finalize(self):
        return None


class Short(Plain):
    """A service that neither takes nor returns a reset, and returns any iterable."""

    def initialize(self, datapipe):
        return list(datapipe)

    def initialize_iteration(self, seed_generator):
        return None


@pytest.mark.parametrize(
    ("service", "items"),
    [
        (Plain(), [10, 20, 30]),
        (Short(), [0, 1, 2]),
        (SequentialReadingService(Plain(), Plain()), [200, 300, 400]),
        (SequentialReadingService(InProcessReadingService(), Short(), Plain()), [10, 20, 30]),
    ],
    ids=["plain", "short", "plain twice", "mixed"],
)
async def test_services_in_the_plain_style_work(service, items):
    async with DataLoader2(IterableWrapper(range(3)), reading_service=service) as loader:
        for _ in range(2):
            assert [item async for item in loader] == items


class PassesOn(Plain):
    """Leaves all to another service, in the plain style."""

    def __init__(self, service):
        self.service = service

    def initialize(self, datapipe):
        return self.service.initialize(datapipe)

    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        return self.service.initialize_iteration(seed_generator, iter_reset_fn)


class AsBefore(InProcessReadingService):
    def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        return super().initialize_iteration(seed_generator, iter_reset_fn)


def squared(datapipe, *more):
    return datapipe.map(lambda x: x * x)


@pytest.mark.parametrize(
    "service",
    [
        InProcessReadingService(reset_fn=squared),
        MultiProcessingReadingService(num_workers=0, worker_reset_fn=squared),
        SequentialReadingService(InProcessReadingService(reset_fn=squared)),
        AsBefore(reset_fn=squared),
    ],
    ids=["in-process", "workers", "sequential", "derived"],
)
def test_a_service_in_the_plain_style_may_leave_its_moments_to_one_of_ours(service):
    for before, items in ([], [0, 1, 4]), ([Plain()], [100, 400, 900]):
        together = SequentialReadingService(*before, PassesOn(service))
        with DataLoader2(IterableWrapper(range(3)), reading_service=together) as loader:
            assert [list(loader), list(loader)] == [items, items]


class HoldsALock(ReadingServiceInterface):
    async def initialize_iteration(self, seed_generator, iter_reset_fn):
        lock = threading.Lock()

        async def reset(datapipe):
            with lock:
                return await iter_reset_fn(datapipe)

        return reset


class HoldsALockPlainly(Plain):
    def initialize_iteration(self, seed_generator):
        lock = threading.Lock()
        return lambda datapipe: lock and datapipe


@pytest.mark.parametrize("holder", [HoldsALock(), HoldsALockPlainly()])
async def test_of_several_resets_the_one_that_cannot_be_sent_to_workers_is_named(holder):
    service = SequentialReadingService(Plain(), SequentialReadingService(holder), Plain())
    reset = await service.initialize_iteration(SeedGenerator(1))
    with pytest.raises(
        WorkerStartupError, match=rf"the reset of {type(holder).__qualname__} .*_thread\.lock"
    ):
        dump_resets(reset, None)


async def test_resets_arrive_at_workers_as_they_were():
    service = SequentialReadingService(Plain(), Short(), PassesOn(AsBefore(reset_fn=squared)))
    reset, _ = load_resets(dump_resets(await service.initialize_iteration(SeedGenerator(1)), None))
    assert list(await reset(IterableWrapper([1, 2]))) == [100, 400]


class AsyncSource(Plain):
    def initialize(self, datapipe):
        class Stream:
            async def __aiter__(self):
                yield "streamed"

        return Stream()

    def initialize_iteration(self, seed_generator):
        return None


async def test_initialize_may_return_an_async_iterable():
    async with DataLoader2(IterableWrapper([]), reading_service=AsyncSource()) as loader:
        assert [item async for item in loader] == ["streamed"]


async def test_a_service_may_re_key_the_epochs_generator():
    class Rekeys(ReadingServiceInterface):
        async def initialize_iteration(self, seed_generator, iter_reset_fn=None):
            seed_generator.seed(5)
            return iter_reset_fn

    graph = IterableWrapper(range(50)).shuffle()
    async with DataLoader2(graph, reading_service=Rekeys()) as loader:
        epochs = [[item async for item in loader] for _ in range(2)]
    assert epochs[0] == epochs[1]


def shuffled(datapipe):
    return datapipe.shuffle()


def shuffled_by_hand(datapipe):
    return datapipe.shuffle().set_seed(7)


def order_with(reset_fn, seed):
    graph, service = IterableWrapper(range(50)), InProcessReadingService(reset_fn=reset_fn)
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(seed)
        iterator = iter(loader)
        begun = [next(iterator) for _ in range(9)]
        state = loader.state_dict(include_datapipe=False)
        items = begun + list(iterator)
    with DataLoader2(graph, reading_service=service) as loader:
        loader.load_state_dict(state)
        assert begun + list(loader) == items
    return items


def test_what_a_reset_puts_in_gets_a_seed_unless_it_has_one():
    assert order_with(shuffled, 1) == order_with(shuffled, 1) != order_with(shuffled, 2)
    assert order_with(shuffled_by_hand, 1) == order_with(shuffled_by_hand, 2)


async def test_in_process_service_calls_its_functions_and_prefetches():
    calls = []

    async def reset_fn(datapipe):
        calls.append("reset")
        return datapipe.map(lambda x: x + 1)

    def init_fn(datapipe):
        calls.append("init")
        return datapipe.map(lambda x: 10 * x)

    service = InProcessReadingService(prefetch_cnt=2, init_fn=init_fn, reset_fn=reset_fn)
    async with DataLoader2(IterableWrapper(range(3)), reading_service=service) as loader:
        assert [item async for item in loader] == [1, 11, 21]
        assert [item async for item in loader] == [1, 11, 21]
    assert calls == ["init", "reset", "reset"]


def marked(datapipe, info):
    return datapipe.map(lambda item: (item, info.worker_id, info.num_workers))


def seeded(datapipe, info, seed_generator):
    seed = seed_generator.generate_shared_seed() + info.worker_id
    return datapipe.map(lambda item: (*item, seed))


def set_aside(worker_id):
    """Do nothing."""


def in_lists(datapipe, size=2):
    return datapipe.batch(size)


def test_in_process_service_takes_the_functions_of_the_service_with_workers():
    service = InProcessReadingService(init_fn=marked, reset_fn=seeded)
    with DataLoader2(IterableWrapper(range(2)), reading_service=service) as loader:
        loader.seed(1)
        epochs = [list(loader) for _ in range(2)]
    assert [item[:3] for item in epochs[0]] == [(0, 0, 1), (1, 0, 1)]
    assert epochs[0][0][3] == epochs[0][1][3] != epochs[1][0][3]
    # What the graph alone is enough for gets no more.
    service = InProcessReadingService(init_fn=in_lists, reset_fn=in_lists)
    with DataLoader2(IterableWrapper(range(4)), reading_service=service) as loader:
        assert list(loader) == [[[0, 1], [2, 3]]]


def test_the_service_is_copied():
    service = SequentialReadingService(InProcessReadingService(prefetch_cnt=3))
    loader = DataLoader2(IterableWrapper([1]), reading_service=service)
    assert loader.reading_service is not service
    assert loader.reading_service.reading_services[0] is not service.reading_services[0]


class Holding(ReadingServiceInterface):
    """Holds something until it is finalized."""

    def __init__(self, log, done):
        self.log = log
        self.done = done

    def __deepcopy__(self, memo):
        return self

    def __repr__(self):
        return "Holding()"

    async def finalize_iteration(self):
        self.log.append("epoch ended")

    async def finalize(self):
        self.log.append("finalized")
        self.done.set()


@pytest.mark.parametrize("form", ["async for", "for"])
async def test_a_loader_dropped_without_a_shutdown_is_finalized_with_a_warning(form):
    log, done = [], threading.Event()

    def begun():
        loader = DataLoader2(IterableWrapper(range(9)), reading_service=Holding(log, done))
        return iter(loader) if form == "for" else aiter(loader)

    # An iterator keeps what it needs of its loader.
    iterator = begun()
    if form == "for":
        # The thread of an executor would hold the iterator for a moment longer.
        thread = threading.Thread(target=next, args=(iterator,))
        thread.start()
        await asyncio.to_thread(thread.join)
    else:
        assert await anext(iterator) == 0
    with pytest.warns(ResourceWarning, match=r"Holding\(\) is finalized now") as caught:
        del iterator
    gc.collect()
    assert await asyncio.to_thread(done.wait, 10)
    assert log == ["epoch ended", "finalized"]
    assert len(caught) == 1


class Pausable(Holding):
    """Notes when it is told to pause, limit and resume."""

    def pause(self):
        self.log.append("pause")

    def resume(self):
        self.log.append("resume")

    def limit(self, num_items):
        self.log.append(num_items)


def test_an_invalidated_iterator_does_not_pause_the_service_of_the_live_one():
    log = []
    service = Pausable(log, threading.Event())
    with DataLoader2(IterableWrapper(range(9)), reading_service=service) as loader:
        older, live = iter(loader), iter(loader)
        older.limit(1)
        older.pause()
        older.resume()
        assert log == []
        live.limit(7)
        live.pause()
        live.resume()
        assert log == [7, "pause", "resume"]


AT_EXIT = """
from asyncloader import DataLoader2, ReadingServiceInterface
from asyncloader.datapipes.iter import IterableWrapper

class Holding(ReadingServiceInterface):
    def finalize(self):
        print("finalized", flush=True)

loader = DataLoader2(IterableWrapper(range(9)), reading_service=Holding())
print(next(iter(loader)))
"""


def test_a_loader_never_shut_down_is_finalized_at_exit():
    script = subprocess.run(
        [sys.executable, "-W", "default", "-c", AT_EXIT], capture_output=True, text=True, timeout=60
    )
    assert script.stdout == "0\nfinalized\n"
    assert script.stderr.count("ResourceWarning") == 1


class Trainer:
    """Holds what cannot be copied, and counts the epochs it is told of."""

    def __init__(self):
        self.lock = threading.Lock()
        self.epochs = 0

    def begins(self, datapipe):
        self.epochs += 1
        return datapipe


def in_a_row(function):
    return SequentialReadingService(InProcessReadingService(), InProcessReadingService(2, function))


@pytest.mark.parametrize(
    ("service_of", "calls"),
    [
        (lambda function: InProcessReadingService(init_fn=function), 1),
        (lambda function: InProcessReadingService(reset_fn=function), 2),
        (lambda function: InProcessReadingService(reset_fn=partial(function)), 2),
        (in_a_row, 1),
    ],
)
def test_what_a_function_is_bound_to_is_not_copied(service_of, calls):
    trainer = Trainer()
    with DataLoader2(IterableWrapper([1]), None, service_of(trainer.begins)) as loader:
        assert [list(loader), list(loader)] == [[1], [1]]
    assert trainer.epochs == calls


class Own(InProcessReadingService):
    """Calls a method of its own."""

    def __init__(self):
        super().__init__(init_fn=self.begins)
        self.begun = 0

    def begins(self, datapipe):
        self.begun += 1
        return datapipe


def test_a_method_of_the_service_is_the_copys_own():
    service = Own()
    with DataLoader2(IterableWrapper([1]), reading_service=service) as loader:
        assert list(loader) == [1]
    assert (service.begun, loader.reading_service.begun) == (0, 1)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((None, "processes"), "must derive from ReadingServiceInterface, got str"),
        ((None, Own), "must derive from ReadingServiceInterface, got the class Own"),
        ((Own(),), r"got the reading service Own\(.*pass it as reading_service="),
    ],
)
def test_what_is_no_service_is_refused(arguments, says):
    with pytest.raises(TypeError, match=says):
        DataLoader2(IterableWrapper([1]), *arguments)


def test_a_reset_that_returns_no_graph_is_named():
    def resets(datapipe):
        return None

    service = InProcessReadingService(reset_fn=resets)
    loader = DataLoader2(IterableWrapper(range(3)), reading_service=service)
    with loader, pytest.raises(TypeError, match=r"reset_fn=resets\) returned NoneType"):
        list(loader)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"prefetch_cnt": -1}, ValueError),
        ({"prefetch_cnt": "2"}, TypeError),
        ({"init_fn": 3}, TypeError),
        ({"reset_fn": "f"}, TypeError),
    ],
)
def test_arguments_of_the_in_process_service_are_checked(arguments, error):
    with pytest.raises(error, match=next(iter(arguments))):
        InProcessReadingService(**arguments)


@pytest.mark.parametrize(
    ("service", "name", "function"),
    [
        (InProcessReadingService, "init_fn", seeded),
        (InProcessReadingService, "reset_fn", marked),
        # As torch's DataLoader wants it, of a worker's number.
        (MultiProcessingReadingService, "worker_init_fn", set_aside),
        (MultiProcessingReadingService, "worker_reset_fn", marked),
    ],
)
def test_functions_that_do_not_take_what_they_are_given_are_refused_at_once(
    service, name, function
):
    with pytest.raises(ValueError, match=f"^{name} must take its arguments: .*{function.__name__}"):
        service(**{name: function})


# Lengths --------------------------------------------------------------------------------


class Pairs(ReadingServiceInterface):
    async def initialize(self, datapipe):
        return datapipe.batch(2)


class CountedPairs(Pairs):
    def length(self, datapipe):
        return len(datapipe) // 2


@pytest.mark.parametrize(
    ("service", "changer"),
    [
        (Pairs(), r"Pairs\.initialize"),
        (InProcessReadingService(init_fn=lambda pipe: pipe.batch(2)), "init_fn=<lambda>"),
        (SequentialReadingService(InProcessReadingService(), Pairs()), r"Pairs\.initialize"),
    ],
)
def test_the_length_of_a_graph_that_a_service_changes_is_known_after_the_start(service, changer):
    loader = DataLoader2(IterableWrapper(range(10)), reading_service=service)
    with pytest.raises(TypeError, match=f"{changer} may change .* after start"):
        len(loader)
    with loader:
        assert len(loader) == len(list(loader)) == 5


def test_a_service_that_counts_by_itself_is_believed():
    loader = DataLoader2(IterableWrapper(range(10)), reading_service=CountedPairs())
    assert len(loader) == 5


def test_a_service_that_changes_nothing_leaves_the_length_as_it_is():
    loader = DataLoader2(IterableWrapper(range(10)), reading_service=OnlySeeds())
    assert len(loader) == 10


class OnlySeeds(ReadingServiceInterface):
    async def initialize_iteration(self, seed_generator, iter_reset_fn=None):
        return iter_reset_fn


SEEDS_TAKEN = []


class RefusingOnce(IterDataPipe):
    """A user's pipe that cannot take its first seed."""

    def __iter__(self):
        yield from range(3)

    def set_seed(self, seed):
        SEEDS_TAKEN.append(seed)
        if len(SEEDS_TAKEN) == 1:
            raise OSError("no such seed")
        return self


def test_an_epoch_that_could_not_begin_is_begun_again():
    with DataLoader2(RefusingOnce()) as loader:
        with pytest.raises(OSError, match="no such seed"):
            list(loader)
        assert list(loader) == [0, 1, 2]
        assert list(loader) == [0, 1, 2]
    first, again, second = SEEDS_TAKEN
    assert first == again != second


class TakesOut(InProcessReadingService):
    """Returns another graph than it was given."""

    def __init__(self):
        self.finalized = 0

    async def initialize(self, datapipe):
        return IterableWrapper(range(4))

    async def finalize(self):
        self.finalized += 1


def test_a_service_that_takes_out_what_records_is_refused_at_every_start():
    graph = IterableWrapper(range(4)).filter(bool, repeatable=False)
    loader = DataLoader2(graph, reading_service=TakesOut())
    for starts in (1, 2):
        with pytest.raises(LoaderError, match="let it keep the pipes that it is given"):
            list(loader)
        assert loader.reading_service.finalized == starts
    loader.shutdown()
    assert loader.reading_service.finalized == 2


class Sized(Pairs):
    """Keeps its settings under names by which a loader asks our own services."""

    def __init__(self) -> None:
        self.rank = self.length = self.share = self.limit = self.verify = 3
        self.pause = None


@pytest.mark.parametrize("in_a_row", [False, True])
def test_a_service_names_its_attributes_as_it_likes(in_a_row: bool) -> None:
    service = SequentialReadingService(Sized()) if in_a_row else Sized()
    with DataLoader2(IterableWrapper(range(10)), reading_service=service) as loader:
        loader.pause()
        loader.resume()
        loader.limit(2)
        assert len(loader) == 5
        assert list(loader) == [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (ReadingServiceInterface, "finalize"),
        (ReadingServiceInterface, "initialize_iteration"),
        (InProcessReadingService, "limit"),
        (InProcessReadingService, "share"),
    ],
)
def test_an_attribute_that_hides_a_method_of_a_service_is_refused_by_name(kind, name) -> None:
    class Named(kind):
        def __init__(self) -> None:
            super().__init__()
            setattr(self, name, 3)

    words = rf"attribute '{name}', int, which hides the method"
    with pytest.raises(TypeError, match=words):
        DataLoader2(IterableWrapper(range(3)), reading_service=Named())
    with pytest.raises(TypeError, match=words):
        SequentialReadingService(InProcessReadingService(), Named())


def test_a_service_that_cannot_be_copied_is_refused_by_name() -> None:
    class Locked(ReadingServiceInterface):
        def __init__(self) -> None:
            self.lock = threading.Lock()

    words = r"Locked\(.*\) cannot be copied, and .* make locks in initialize, not in __init__"
    with pytest.raises(TypeError, match=words):
        DataLoader2(IterableWrapper(range(3)), reading_service=Locked())
