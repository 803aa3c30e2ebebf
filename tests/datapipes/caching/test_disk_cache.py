"""on_disk_cache and end_caching in one process."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import io
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.adapters import CacheTimeout, InvalidateCache
from asyncloader.datapipes.caching import own_files
from asyncloader.datapipes.caching.own_files import FileLock, partial_prefix
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe
from asyncloader.datapipes.running import cursor_history
from asyncloader.errors import ResourceExhausted
from asyncloader.runtime import new_event_loop
from tests.leaks import leaves_nothing


class Recorder:
    """Makes (path, data) pairs, and notes of which items."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made: list[Any] = []

    def path(self, item: Any) -> str:
        return str(self.folder / f"{item}.txt")

    def pair(self, item: Any) -> tuple[str, bytes]:
        self.made.append(item)
        return self.path(item), f"data of {item}".encode()

    def paths(self, *items: Any) -> list[str]:
        return [self.path(item) for item in items]


@pytest.fixture(autouse=True, scope="module")
def first_loop() -> None:
    """Make a loop: the first one opens descriptors that stay for all."""
    new_event_loop().close()


@pytest.fixture
def recorder(tmp_path) -> Recorder:
    return Recorder(tmp_path / "cache")


def cache_of(recorder: Recorder, items: Any, **settings: Any) -> Any:
    begun = IterableWrapper(items).on_disk_cache(recorder.path)
    return begun.map(recorder.pair).end_caching(**settings)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# What is made ---------------------------------------------------------------------------


def test_what_is_not_there_is_made_and_what_is_there_is_not(recorder):
    cached = cache_of(recorder, [1, 2])
    assert list(cached) == recorder.paths(1, 2)
    assert recorder.made == [1, 2]
    assert Path(recorder.path(1)).read_bytes() == b"data of 1"
    assert list(cached) == recorder.paths(1, 2)
    assert recorder.made == [1, 2]


def test_the_order_is_that_of_the_source_whatever_was_there(recorder):
    list(cache_of(recorder, [2, 4]))
    assert list(cache_of(recorder, range(6))) == recorder.paths(*range(6))
    assert recorder.made == [2, 4, 0, 1, 3, 5]


def test_nothing_but_entries_is_left(recorder):
    list(cache_of(recorder, range(3)))
    assert names_in(recorder.folder) == ["0.txt", "1.txt", "2.txt"]


def test_an_entry_that_was_deleted_is_made_again(recorder):
    cached = cache_of(recorder, [1, 2])
    list(cached)
    os.unlink(recorder.path(1))
    assert list(cached) == recorder.paths(1, 2)
    assert recorder.made == [1, 2, 1]


def test_without_a_function_the_item_is_the_path(tmp_path):
    path = tmp_path / "deep" / "down" / "file"
    for item in (str(path), path):
        cached = IterableWrapper([item]).on_disk_cache().map(lambda path: (path, b"x"))
        assert list(cached.end_caching()) == [str(path)]
    assert path.read_bytes() == b"x"


def test_a_path_without_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cached = IterableWrapper(["file"]).on_disk_cache().map(lambda path: (path, b"x"))
    assert list(cached.end_caching()) == ["file"]
    assert names_in(tmp_path) == ["file"]


class Closable(io.BytesIO):
    closings = 0

    def close(self) -> None:
        Closable.closings += not self.closed
        super().close()


DATA = {
    "bytes": (b"abc", "wb"),
    "bytearray": (bytearray(b"abc"), "wb"),
    "memoryview": (memoryview(b"abc"), "b"),
    "text": ("abc", "wt"),
    "text, as open says it": ("abc", "w"),
    "pieces": ([b"a", b"bc"], "wb"),
    "pieces of text": (["a", "bc"], "wt"),
    "stream": (io.BytesIO(b"abc"), "wb"),
    "stream of text": (io.StringIO("abc"), "t"),
}


@pytest.mark.parametrize("kind", DATA)
def test_data_of_any_kind_is_written(kind, tmp_path):
    data, mode = DATA[kind]
    path = str(tmp_path / "file")
    cached = IterableWrapper([path]).on_disk_cache().map(lambda path: (path, data))
    assert list(cached.end_caching(mode)) == [path]
    assert Path(path).read_text() == "abc"


def test_a_stream_is_closed_also_when_it_cannot_be_written(tmp_path):
    Closable.closings = 0
    for number, mode in enumerate(["wb", "wt"]):
        path = str(tmp_path / f"{number}")
        cached = IterableWrapper([path]).on_disk_cache().map(lambda p: (p, Closable(b"abc")))
        if mode == "wb":
            list(cached.end_caching(mode))
        else:
            with pytest.raises(TypeError):
                list(cached.end_caching(mode))
    assert Closable.closings == 2
    assert names_in(tmp_path) == ["0"]


@pytest.mark.skipif(sys.platform == "darwin", reason="names are text there")
def test_a_name_need_not_be_text(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    cached = (
        IterableWrapper([path])
        .on_disk_cache()
        .flatmap(lambda path: [(path, b"x"), (path + "2", b"y")])
    )
    assert list(cached.end_caching()) == list(cached.end_caching()) == [path, path + "2"]


def test_skip_read_writes_data_as_it_is(tmp_path):
    path = str(tmp_path / "file")
    cached = IterableWrapper([path]).on_disk_cache().map(lambda path: (path, [b"abc"]))
    with pytest.raises(TypeError):
        list(cached.end_caching(skip_read=True))
    assert list(cached.end_caching()) == [path]


def test_paths_come_from_the_end_as_well(recorder):
    begun = IterableWrapper(["a"]).on_disk_cache(recorder.path).map(lambda name: (name, b"x"))
    assert list(begun.end_caching(same_filepath_fn=True)) == recorder.paths("a")
    os.unlink(recorder.path("a"))
    assert list(begun.end_caching(filepath_fn=recorder.path)) == recorder.paths("a")


# Entries of several files ---------------------------------------------------------------


def parts_of(recorder: Recorder, item: int) -> list[tuple[str, bytes]]:
    recorder.made.append(item)
    return [(recorder.path(f"{item}-{n}"), b"x" * n) for n in range(item)]


def expanding(recorder: Recorder, items: Any) -> Any:
    begun = IterableWrapper(items).on_disk_cache(recorder.path)
    return begun.flatmap(functools.partial(parts_of, recorder)).end_caching()


def test_an_entry_of_several_files_or_of_none(recorder):
    cached = expanding(recorder, [2, 0, 3])
    expected = recorder.paths("2-0", "2-1", "3-0", "3-1", "3-2")
    assert list(cached) == list(cached) == expected
    assert recorder.made == [2, 0, 3]


def test_an_entry_is_made_again_when_one_of_its_files_is_gone(recorder):
    cached = expanding(recorder, [2, 3])
    expected = list(cached)
    os.unlink(expected[1])
    assert list(cached) == expected
    assert recorder.made == [2, 3, 2]


def test_an_entry_among_whose_files_is_its_own(recorder):
    def parts(item: Any) -> list[Any]:
        recorder.made.append(item)
        return [(recorder.path(item), b"x"), (recorder.path("more"), b"y")]

    cached = IterableWrapper([1]).on_disk_cache(recorder.path).flatmap(parts).end_caching()
    assert list(cached) == list(cached) == recorder.paths(1, "more")
    assert recorder.made == [1]


def test_an_entry_may_change_from_several_files_to_one_and_back(recorder):
    several = expanding(recorder, [2])
    list(several)
    os.unlink(recorder.path("2-0"))
    one = cache_of(recorder, [2])
    assert list(one) == recorder.paths(2)
    assert list(several) == recorder.paths(2), "it is there, however it was made"
    os.unlink(recorder.path(2))
    assert list(several) == recorder.paths("2-0", "2-1")


@pytest.mark.parametrize("text", ["not a list", "5", "{}", '"text"', "[1, 2]"])
def test_a_list_that_cannot_be_read_is_made_again(text, recorder):
    cached = expanding(recorder, [2])
    expected = list(cached)
    [own] = recorder.folder.glob(".*")
    own.write_text(text)
    assert list(cached) == expected
    assert recorder.made == [2, 2]


def test_a_list_that_cannot_take_its_place_leaves_nothing(recorder):
    cached = expanding(recorder, [2])
    expected = list(cached)
    [own] = recorder.folder.glob(".*")
    own.unlink()
    own.mkdir()
    with pytest.raises(OSError, match=own.name):
        list(cached)
    assert list(recorder.folder.glob(".*")) == [own]
    own.rmdir()
    assert list(cached) == expected


def test_an_entry_may_be_a_folder_of_files(recorder):
    class Breaks(FailsFirst):
        def path(self, item: Any) -> str:
            return str(self.folder / str(item))

        def parts(self, item: Any) -> list[tuple[str, Any]]:
            path, data = self.pair(item)
            return [(path + "/a", b"first"), (path + "/b", data)]

    maker = Breaks(recorder.folder)
    maker.failing = frozenset({1})
    begun = IterableWrapper([1]).on_disk_cache(maker.path).flatmap(maker.parts)
    with pytest.raises(ConnectionError):
        list(begun.end_caching())
    assert Path(maker.path(1)).is_dir(), "it is there, and no entry yet"
    expected = [maker.path("1/a"), maker.path("1/b")]
    assert list(begun.end_caching()) == list(begun.end_caching()) == expected
    assert maker.made == [1, 1]
    assert names_in(Path(maker.path(1))) == ["a", "b"]


def test_a_path_that_comes_twice_is_an_error(recorder):
    begun = IterableWrapper([1]).on_disk_cache(recorder.path)
    cached = begun.flatmap(lambda item: [("same", b"1"), ("same", b"2")]).end_caching(
        filepath_fn=recorder.path
    )
    with pytest.raises(ValueError, match=r"1.txt has .*same.txt twice"):
        list(cached)
    assert names_in(recorder.folder) == []


# Checks ---------------------------------------------------------------------------------


def hash_of(data: bytes, kind: str = "sha256") -> str:
    return hashlib.new(kind, data).hexdigest()


@pytest.mark.parametrize("kind", ["sha256", "md5"])
def test_a_file_of_another_hash_is_made_again(kind, recorder):
    hashes = {recorder.path(n): hash_of(f"data of {n}".encode(), kind) for n in (1, 2)}
    begun = IterableWrapper([1, 2]).on_disk_cache(recorder.path, hashes, kind)
    cached = begun.map(recorder.pair).end_caching()
    list(cached)
    Path(recorder.path(2)).write_bytes(b"spoilt")
    assert list(cached) == recorder.paths(1, 2)
    assert recorder.made == [1, 2, 2]
    assert Path(recorder.path(2)).read_bytes() == b"data of 2"


def test_data_of_another_hash_is_refused_and_not_kept(recorder):
    begun = IterableWrapper([1]).on_disk_cache(recorder.path, {recorder.path(1): "00"})
    with pytest.raises(ValueError, match=r"sha256 hash of .*1.txt must be 00, got [0-9a-f]{64}"):
        list(begun.map(recorder.pair).end_caching())
    assert names_in(recorder.folder) == []


def test_hashes_may_be_by_path_objects_and_in_capitals(recorder):
    hashes = {Path(recorder.path(1)): hash_of(b"data of 1", "sha256").upper()}
    begun = IterableWrapper([1]).on_disk_cache(recorder.path, hashes)
    cached = begun.map(recorder.pair).end_caching()
    assert list(cached) == list(cached) == recorder.paths(1)
    assert recorder.made == [1]


@pytest.mark.parametrize(
    ("hashes", "message"),
    [
        ({1: "00"}, "keys of hash_dict must be paths, got int"),
        ({"a": None}, "hash of a must be hexadecimal, got NoneType"),
    ],
)
def test_hashes_that_are_none_are_refused(hashes, message):
    with pytest.raises(TypeError, match=message):
        IterableWrapper(["a"]).on_disk_cache(hash_dict=hashes)
    with pytest.raises(TypeError, match=message):
        IterableWrapper(["a"]).check_hash(hashes)


def test_a_file_without_a_hash_is_refused(recorder):
    begun = IterableWrapper([1]).on_disk_cache(recorder.path, {})
    with pytest.raises(ValueError, match=r"hash_dict has no hash of .*1.txt"):
        list(begun.map(recorder.pair).end_caching())


def test_a_file_that_fails_the_extra_check_is_made_again(recorder):
    def is_good(path: str) -> bool:
        return Path(path).stat().st_size > 0

    begun = IterableWrapper([1, 2]).on_disk_cache(recorder.path, extra_check_fn=is_good)
    cached = begun.map(recorder.pair).end_caching()
    list(cached)
    Path(recorder.path(1)).write_bytes(b"")
    list(cached)
    assert recorder.made == [1, 2, 1]


# Errors ---------------------------------------------------------------------------------


class FailsFirst(Recorder):
    """Fails once for every item in ``failing``."""

    failing: frozenset[Any] = frozenset()

    def pair(self, item: Any) -> tuple[str, Any]:
        path, data = super().pair(item)
        return path, self._broken() if self.made.count(item) == 1 and item in self.failing else data

    def _broken(self) -> Iterator[bytes]:
        yield b"half of it"
        raise ConnectionError("reset")


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_error_comes_in_its_place_and_leaves_nothing_half_made(concurrency, tmp_path):
    recorder = FailsFirst(tmp_path / "cache")
    recorder.failing = frozenset({2})
    cached = cache_of(recorder, range(4), concurrency=concurrency)
    found = []
    with leaves_nothing(), pytest.raises(ConnectionError, match="reset") as caught:
        found.extend(cached)
    assert found == recorder.paths(0, 1)
    assert any(recorder.path(2) in note for note in caught.value.__notes__)
    assert recorder.path(2) not in map(str, recorder.folder.iterdir())
    assert not [name for name in names_in(recorder.folder) if not name.endswith(".txt")]
    assert list(cached) == recorder.paths(*range(4))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_an_error_of_the_source_comes_after_what_was_before(concurrency, recorder):
    class Fails(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield from range(3)
            raise KeyError("source")

    begun = Fails().on_disk_cache(recorder.path)
    items = iter(begun.map(recorder.pair).end_caching(concurrency=concurrency))
    assert [next(items) for _ in range(3)] == recorder.paths(0, 1, 2)
    with pytest.raises(KeyError, match="source"):
        next(items)


@pytest.mark.parametrize("item", [3, "text", (1, 2, 3), None])
def test_what_ends_must_be_pairs(item, recorder):
    cached = IterableWrapper([1]).on_disk_cache(recorder.path).map(lambda _: item).end_caching()
    with pytest.raises(TypeError, match=r"reads pairs \(path, data\), got "):
        list(cached)


@pytest.mark.parametrize("path", [3, ["a", "b"], None])
def test_a_path_function_must_return_one_path(path, recorder):
    cached = IterableWrapper([1]).on_disk_cache(lambda item: path).map(recorder.pair).end_caching()
    with pytest.raises(TypeError, match=r"must be one path for on_disk_cache\(.*, got "):
        list(cached)


def test_a_path_function_that_fails_is_named(recorder):
    def missing(item: Any) -> str:
        raise KeyError(item)

    cached = IterableWrapper([1]).on_disk_cache(missing).map(recorder.pair).end_caching()
    with pytest.raises(KeyError) as caught:
        list(cached)
    assert caught.value.__notes__[0].startswith("raised in on_disk_cache(")


def test_arguments_are_checked_when_given(recorder):
    source = IterableWrapper([1])
    begun = source.on_disk_cache(recorder.path)
    with pytest.raises(ValueError, match=r"hash_type must be one of .*, got 'crc'"):
        source.on_disk_cache(recorder.path, {}, "crc")
    with pytest.raises(TypeError, match="filepath_fn must be callable"):
        source.on_disk_cache("path")
    with pytest.raises(ValueError, match="exclude each other"):
        begun.end_caching(filepath_fn=recorder.path, same_filepath_fn=True)
    with pytest.raises(ValueError, match='mode must be "wb" or "wt", got \'ab\''):
        begun.end_caching("ab")
    with pytest.raises(ValueError, match="timeout must be at least 0 seconds, got -1"):
        begun.end_caching(timeout=-1)
    with pytest.raises(ValueError, match="concurrency must be at least 1, got 0"):
        begun.end_caching(concurrency=0)

    async def path(item: Any) -> str:
        return ""

    with pytest.raises(TypeError, match="must be a plain function, got the async"):
        source.on_disk_cache(path)


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("make", ["map", "async_map", "thread_map"])
def test_what_was_left_out_is_tried_again(make, concurrency, recorder):
    failing = {1, 2}

    def some(item: Any) -> Any:
        recorder.made.append(item)
        if item in failing:
            raise ConnectionError("reset")
        return recorder.path(item), b"x"

    async def soon(item: Any) -> Any:
        return some(item)

    begun = IterableWrapper(range(4)).on_disk_cache(recorder.path)
    pairs = getattr(begun, make)(soon if make == "async_map" else some, on_error="skip")
    cached = pairs.end_caching(concurrency=concurrency)
    assert list(cached) == recorder.paths(0, 3)
    failing.clear()
    assert list(cached) == recorder.paths(*range(4))
    assert sorted(recorder.made) == [0, 1, 1, 2, 2, 3]
    assert names_in(recorder.folder) == [f"{n}.txt" for n in range(4)]


def test_an_entry_of_which_a_part_was_left_out_is_not_whole(recorder):
    failing = {1}

    def part(number: int) -> Any:
        recorder.made.append(number)
        if number in failing:
            raise ConnectionError("reset")
        return recorder.path(f"part{number}"), b"x"

    outer = IterableWrapper(["a"]).on_disk_cache(recorder.path)
    begun = outer.flatmap(lambda item: range(3)).on_disk_cache(lambda n: recorder.path(f"part{n}"))
    inner = begun.map(part, on_error="skip").end_caching()
    copied = inner.map(lambda path: (path + ".copy", Path(path).read_bytes()))
    cached = copied.end_caching()
    assert list(cached) == [path + ".copy" for path in recorder.paths("part0", "part2")]
    failing.clear()
    expected = [path + ".copy" for path in recorder.paths("part0", "part1", "part2")]
    assert list(cached) == list(cached) == expected
    assert recorder.made == [0, 1, 2, 1]


def test_what_was_there_stays_where_nothing_is_made(recorder):
    list(expanding(recorder, [2]))
    begun = IterableWrapper([2]).on_disk_cache(recorder.path)
    failing = begun.map(lambda item: 1 / 0, on_error="skip").end_caching()
    with DataLoader2(failing, InvalidateCache()) as loader:
        assert list(loader) == []
    assert list(expanding(recorder, [2])) == recorder.paths("2-0", "2-1")
    assert recorder.made == [2]


# Graphs ---------------------------------------------------------------------------------


def test_an_end_needs_a_beginning(recorder):
    with pytest.raises(RuntimeError, match="there is none above map"):
        IterableWrapper([1]).map(recorder.pair).end_caching()
    with pytest.raises(RuntimeError, match="there is none above end_caching"):
        cache_of(recorder, [1]).end_caching()


def test_a_beginning_is_not_iterated_by_itself(recorder):
    begun = IterableWrapper([1]).on_disk_cache(recorder.path)
    with pytest.raises(RuntimeError, match="call end_caching"):
        list(begun.map(recorder.pair))


async def test_a_beginning_is_not_iterated_by_itself_in_async_for(recorder):
    begun = IterableWrapper([1]).on_disk_cache(recorder.path)
    with pytest.raises(RuntimeError, match="call end_caching"):
        [item async for item in begun]


def test_sharding_belongs_before_the_cache(recorder):
    begun = IterableWrapper([1]).on_disk_cache(recorder.path)
    with pytest.raises(RuntimeError, match="put it before on_disk_cache"):
        begun.sharding_filter().map(recorder.pair).end_caching()


def test_one_cache_after_another(recorder):
    first = cache_of(recorder, [1, 2])

    def upper(path: str) -> tuple[str, bytes]:
        recorder.made.append(path)
        return path + ".upper", Path(path).read_bytes().upper()

    second = first.on_disk_cache(lambda path: path + ".upper").map(upper).end_caching()
    expected = [path + ".upper" for path in recorder.paths(1, 2)]
    assert list(second) == list(second) == expected
    assert recorder.made == [1, recorder.path(1), 2, recorder.path(2)]
    assert Path(expected[0]).read_bytes() == b"DATA OF 1"


def test_a_cache_within_a_cache(recorder):
    outer = IterableWrapper([1, 2]).on_disk_cache(lambda n: recorder.path(f"outer{n}"))
    inner = outer.on_disk_cache(recorder.path).map(recorder.pair).end_caching()
    cached = inner.map(lambda path: (f"outer{Path(path).stem}", Path(path).read_bytes()))
    cached = cached.end_caching(filepath_fn=recorder.path)
    assert list(cached) == list(cached) == recorder.paths("outer1", "outer2")
    os.unlink(recorder.path("outer1"))
    assert list(cached) == recorder.paths("outer1", "outer2")
    assert recorder.made == [1, 2]


def test_pipes_between_run_afresh_for_every_item(recorder):
    begun = IterableWrapper(range(3)).on_disk_cache(recorder.path)
    pairs = begun.enumerate().map(lambda pair: (pair[1], str(pair[0])))
    cached = pairs.end_caching("wt", same_filepath_fn=True)
    assert [Path(path).read_text() for path in cached] == ["0", "0", "0"]


def test_branches_between(recorder):
    left, right = IterableWrapper(range(3)).on_disk_cache(recorder.path).fork(2)
    cached = left.zip(right.map(str)).end_caching("wt", same_filepath_fn=True, concurrency=4)
    assert [Path(path).read_text() for path in cached] == ["0", "1", "2"]


def test_branches_far_above_an_end(recorder):
    left, right = IterableWrapper(["a"]).map(str).map(str).fork(2)
    begun = IterableWrapper(range(3)).on_disk_cache(recorder.path)
    pairs = begun.zip(left.zip(right).map("".join)).end_caching(
        "wt", same_filepath_fn=True, concurrency=4
    )
    assert [Path(path).read_text() for path in pairs] == ["aa", "aa", "aa"]


def test_torchs_pipes_between(recorder):
    from torch.utils.data.datapipes.iter import Mapper as TorchMapper

    begun = TorchMapper(IterableWrapper(range(3)).on_disk_cache(recorder.path), recorder.pair)
    cached = IterDataPipe.end_caching(begun, concurrency=4)
    assert list(cached) == recorder.paths(0, 1, 2)


async def test_in_a_loader(recorder):
    async with DataLoader2(cache_of(recorder, range(5)).shuffle()) as loader:
        for _ in range(2):
            assert sorted([path async for path in loader]) == recorder.paths(*range(5))


# Waiting pipes between ------------------------------------------------------------------


class Meeting:
    """Lets tasks go on when so many of them are there."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.present = 0
        self.largest = 0
        self.full = asyncio.Event()

    async def join(self, item: Any) -> Any:
        self.present += 1
        self.largest = max(self.largest, self.present)
        if self.present == self.count:
            self.full.set()
        async with asyncio.timeout(30):
            await self.full.wait()
        self.present -= 1
        return item


def waiting_cache(recorder: Recorder, items: Any, meeting: Meeting, **settings: Any) -> Any:
    begun = IterableWrapper(items).on_disk_cache(recorder.path)
    return begun.async_map(meeting.join).map(recorder.pair).end_caching(**settings)


def test_entries_are_made_at_the_same_time_where_making_means_waiting(recorder):
    meeting = Meeting(3)
    with leaves_nothing():
        assert list(waiting_cache(recorder, range(9), meeting, concurrency=3)) == recorder.paths(
            *range(9)
        )
    assert meeting.largest == 3
    assert sorted(recorder.made) == list(range(9))


@pytest.mark.parametrize("is_there", [True, False])
def test_an_entry_does_not_wait_for_the_next_item_to_come(is_there, recorder):
    handed_out = threading.Event()

    class Waits(IterDataPipe[int]):
        def __iter__(self) -> Iterator[int]:
            yield 0
            assert handed_out.wait(10)
            yield 1

    if is_there:
        list(cache_of(recorder, [0, 1]))
    with leaves_nothing():
        cached = Waits().on_disk_cache(recorder.path).map(recorder.pair).end_caching(concurrency=4)
        items = iter(cached)
        assert next(items) == recorder.path(0)
        handed_out.set()
        assert list(items) == recorder.paths(1)


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_many_at_a_time_by_default_in_a_loader(form, recorder):
    meeting = Meeting(8)
    loader = DataLoader2(waiting_cache(recorder, range(30), meeting))
    with leaves_nothing():
        if form == "async":
            async with loader:
                found = [path async for path in loader]
        else:
            found = await asyncio.to_thread(_all_of, loader)
            await asyncio.get_running_loop().shutdown_default_executor()
    assert found == recorder.paths(*range(30))
    assert 8 <= meeting.largest <= 16


def _all_of(loader: DataLoader2[str]) -> list[str]:
    with loader:
        return list(loader)


def test_an_item_that_comes_twice_is_made_once(recorder):
    meeting = Meeting(1)
    items = [1, 1, 2, 1, 2, 2] * 4
    assert list(waiting_cache(recorder, items, meeting)) == recorder.paths(*items)
    assert sorted(recorder.made) == [1, 2]


@pytest.mark.parametrize("concurrency", [1, 4])
def test_a_break_leaves_nothing_half_made(concurrency, recorder):
    meeting = Meeting(1)
    with leaves_nothing():
        items = iter(waiting_cache(recorder, range(50), meeting, concurrency=concurrency))
        assert next(items) == recorder.path(0)
        items.close()
    assert not [name for name in names_in(recorder.folder) if not name.endswith(".txt")]
    assert len(recorder.made) <= 1 + 2 * concurrency


class Client:
    """A resource that notes what becomes of it."""

    def __init__(self, log: list[str], *, breaks: str = "") -> None:
        self.log = log
        self.breaks = breaks

    async def __aenter__(self) -> Client:
        self._note("opened")
        # A scope that is left in another task than it was entered in is an error.
        self.scope = asyncio.timeout(60)
        await self.scope.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self.scope.__aexit__(None, None, None)
        self._note("closed")

    def _note(self, what: str) -> None:
        self.log.append(what)
        if self.breaks == what:
            self.breaks = ""
            raise ConnectionError(what)


async def ask(item: Any, client: Client) -> Any:
    await asyncio.sleep(0)
    assert client.log[-1] == "opened"
    return item


def asking_cache(recorder: Recorder, items: Any, client: Any, **settings: Any) -> Any:
    begun = IterableWrapper(items).on_disk_cache(recorder.path)
    return begun.async_map(ask, resource=client).map(recorder.pair).end_caching(**settings)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_what_the_calls_share_is_opened_once_for_all_entries(concurrency, recorder):
    log: list[str] = []
    cached = asking_cache(recorder, range(9), lambda: Client(log), concurrency=concurrency)
    with leaves_nothing():
        assert list(cached) == recorder.paths(*range(9))
        assert log == ["opened", "closed"]
        assert list(cached) == recorder.paths(*range(9))
        assert log == ["opened", "closed"], "and where nothing is made, not at all"
        os.unlink(recorder.path(3))
        items = iter(cached)
        assert [next(items) for _ in range(5)] == recorder.paths(*range(5))
        items.close()
        assert log == ["opened", "closed"] * 2


async def test_what_is_shared_is_closed_when_a_loader_is_left(recorder):
    log: list[str] = []
    with leaves_nothing():
        async with DataLoader2(asking_cache(recorder, range(99), lambda: Client(log))) as loader:
            assert await anext(aiter(loader)) == recorder.path(0)
        del loader
    assert log == ["opened", "closed"]


def test_what_does_not_open_is_opened_for_the_next_entry_and_what_does_not_close_is_an_error(
    recorder,
):
    client = Client([], breaks="opened")
    # One entry alone, as the others would be tried ahead of a reader that is slow.
    with leaves_nothing(), pytest.raises(ConnectionError, match="opened") as caught:
        list(asking_cache(recorder, range(1), lambda: client, concurrency=1))
    assert any("async_map(ask" in note for note in caught.value.__notes__), caught.value.__notes__
    client.breaks = "closed"
    cached = asking_cache(recorder, range(3), lambda: client, concurrency=1)
    found = []
    with leaves_nothing(), pytest.raises(ConnectionError, match="closed"):
        found.extend(cached)
    assert found == recorder.paths(0, 1, 2)
    assert client.log == ["opened", "opened", "closed"]


async def test_leaving_a_loader_ends_what_is_being_made(recorder):
    begun = IterableWrapper(range(9)).on_disk_cache(recorder.path)
    reached = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang(item: int) -> int:
        if item:
            loop.call_soon_threadsafe(reached.set)
            await asyncio.Event().wait()
        return item

    cached = begun.async_map(hang).map(recorder.pair).end_caching()
    with leaves_nothing():
        async with DataLoader2(cached) as loader:
            # An iterator that is dropped would end its epoch, maybe before the next is begun.
            items = aiter(loader)
            assert await anext(items) == recorder.path(0)
            await reached.wait()
        del loader, items
    assert names_in(recorder.folder) == ["0.txt"]


# Locks ----------------------------------------------------------------------------------


def test_whoever_waits_too_long_is_told_for_whom(recorder):
    told = rf"1.txt was not made within 0.05 s by process {os.getpid()};"
    with FileLock.acquire(recorder.path(1), 0), pytest.raises(TimeoutError, match=told):
        list(cache_of(recorder, [1], timeout=0.05))
    assert list(cache_of(recorder, [1], timeout=0)) == recorder.paths(1)
    assert names_in(recorder.folder) == ["1.txt"]


def test_whoever_waits_takes_what_was_made(recorder):
    lock = FileLock.acquire(recorder.path(1), 0)
    found: list[str] = []
    cached = cache_of(recorder, [1], timeout=float("inf"))
    waiting = threading.Thread(target=lambda: found.extend(cached))
    waiting.start()
    Path(recorder.path(1)).write_bytes(b"made elsewhere")
    lock.close()
    waiting.join(10)
    assert found == recorder.paths(1)
    assert recorder.made == []
    assert names_in(recorder.folder) == ["1.txt"]


def test_whoever_waits_removes_what_is_left_by_one_who_died_when_it_was_made(recorder):
    left = recorder.folder / f"{partial_prefix(recorder.path(1))}0.partial"
    told, telling = os.pipe()
    waits, waiting = os.pipe()
    pid = os.fork()
    if not pid:
        FileLock.acquire(recorder.path(1), 0)
        left.touch()
        os.write(telling, b"!")
        os.read(waits, 1)
        Path(recorder.path(1)).write_bytes(b"made elsewhere")
        os._exit(9)
    os.read(told, 1)
    found: list[str] = []
    reader = threading.Thread(target=lambda: found.extend(cache_of(recorder, [1])))
    reader.start()
    while not any("waits for" in thread.name for thread in threading.enumerate()):
        assert reader.is_alive()
    os.write(waiting, b"!")
    os.waitpid(pid, 0)
    reader.join(10)
    assert found == recorder.paths(1)
    assert recorder.made == []
    assert names_in(recorder.folder) == ["1.txt"]


def test_whoever_comes_too_late_for_a_lock_of_its_own_sees_who_died_with_it(recorder, monkeypatch):
    open_lock = own_files._open_lock

    def opened(path: str) -> tuple[int, bool]:
        result = open_lock(path)
        monkeypatch.undo()
        pid = os.fork()
        if not pid:
            FileLock.acquire(recorder.path(1), 0)
            os._exit(9)
        os.waitpid(pid, 0)
        return result

    monkeypatch.setattr(own_files, "_open_lock", opened)
    with FileLock.acquire(recorder.path(1), 0) as lock:
        assert lock.after_death
    with FileLock.acquire(recorder.path(1), 0) as lock:
        assert not lock.after_death


async def test_leaving_a_loader_ends_a_wait_for_a_promise(recorder):
    lock = FileLock.acquire(recorder.path(1), 0)
    with leaves_nothing():
        async with DataLoader2(cache_of(recorder, [0, 1])) as loader:
            items = aiter(loader)
            assert await anext(items) == recorder.path(0)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await anext(items)
        del items, loader
        lock.close()
        for thread in threading.enumerate():
            if "waits for" in thread.name:
                thread.join(10)
    assert names_in(recorder.folder) == ["0.txt"]


def test_whoever_gives_up_leaves_the_traces_of_a_dead_maker_to_the_next(recorder):
    """So the next one knows that files of a maker that died may be there, and removes them."""
    told, telling = os.pipe()
    ending, end = os.pipe()
    pid = os.fork()
    if not pid:
        FileLock.acquire(recorder.path(1), 0)
        os.write(telling, b"!")
        os.read(ending, 1)
        os._exit(9)
    os.read(told, 1)
    with pytest.raises(TimeoutError):
        FileLock.acquire(recorder.path(1), 0.05)
    os.write(end, b"!")
    os.waitpid(pid, 0)
    for thread in threading.enumerate():
        if "waits for" in thread.name:
            thread.join(10)
    with pytest.raises(InterruptedError), FileLock.acquire(recorder.path(1), 10):
        raise InterruptedError
    with FileLock.acquire(recorder.path(1), 10) as lock:
        assert lock.after_death
    for fd in (told, telling, ending, end):
        os.close(fd)


def test_threads_that_race_make_each_entry_once(recorder):
    found: list[list[str]] = []
    threads = [
        threading.Thread(target=lambda: found.append(list(cache_of(recorder, range(40)))))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [recorder.paths(*range(40))] * 6
    assert sorted(recorder.made) == list(range(40))
    assert len(names_in(recorder.folder)) == 40


def without_threads_called(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the system refuse to start some threads."""
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)


def test_without_a_thread_to_wait_for_a_promise_nothing_is_left_behind(recorder, monkeypatch):
    without_threads_called("asyncloader waits for", monkeypatch)
    refused = pytest.raises(ResourceExhausted, match="can't start new thread")
    with FileLock.acquire(recorder.path(1), 0), leaves_nothing(), refused:
        FileLock.acquire(recorder.path(1), 60)


def test_without_a_thread_to_make_an_entry_the_loader_says_so(recorder, monkeypatch):
    without_threads_called("asyncloader maker", monkeypatch)
    refused = pytest.raises(ResourceExhausted, match="can't start new thread")
    with DataLoader2(cache_of(recorder, range(3), concurrency=2)) as loader, refused:
        list(loader)


def test_a_promise_that_was_left_behind_is_taken_over(recorder):
    with FileLock.acquire(recorder.path(1), 0):
        [own] = recorder.folder.glob(".*")
    own.write_text("999999")
    assert list(cache_of(recorder, [1], timeout=0)) == recorder.paths(1)
    assert names_in(recorder.folder) == ["1.txt"]


# Snapshots ------------------------------------------------------------------------------


def name_of(path: str) -> str:
    return os.path.basename(path)


def is_no_5(number: int) -> bool:
    return number != 5


def over_a_shuffled_filter(recorder: Recorder, **settings: Any) -> Any:
    source = IterableWrapper(range(12)).shuffle(buffer_size=3).filter(is_no_5)
    begun = source.on_disk_cache(recorder.path)
    pairs = begun.flatmap(functools.partial(some_parts, recorder))
    return pairs.end_caching(**settings).map(name_of)


def some_parts(recorder: Recorder, item: int) -> list[tuple[str, bytes]]:
    return parts_of(recorder, item)[: item % 4]


@pytest.mark.sweep
@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("is_there", [False, True])
def test_a_pass_goes_on_from_every_step(concurrency, is_there, tmp_path):
    def graph(step: int) -> Any:
        folder = tmp_path / ("cache" if is_there else f"cache{step}")
        return over_a_shuffled_filter(Recorder(folder), concurrency=concurrency)

    with DataLoader2(graph(-1)) as loader:
        loader.seed(3)
        expected = [list(loader), list(loader)]
        loader.seed(3)
        states = [loader.state_dict(include_datapipe=False)]
        states += [loader.state_dict(include_datapipe=False) for _ in loader]
    assert len(states) == len(expected[0]) + 1 > 12
    for step, state in enumerate(states):
        with DataLoader2(graph(step)) as loader:
            loader.load_state_dict(state)
            assert [list(loader), list(loader)] == [expected[0][step:], expected[1]]


def test_going_on_makes_nothing_of_long_before_again(recorder, monkeypatch):
    # Places are noted as often as a small part of the time allows, and here at each item.
    monkeypatch.setattr(cursor_history, "_SHARE", 0)
    expected = []
    with DataLoader2(cache_of(recorder, range(1000)).map(name_of)) as loader:
        for name in loader:
            expected.append(name)
            if len(expected) == 990:
                state = loader.state_dict(include_datapipe=False)
                break
    other = Recorder(recorder.folder.with_name("other"))
    with DataLoader2(cache_of(other, range(1000)).map(name_of)) as loader:
        loader.load_state_dict(state)
        assert list(loader) == [f"{n}.txt" for n in range(990, 1000)]
    assert other.made == list(range(1000))[-len(other.made) :]
    assert len(other.made) <= 10 + 64, "a group is what may be under way"


# Adapters -------------------------------------------------------------------------------


def test_cache_timeout_sets_every_end(recorder):
    inner = cache_of(recorder, [1])
    outer = inner.on_disk_cache(lambda path: path + "2").map(lambda p: (p, b"")).end_caching()
    CacheTimeout(2.5)(outer)
    assert (inner.timeout, outer.timeout) == (2.5, 2.5)


async def test_cache_timeout_is_how_long_a_loader_waits(recorder):
    with FileLock.acquire(recorder.path(1), 0):
        async with DataLoader2(cache_of(recorder, [1]), CacheTimeout(0.05)) as loader:
            with pytest.raises(TimeoutError, match=r"within 0.05 s"):
                await anext(aiter(loader))


@pytest.mark.parametrize("make", [cache_of, expanding])
def test_invalidated_entries_are_made_again_once(make, recorder):
    expected = list(make(recorder, [1, 2]))
    recorder.made.clear()
    with DataLoader2(make(recorder, [1, 2]), InvalidateCache()) as loader:
        for _ in range(3):
            assert list(loader) == expected
    assert recorder.made == [1, 2]
    assert list(make(recorder, [1, 2])) == expected
    assert recorder.made == [1, 2]
