"""A cache on disk whose items are called by a stranger, or whose folder others may write to."""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from asyncloader.datapipes.iter import IterableWrapper
from tests.processes.scripts import run_script, running_script

SECRET = b"the secret"


def data_of(name: str) -> bytes:
    return f"data of {name}".encode()


def cache(folder: Path, names: list[str], made: list[str] | None = None, **settings: Any) -> Any:
    def make(name: str) -> tuple[str, bytes]:
        if made is not None:
            made.append(name)
        return name, data_of(name)

    begun = IterableWrapper(names).on_disk_cache(lambda name: f"{folder}/{name}")
    return begun.map(make).end_caching(same_filepath_fn=True, **settings)


def contents(cached: Any) -> list[bytes]:
    return [Path(path).read_bytes() for path in cached]


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users of the machine can reach, which pytest's are not."""
    with TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


def own_names(folder: Path, name: str = "a") -> list[str]:
    """Return the names of the files that the cache has for itself while an entry is made."""
    seen: list[str] = []

    def pieces() -> Iterator[bytes]:
        yield b"half"
        seen.extend(os.listdir(folder))

    begun = IterableWrapper([name]).on_disk_cache(lambda name: f"{folder}/{name}")
    [path] = begun.map(lambda name: (name, pieces())).end_caching(same_filepath_fn=True)
    os.unlink(path)
    return seen


# Names ----------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".promise", ".files", ".lock", ".list", ".partial", ".tmp"])
@pytest.mark.parametrize("turn", [1, -1])
def test_n26_entries_may_be_called_like_others_with_any_ending(ending, turn, tmp_path):
    names, made = ["a", f"a{ending}", f"a{ending}{ending}"][::turn], []
    for _ in range(2):
        assert contents(cache(tmp_path, names, made)) == [*map(data_of, names)]
    assert made == names
    assert sorted(os.listdir(tmp_path)) == sorted(names)


@pytest.mark.parametrize("ending", [".files", ".list"])
def test_n26_what_an_entry_holds_is_not_taken_for_the_list_of_another(ending, tmp_path):
    (tmp_path / "secret").write_bytes(SECRET)
    listing = json.dumps([str(tmp_path / "secret")]).encode()
    folder, made = tmp_path / "cache", []

    def make(name: str) -> tuple[str, bytes]:
        made.append(name)
        return name, listing if name != "b" else data_of(name)

    begun = IterableWrapper([f"b{ending}", "b"]).on_disk_cache(lambda name: f"{folder}/{name}")
    cached = begun.map(make).end_caching(same_filepath_fn=True)
    for _ in range(3):
        assert contents(cached) == [listing, data_of("b")]
    assert made == [f"b{ending}", "b"]


OWN = [".asyncloader-x", ".asyncloader-", ".ASYNCLOADER-x", "deep/.Asyncloader-0.list"]
NO_NAMES = ["", ".", "..", "deep/.."]


@pytest.mark.parametrize("name", OWN + NO_NAMES)
def test_n26_names_of_the_caches_own_files_are_refused(name, tmp_path):
    folder = tmp_path / "cache"
    message = "the cache's own" if name in OWN else "must have a name"
    with pytest.raises(ValueError, match=message):
        list(cache(folder, [name]))
    begun = IterableWrapper(["a"]).on_disk_cache(lambda name: f"{folder}/{name}")
    with pytest.raises(ValueError, match=message):
        list(begun.map(lambda path: (f"{folder}/{name}", b"x")).end_caching())
    assert not folder.exists() or os.listdir(folder) == []


@pytest.mark.parametrize("name", ["x" * 255, "é" * 127, "a\nb", "a\\b", "-rf", " ", "..."])
def test_n26_names_that_the_file_system_allows_are_names_of_entries(name, tmp_path):
    made: list[str] = []
    for _ in range(2):
        assert contents(cache(tmp_path, [name], made)) == [data_of(name)]
    assert made == [name]
    assert os.listdir(tmp_path) == [name]


# Lists ----------------------------------------------------------------------------------


def two_files(folder: Path, place: Path | None = None) -> Any:
    def parts(name: str) -> list[tuple[str, bytes]]:
        return [(f"{place or folder}/{name}{n}", data_of(name)) for n in range(2)]

    begun = IterableWrapper(["a"]).on_disk_cache(lambda name: f"{folder}/{name}")
    return begun.flatmap(parts).end_caching()


FORGED = {
    "absolute": lambda secret: [str(secret)],
    "relative": lambda secret: [os.path.relpath(secret)],
    "upwards": lambda secret: [f"{secret.parent}/cache/../secret"],
    "no character": lambda secret: ["a\0b"],
    "numbers": lambda secret: [1],
    "no list": lambda secret: {"files": [str(secret)]},
}


@pytest.mark.parametrize("kind", [*FORGED, "deep", "binary", "empty"])
def test_n26_a_list_is_believed_only_for_files_in_the_entrys_folder(kind, tmp_path):
    secret = tmp_path / "secret"
    secret.write_bytes(SECRET)
    folder = tmp_path / "cache"
    expected = list(two_files(folder))
    [own] = folder.glob(".*")
    text = {"deep": b"[" * 100_000, "binary": b"\0\xff", "empty": b""}
    own.write_bytes(text[kind] if kind in text else json.dumps(FORGED[kind](secret)).encode())
    assert list(two_files(folder)) == expected


def test_n26_a_file_outside_the_entrys_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"entry .*/cache/a has .*/other/a0, which is outside"):
        list(two_files(tmp_path / "cache", tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    assert list(two_files(tmp_path / "cache", tmp_path / "cache" / "deep"))


def test_n26_a_cache_of_0_1_0_is_used_or_made_again_and_never_misread(tmp_path):
    made: list[str] = []

    def parts(name: str) -> list[tuple[str, bytes]]:
        made.append(name)
        ends = ["", ".more"] if name == "several" else [""]
        return [(f"{tmp_path}/{name}{end}", data_of(name)) for end in ends]

    names = ["one", "several"]
    begun = IterableWrapper(names).on_disk_cache(lambda name: f"{tmp_path}/{name}")
    cached = begun.flatmap(parts).end_caching()
    # What 0.1.0 left: the first of several files is called as the entry is.
    files = [f"{tmp_path}/several", f"{tmp_path}/several.more"]
    for file in (f"{tmp_path}/one", *files):
        Path(file).write_bytes(b"of before")
    (tmp_path / "several.files").write_text(json.dumps(files))
    for _ in range(2):
        assert list(cached) == [f"{tmp_path}/one", *files]
    assert made == ["several"]


def test_n26_a_part_that_was_left_out_is_made_again_though_the_first_is_there(tmp_path):
    failing = {1}

    def part(number: int) -> tuple[str, bytes]:
        if number in failing:
            raise ConnectionError("reset")
        return f"{tmp_path}/a{number or ''}", b"x"

    begun = IterableWrapper(["a"]).on_disk_cache(lambda name: f"{tmp_path}/{name}")
    cached = begun.flatmap(lambda name: range(3)).map(part, on_error="skip").end_caching()
    assert list(cached) == [f"{tmp_path}/a", f"{tmp_path}/a2"]
    failing.clear()
    for _ in range(2):
        assert list(cached) == [f"{tmp_path}/a", f"{tmp_path}/a1", f"{tmp_path}/a2"]


# Links, and others who write to the folder ----------------------------------------------


PUT: dict[str, Callable[[Path, Path], None]] = {
    "link": lambda at, victim: at.symlink_to(victim),
    "link to nothing": lambda at, victim: at.symlink_to(victim.with_name("nothing")),
    "hard link": lambda at, victim: os.link(victim, at),
    "fifo": lambda at, victim: os.mkfifo(at),
    "folder": lambda at, victim: at.mkdir(),
}


@pytest.mark.parametrize("kind", PUT)
def test_n27_nothing_is_written_through_a_link_at_the_name_of_an_own_file(kind, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_bytes(SECRET)
    folder.mkdir()
    foretold = set(own_names(folder)) & set(own_names(folder))
    assert len(foretold) == 1, "the lock; others have another name each time"
    list(two_files(folder))
    foretold |= {path.name for path in folder.glob(".*")}
    assert len(foretold) == 2, "and the list"
    for name in foretold:
        for path in folder.iterdir():
            path.unlink()
        PUT[kind](folder / name, victim)
        for make in (lambda: cache(folder, ["a"], timeout=1), lambda: two_files(folder)):
            refused = []
            try:
                assert SECRET not in contents(make())
            except OSError as error:
                refused.append(error.filename)
            assert refused in ([], [f"{folder}/{name}"])
        if (folder / name).is_dir():
            (folder / name).rmdir()
        assert victim.read_bytes() == SECRET
        assert not victim.with_name("nothing").exists()


@pytest.mark.parametrize("is_there", [True, False])
def test_n27_an_entry_is_written_in_the_place_of_a_link_never_through_it(is_there, tmp_path):
    victim, folder = tmp_path / "victim", tmp_path / "cache"
    victim.write_bytes(SECRET)
    folder.mkdir()
    (folder / "a").symlink_to(victim if is_there else tmp_path / "nothing")
    cached = cache(folder, ["a"])
    cached.invalidate()
    assert contents(cached) == [data_of("a")]
    assert victim.read_bytes() == SECRET
    assert sorted(os.listdir(tmp_path)) == ["cache", "victim"]


def test_n27_two_makers_of_an_entry_whose_lock_was_deleted_both_write_it_whole(tmp_path):
    both, unlocked = threading.Barrier(2), threading.Event()

    def pieces(half: bytes) -> Iterator[bytes]:
        yield half
        for path in tmp_path.glob(".*.lock"):
            path.unlink()
        unlocked.set()
        both.wait(30)
        yield half

    def make(half: bytes) -> None:
        begun = IterableWrapper([half]).on_disk_cache(lambda _: f"{tmp_path}/a")
        pairs = begun.map(lambda half: (f"{tmp_path}/a", pieces(half)))
        found.extend(contents(pairs.end_caching(timeout=30)))

    found: list[bytes] = []
    makers = [threading.Thread(target=make, args=[half * 9]) for half in (b"x", b"y")]
    for maker in makers:
        maker.start()
        assert unlocked.wait(30)
    for maker in makers:
        maker.join(30)
    assert len(found) == 2
    assert {*found, (tmp_path / "a").read_bytes()} <= {b"x" * 18, b"y" * 18}
    assert os.listdir(tmp_path) == ["a"]


AS_TWO_USERS = """
import os, sys
from pathlib import Path
from asyncloader.datapipes.iter import IterableWrapper

folder = Path(sys.argv[1])

def cached(names):
    begun = IterableWrapper(names).on_disk_cache(lambda name: f"{folder}/{name}")
    return begun.map(lambda name: (name, b"data")).end_caching(same_filepath_fn=True, timeout=1)

def while_it_is_made():
    yield b"half"
    for path in folder.glob(".*.lock"):
        names.append(path)

names = []
begun = IterableWrapper(["a"]).on_disk_cache(lambda name: f"{folder}/{name}")
list(begun.map(lambda name: (name, while_it_is_made())).end_caching(same_filepath_fn=True))
[lock] = names
(folder / "a").unlink()
os.chmod(folder, int(sys.argv[2], 8))
lock.write_text("left by somebody else")
lock.chmod(int(sys.argv[3], 8))
os.setgid(65534)
os.setuid(65534)
try:
    print([Path(path).read_bytes() for path in cached(["a"])])
except PermissionError as error:
    print(error.strerror)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("folder_mode", "file_mode", "found"),
    [
        ("777", "644", "[b'data']"),
        ("777", "666", "[b'data']"),
        ("1777", "666", "another user's cache has this file; use a folder of your own"),
    ],
)
def test_n27_users_share_a_cache_where_they_do_not_keep_files_from_one_another(
    folder_mode, file_mode, found, open_folder, tmp_path
):
    folder = open_folder / "cache"
    folder.mkdir()
    run = run_script(tmp_path, AS_TWO_USERS, str(folder), folder_mode, file_mode)
    assert (run.stdout, run.stderr) == (f"{found}\n", "")


# Ends -----------------------------------------------------------------------------------


FORKS = """
import os, sys, time
from asyncloader.datapipes.iter import IterableWrapper

def make(name):
    if not os.fork():
        time.sleep(600)
    print("forked", flush=True)
    time.sleep(600)

list(IterableWrapper([sys.argv[1]]).on_disk_cache().map(make).end_caching())
"""


def test_n27_a_lock_dies_with_its_holder_and_not_with_what_that_forked(tmp_path):
    with running_script(tmp_path, FORKS, f"{tmp_path}/cache/a") as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "forked\n"
        holder.kill()
        assert contents(cache(tmp_path / "cache", ["a"], timeout=10)) == [data_of("a")]


WRITES = """
import sys
from pathlib import Path
from asyncloader.datapipes.iter import IterableWrapper

folder, names = sys.argv[1], [f"n{n}" for n in range(30)]
begun = IterableWrapper(names).on_disk_cache(lambda name: f"{folder}/{name}")
def parts(name):
    if name in ("n3", "n7"):
        return [(f"{name}/{part}", iter([b"data of ", name.encode()])) for part in range(3)]
    return [(name, iter([b"data of ", name.encode()]))]
cached = begun.flatmap(parts).end_caching(same_filepath_fn=True, timeout=30)
print("begins", flush=True)
for path in cached:
    name = Path(path).relative_to(folder).parts[0]
    assert Path(path).read_bytes() == b"data of " + name.encode(), path
print("done")
"""


@pytest.mark.soak
def test_n27_whenever_its_makers_are_killed_a_cache_is_whole_or_made_again(tmp_path):
    chance = random.Random(7)
    folder = tmp_path / "cache"
    for _ in range(8):
        with running_script(tmp_path, WRITES, str(folder)) as first:
            assert first.stdout.readline() == "begins\n"
            with running_script(tmp_path, WRITES, str(folder)) as second:
                assert second.stdout.readline() == "begins\n"
                threading.Event().wait(chance.random() * 0.1)
                first.kill()
                threading.Event().wait(chance.random() * 0.1)
                second.kill()
        for path in folder.rglob("n*"):
            if path.is_file():
                assert path.read_bytes() == data_of(path.relative_to(folder).parts[0])
                if chance.random() < 0.5:
                    path.unlink()
    run = run_script(tmp_path, WRITES, str(folder))
    assert (run.stdout, run.stderr) == ("begins\ndone\n", "")
    lists = [path for path in folder.rglob(".*") if path.suffix == ".list"]
    assert len(lists) == 2
    assert [path for path in folder.rglob(".*") if path.suffix != ".list"] == []


FULL = """
import os, resource, signal, sys
from asyncloader.datapipes.iter import IterableWrapper

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
folder, sizes = sys.argv[1], [60_000, 160_000, 70_000]

def cached(sizes):
    begun = IterableWrapper(sizes).on_disk_cache(lambda size: f"{folder}/{size}")
    pairs = begun.map(lambda size: (size, (b"x" * 10_000 for _ in range(size // 10_000))))
    return pairs.end_caching(same_filepath_fn=True)

found = []
try:
    found.extend(cached(sizes))
except OSError as error:
    print(error.strerror, len(found), sorted(os.listdir(folder)))
print([os.path.getsize(path) for path in cached([60_000, 70_000])])
"""


def test_n27_a_file_that_does_not_fit_leaves_nothing_and_others_are_made(tmp_path):
    run = run_script(tmp_path, FULL, str(tmp_path / "cache"))
    assert run.stdout == "File too large 1 ['60000']\n[60000, 70000]\n"
    assert run.stderr == ""


READS = """
import os, sys
from asyncloader.datapipes.iter import IterableWrapper

if os.geteuid() == 0:
    os.setuid(65534)
folder = sys.argv[1]
assert not os.access(folder, os.W_OK)
begun = IterableWrapper(["a"]).on_disk_cache(lambda name: f"{folder}/{name}")
print(*map(os.path.basename, begun.flatmap(lambda name: 1 / 0).end_caching()))
"""


def test_n27_a_whole_cache_is_read_where_nothing_can_be_written(open_folder, tmp_path):
    folder = open_folder / "cache"
    list(two_files(folder))
    folder.chmod(0o555)
    run = run_script(tmp_path, READS, str(folder))
    folder.chmod(0o755)
    assert (run.stdout, run.stderr) == ("a0 a1\n", "")
