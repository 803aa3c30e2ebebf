"""Rows H: states that are wrong, of other loaders, or of evil intent."""

from __future__ import annotations

import copy
import itertools
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper
from asyncloader.errors import SnapshotError
from asyncloader.places.checksums import checksum

SEED = 5


def graph() -> Any:
    return IterableWrapper(range(60)).shuffle(buffer_size=9).filter(is_no_seventh).batch(3)


def is_no_seventh(number: int) -> bool:
    return number % 7 > 0


def loader_of(make: Callable[[], Any], workers: int, **settings: Any) -> DataLoader2[Any]:
    loader = DataLoader2(make(), None, MultiProcessingReadingService(workers, **settings))
    loader.seed(SEED)
    return loader


def taken(make: Callable[[], Any], count: int, workers: int = 0, **settings: Any) -> Any:
    """The state after so many items, what was taken, and the rest of the epoch."""
    with loader_of(make, workers, **settings) as loader:
        items = iter(loader)
        begun = list(itertools.islice(items, count))
        return loader.state_dict(), begun, list(items)


STATE, BEGUN, REST = taken(graph, 6)

# H1 -------------------------------------------------------------------------------------

JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=9),
    st.binary(max_size=9),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.builds(object),
)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to all parts of a state."""
    if isinstance(value, dict):
        for key in value:
            yield (*path, key)
            yield from paths(value[key], (*path, key))


@st.composite
def damaged(draw: Any) -> tuple[dict[str, Any], str]:
    """A state with one part that is missing, of another kind, cut off, or has a bit flipped."""
    state = copy.deepcopy(STATE)
    *way, name = draw(st.sampled_from(list(paths(state))))
    inside = state
    for key in way:
        inside = inside[key]
    part = inside[name]
    kind = draw(st.sampled_from(["missing", "junk", "cut", "bit"]))
    if kind == "cut" and isinstance(part, (str, bytes)) and part:
        inside[name] = part[: draw(st.integers(0, len(part) - 1))]
    elif kind == "bit" and isinstance(part, (str, bytes)) and part:
        inside[name] = flipped(part, draw(st.integers(0, len(part) - 1)), draw(st.integers(0, 6)))
    elif kind == "bit" and isinstance(part, int):
        inside[name] = part ^ (1 << draw(st.integers(0, 70)))
    elif kind == "missing":
        del inside[name]
    else:
        inside[name] = draw(JUNK)
    return state, str((way or [name])[0])


def flipped(part: Any, at: int, bit: int) -> Any:
    if isinstance(part, str):
        return part[:at] + chr(ord(part[at]) ^ (1 << bit)) + part[at + 1 :]
    return part[:at] + bytes([part[at] ^ (1 << bit)]) + part[at + 1 :]


@pytest.mark.soak
@settings(max_examples=300)
@given(damaged())
def test_h1_a_damaged_state_is_refused_by_name_and_leaves_the_loader_as_it_was(case):
    state, name = case
    with DataLoader2(graph()) as loader:
        loader.seed(SEED)
        refusal = refusal_of(loader, state)
        if refusal:
            assert name in refusal or name == "checksums"
            assert list(loader) == BEGUN + REST
        else:
            # What was changed is not needed here: the graph that travels along.
            assert list(loader) == REST


def refusal_of(loader: DataLoader2[Any], state: Any) -> str:
    """What a loader says against a state; nothing if it takes it."""
    try:
        loader.load_state_dict(state)
    except SnapshotError as error:
        return str(error)
    return ""


@settings(max_examples=200)
@given(damaged())
def test_h1_a_state_whose_checksums_were_made_to_fit_goes_wrong_with_an_error_or_not_at_all(case):
    state, _ = case
    for name in state.get("checksums", {}) if isinstance(state.get("checksums"), dict) else ():
        if name in state:
            state["checksums"][name] = checksum(state[name])
    with DataLoader2(graph()) as loader:
        loader.seed(SEED)
        if refusal_of(loader, state):
            assert list(loader) == BEGUN + REST
            return
        try:
            found = list(loader)
        except SnapshotError:
            return
        assert len(found) <= len(BEGUN + REST)


@given(st.recursive(JUNK, lambda inner: st.dictionaries(st.sampled_from(sorted(STATE)), inner)))
def test_h1_what_is_no_state_at_all_is_refused(state):
    with DataLoader2(graph()) as loader:
        loader.seed(SEED)
        with pytest.raises(SnapshotError):
            loader.load_state_dict(state)
        assert list(loader) == BEGUN + REST


# H2 -------------------------------------------------------------------------------------


def one_to_one() -> Any:
    return IterableWrapper(range(50)).shuffle(buffer_size=9).sharding_filter().map(str)


def dealt() -> Any:
    pipe = IterableWrapper(range(50)).shuffle(buffer_size=9)
    return pipe.sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING).map(str)


def batched_in_workers() -> Any:
    return one_to_one().batch(2)


@pytest.mark.sweep
@pytest.mark.parametrize("make", [one_to_one, dealt])
@pytest.mark.parametrize(("before", "after"), [(3, 2), (2, 3), (1, 2), (0, 2), (2, 0)])
def test_h2_another_number_of_workers_is_exact_where_the_order_is_the_same(make, before, after):
    state, _, rest = taken(make, 31, before)
    with loader_of(make, after) as loader:
        loader.load_state_dict(state)
        items = iter(loader)
        found = list(itertools.islice(items, 5))
        # The place that it has now is one of as many workers as there are now.
        state = loader.state_dict()
    with loader_of(make, after) as loader:
        loader.load_state_dict(state)
        assert found + list(loader) == rest


@pytest.mark.parametrize("before", [0, 1, 3])
def test_h2_elsewhere_it_is_refused_with_the_pipe_in_the_way_named(before):
    for count in (1, 9):
        state, *_ = taken(batched_in_workers, count, before)
        refused = pytest.raises(SnapshotError, match=r"batch\(2\) yields other items")
        with loader_of(batched_in_workers, 2) as loader, refused:
            loader.load_state_dict(state)


def test_h2_a_state_without_an_order_is_of_use_to_workers_without_one_only():
    state, _, rest = taken(one_to_one, 20, 2, in_order=False)
    with loader_of(one_to_one, 3) as loader, pytest.raises(SnapshotError, match="in_order=False"):
        loader.load_state_dict(state)
    with loader_of(one_to_one, 3, in_order=False) as loader:
        loader.load_state_dict(state)
        assert sorted(loader) == sorted(rest)
    state, _, rest = taken(one_to_one, 20, 2)
    with (
        loader_of(one_to_one, 2, in_order=False) as loader,
        pytest.raises(SnapshotError, match="in_order=True"),
    ):
        loader.load_state_dict(state)


# H4 -------------------------------------------------------------------------------------


class Payload:
    """Tells of it when it is unpickled."""

    def __reduce__(self) -> Any:
        return RAN.append, (1,)


RAN: list[int] = []


@pytest.mark.parametrize("workers", [0, 1])
def test_h4_a_pickle_in_a_state_is_never_opened_by_a_loader_with_a_graph(workers):
    payload = pickle.dumps(Payload())
    state, *_ = taken(one_to_one, 3, workers)
    for name in ("serialized_datapipe", "reading_service_state", "fingerprint"):
        evil = copy.deepcopy(state)
        evil[name] = payload
        evil["checksums"][name] = checksum(payload)
        with loader_of(one_to_one, workers) as loader:
            try:
                loader.load_state_dict(evil)
                next(iter(loader))
            except SnapshotError:
                assert next(iter(loader)) is not None
    assert not RAN
