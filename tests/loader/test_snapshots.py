"""What a state is: plain data that is checked, and that no other loader takes for its own."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import pytest
import torch

import asyncloader.datapipes.iter as it
import asyncloader.datapipes.map as mp
from asyncloader import (
    CheckpointableReadingServiceInterface,
    DataLoader2,
    InProcessReadingService,
    MultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from asyncloader.datapipes.base import IterDataPipe
from asyncloader.datapipes.running import cursor_history
from asyncloader.datapipes.running.exchange import GROUP_ITEMS
from asyncloader.errors import SnapshotError
from asyncloader.places.checksums import checksum
from asyncloader.services.hooks import ServiceHooks
from tests.samples import is_odd


def graph() -> Any:
    return it.IterableWrapper(range(100)).shuffle(buffer_size=20).filter(is_odd).batch(4)


def loader_at(step: int, make: Any = graph, service: Any = None) -> DataLoader2[Any]:
    """Return a seeded loader of which so many items were taken."""
    loader = DataLoader2(make(), reading_service=service)
    loader.seed(3)
    iterator = iter(loader)
    for _ in range(step):
        next(iterator)
    loader.latest = iterator  # type: ignore[attr-defined]  # kept, so that the epoch goes on
    return loader


def rest_after(state: Any, make: Any = graph) -> list[Any]:
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        return list(loader)


# Taking a state ---------------------------------------------------------------------------


def test_a_state_has_the_keys_of_the_original_and_a_graph_that_pickle_opens():
    with loader_at(2) as loader:
        state = loader.state_dict()
    assert {"serialized_datapipe", "reading_service_state", "randomness_state"} < state.keys()
    assert state["reading_service_state"] is None
    assert len(list(pickle.loads(state["serialized_datapipe"]))) == 13


def test_two_states_with_nothing_in_between_are_equal():
    with loader_at(2) as loader:
        assert loader.state_dict() == loader.state_dict()


def test_a_state_that_its_owner_changes_leaves_the_next_one_right():
    with loader_at(7) as loader:
        expected = list(loader.latest)
    with loader_at(7) as loader:
        # As the state of the next step will be, but for its checksum.
        loader.state_dict()["position"].update(items=8)
        next(loader.latest)
        assert rest_after(loader.state_dict()) == expected[1:]


def test_a_loaded_state_is_returned_until_the_first_item():
    with loader_at(5) as loader:
        state = loader.state_dict()
    with DataLoader2(graph()) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict() == state
        iterator = iter(loader)
        assert loader.state_dict() == state
        next(iterator)
        assert loader.state_dict() != state


def test_the_graph_may_be_left_out_of_a_state_that_was_loaded():
    with loader_at(5) as loader:
        state, small = loader.state_dict(), loader.state_dict(include_datapipe=False)
    with DataLoader2(graph()) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict(include_datapipe=False) == small
    assert rest_after(small) == rest_after(state)


def test_a_state_survives_torch_save_and_json():
    with loader_at(5) as loader:
        state = loader.state_dict()
        small = loader.state_dict(include_datapipe=False)
    expected = rest_after(state)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert rest_after(torch.load(file, weights_only=True)) == expected
    assert rest_after(json.loads(json.dumps(small))) == expected


def test_a_loader_is_saved_and_loaded_by_distributed_checkpoint(tmp_path):
    # Its import takes long, and every process that runs some tests collects this file.
    import torch.distributed.checkpoint as dcp

    with loader_at(5) as loader:
        expected = rest_after(loader.state_dict())
        with pytest.warns(UserWarning, match="single process"):
            dcp.save({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
    with DataLoader2(graph()) as loader:
        with pytest.warns(UserWarning, match="single process"):
            dcp.load({"loader": loader}, checkpoint_id=tmp_path, no_dist=True)
        assert list(loader) == expected


def test_limits_and_pauses_are_no_part_of_a_state():
    with loader_at(3) as loader:
        before = loader.state_dict()
        loader.limit(1)
        loader.pause()
        assert loader.state_dict() == before
        assert len(rest_after(before)) == 10


async def test_what_was_prefetched_does_not_count():
    def prefetched() -> Any:
        return graph().prefetch(5)

    loader = DataLoader2(prefetched())
    loader.seed(3)
    async with loader:
        iterator = aiter(loader)
        items = [await anext(iterator) for _ in range(3)]
        state = loader.state_dict()
    async with DataLoader2(prefetched()) as resumed:
        resumed.load_state_dict(state)
        items += [item async for item in resumed]
    with_all = DataLoader2(prefetched())
    with_all.seed(3)
    async with with_all:
        assert [item async for item in with_all] == items


def test_a_state_after_an_error_goes_on_at_the_item_that_failed():
    failing = {37}

    def fail(number: int) -> int:
        if number in failing:
            raise ValueError(number)
        return number

    def make() -> Any:
        return it.IterableWrapper(range(50)).filter(lambda n: n % 2 == 1).map(fail).batch(3)

    items = []
    with DataLoader2(make()) as loader:
        iterator = iter(loader)
        for _ in range(6):
            items.append(next(iterator))  # noqa: PERF401 - the error comes after them
        with pytest.raises(ValueError, match="37"):
            next(iterator)
        state = loader.state_dict()
    assert loader.state_dict() == state
    failing.clear()
    assert items + rest_after(state, make) == list(make())


def test_a_state_while_a_new_iterator_has_not_begun_is_that_of_the_next_epoch():
    with loader_at(5) as loader:
        iterator = iter(loader)
        state = loader.state_dict()
        second = list(iterator)
    assert rest_after(state) == second


def test_seeding_in_the_middle_leaves_the_epoch_under_way():
    with loader_at(5) as loader:
        loader.seed(9)
        state = loader.state_dict()
        rest = list(loader.latest)
        following = list(loader)
    with DataLoader2(graph()) as resumed:
        resumed.load_state_dict(state)
        assert [list(resumed), list(resumed)] == [rest, following]


async def test_seeding_before_the_first_item_leaves_the_epoch_under_way():
    released = asyncio.Event()

    async def slow(number: int) -> int:
        await released.wait()
        return number

    def make() -> Any:
        return it.IterableWrapper(range(10)).shuffle().async_map(slow)

    async with DataLoader2(make()) as loader:
        loader.seed(1)
        iterator = aiter(loader)
        await cancelled_before_the_first(iterator)
        loader.seed(2)
        released.set()
        taken = await take(iterator, 4)
        state = loader.state_dict(include_datapipe=False)
        rest = await take(iterator, 6)
        following = await take(aiter(loader), 10)
    async with DataLoader2(make()) as resumed:
        resumed.load_state_dict(state)
        assert await take(aiter(resumed), 6) == rest
        assert await take(aiter(resumed), 10) == following
    assert sorted(taken + rest) == list(range(10))


async def take(iterator: Any, count: int) -> list[Any]:
    return [await anext(iterator) for _ in range(count)]


async def cancelled_before_the_first(iterator: Any) -> None:
    waiting = asyncio.ensure_future(anext(iterator))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert waiting.cancelled()


async def test_an_epoch_of_which_nothing_was_seen_is_begun_again_with_a_new_seed():
    async with DataLoader2(graph()) as loader, DataLoader2(graph()) as same:
        loader.seed(1)
        await cancelled_before_the_first(aiter(loader))
        loader.seed(2)
        same.seed(2)
        assert await take(aiter(loader), 13) == await take(aiter(same), 13)


def test_seeding_after_loading_leaves_the_epoch_that_is_resumed():
    with loader_at(5) as loader:
        state = loader.state_dict()
        rest = list(loader.latest)
    with DataLoader2(graph()) as resumed, DataLoader2(graph()) as seeded:
        resumed.load_state_dict(state)
        resumed.seed(9)
        again = resumed.state_dict()
        assert rest_after(again) == rest
        assert list(resumed) == rest
        seeded.seed(9)
        assert list(resumed) == list(seeded)


def test_an_unseeded_epoch_goes_on_in_its_own_order():
    with DataLoader2(graph()) as loader:
        iterator = iter(loader)
        next(iterator)
        state = loader.state_dict()
        rest = list(iterator)
    assert rest_after(state) == rest


def test_a_chain_of_resumed_loaders_hands_out_every_item_once():
    with loader_at(0) as loader:
        expected = list(loader.latest)
        assert len(expected) == 13
    with loader_at(0) as loader:
        state = loader.state_dict()
    items = []
    for _ in expected:
        with DataLoader2(graph()) as loader:
            loader.load_state_dict(state)
            items.append(next(iter(loader)))
            state = loader.state_dict()
    assert items == expected
    assert rest_after(state) == []


# Going on -----------------------------------------------------------------------------------


def test_a_loader_made_of_a_state_alone_takes_the_graph_from_it():
    with loader_at(5) as loader:
        state = loader.state_dict()
    expected = rest_after(state)
    with DataLoader2.from_state(state) as loader:
        assert list(loader) == expected
    with DataLoader2(None) as loader:
        loader.load_state_dict(state)
        assert list(loader) == expected
    with DataLoader2.from_state(state, datapipe=graph()) as loader:
        assert list(loader) == expected


def test_a_loader_without_a_graph_says_what_to_do():
    loader = DataLoader2(None)
    with pytest.raises(RuntimeError, match="call load_state_dict first"):
        iter(loader)
    with pytest.raises(RuntimeError, match="call load_state_dict first"):
        loader.state_dict()
    loader.shutdown()


class Payload:
    """What runs when it is unpickled."""

    ran: list[int] = []  # noqa: RUF012 - it is to be seen from outside

    def __reduce__(self) -> Any:
        return _run, ()


def _run() -> None:
    Payload.ran.append(1)


def test_a_loader_with_its_own_graph_unpickles_nothing():
    with loader_at(5) as loader:
        state = loader.state_dict()
    state["serialized_datapipe"] = pickle.dumps(Payload())
    with DataLoader2(graph()) as loader, pytest.raises(SnapshotError, match="serialized_datapipe"):
        loader.load_state_dict(state)
    with pytest.raises(SnapshotError, match="serialized_datapipe"):
        DataLoader2.from_state(state)
    assert not Payload.ran


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "the state is empty; load none to begin at the beginning"),
        (None, "a state is a dict"),
        ([1], "a state is a dict"),
        ({"model": {}, "epoch": 3}, "was it made by DataLoader2"),
    ],
)
def test_what_is_no_state_is_refused_and_the_loader_goes_on_unharmed(state, words):
    with loader_at(0) as loader:
        with pytest.raises(SnapshotError, match=words):
            loader.load_state_dict(state)
        assert len(list(loader)) == 13


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (lambda: it.IterableWrapper(range(9)).batch(4), "is gone"),
        (lambda: graph().enumerate(), "Enumerator is new"),
        (
            lambda: it.IterableWrapper("ab").shuffle(buffer_size=9).filter(is_odd).batch(4),
            "buffer_size of Shuffler was 20 and is 9",
        ),
    ],
)
def test_a_state_of_another_graph_is_refused_by_name(other, words):
    with loader_at(3) as loader:
        state = loader.state_dict()
    with DataLoader2(other()) as loader, pytest.raises(SnapshotError, match=words):
        loader.load_state_dict(state)


def shuffled_stream(count: int) -> Any:
    return it.IterableWrapper(list(range(count))).shuffle().sharding_filter().batch(4)


def shuffled_keys(count: int) -> Any:
    return mp.SequenceWrapper(list(range(count))).shuffle().batch(4).sharding_filter()


def in_order(count: int) -> Any:
    return it.IterableWrapper(list(range(count))).sharding_filter().batch(4)


def part_of_an_epoch(graph: Any, service: Any, count: int) -> tuple[list[Any], Any]:
    with DataLoader2(graph, reading_service=service) as loader:
        loader.seed(1)
        return list(islice(loader, count)), loader.state_dict(include_datapipe=False)


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [shuffled_stream, shuffled_keys])
def test_a_state_within_an_epoch_is_refused_where_an_order_is_drawn_of_more_items(make, workers):
    service = MultiProcessingReadingService(workers) if workers else None
    _, state = part_of_an_epoch(make(40), service, 3)
    for now in (39, 44):
        with DataLoader2(make(now), reading_service=service) as loader:
            with pytest.raises(SnapshotError, match=rf"Wrapper.* had 40 items and has {now}, so"):
                loader.load_state_dict(state)
            assert len(list(chain(*loader))) == now


def plain_keys(count: int) -> Any:
    return mp.SequenceWrapper(list(range(count))).to_iter_datapipe().sharding_filter().map(str)


def plain_range(count: int) -> Any:
    return it.IterableWrapper(range(count)).map(str).sharding_filter().prefetch(2)


async def echo(item: Any) -> Any:
    return item


def answers(count: int) -> Any:
    return it.IterableWrapper(range(count)).sharding_filter().rollout(echo, order="source")


def batches(count: int) -> Any:
    return DataLoader2.from_dataset(range(count), batch_size=4).datapipe


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    ("make", "taken", "least"),
    [
        (plain_keys, 15, 15),
        (plain_range, 15, 15),
        (answers, 15, 15),
        (in_order, 6, 18),
        (batches, 6, 18),
    ],
)
def test_a_state_is_refused_where_fewer_items_are_left_than_were_read(make, taken, least, workers):
    service = MultiProcessingReadingService(workers) if workers else None
    _, state = part_of_an_epoch(make(50), service, taken)
    words = r"\d+ items of .* were read by then, and it has only 10\."
    with DataLoader2(make(10), reading_service=service) as loader:
        with pytest.raises(SnapshotError, match=words):
            loader.load_state_dict(state)
        assert len(list(loader)) > 2
    for enough in (least + 4, 49):
        with DataLoader2(make(enough), reading_service=service) as loader:
            loader.load_state_dict(state)
            list(loader)


REPEATED = {
    "cycle": lambda count: it.IterableWrapper(range(count)).cycle(9),
    "keys": lambda count: mp.SequenceWrapper([5]).to_iter_datapipe([0] * 40),
    "flatmap": lambda count: it.IterableWrapper(range(count)).flatmap(lambda item: [item] * 9),
    "header": lambda count: it.IterableWrapper(range(count)).header(15),
    "the end": lambda count: it.IterableWrapper(range(min(count, 15))),
}


@pytest.mark.parametrize("name", REPEATED)
def test_a_state_is_not_refused_where_items_come_more_than_once(name):
    make = REPEATED[name]
    _, state = part_of_an_epoch(make(50), None, 15)
    with DataLoader2(make(15 if name == "the end" else 10)) as loader:
        loader.load_state_dict(state)
        list(loader)


def test_a_state_between_two_epochs_goes_on_with_fewer_items():
    _, state = part_of_an_epoch(plain_keys(40), None, 41)
    with DataLoader2(plain_keys(10)) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 10


def test_a_state_between_two_epochs_goes_on_with_more_items():
    items, state = part_of_an_epoch(shuffled_keys(40), None, 11)
    assert len(items) == 10
    with DataLoader2(shuffled_keys(44)) as loader:
        loader.load_state_dict(state)
        assert sorted(chain(*loader)) == list(range(44))


def test_data_may_grow_between_the_epochs_of_a_loader():
    data = list(range(40))

    def make() -> Any:
        return mp.SequenceWrapper(data, deepcopy=False).shuffle().batch(4)

    with DataLoader2(make()) as loader:
        for _ in range(2):
            iterator = iter(loader)
            next(iterator)
            state = loader.state_dict(include_datapipe=False)
            rest = list(iterator)
            if len(data) == 40:
                data += range(40, 44)
    assert len(rest) == 10
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest


def test_items_that_were_added_come_where_nothing_is_drawn():
    items, state = part_of_an_epoch(in_order(40), None, 3)
    with DataLoader2(in_order(44)) as loader:
        loader.load_state_dict(state)
        assert list(chain(*items, *loader)) == list(range(44))


def mutations(state: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield states with one thing in them that is not as it was."""
    for name in state:
        if name == "serialized_datapipe":
            continue
        yield name, {key: value for key, value in state.items() if key != name}
        for value in (None, 1, -1, 2**70, "x", b"x", [], {}, {"a": 1}, 1.5, object()):
            if value != state[name]:
                yield name, {**state, name: value}
    for name in state["checksums"]:
        for value in (None, 1, "", checksum("another")):
            yield name, {**state, "checksums": {**state["checksums"], name: value}}
        sums = {each: value for each, value in state["checksums"].items() if each != name}
        yield name, {**state, "checksums": sums}
    for name, key in (
        ("randomness_state", "epoch"),
        ("randomness_state", "epoch_seed"),
        ("position", "items"),
    ):
        yield name, {**state, name: {**state[name], key: state[name][key] ^ 1}}
    text = state["position"]["cursors"]
    for place in range(len(text)):
        for changed in (text[:place], text[:place] + chr(ord(text[place]) ^ 1) + text[place + 1 :]):
            yield "position", {**state, "position": {**state["position"], "cursors": changed}}


def test_a_state_that_was_changed_is_refused_with_the_field_named():
    with loader_at(5) as loader:
        state = loader.state_dict(include_datapipe=False)
    count = 0
    with DataLoader2(graph()) as loader:
        for name, changed in mutations(state):
            with pytest.raises(SnapshotError, match=r"\w" if name == "checksums" else name):
                loader.load_state_dict(changed)
            count += 1
        loader.load_state_dict(state)
        assert list(loader) == rest_after(state)
    assert count > 50


WRONG: dict[str, dict[str, tuple[Any, ...]]] = {
    "position": {
        "items": (None, -1, 1.0, True, "1", [], {}),
        "workers": (None, -1, 0.0, False, "0", [], {}),
        "in_order": (None, 0, 1, 1.0, "True", [], {}),
        "rank": (None, -1, 0.0, False, "0", [], {}),
        "ranks": (None, -1, 1.0, True, "1", [], {}),
        "ahead": (None, -1, 0.0, False, "0", [], {}),
        "cursors": (
            None,
            1,
            True,
            "",
            "{",
            "[]",
            "1",
            '{"x": {}}',
            '{"1": 1}',
            '{"99": {}}',
            [],
            {},
        ),
        "lengths": (None, 1, "", "{}", "[1]", "[[1]]", '[["1", 2]]', "[[1, -2]]", "[[1, 2.0]]", []),
    },
    "randomness_state": {
        "seed": (-1, 2**64, 1.0, True, "1", [], {}),
        "epoch": (None, -1, 1.0, True, "1", [], {}),
        "epoch_seed": (-1, 2**64, 1.0, True, "1", [], {}),
        "drawn": (-1, 2**64, 1.0, True, "1", [], {}),
    },
}


@pytest.mark.parametrize(("part", "name"), [(part, name) for part in WRONG for name in WRONG[part]])
def test_every_field_is_checked_also_where_the_checksum_was_made_to_fit(part, name):
    with loader_at(5) as loader:
        state = loader.state_dict(include_datapipe=False)
    assert WRONG[part].keys() == state[part].keys()
    with DataLoader2(graph()) as loader:
        for value in WRONG[part][name]:
            changed = {**state, part: {**state[part], name: value}}
            changed["checksums"] = {**state["checksums"], part: checksum(changed[part])}
            with pytest.raises(SnapshotError, match=rf"{part}\.{name}"):
                loader.load_state_dict(changed)
        loader.load_state_dict(state)
        assert list(loader) == rest_after(state)


class Ledger(it.IterDataPipe[int]):
    """A user's source that returns the very dict in which it keeps its state."""

    edges = ()

    def __init__(self) -> None:
        self.state = {"next": 0}

    def __iter__(self) -> Iterator[int]:
        while self.state["next"] < 40:
            self.state["next"] += 1
            yield self.state["next"] - 1

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.state = state


def test_a_state_that_a_pipe_goes_on_changing_is_the_one_of_its_moment():
    with DataLoader2(Ledger().batch(3)) as loader:
        items = iter(loader)
        begun = [next(items) for _ in range(4)]
        state = loader.state_dict()
    with DataLoader2(Ledger().batch(3)) as loader:
        loader.load_state_dict(state)
        assert list(chain.from_iterable(begun + list(loader))) == list(range(40))


def test_a_pipe_that_two_others_read_without_a_fork_refuses_snapshots():
    source = it.IterableWrapper(range(4))
    with DataLoader2(source.zip(source.map(str))) as loader:
        assert len(list(loader)) == 4
        with pytest.raises(SnapshotError, match=r"IterableWrapper.*read it through fork"):
            loader.state_dict()


# A user's own place ---------------------------------------------------------------------------


class Log(IterDataPipe[int]):
    """A log that is read from an offset, and says how often it was read."""

    edges = ()
    reads: list[int] = []  # noqa: RUF012 - copies share it

    def __init__(self, end: int) -> None:
        self.end = end
        self.offset = 0

    def __iter__(self) -> Iterator[int]:
        begin, self.offset = self.offset, 0
        for number in range(begin, self.end):
            self.reads.append(number)
            self.offset = number + 1
            yield number
        self.offset = 0

    def state_dict(self) -> dict[str, int]:
        return {"offset": self.offset}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.offset = state["offset"]


def test_a_source_with_a_place_of_its_own_is_asked_for_it_and_told():
    def make() -> Any:
        return Log(6000).filter(is_odd).batch(10)

    with loader_at(280, make) as loader:
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
        expected = list(loader.latest)
        second = list(loader)
    Log.reads.clear()
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        assert list(loader) == expected
        assert min(Log.reads) > 0, "it went on from a place of its own"
        assert list(loader) == second


def test_a_source_that_was_told_its_place_and_not_read_since_still_stands_there():
    def make() -> Any:
        return Log(5).mux_longest(it.IterableWrapper(range(100, 109)), Log(7).batch(2))

    with DataLoader2(make()) as loader:
        expected = list(loader)
    items, state = [], None
    for _ in expected:
        with DataLoader2(make()) as loader:
            if state is not None:
                loader.load_state_dict(state)
            items.append(next(iter(loader)))
            state = loader.state_dict(include_datapipe=False)
    assert items == expected


def test_a_source_that_was_told_its_place_and_never_asked_begins_the_next_epoch_anew():
    def make() -> Any:
        return it.IterableWrapper(range(3)).zip(Log(5))

    with loader_at(3, make) as loader:
        state = loader.state_dict(include_datapipe=False)
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        assert [list(loader), list(loader)] == [[], [(0, 0), (1, 1), (2, 2)]]


def test_a_place_that_is_no_plain_data_is_refused_by_its_type():
    class Odd(Log):
        def state_dict(self) -> Any:
            return {"offset": object()}

    with loader_at(3, lambda: Odd(9)) as loader, pytest.raises(SnapshotError, match="object"):
        loader.state_dict()


# Services -------------------------------------------------------------------------------------


class Counting(CheckpointableReadingServiceInterface):
    """A service that remembers how many epochs it has begun."""

    def __init__(self) -> None:
        self.epochs = 0

    def initialize_iteration(self, seed_generator: Any) -> None:
        self.epochs += 1

    def checkpoint(self) -> bytes:
        return str(self.epochs).encode()

    def check(self, serialized_state: bytes) -> None:
        if not serialized_state.isdigit():
            raise SnapshotError("reading_service_state is no number")

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        self.epochs = int(serialized_state)
        return datapipe


class Plain(ReadingServiceInterface):
    """A user's service without a state."""


def test_a_state_without_a_services_own_replaces_one_that_had_it():
    with loader_at(3, service=Counting()) as loader:
        with_own = loader.state_dict()
    service = Counting()
    with DataLoader2(graph(), reading_service=service) as loader:
        without = {**DataLoader2(graph()).state_dict()}
    loader = DataLoader2(graph(), reading_service=service)
    loader.load_state_dict(with_own)
    loader.load_state_dict(without)
    with loader:
        assert loader.reading_service.epochs == 0


def test_a_service_is_restored_from_its_own_state():
    with loader_at(3, service=Counting()) as loader:
        state = loader.state_dict()
        assert state["reading_service_state"] == b"1"
    loader = DataLoader2(graph(), reading_service=Counting())
    loader.load_state_dict(state)
    with loader:
        list(loader)
        list(loader)
        assert loader.state_dict()["reading_service_state"] == b"3"


class Longer(CheckpointableReadingServiceInterface):
    """A service that changes its graph in place, as its state says, and counts its starts."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.log: list[str] = []

    def initialize(self, datapipe: Any) -> Any:
        self.log.append("start")
        datapipe.source = datapipe.source.header(self.size)
        return datapipe

    def finalize(self) -> None:
        self.log.append("finalize")

    def checkpoint(self) -> bytes:
        return bytes([self.size])

    def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        self.size = serialized_state[0]
        return self.initialize(datapipe)


def header_loader(size: int) -> DataLoader2[int]:
    return DataLoader2(it.IterableWrapper(range(9)).map(abs), reading_service=Longer(size))


def test_a_service_that_has_started_is_restored_before_the_first_item():
    with header_loader(4) as loader:
        assert next(iter(loader)) == 0
        state = loader.state_dict()
    for size in (2, 4, 6):
        with header_loader(size) as loader:
            for _ in range(2):
                loader.load_state_dict(state)
                assert loader.state_dict() == state
            assert (list(loader), list(loader)) == ([1, 2, 3], [0, 1, 2, 3])
            assert loader.reading_service.log == ["start", "finalize", "start"]
        assert loader.reading_service.log[3:] == ["finalize"]


async def test_a_service_that_was_told_its_state_late_begins_from_it_at_the_next_start():
    async with header_loader(4) as loader:
        state = loader.state_dict()
    async with header_loader(2) as loader:
        assert len(loader) == 2
        loader.load_state_dict(state)
        await loader.start()
        assert len(loader) == 4


def test_the_services_of_a_sequence_are_restored_each():
    def service(*last: Any) -> Any:
        return SequentialReadingService(Counting(), InProcessReadingService(1), *last)

    with loader_at(3, service=service()) as loader:
        state = loader.state_dict()
    loader = DataLoader2(graph(), reading_service=service())
    loader.load_state_dict(state)
    with loader:
        list(loader)
        assert loader.reading_service.reading_services[0].epochs == 2


def test_a_user_s_service_without_a_state_is_initialized_anew_with_a_warning():
    def service() -> Any:
        return SequentialReadingService(Counting(), Plain())

    with loader_at(3, service=service()) as loader:
        state = loader.state_dict()
    loader = DataLoader2(graph(), reading_service=service())
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="has no checkpoint in the state"), loader:
        list(loader)


def test_a_service_that_cannot_be_restored_is_a_snapshot_error_at_start():
    class Broken(Counting):
        def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
            raise KeyError("lost")

    with loader_at(3, service=Counting()) as loader:
        state = loader.state_dict()
    loader = DataLoader2(graph(), reading_service=Broken())
    loader.load_state_dict(state)
    with pytest.raises(SnapshotError, match="lost"):
        loader.__enter__()
    loader.shutdown()


def test_a_state_with_a_service_s_own_state_needs_a_service_that_takes_it():
    with loader_at(3, service=Counting()) as loader:
        state = loader.state_dict()
    with DataLoader2(graph()) as loader, pytest.raises(SnapshotError, match="no restore"):
        loader.load_state_dict(state)


# What resuming costs --------------------------------------------------------------------------


class Calls:
    """A function that counts its calls; copies of it share the count."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, number: Any) -> Any:
        self.count += 1
        return number

    def __deepcopy__(self, memo: Any) -> Calls:
        return self


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        (lambda pipe: pipe.map, 0),
        (lambda pipe: pipe.batch(8).map, 0),
        (lambda pipe: pipe.shuffle(buffer_size=50).map, 0),
        (lambda pipe: pipe.filter(is_odd).map, 64),
        (lambda pipe: pipe.flatmap(lambda n: [n, n]).map, 64),
    ],
    ids=["map", "map of batches", "map of shuffled", "map of filtered", "map of flattened"],
)
def test_what_was_handed_out_is_not_mapped_again(shape, most):
    calls = Calls()

    def make() -> Any:
        return shape(it.IterableWrapper(range(1000)))(calls)

    length = len(list(make()))
    step = length * 9 // 10
    with loader_at(step, make) as loader:
        state = loader.state_dict(include_datapipe=False)
    calls.count = 0
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == length - step
    assert calls.count <= length - step + most


def joined(branches: Any) -> Any:
    first, second = branches
    return first.zip(second)


@pytest.mark.parametrize(
    "pipe",
    [
        lambda mapped: mapped.shuffle(buffer_size=20),
        lambda mapped: mapped.filter(is_odd),
        lambda mapped: mapped.filter(is_odd).shuffle(buffer_size=20),
        lambda mapped: mapped.groupby(lambda n: n % 7, group_size=5, buffer_size=30),
        lambda mapped: mapped.flatmap(lambda n: [n] * 3),
        lambda mapped: mapped.repeat(3).filter(is_odd),
        lambda mapped: mapped.batch(4).unbatch().filter(is_odd),
        lambda mapped: joined(mapped.filter(is_odd).fork(2)),
        lambda mapped: mapped.filter(is_odd).prefetch(5),
    ],
    ids=[
        "shuffle",
        "filter",
        "both",
        "groupby",
        "flatmap",
        "repeat",
        "unbatch",
        "fork",
        "prefetch",
    ],
)
def test_only_a_window_of_what_came_before_is_made_again(pipe, monkeypatch):
    # How often marks are due depends on time; what they hold does not.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    calls = Calls()

    def make() -> Any:
        return pipe(it.IterableWrapper(range(2000)).map(calls))

    with loader_at(0, make) as loader:
        length = sum(1 for _ in loader.latest)
        whole = calls.count
    step = length * 9 // 10
    with loader_at(step, make) as loader:
        state = loader.state_dict(include_datapipe=False)
        rest = list(loader.latest)
    calls.count = 0
    with DataLoader2(make()) as loader:
        loader.load_state_dict(state)
        assert list(loader) == rest
    # Two calls make one of the odd items, of which two whole groups may be on their way.
    assert calls.count <= whole // 10 + 4 * GROUP_ITEMS + 50


async def test_states_may_be_taken_while_another_thread_iterates():
    def make() -> Any:
        return it.IterableWrapper(range(3000)).shuffle(buffer_size=50).filter(is_odd)

    loader = DataLoader2(make())
    loader.seed(3)
    whole = DataLoader2(make())
    whole.seed(3)
    expected = await asyncio.to_thread(list, whole)
    await whole.aclose()
    running = asyncio.create_task(asyncio.to_thread(list, loader))
    states = []
    while not running.done():
        states.append(loader.state_dict(include_datapipe=False))
        await asyncio.sleep(0)
    await running
    await asyncio.to_thread(loader.shutdown)
    for state in states[:: max(1, len(states) // 20)]:
        position = state["position"]["items"]
        if state["randomness_state"]["epoch_seed"] is not None:
            rest = await asyncio.to_thread(rest_after, state, make)
            assert rest == expected[position:]


def test_map_style_items_are_gone_on_with_at_once():
    looked_up = Calls()
    rows = mp.SequenceWrapper(range(1_000_000), deepcopy=False).map(looked_up)

    with loader_at(10, lambda: rows.shuffle()) as loader:
        loader.latest.limit(0)
        state = loader.state_dict(include_datapipe=False)
    looked_up.count = 0
    with DataLoader2(rows.shuffle()) as loader:
        loader.load_state_dict(state)
        next(iter(loader))
    assert looked_up.count == 1


class OnRank(ReadingServiceInterface, ServiceHooks):
    """A service of a loader on one of several ranks."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.place = rank, ranks

    def rank(self) -> tuple[int, int]:
        return self.place


@pytest.mark.parametrize("other", [(0, 1), (1, 2), (0, 3)])
def test_a_state_of_another_rank_is_refused_in_the_middle_of_an_epoch(other):
    with loader_at(3, service=OnRank(0, 2)) as loader:
        state = loader.state_dict()
        list(loader.latest)
        between = loader.state_dict()
    with DataLoader2(graph(), reading_service=OnRank(*other)) as loader:
        with pytest.raises(SnapshotError, match=r"on rank 0 of 2 .*, and this is rank"):
            loader.load_state_dict(state)
        loader.load_state_dict(between)
        assert len(list(loader)) == 13
