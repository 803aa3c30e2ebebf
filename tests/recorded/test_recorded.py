"""What is promised of work that cannot be repeated, case by case."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter

import pytest

from asyncloader import (
    DataLoader2,
    Feed,
    InProcessReadingService,
    MultiProcessingReadingService,
    MultiThreadingReadingService,
)
from asyncloader.datapipes import settled
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.one_to_one import OneToOne
from asyncloader.errors import LoaderError, SnapshotError, TooManyErrors, WorkerStartupError
from asyncloader.graph.refusals import Purpose, refusals
from asyncloader.places.checksums import checksum
from asyncloader.workers.inbox import ShareRecord
from tests.processes.scripts import ROOT
from tests.recorded.lines import settled_in


def same(item):
    return item


def is_even(item):
    return item % 2 == 0


class Own(IterDataPipe):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        yield from self.source


class Halved(OneToOne, IterDataPipe):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        for item in self.source:
            yield item / 2


def begun(count=10):
    return IterableWrapper(range(count)).map(same, repeatable=False)


def zipped():
    one, other = begun().fork(2)
    return one.zip(other)


LOSES_NUMBERS = {
    "flatmap": lambda: begun().batch(2).flatmap(same),
    "unbatch": lambda: begun().flatmap(lambda item: [[item]]).unbatch(),
    "load_from_tar": lambda: begun().load_from_tar(),
    "Own": lambda: Own(begun()),
    "fork": zipped,
    "zip": lambda: begun().zip(IterableWrapper(range(3))),
    "cycle": lambda: begun().cycle(2),
    "header": lambda: begun().header(2).filter(is_even),
    "in_memory_cache": lambda: begun().in_memory_cache(),
    "sharding_filter": lambda: begun().sharding_filter(),
    "map_batches": lambda: begun().map_batches(same, 2),
    "shuffled_flatmap": lambda: begun().shuffled_flatmap(),
    "pack_sequences": lambda: begun().pack_sequences(9, split="long"),
    "groupby": lambda: begun().groupby(same, drop_remaining=True),
    "fullsync": lambda: begun().fullsync().filter(is_even),
}


@pytest.mark.parametrize("name", LOSES_NUMBERS)
def test_a_pipe_in_which_numbers_would_be_lost_is_refused_by_name_before_the_first_item(name):
    place = r"at the end of the graph" if name == "fullsync" else r"before map\(same"
    with pytest.raises(ValueError, match=rf"^{name}\(.*Put {name}\(.* {place}"):
        DataLoader2(LOSES_NUMBERS[name]())


def test_all_that_keeps_a_graph_from_being_recorded_is_listed():
    graph = begun().cycle(2).flatmap(lambda item: [item]).unbatch().filter(is_even)
    names = [str(each).partition("(")[0] for each in refusals(graph, Purpose.RUN)]
    assert names == ["cycle", "unbatch"]


def test_one_to_one_pipes_of_ours_and_of_users_may_stand_in_a_section():
    graph = begun(6).map(lambda item: (item, "more")).slice(0, 1).map(lambda item: item[0])
    with DataLoader2(Halved(graph).filter(lambda item: item > 0.5)) as loader:
        assert [(item, loader.numbers) for item in loader] == [
            (1.0, (2,)),
            (1.5, (3,)),
            (2.0, (4,)),
            (2.5, (5,)),
        ]


def test_live_requests_cannot_be_recorded():
    with pytest.raises(ValueError, match="never come again"):
        DataLoader2(Feed().map(same, repeatable=False))


@pytest.mark.parametrize(
    ("add", "name"),
    [
        (lambda pipe: pipe.batch(2), r"batch\(2\)"),
        (lambda pipe: pipe.zip(IterableWrapper(range(9))), r"zip\(\)"),
        (lambda pipe: pipe.zip(IterableWrapper(range(9))).map(same), r"zip\(\)"),
    ],
)
def test_a_pipe_that_a_service_adds_behind_a_section_is_refused_if_it_loses_places(add, name):
    service = InProcessReadingService(init_fn=add)
    with (
        DataLoader2(begun(), None, service) as loader,
        pytest.raises(LoaderError, match=rf"{name} was added by a reading service"),
    ):
        next(iter(loader))


def test_a_pipe_used_alone_does_what_it_always_does():
    graph = IterableWrapper(range(6)).filter(is_even, repeatable=False).batch(2)
    assert list(graph) == [[0, 2], [4]]


def test_what_was_left_out_is_counted_by_its_reason_over_all_runs():
    def graph():
        failing = IterableWrapper(range(20)).map((1).__truediv__, on_error="skip", repeatable=False)
        return failing.filter(lambda item: item < 0.2).batch(4, drop_last=True)

    with DataLoader2(graph()) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    with DataLoader2(graph()) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 2
        stats = loader.stats()
    assert stats.left_out == {"error": 1, "filter": 5, "drop_last": 2}
    assert "left out: 2 by drop_last, 1 by error, 5 by filter" in repr(stats)
    assert [metric.value for metric in stats.as_metrics() if metric.name.endswith("left_out_total")]


@pytest.mark.parametrize("drop_last", [False, True])
def test_packs_of_whole_sequences_may_stand_in_a_section(drop_last):
    def graph():
        words = IterableWrapper(range(60)).map(lambda item: "a" * (item % 5 + 1), repeatable=False)
        return words.pack_sequences(9, len_fn=len, open_packs=3, drop_last=drop_last)

    found, left_out = a_line(graph, lambda: None, (3, 1, 6))
    assert all(sum(map(len, pack)) <= 9 for pack in found)
    assert sum(map(len, found)) + left_out["drop_last"] == 60
    assert left_out.keys() <= {"drop_last"}
    if not drop_last:
        assert Counter(word for pack in found for word in pack) == Counter(
            "a" * (item % 5 + 1) for item in range(60)
        )


@pytest.mark.parametrize("repeatable", [True, False])
def test_an_item_of_which_no_part_could_be_made_is_left_out_by_the_error(repeatable):
    def halves(item):
        if item == 3:
            raise ValueError(item)
        return [item / 2] * (item != 5)

    pipe = IterableWrapper(range(8)).thread_map(same, ordered=False)
    pipe = pipe.flatmap(halves, on_error="skip", repeatable=repeatable)
    with DataLoader2(pipe) as loader:
        assert len(list(loader)) == 6
        assert loader.stats().left_out == {"error": 1, "empty": 1}


async def soon(item):
    for _ in range(item % 4):
        await asyncio.sleep(0)
    return item


HEADERS = {
    "async_map": lambda pipe: pipe.async_map(soon, ordered=False, repeatable=False),
    "thread_map": lambda pipe: pipe.thread_map(same, ordered=False),
    "prefetch": lambda pipe: pipe.filter(is_even, repeatable=False).prefetch(5),
    "parts": lambda pipe: pipe.thread_map(same, concurrency=3, ordered=False).flatmap(twice),
    "kept parts": lambda pipe: pipe.flatmap(twice, repeatable=False).prefetch(5),
}


def twice(item):
    return [item, item]


@pytest.mark.parametrize("name", HEADERS)
def test_what_was_read_and_not_delivered_at_the_end_of_a_header_is_left_out(name):
    graph = HEADERS[name](Own(IterableWrapper(range(1000)))).header(7)
    with DataLoader2(graph, acknowledge=True) as loader:
        delivered = [loader.numbers for _ in loader]
        left_out = Counter(loader.stats().left_out)
        loader.ack(4)
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
    assert left_out["header"] > 0
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        rest = [loader.numbers for _ in loader]
        assert Counter(loader.stats().left_out) >= left_out
    # Those that were not acknowledged, and none that was left out.
    assert sorted(rest) == sorted(delivered[4:])
    if "parts" not in name:
        read = settled_in(state) | {number for (number,) in rest}
        assert read == set(range(7 + left_out.total()))


def test_what_has_come_from_workers_and_is_not_delivered_at_the_end_of_a_header_is_left_out():
    graph = IterableWrapper(range(200)).sharding_filter().map(same, repeatable=False)
    with in_workers(graph.batch(2, across_workers=True).header(9), acknowledge=True) as loader:
        batches = list(loader)
        left_out = loader.stats().left_out
        loader.ack(7)
        state = loader.state_dict(include_datapipe=False)
    assert left_out.keys() == {"header"}
    with in_workers(graph.batch(2, across_workers=True).header(9)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == batches[7:]


FAILING = {
    "parse_json_files": (
        lambda pipe, on_error: pipe.parse_json_files(on_error=on_error),
        [("a", b"1"), ("b", b"{"), ("c", b"[3]")],
    ),
    "decompress": (
        lambda pipe, on_error: pipe.decompress(on_error=on_error).map(path_of),
        [("a.gz", gzip.compress(b"1")), ("b", b"2"), ("c.gz", gzip.compress(b"3"))],
    ),
}


def path_of(pair):
    return pair[0]


def opened(pair):
    return pair[0], io.BytesIO(pair[1])


@pytest.mark.parametrize("name", FAILING)
def test_what_a_pipe_of_files_fails_on_is_left_out_or_replaced(name):
    make, files = FAILING[name]
    pipe = IterableWrapper(files).map(opened, repeatable=False)
    with DataLoader2(make(pipe, "skip")) as loader:
        assert [loader.numbers for _ in loader] == [(0,), (2,)]
        assert loader.stats().left_out == {"error": 1}
    with DataLoader2(make(pipe, lambda error, pair: pair)) as loader:
        assert [loader.numbers for _ in loader] == [(0,), (1,), (2,)]


def fails_on_some(item):
    if item % 10 == 3:
        raise ValueError(item)
    return item


def is_number_unless_it_fails(item):
    return fails_on_some(item) >= 0


def pieces_or_none(item):
    yield from (item, item)
    fails_on_some(item)


def ignored(error, item):
    return True


TOLERANT = {
    "map": lambda pipe, on_error: pipe.map(
        fails_on_some, on_error=on_error, max_errors=8, repeatable=False
    ),
    "async_map": lambda pipe, on_error: pipe.async_map(
        soon, concurrency=4, ordered=False, repeatable=False
    ).map(fails_on_some, on_error=on_error, max_errors=8),
    "filter": lambda pipe, on_error: pipe.filter(
        is_number_unless_it_fails, on_error=on_error, max_errors=8, repeatable=False
    ),
    "flatmap": lambda pipe, on_error: pipe.thread_map(same, ordered=False).flatmap(
        pieces_or_none, on_error="skip", max_errors=8
    ),
    "kept parts": lambda pipe, on_error: pipe.flatmap(
        pieces_or_none, on_error="skip", max_errors=8, repeatable=False
    ),
}


@pytest.mark.sweep
@pytest.mark.parametrize("on_error", ["skip", ignored])
@pytest.mark.parametrize("workers", [(0, 0, 0), (2, 2, 2), (2, 0, 3)])
@pytest.mark.parametrize("name", TOLERANT)
def test_max_errors_counts_along_a_line_of_states(name, workers, on_error):
    # All that fails is in the share of one of two workers.
    graph = TOLERANT[name](IterableWrapper(range(1000)).sharding_filter(), on_error)
    state, runs = None, 0
    with pytest.raises(TooManyErrors) as caught:  # noqa: PT012 - one of the runs ends so
        while runs < 30:
            count = workers[runs % 3]
            service = MultiProcessingReadingService(count) if count else None
            with DataLoader2(graph, None, service) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                # Two or three fail in each run.
                for _ in zip(range(25), loader, strict=False):
                    pass
                state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
                runs += 1
    assert caught.value.errors >= 9
    assert runs > 1


class DiesOnce:
    """Fails on every tenth item, and kills its worker at item 60 once something was delivered."""

    def __init__(self, folder):
        self.delivered, self.has_died = folder / "delivered", folder / "died"
        os.mkfifo(self.delivered)

    def __call__(self, item):
        if item == 60 and not self.has_died.exists():
            self.has_died.touch()
            self.delivered.open("rb").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return fails_on_some(item)

    def tell_delivered(self):
        self.delivered.open("wb").close()

    def twice(self, item):
        yield item
        yield self(item)


# What failed is told with the first items that come, and held in the worker that dies then.
DYING = {
    "left out": lambda dies, pipe, most: pipe.map(
        dies, on_error="skip", max_errors=most, repeatable=False
    ),
    "replaced": lambda dies, pipe, most: pipe.map(
        dies, on_error=ignored, max_errors=most, repeatable=False
    ),
    "in parts": lambda dies, pipe, most: pipe.flatmap(
        dies.twice, on_error="skip", max_errors=most, repeatable=False
    ),
    "parts": lambda dies, pipe, most: (
        pipe.thread_map(same, ordered=False)
        .flatmap(dies.twice, on_error="skip", max_errors=most)
        .map(same)
    ),
    "of parts": lambda dies, pipe, most: pipe.flatmap(lambda item: [item], repeatable=False).map(
        dies, on_error=ignored, max_errors=most
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("name", DYING)
def test_a_failure_in_a_worker_that_dies_counts_once(name, tmp_path):
    dies = DiesOnce(tmp_path)

    def run(most):
        dies.has_died.unlink(missing_ok=True)
        graph = DYING[name](dies, IterableWrapper(range(100)).sharding_filter(), most)
        with in_workers(graph.shuffle(buffer_size=50), 1, on_worker_death="restart") as loader:
            items = iter(loader)
            next(items)
            # The worker may need more to be taken before it gets to its end.
            telling = threading.Thread(target=dies.tell_delivered, daemon=True)
            telling.start()
            for _ in items:
                pass
            assert loader.stats().restarts == 1

    run(10)
    with pytest.raises(TooManyErrors, match="failed on 10 items, which is more than max_errors=9"):
        run(9)


def part_failing(part):
    return fails_on_some(part[0])


def test_failures_on_parts_count_each_along_a_line_of_states():
    graph = IterableWrapper(range(40)).flatmap(
        lambda item: [(item, 0), (item, 1)], repeatable=False
    )
    graph = graph.map(part_failing, on_error=ignored, max_errors=7)
    # After the first failing part, and after the second.
    for count in (7, 8):
        with DataLoader2(graph) as loader:
            items = iter(loader)
            for _ in range(count):
                next(items)
            state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
        with DataLoader2(graph) as loader:
            loader.load_state_dict(state)
            with pytest.raises(TooManyErrors) as caught:
                list(loader)
        assert caught.value.errors == 8


def test_numbers_are_the_places_of_items_in_the_stream_before():
    graph = IterableWrapper("abcdef").filter(lambda item: item in "bdef", repeatable=False).batch(2)
    with DataLoader2(graph) as loader:
        assert [(batch, loader.numbers) for batch in loader] == [
            (["b", "d"], (1, 3)),
            (["e", "f"], (4, 5)),
        ]
    with DataLoader2(IterableWrapper("ab")) as loader:
        assert [loader.numbers for _ in loader] == [(), ()]


def test_an_error_settles_nothing_so_that_its_item_comes_again():
    fails = [True]

    def work(item):
        if item == 5 and fails:
            fails.pop()
            raise ValueError("the server is down")
        return item

    graph = IterableWrapper(range(8)).map(work, repeatable=False).shuffle(buffer_size=2)
    delivered = []
    with DataLoader2(graph) as loader:
        items = iter(loader)
        with pytest.raises(ValueError, match="the server is down"):
            delivered += iter(lambda: next(items), None)
        state = loader.state_dict(include_datapipe=False)
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        delivered += loader
    assert sorted(delivered) == list(range(8))


def test_batches_by_the_clock_have_a_state_in_a_section():
    graph = begun(30).batch(4, max_wait=60)
    with DataLoader2(graph) as loader:
        first = next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        rest = [item for batch in loader for item in batch]
    assert sorted(first + rest) == list(range(30))


@pytest.mark.parametrize("workers", [(0, 2), (2, 0), (2, 3)])
def test_workers_above_a_section_may_be_others_after_a_resume(workers):
    before, after = workers

    def loader(count):
        shared = IterableWrapper(range(60)).shuffle().sharding_filter()
        graph = shared.filter(lambda item: random.random() < 0.5, repeatable=False)
        service = MultiProcessingReadingService(num_workers=count) if count else None
        return DataLoader2(graph, None, service, seed=1)

    seen = []
    with loader(before) as first:
        items = iter(first)
        for _ in range(9):
            next(items)
            seen += first.numbers
        state = json.loads(json.dumps(first.state_dict(include_datapipe=False)))
    known = settled_in(state)
    with loader(after) as second:
        second.load_state_dict(state)
        for _ in second:
            seen += second.numbers
        left_out = second.stats().left_out["filter"]
    assert set(seen[:9]) <= known
    assert len(set(seen)) == len(seen) == 60 - left_out


def in_workers(graph, count=2, *, acknowledge=False, **settings):
    service = MultiProcessingReadingService(count, **settings)
    return DataLoader2(graph, None, service, seed=1, acknowledge=acknowledge)


def test_the_functions_of_a_section_run_where_their_pipes_run():
    graph = IterableWrapper(range(6)).sharding_filter().map(lambda _: os.getpid(), repeatable=False)
    with in_workers(graph.map(lambda pid: (pid, os.getpid()))) as loader:
        pairs = list(loader)
    assert all(one == other != os.getpid() for one, other in pairs)
    with in_workers(graph.batch(3, across_workers=True)) as loader:
        assert [(len(batch), loader.numbers) for batch in loader] == [
            (3, (0, 1, 2)),
            (3, (3, 4, 5)),
        ]


def test_a_dead_workers_share_is_gone_on_with_and_nothing_comes_twice(tmp_path):
    calls = tmp_path / "calls"

    def work(item):
        with open(calls, "a", encoding="ascii") as file:
            file.write(f"{item}\n")
        if item % 50 == 41:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    def deadly_once(item):
        known = calls.read_text("ascii").split() if calls.exists() else []
        return work(item) if str(item) not in known or item % 50 != 41 else item

    graph = IterableWrapper(range(200)).sharding_filter().map(deadly_once, repeatable=False)
    graph = graph.filter(lambda item: random.random() < 0.5).batch(3)
    with in_workers(graph, on_worker_death="restart") as loader:
        numbers = [number for _ in loader for number in loader.numbers]
        left_out = loader.stats().left_out["filter"]
        assert loader.stats().restarts == 4
    assert len(set(numbers)) == len(numbers) == 200 - left_out
    # Only what was in flight in the worker that died was worked on twice.
    again = [item for item, times in Counter(calls.read_text("ascii").split()).items() if times > 1]
    assert len(again) <= 4 * 50


def test_what_workers_leave_out_is_known_within_a_second_and_at_the_end():
    def slow(item):
        time.sleep(0.01)
        return item == 399

    graph = IterableWrapper(range(400)).sharding_filter().filter(slow, repeatable=False)
    with in_workers(graph) as loader:
        items, known = iter(loader), []
        watching = threading.Thread(
            target=lambda: known.extend(iter(lambda: seen(loader, len(known)), 2)), daemon=True
        )
        watching.start()
        assert list(items) == [399]
        watching.join(10)
        assert loader.stats().left_out == {"filter": 399}
    assert not watching.is_alive()


def seen(loader, before):
    """Return 2 once more was left out than nothing, although nothing was delivered."""
    while not loader.stats().left_out:
        time.sleep(0.01)
    return 2


def test_a_worker_that_contradicts_itself_ends_the_epoch_at_once(monkeypatch):
    def contradict(record, told):
        raise LoaderError("item 1 was settled twice, which is an error of ours")

    monkeypatch.setattr(ShareRecord, "hear", contradict)
    graph = IterableWrapper(range(9)).sharding_filter().map(same, repeatable=False)
    with in_workers(graph) as loader, pytest.raises(LoaderError, match="settled twice") as caught:
        list(loader)
    assert "it was killed" in "".join(caught.value.__notes__)


def test_a_pipe_that_counts_all_items_is_refused_in_workers_by_name():
    graph = IterableWrapper(range(6)).sharding_filter().map(same, repeatable=False).enumerate()
    assert list(DataLoader2(graph)) == [(at, at) for at in range(6)]
    with pytest.raises(ValueError, match=r"enumerate\(.* counts what comes out of map\(same"):
        list(in_workers(graph))


def test_a_pipe_that_a_workers_reset_adds_behind_a_section_is_refused_if_it_loses_places():
    def batched(pipe, info, seeds):
        return pipe.batch(2)

    graph = IterableWrapper(range(6)).sharding_filter().map(same, repeatable=False)
    with (
        in_workers(graph, worker_reset_fn=batched) as loader,
        pytest.raises(WorkerStartupError, match=r"batch\(2\) was added by a reading service"),
    ):
        next(iter(loader))


def test_a_section_resumes_with_other_workers_only_if_its_numbers_are_those_before_the_division():
    graph = IterableWrapper(range(40)).sharding_filter().batch(2).map(same, repeatable=False)
    with in_workers(graph) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    with in_workers(graph, 3) as loader, pytest.raises(SnapshotError, match=r"batch\(2\) yields"):
        loader.load_state_dict(state)
    with in_workers(graph) as loader:
        loader.load_state_dict(state)
        assert len(list(loader)) == 19


def test_a_state_of_before_is_that_of_a_pipe_that_repeats():
    old = IterableWrapper(range(6)).filter(is_even)
    with DataLoader2(old) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    assert "repeatable" not in json.dumps(state)
    other = IterableWrapper(range(6)).filter(is_even, repeatable=False)
    with (
        DataLoader2(other) as loader,
        pytest.raises(SnapshotError, match="repeatable of Filter was True and is False"),
    ):
        loader.load_state_dict(state)


def test_memory_and_states_stay_small_over_a_long_epoch():
    graph = IterableWrapper(range(10**9)).filter(is_even, repeatable=False).shuffle(buffer_size=100)
    with DataLoader2(graph) as loader:
        lengths = set()
        for count, _ in enumerate(loader):
            if count % 5000 == 0:
                lengths.add(len(json.dumps(loader.state_dict(include_datapipe=False))))
            if count == 50_000:
                break
    assert max(lengths) < 10_000


STUCK = {
    "repeatable=False": lambda: begun(5000),
    "ordered=False": lambda: IterableWrapper(range(5000)).thread_map(
        same, concurrency=1, ordered=False
    ),
}


@pytest.mark.parametrize("kind", STUCK)
def test_an_item_of_which_nothing_comes_is_named_once_and_the_run_goes_on(
    kind, monkeypatch, caplog
):
    monkeypatch.setattr(settled, "FAR_AHEAD", 1000)
    graph = STUCK[kind]().groupby(lambda item: item == 70, group_size=5)
    with DataLoader2(graph) as loader:
        items = iter(loader)
        seen = [next(items) for _ in range(900)]
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
        rest = list(items)
    assert sorted(item for group in seen + rest for item in group) == list(range(5000))
    (record,) = caplog.records
    assert "nothing has come of item 70 of " in record.getMessage()
    # One number is not settled, so the state is small however much is behind it.
    assert len(json.dumps(state["position"])) < 1000
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        seen += loader
    assert sorted(item for group in seen for item in group) == list(range(5000))


def test_more_items_in_flight_than_a_state_may_say_are_refused_when_it_is_taken(monkeypatch):
    monkeypatch.setattr(settled, "MOST_UNSETTLED", 1000)
    with DataLoader2(begun(5000).shuffle(buffer_size=2000)) as loader:
        items = iter(loader)
        for _ in range(200):
            next(items)
        with pytest.raises(SnapshotError, match=r"items of map\(same.* are in flight behind it"):
            loader.state_dict()
        rest = list(items)
    assert len(rest) == 4800


def test_a_state_in_which_more_are_in_flight_than_can_be_is_refused():
    with DataLoader2(begun()) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    cursors = json.loads(state["position"]["cursors"])
    (own,) = [cursor for cursor in cursors.values() if "frontier" in cursor]
    own["settled"] = [[10**12, 1]]
    state["position"]["cursors"] = json.dumps(cursors)
    state["checksums"]["position"] = checksum(state["position"])
    with DataLoader2(begun()) as loader, pytest.raises(SnapshotError, match="at most 1000000 numb"):
        loader.load_state_dict(state)


# Kept results ---------------------------------------------------------------------------


class Costly:
    """A function whose calls are counted, and that answers differently each time."""

    def __init__(self):
        self.calls = Counter()

    async def ask(self, item):
        self.calls[item] += 1
        await asyncio.sleep(0)
        return [(item, at) for at in range(random.randrange(4))]

    def plainly(self, item):
        self.calls[item] += 1
        return [(item, at) for at in range(random.randrange(4))]


def a_line(graph, settings, steps):
    """Return what comes in runs of so many items, each resumed from the state before.

    And what was left out.
    """
    found, state = [], None
    for count in (*steps, 10**6):
        with DataLoader2(graph(), None, settings(), seed=1, acknowledge=True) as loader:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
            for _, item in zip(range(count), loader, strict=False):
                found.append(item)
            loader.ack(loader.unacknowledged)
            state = loader.state_dict(include_datapipe=False)
            left_out = Counter(loader.stats().left_out)
    return found, left_out


KEEPING = {
    "async_map": lambda costly, pipe: pipe.async_map(
        costly.ask, concurrency=8, ordered=False, repeatable=False, keep_results=True
    ),
    "thread_map": lambda costly, pipe: pipe.thread_map(
        costly.plainly, concurrency=3, repeatable=False, keep_results=True
    ),
    "map": lambda costly, pipe: pipe.map(costly.plainly, repeatable=False, keep_results=True),
}


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", KEEPING)
def test_nothing_that_was_finished_is_called_for_again_and_its_parts_come_once(name, workers):
    costly = Costly()

    def graph():
        source = IterableWrapper(range(120)).shuffle().sharding_filter()
        return KEEPING[name](costly, source).flatmap(same).shuffle(buffer_size=9).batch(4)

    def service():
        # So that little is in flight, however late the loader is.
        return MultiProcessingReadingService(workers, worker_prefetch_cnt=0) if workers else None

    found, _ = a_line(graph, service, (3, 1, 6, 2, 11))
    parts = [part for batch in found for part in batch]
    assert len(set(parts)) == len(parts)
    # Of each number all parts of one answer.
    for number, ats in Counter(number for number, _ in parts).items():
        assert {at for each, at in parts if each == number} == set(range(ats))
    assert set(costly.calls) == set(range(120))
    # Only what was in flight when a state was taken is called for again.
    assert sum(costly.calls.values()) <= 120 + 5 * 24


def test_what_was_delivered_and_not_acknowledged_is_not_called_for_again():
    costly = Costly()

    def graph():
        return IterableWrapper(range(40)).map(costly.plainly, repeatable=False, keep_results=True)

    with DataLoader2(graph(), acknowledge=True) as loader:
        items = iter(loader)
        first = [next(items) for _ in range(10)]
        loader.ack(4)
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
    with DataLoader2(graph(), acknowledge=True) as loader:
        loader.load_state_dict(state)
        rest = list(loader)
    assert rest[:6] == first[4:]
    assert set(costly.calls.values()) == {1}


@pytest.mark.parametrize(("times", "words"), [(0, "fewer"), (2, "more")])
def test_a_one_to_one_pipe_that_is_none_is_named(times, words):
    class Uneven(OneToOne, IterDataPipe):
        def __init__(self, source):
            self.source = source

        def __iter__(self):
            for item in self.source:
                yield from [item] * (1 if item < 5 else times)

    graph = Uneven(IterableWrapper(range(9)).map(same, repeatable=False)).batch(2)
    with (
        DataLoader2(graph) as loader,
        pytest.raises(LoaderError, match=rf"Uneven\(\) .* yields {words} items than it reads"),
    ):
        list(loader)


async def answer_in_a_list(number):
    return {"tokens": [number]}


def with_an_end(answer):
    answer["tokens"].append("end")
    return answer


@pytest.mark.parametrize(
    "keeping",
    [
        lambda pipe: pipe.map(lambda at: {"tokens": [at]}, repeatable=False, keep_results=True),
        lambda pipe: pipe.async_map(answer_in_a_list, repeatable=False, keep_results=True),
        lambda pipe: pipe.rollout(answer_in_a_list, order="source", keep_results=True),
    ],
    ids=["map", "async_map", "rollout"],
)
def test_a_kept_result_is_what_the_function_gave_whatever_changes_it_later(keeping):
    graph = keeping(IterableWrapper(range(6))).map(with_an_end)
    states = []
    with DataLoader2(graph, acknowledge=True) as loader:
        answers = iter(loader)
        for _ in range(3):
            next(answers)["tokens"].append("trained")
        states.append(loader.state_dict(include_datapipe=False))
    with DataLoader2(graph, acknowledge=True) as loader:
        loader.load_state_dict(states[0])
        assert next(iter(loader)) == {"tokens": [0, "end"]}
        states.append(loader.state_dict(include_datapipe=False))
    for state in states:
        with DataLoader2(graph) as loader:
            loader.load_state_dict(state)
            assert [answer["tokens"] for answer in loader] == [[at, "end"] for at in range(6)]


def test_kept_results_may_be_tensors_and_arrays_and_others_are_refused_by_name():
    numpy, torch = pytest.importorskip("numpy"), pytest.importorskip("torch")
    kept = {"a": torch.arange(3), "b": numpy.array([[1.5, 2]]), "c": (1, "two", None, b"3")}
    answers = iter([kept, kept, object()])
    graph = IterableWrapper(range(3)).map(
        lambda _: next(answers), repeatable=False, keep_results=True
    )
    with DataLoader2(graph, acknowledge=True) as loader:
        items = iter(loader)
        next(items)
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
        list(items)
        with pytest.raises(SnapshotError, match=r"the kept result of map\(.* for item 2 holds a"):
            loader.state_dict(include_datapipe=False)
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        found = next(iter(loader))
    assert found["c"] == kept["c"]
    assert torch.equal(found["a"], kept["a"])
    assert numpy.array_equal(found["b"], kept["b"])
    found["b"][0, 0] = 7


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_a_quantized_tensor_is_refused_by_name():
    torch = pytest.importorskip("torch")
    graph = IterableWrapper(range(1)).map(
        lambda _: torch.empty(2, dtype=torch.qint8), repeatable=False, keep_results=True
    )
    with DataLoader2(graph, acknowledge=True) as loader:
        list(loader)
        with pytest.raises(SnapshotError, match=r"a Tensor, but .* that are not quantized"):
            loader.state_dict(include_datapipe=False)


def test_results_are_kept_only_of_single_items_and_of_functions_that_do_not_repeat():
    with pytest.raises(ValueError, match="keep_results must be True or False, got 'x'"):
        IterableWrapper([1]).map(same, repeatable=False, keep_results="x")
    with pytest.raises(ValueError, match="keep_results=True goes with repeatable=False"):
        IterableWrapper([1]).map(same, keep_results=True)
    graph = IterableWrapper([1]).filter(is_even, repeatable=False).batch(2)
    with pytest.raises(ValueError, match="map"):
        DataLoader2(graph.map(same, repeatable=False, keep_results=True))


# Parts that cannot be made again ----------------------------------------------------------


class Split:
    """Functions that answer with other parts each time."""

    def __init__(self):
        self.calls = Counter()

    def at_once(self, item):
        self.calls[item] += 1
        answer = random.random()
        return [(item, at, answer) for at in range(random.randrange(4))]

    def one_by_one(self, item):
        yield from self.at_once(item)

    async def soon(self, item):
        for part in self.at_once(item):
            await asyncio.sleep(0)
            yield part

    def then_fails(self, item):
        yield from self.at_once(item)
        raise ValueError(item)


class Here(OneToOne, IterDataPipe):
    """Stays with the loader."""

    def __init__(self, source):
        self.source = source

    def is_replicable(self):
        return False

    def __iter__(self):
        yield from self.source


SPLITTING = {
    "flatmap": lambda split, pipe: pipe.flatmap(split.one_by_one, repeatable=False),
    "async flatmap": lambda split, pipe: pipe.flatmap(split.soon, repeatable=False),
    "failing flatmap": lambda split, pipe: pipe.flatmap(
        split.then_fails, on_error="skip", repeatable=False
    ),
    "flatmap behind": lambda split, pipe: pipe.async_map(
        soon, ordered=False, repeatable=False
    ).flatmap(split.at_once),
    "unbatch": lambda split, pipe: pipe.map(split.at_once, repeatable=False).unbatch(),
    "behind kept results": lambda split, pipe: (
        pipe.map(same, repeatable=False)
        .map(same, repeatable=False, keep_results=True)
        .flatmap(split.at_once, repeatable=False)
    ),
    "with the loader": lambda split, pipe: Here(pipe.map(same, repeatable=False)).flatmap(
        split.at_once
    ),
}

SERVICES = {
    "here": lambda: None,
    "processes": lambda: MultiProcessingReadingService(2),
    "threads": lambda: MultiThreadingReadingService(2),
    "as ready": lambda: MultiProcessingReadingService(2, in_order=False),
}


@pytest.mark.sweep
@pytest.mark.parametrize("service", SERVICES)
@pytest.mark.parametrize("name", SPLITTING)
def test_parts_that_cannot_be_made_again_come_once_and_are_those_of_one_answer(name, service):
    split = Split()

    def graph():
        source = IterableWrapper(range(120)).shuffle().sharding_filter()
        return SPLITTING[name](split, source).shuffle(buffer_size=9).batch(4)

    found, left_out = a_line(graph, SERVICES[service], (3, 1, 6, 2, 11))
    check_parts(found, 120 - left_out.total())
    if service == "here":
        # Only what was not made yet when a state was taken.
        assert set(split.calls) == set(range(120))
        assert sum(split.calls.values()) <= 120 + 5 * 24


def check_parts(batches, count):
    """Check that there is one whole answer for each of so many items."""
    parts = [part for batch in batches for part in batch]
    assert len({(number, at) for number, at, _ in parts}) == len(parts)
    answers = {(number, answer) for number, _, answer in parts}
    numbers = Counter(number for number, _ in answers)
    assert (set(numbers.values()), len(numbers)) == ({1}, count)
    for number in numbers:
        ats = sorted(at for each, at, _ in parts if each == number)
        assert ats == list(range(len(ats)))


def test_parts_that_cannot_be_made_again_fit_other_numbers_of_workers():
    split, services = Split(), iter([0, 2, 3, 0, 1, 2])

    def graph():
        source = IterableWrapper(range(120)).shuffle().sharding_filter()
        return source.flatmap(split.at_once, repeatable=False).shuffle(buffer_size=9).batch(4)

    def service():
        return MultiProcessingReadingService(next(services))

    found, left_out = a_line(graph, service, (3, 1, 6, 2, 11))
    check_parts(found, 120 - left_out["empty"])


@pytest.mark.soak
def test_a_worker_that_takes_a_dead_ones_place_makes_no_parts_again_of_which_some_have_come():
    def deadly(part):
        if random.random() < 0.03:
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    graph = IterableWrapper(range(100)).sharding_filter().flatmap(Split().soon, repeatable=False)
    with in_workers(graph.map(deadly), on_worker_death="restart", max_restarts=1000) as loader:
        parts = list(loader)
        stats = loader.stats()
    assert stats.restarts
    check_parts([parts], 100 - stats.left_out["empty"])


@pytest.mark.parametrize(
    "behind",
    [
        lambda pipe: pipe.map(same, repeatable=False, keep_results=True),
        lambda pipe: pipe.flatmap(same, repeatable=False),
    ],
)
def test_what_is_kept_of_batches_of_what_comes_as_it_is_ready_is_in_no_state(behind):
    batches = IterableWrapper(range(40)).sharding_filter().batch(2, across_workers=True)
    with in_workers(behind(batches), in_order=False) as loader:
        items = iter(loader)
        first = next(items)
        with pytest.raises(SnapshotError, match="reads what workers send, which comes as it is re"):
            loader.state_dict()
        rest = list(items)
    whole = (
        [first, *rest]
        if isinstance(first, int)
        else [each for one in (first, *rest) for each in one]
    )
    assert sorted(whole) == list(range(40))


def test_an_answer_that_fails_comes_whole_or_not_at_all():
    fails = [True]

    def halves(item):
        yield item, 0
        if item == 3 and fails:
            fails.pop()
            raise OSError("the server is away")
        yield item, 1

    graph = IterableWrapper(range(6)).flatmap(halves, repeatable=False)
    with DataLoader2(graph) as loader:
        items, found = iter(loader), []
        with pytest.raises(OSError, match="the server is away"):
            found += iter(lambda: next(items), None)
        state = json.loads(json.dumps(loader.state_dict(include_datapipe=False)))
    assert found == [(item, at) for item in range(3) for at in range(2)]
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        found += loader
    assert found == [(item, at) for item in range(6) for at in range(2)]


def test_parts_that_a_state_cannot_have_are_refused_by_name_when_it_is_taken():
    graph = IterableWrapper(range(3)).flatmap(lambda item: [object(), item], repeatable=False)
    with DataLoader2(graph) as loader:
        items = iter(loader)
        next(items)
        with pytest.raises(SnapshotError, match=r"the kept result of flatmap\(.* for item 0 holds"):
            loader.state_dict(include_datapipe=False)
        list(items)
        loader.state_dict(include_datapipe=False)


def test_a_state_in_which_something_else_was_kept_than_parts_is_refused():
    graph = IterableWrapper(range(3)).flatmap(lambda item: [item, item], repeatable=False)
    with DataLoader2(graph) as loader:
        next(iter(loader))
        state = loader.state_dict(include_datapipe=False)
    cursors = json.loads(state["position"]["cursors"])
    (own,) = [cursor for cursor in cursors.values() if "frontier" in cursor]
    own["kept"][0][2] = 7
    state["position"]["cursors"] = json.dumps(cursors)
    state["checksums"]["position"] = checksum(state["position"])
    with DataLoader2(graph) as loader:
        loader.load_state_dict(state)
        with pytest.raises(SnapshotError, match=r"kept of item 0 are no parts that flatmap\(.* 7"):
            list(loader)


async def generate(prompt, **_):
    return [prompt, prompt]


def test_parts_behind_a_rollout_are_kept_by_the_rollout_alone():
    rollout = IterableWrapper(range(9)).rollout(generate, keep_results=True)
    DataLoader2(rollout.unbatch())
    with pytest.raises(ValueError, match=r"^flatmap\(.* follows rollout\("):
        DataLoader2(rollout.flatmap(same, repeatable=False))
    with pytest.raises(ValueError, match=r"^unbatch\(.* follows rollout\("):
        DataLoader2(IterableWrapper(range(9)).rollout(generate).unbatch())


SCRIPT = """
import json, os, random, sys
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

async def ask(prompt):
    return prompt

graph = (
    IterableWrapper(range(400)).shuffle()
    .async_map(ask, concurrency=8, ordered=False, repeatable=False)
    .filter(lambda item: random.random() < 0.6)
    .batch(3)
)
path = sys.argv[1]
trained, state = json.load(open(path)) if os.path.exists(path) else ([], None)
with DataLoader2(graph, seed=7) as loader:
    if state is not None:
        loader.load_state_dict(state)
    for batch in loader:
        trained += loader.numbers
        with open(path + ".new", "w") as file:
            json.dump([trained, loader.state_dict(include_datapipe=False)], file)
        os.replace(path + ".new", path)
        print("saved", flush=True)
        sys.stdin.readline()
    left_out = loader.stats().left_out
print(json.dumps([trained, left_out]), flush=True)
"""


def test_a_program_that_is_killed_again_and_again_trains_each_number_once(tmp_path):
    steps_before_kills = [1, 4, 2]
    for steps in steps_before_kills:
        with started(tmp_path) as child:
            for _ in range(steps):
                assert child.stdout.readline() == "saved\n"
                child.stdin.write("go on\n")
                child.stdin.flush()
            child.send_signal(signal.SIGKILL)
        assert child.returncode == -signal.SIGKILL
    with started(tmp_path) as child:
        *_, last = child.communicate("go on\n" * 400)[0].splitlines()
    trained, left_out = json.loads(last)
    assert len(set(trained)) == len(trained) == 400 - left_out["filter"]


def started(folder):
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(folder / "model")],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
