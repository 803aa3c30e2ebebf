"""A loader that is made of a data set, as torch's DataLoader is made."""

from __future__ import annotations

import inspect
import json
import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
    get_worker_info,
)

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import SnapshotError

COUNT = 20


class Squares(Dataset[int]):
    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, number: int) -> int:
        return number * number


class Countdown(IterableDataset[int]):
    """Takes the share of a worker itself, as torch asks of it."""

    def __iter__(self) -> Iterator[int]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(range(COUNT - 1 - first, -1, -step))


def test_its_parameters_are_those_of_torchs_loader() -> None:
    ours = inspect.signature(DataLoader2.from_dataset).parameters
    torchs = inspect.signature(DataLoader).parameters

    assert [name for name in torchs if name not in ours] == []
    for name, parameter in torchs.items():
        # Workers always stay; the stub is of what the parameter means.
        if name != "persistent_workers":
            assert ours[name].default == parameter.default, name
            assert ours[name].kind == parameter.kind, name
    in_order = [name for name in ours if name in torchs]
    assert in_order == [name for name in torchs if name in in_order]


SETTINGS: list[dict[str, Any]] = [
    {},
    {"batch_size": 8},
    {"batch_size": 8, "drop_last": True},
    {"batch_size": None},
    {"batch_size": 3, "collate_fn": list},
    {"batch_size": None, "collate_fn": str},
    {"batch_size": 4, "sampler": range(10, 3, -1)},
    {"batch_size": None, "sampler": [3, 1]},
    {"batch_sampler": [[1, 2, 3], [0], [7, 7]]},
    {"batch_sampler": BatchSampler(SequentialSampler(range(COUNT)), 6, drop_last=True)},
]


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: ", ".join(settings))
def test_a_map_style_data_set_comes_as_from_torchs_loader(
    settings: dict[str, Any], workers: int
) -> None:
    expected = list(DataLoader(Squares(), **settings))
    with DataLoader2.from_dataset(Squares(), **settings, num_workers=workers) as loader:
        assert len(loader) == len(expected)
        assert_equal(list(loader), expected)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_an_iterable_data_set_comes_as_from_torchs_loader(
    batch_size: int | None, workers: int
) -> None:
    expected = list(DataLoader(Countdown(), batch_size=batch_size, num_workers=workers))
    with DataLoader2.from_dataset(Countdown(), batch_size, num_workers=workers) as loader:
        assert_equal(list(loader), expected)


def assert_equal(found: list[Any], expected: list[Any]) -> None:
    assert [type(each) for each in found] == [type(each) for each in expected]
    assert [values(each) for each in found] == [values(each) for each in expected]


def values(item: Any) -> Any:
    return item.tolist() if isinstance(item, torch.Tensor) else item


class InChunks(Sampler[int]):
    """Draws from all three generators, and begins at another key each time."""

    def __len__(self) -> int:
        return COUNT

    def __iter__(self) -> Iterator[int]:
        first = random.randrange(COUNT) + int(torch.randint(COUNT, ()))
        return iter([(first + number) % COUNT for number in range(COUNT)])


SAMPLERS = [
    lambda: {"shuffle": True},
    lambda: {"sampler": RandomSampler(range(COUNT))},
    lambda: {"sampler": RandomSampler(range(COUNT), generator=torch.Generator())},
    lambda: {"sampler": WeightedRandomSampler([1.0] * COUNT, COUNT)},
    lambda: {"sampler": InChunks()},
    lambda: {"batch_sampler": BatchSampler(RandomSampler(range(COUNT)), 4, drop_last=False)},
]


@pytest.mark.sweep
@pytest.mark.parametrize("settings", SAMPLERS)
def test_a_random_order_is_the_same_for_any_number_of_workers_and_resumes(settings: Any) -> None:
    def epochs(workers: int, state: Any = None, skip: int = 0) -> tuple[list[Any], Any]:
        made = settings()
        size = {} if "batch_sampler" in made else {"batch_size": 4}
        with DataLoader2.from_dataset(
            Squares(), **size, **made, num_workers=workers, seed=7
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            batches = iter(loader)
            first = [next(batches).tolist() for _ in range(skip)]
            state = loader.state_dict()
            whole = [first + [batch.tolist() for batch in batches]]
            return whole + [[batch.tolist() for batch in loader] for _ in range(2)], state

    whole, _ = epochs(0)
    assert whole[0] != whole[1] != whole[2]
    assert epochs(2)[0] == whole
    _, state = epochs(2, skip=2)
    for workers in (0, 2):
        resumed, _ = epochs(workers, state)
        assert resumed == [whole[0][2:], *whole[1:]]


def test_a_samplers_draws_leave_the_programs_generators_alone() -> None:
    loader = DataLoader2.from_dataset(Squares(), 4, sampler=InChunks(), seed=1)
    before = random.getstate(), torch.get_rng_state().tolist()
    list(loader)

    assert (random.getstate(), torch.get_rng_state().tolist()) == before


def test_a_generator_decides_the_order() -> None:
    def order(number: int) -> list[Any]:
        generator = torch.Generator().manual_seed(number)
        loader = DataLoader2.from_dataset(Squares(), 4, True, generator=generator)
        return [batch.tolist() for batch in loader]

    assert order(1) == order(1) != order(2)


def test_the_function_for_workers_takes_a_workers_number() -> None:
    with DataLoader2.from_dataset(
        Squares(), 10, num_workers=2, worker_init_fn=note_worker, collate_fn=with_worker
    ) as loader:
        assert len(loader) == 2
        assert [worker for worker, _ in loader] == [0, 1]


worker_number = -1


def note_worker(number: int) -> None:
    global worker_number
    worker_number = number


def with_worker(batch: list[int]) -> tuple[int, list[int]]:
    return worker_number, batch


CONTRADICTIONS: list[tuple[Any, dict[str, Any]]] = [
    (Countdown(), {"shuffle": True}),
    (Countdown(), {"sampler": range(3)}),
    (Countdown(), {"batch_sampler": [[1]]}),
    (Squares(), {"sampler": range(3), "shuffle": True}),
    (Squares(), {"batch_sampler": [[1]], "batch_size": 2}),
    (Squares(), {"batch_sampler": [[1]], "shuffle": True}),
    (Squares(), {"batch_sampler": [[1]], "sampler": range(3)}),
    (Squares(), {"batch_sampler": [[1]], "drop_last": True}),
    (Squares(), {"batch_size": None, "drop_last": True}),
    (Squares(), {"batch_size": 0}),
    (Squares(), {"num_workers": -1}),
    (Squares(), {"timeout": -1}),
    (Squares(), {"prefetch_factor": 2}),
    (Squares(), {"multiprocessing_context": "fork"}),
    (Squares(), {"multiprocessing_context": "thread", "num_workers": 1}),
]


@pytest.mark.parametrize(("data", "settings"), CONTRADICTIONS)
def test_what_torchs_loader_refuses_is_refused(data: Any, settings: dict[str, Any]) -> None:
    # The words differ, as the errors are of two libraries.
    with pytest.raises(ValueError):  # noqa: PT011
        DataLoader(data, **settings)
    with pytest.raises(ValueError):  # noqa: PT011
        DataLoader2.from_dataset(data, **settings)


class OfRanks(torch.utils.data.DistributedSampler[int]):
    """A sampler of a user, who may have changed what it does."""


def test_a_sampler_of_ranks_is_refused_with_what_to_use() -> None:
    own = OfRanks(Squares(), num_replicas=2, rank=0)
    with pytest.raises(ValueError, match=r'distributed=True.*mesh\["dp"\]'):
        DataLoader2.from_dataset(Squares(), sampler=own)
    torchs = torch.utils.data.DistributedSampler(Squares(), num_replicas=2, rank=0)
    with pytest.raises(ValueError, match="leave out shuffle and distributed"):
        DataLoader2.from_dataset(Squares(), sampler=torchs, distributed=True)
    other = torch.utils.data.DistributedSampler([1, 2], num_replicas=2, rank=0)  # type: ignore[arg-type, var-annotated]
    with pytest.raises(ValueError, match="is one of 2 items"):
        DataLoader2.from_dataset(Squares(), sampler=other)


@pytest.mark.parametrize("data", [IterableWrapper([1]), 5])
def test_what_is_no_data_set_is_refused(data: Any) -> None:
    with pytest.raises(TypeError, match=r"DataLoader2\(\.\.\.\)|__getitem__"):
        DataLoader2.from_dataset(data)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"sampler": 5}, "sampler must be iterable, got int"),
        ({"batch_sampler": 5}, "batch_sampler must be iterable, got int"),
        ({"generator": 5}, r"generator must be a torch\.Generator, got int"),
        ({"num_workers": 1, "prefetch_factor": 2.5}, "prefetch_factor must be an integer"),
    ],
)
def test_a_parameter_of_a_wrong_type_is_refused_by_its_name(settings, said) -> None:
    with pytest.raises(TypeError, match=said):
        DataLoader2.from_dataset(Squares(), **settings)


def test_unshuffled_batches_of_a_map_pipe_are_divided_as_they_are() -> None:
    from asyncloader import MultiProcessingReadingService
    from asyncloader.datapipes.map import SequenceWrapper

    graph = SequenceWrapper(range(COUNT)).batch(8).sharding_filter()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert len(loader) == 3
        assert list(loader) == [[*range(8)], [*range(8, 16)], [*range(16, COUNT)]]


def test_a_number_of_workers_may_be_left_to_the_loader() -> None:
    def batches(**settings: Any) -> list[Any]:
        with DataLoader2.from_dataset(
            Squares(), batch_size=4, shuffle=True, seed=3, **settings
        ) as loader:
            return [batch.tolist() for batch in loader]

    assert batches(num_workers="auto") == batches()


def test_a_data_set_given_as_a_stream_is_told_where_it_belongs() -> None:
    with pytest.raises(TypeError, match=r"got KeyedOnly; what is looked up .* SequenceWrapper"):
        IterableWrapper(KeyedOnly())  # type: ignore[arg-type]


class KeyedOnly:
    """Has no iterator."""

    __iter__ = None

    def __getitem__(self, number: int) -> int:
        return number


class Open(Squares):
    """Holds what cannot be pickled, and much that no state needs."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.images = torch.zeros(1_000_000)


def test_a_state_leaves_the_data_set_out_unless_it_is_asked_for() -> None:
    def taken(data: Any, **asked: Any) -> dict[str, Any]:
        with DataLoader2.from_dataset(data, batch_size=4) as loader:
            next(iter(loader))
            return loader.state_dict(**asked)

    state = taken(Open())
    assert state["serialized_datapipe"] is None
    assert len(json.dumps(state)) < 5_000
    with DataLoader2.from_dataset(Open(), batch_size=4) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        assert len(list(loader)) == COUNT // 4 - 1
    asked = taken(Squares(), include_datapipe=True)
    with DataLoader2.from_state(asked) as loader:
        assert len(list(loader)) == COUNT // 4 - 1
    with pytest.raises(SnapshotError, match=r"cannot be pickled .*include_datapipe=False"):
        taken(Open(), include_datapipe=True)
    with DataLoader2(IterableWrapper(range(3))) as loader:
        assert loader.state_dict()["serialized_datapipe"] is not None
