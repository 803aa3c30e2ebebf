"""Files where fsspec finds them, on file systems of either colour."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import (
    FSSpecFileLister,
    FSSpecFileOpener,
    FSSpecSaver,
    IterableWrapper,
)
from asyncloader.runtime import LoopThread
from tests.leaks import leaves_nothing


@pytest.fixture(scope="module", autouse=True)
def _no_thread_of_fsspec_is_left() -> Iterator[None]:
    """End the thread that fsspec keeps for its own loop: it would forbid to fork."""
    yield
    loop, thread = fsspec.asyn.loop, fsspec.asyn.iothread
    if loop[0] is not None:
        loop[0].call_soon_threadsafe(loop[0].stop)
        thread[0].join(10)
        loop[0].close()
        loop[0] = thread[0] = None


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Any]:
    """A memory file system with two files in a folder, and one in a folder below."""
    system = fsspec.filesystem("memory")
    system.pipe({"/d/b.txt": b"bb", "/d/a.txt": b"a", "/d/deep/c.txt": b"c"})
    yield system
    system.store.clear()
    system.pseudo_dirs[:] = [""]


class Soon(AsyncFileSystem):
    """The memory's files, in coroutines that note on which loop they ran."""

    protocol = "soon"
    cachable = False
    loops: list[Any] = []  # noqa: RUF012 - one for all, so that a test can look at it
    sessions = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._memory = MemoryFileSystem()

    async def set_session(self) -> Soon:
        Soon.sessions += 1
        return self

    async def close(self) -> None:
        await asyncio.sleep(0)
        Soon.sessions -= 1

    async def _note(self) -> None:
        await asyncio.sleep(0)
        assert Soon.sessions == 1
        Soon.loops.append(asyncio.get_running_loop())

    async def _isfile(self, path: str) -> bool:
        await self._note()
        return bool(self._memory.isfile(path))

    async def _ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        await self._note()
        return self._memory.ls(path, detail=detail)

    async def _pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        await self._note()
        self._memory.pipe_file(path, value)


@pytest.fixture
def soon(memory: Any) -> Iterator[type[Soon]]:
    """The same files on a file system of coroutines."""
    fsspec.register_implementation("soon", Soon, clobber=True)
    Soon.loops.clear()
    yield Soon
    assert Soon.sessions == 0


# Listing --------------------------------------------------------------------------------


def test_files_are_listed_in_order_with_the_roots_beginning(memory: Any) -> None:
    expected = ["memory://d/a.txt", "memory://d/b.txt"]
    assert list(FSSpecFileLister("memory://d")) == expected
    assert list(FSSpecFileLister("memory://d/")) == expected
    assert list(FSSpecFileLister("memory:///d")) == ["memory:///d/a.txt", "memory:///d/b.txt"]


def test_local_paths_stay_as_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").touch()
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "b").touch()
    assert list(FSSpecFileLister(str(tmp_path))) == [f"{tmp_path}/a"]
    assert list(FSSpecFileLister(f"file://{tmp_path}")) == [f"file://{tmp_path}/a"]
    monkeypatch.chdir(tmp_path)
    assert list(FSSpecFileLister("d")) == ["d/b"]


def test_a_link_to_a_folder_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "link.txt").symlink_to(tmp_path / "a.txt")
    (tmp_path / "up").symlink_to(tmp_path)
    assert list(FSSpecFileLister(str(tmp_path))) == [f"{tmp_path}/a.txt", f"{tmp_path}/link.txt"]


def test_masks_choose_names(memory: Any) -> None:
    assert list(FSSpecFileLister("memory://d", "a*")) == ["memory://d/a.txt"]
    assert list(FSSpecFileLister("memory://d", ["*/b.*", "z"])) == ["memory://d/b.txt"]


def test_roots_may_be_files_and_come_from_pipes(memory: Any) -> None:
    roots = ["memory://d/b.txt", "memory://d/deep"]
    expected = ["memory://d/b.txt", "memory://d/deep/c.txt"]
    assert list(FSSpecFileLister(roots)) == expected
    assert list(IterableWrapper(roots).list_files_by_fsspec()) == expected


def test_a_root_that_is_not_there_is_an_error(memory: Any) -> None:
    with pytest.raises(FileNotFoundError):
        list(FSSpecFileLister("memory://nowhere"))
    with pytest.raises(ValueError, match="nosuch"):
        list(FSSpecFileLister("nosuch://d"))


def test_what_was_listed_before_is_passed_over(memory: Any) -> None:
    lister = FSSpecFileLister([])
    for skip in range(3):
        expected = ["memory://d/a.txt", "memory://d/b.txt"][skip:]
        assert list(lister.parts("memory://d", skip)) == expected


# Opening --------------------------------------------------------------------------------


def test_files_are_opened_and_come_with_their_paths(memory: Any) -> None:
    pipe = FSSpecFileLister("memory://d").open_files_by_fsspec("rb")
    assert [(p, f.read()) for p, f in pipe] == [
        ("memory://d/a.txt", b"a"),
        ("memory://d/b.txt", b"bb"),
    ]
    assert len(FSSpecFileOpener(["a", "b"])) == 2


def test_files_are_opened_as_the_file_system_is_told(tmp_path: Path) -> None:
    import gzip

    (tmp_path / "x.gz").write_bytes(gzip.compress(b"text"))
    paths = [f"file://{tmp_path}/x.gz"]
    ((_, file),) = FSSpecFileOpener(paths, kwargs_for_open={"compression": "gzip"})
    assert file.read() == "text"
    file.close()


def test_a_chain_of_file_systems_is_followed(memory: Any, tmp_path: Path) -> None:
    options = {"simplecache": {"cache_storage": str(tmp_path)}}
    pipe = FSSpecFileOpener(["simplecache::memory://d/a.txt"], "rb", **options)
    ((_, file),) = pipe
    with file:
        assert file.read() == b"a"


@pytest.mark.parametrize("mode", ["r", "rb"])
def test_a_file_is_closed_when_it_is_read_or_dropped(tmp_path: Path, mode: str) -> None:
    (tmp_path / "x").write_text("1\n2\n")
    pipe = FSSpecFileOpener([str(tmp_path / "x")] * 2, mode)
    with leaves_nothing():
        assert len(list(pipe.readlines())) == 4
        for _ in pipe.readlines():
            break
        for pair in pipe:
            assert len(pair) == 2
            break
        del pair
        held = [file for _, file in pipe]
        assert [len(file.read()) for file in held] == [4, 4]
        del held


# Saving ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("mode", "data"), [("w", "text"), ("wb", b"text"), ("a", "text")])
def test_data_is_saved_and_paths_yielded(memory: Any, mode: str, data: Any) -> None:
    url = "memory://new/x.txt"
    assert list(FSSpecSaver([("x", data)], mode, lambda name: f"memory://new/{name}.txt")) == [url]
    assert memory.cat("/new/x.txt") == b"text"
    assert len(FSSpecSaver([("x", data)])) == 1


def test_what_is_appended_comes_after_what_was_there(memory: Any, tmp_path: Path) -> None:
    for url in ("memory://x", f"file://{tmp_path}/x"):
        list(FSSpecSaver([(url, b"1"), (url, b"2")], "ab"))
        assert fsspec.open(url).open().read() == b"12"


def test_a_local_file_appears_whole(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("the old content")
    with open(tmp_path / "x") as reader:
        list(FSSpecSaver([(f"file://{tmp_path}/x", "new")]))
        assert reader.read() == "the old content"
    assert (tmp_path / "x").read_text() == "new"
    list(FSSpecSaver([(f"{tmp_path}/deep/er/y", "new")]))
    assert sorted(os.listdir(tmp_path)) == ["deep", "x"]
    assert os.listdir(tmp_path / "deep" / "er") == ["y"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    with pytest.raises(TypeError, match=r"x: mode='w' saves text.*, got bytes"):
        list(FSSpecSaver([(f"{tmp_path}/x", b"new")]))
    assert os.listdir(tmp_path) == ["x"]
    assert (tmp_path / "x").read_text() == "old"


def test_files_are_saved_as_the_file_system_is_told(tmp_path: Path) -> None:
    import gzip

    pairs = [(str(tmp_path / "x.gz"), "text")]
    list(FSSpecSaver(pairs, kwargs_for_open={"compression": "gzip"}))
    assert gzip.decompress((tmp_path / "x.gz").read_bytes()) == b"text"


# File systems of coroutines -------------------------------------------------------------


async def test_coroutines_run_on_the_loop_of_the_pass(soon: type[Soon], memory: Any) -> None:
    graph = FSSpecFileLister("soon://d").map(lambda url: (f"{url}.new", url)).save_by_fsspec()
    async with DataLoader2(graph) as loader:
        saved = [url async for url in loader]
    assert saved == ["soon://d/a.txt.new", "soon://d/b.txt.new"]
    assert memory.cat("/d/a.txt.new") == b"soon://d/a.txt"
    assert set(soon.loops) == {asyncio.get_running_loop()}


def test_coroutines_run_where_there_is_no_loop(soon: type[Soon]) -> None:
    # What a process opens for its first loop it keeps.
    thread = LoopThread()
    thread.start()
    thread.close()
    with leaves_nothing():
        assert list(FSSpecFileLister("soon://d")) == ["soon://d/a.txt", "soon://d/b.txt"]
        assert list(FSSpecFileLister("soon://d/a.txt")) == ["soon://d/a.txt"]
        for _ in FSSpecSaver([(f"soon://d/{number}", "text") for number in range(3)]):
            break


async def test_an_error_of_a_coroutine_ends_the_session(soon: type[Soon]) -> None:
    with pytest.raises(FileNotFoundError):
        async for _ in FSSpecFileLister("soon://nowhere"):
            pass
    assert soon.sessions == 0


# HTTP -----------------------------------------------------------------------------------


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder and says nothing about it."""

    def log_message(self, *arguments: Any) -> None:
        """Nobody reads it."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The URL of a folder with two files."""
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


async def test_a_folder_is_listed_and_read_over_http(served: str) -> None:
    graph = FSSpecFileLister(f"{served}/").open_files_by_fsspec("rb").read_from_stream()
    async with DataLoader2(graph) as loader:
        found = [item async for item in loader]
    assert found == [(f"{served}/a.txt", b"a"), (f"{served}/b.txt", b"b")]
