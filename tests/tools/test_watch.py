"""``python -m asyncloader watch``: programs that are run with their picture, and its text."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import io
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.loader.page import server
from asyncloader.tools.command import main
from asyncloader.tools.watch import draw
from tests.loader.page.viewing import SECONDS, viewing

pytest.importorskip("aiohttp")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")
ROOT = Path(__file__).parents[2]

SCRIPT = """
import sys
import beside
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

class Doubling:
    def __call__(self, number):
        return 2 * number

def run():
    graph = IterableWrapper(range(100)).sharding_filter().map(Doubling())
    with DataLoader2(graph, None, MultiProcessingReadingService(1)) as loader:
        assert sum(loader) == 9900
        print(sys.argv[1:], __name__, beside.NAME, flush=True)
        sys.stdin.readline()

if __name__ == "__main__":
    run()
    raise SystemExit(7)
"""


@pytest.fixture
def script(tmp_path):
    tmp_path.joinpath("beside.py").write_text("NAME = 'beside'\n")
    file = tmp_path / "a_program.py"
    file.write_text(SCRIPT)
    return file


@asynccontextmanager
async def watched(*arguments: str, folder: Path = ROOT) -> AsyncIterator[tuple[Any, str]]:
    """Run a program with its picture, until the end of the block; yield it and the address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "asyncloader", "watch", *arguments, cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        line = (await process.stderr.readline()).decode().strip()
        assert line.startswith("asyncloader: watch the program at http://127.0.0.1:"), line
        yield process, line.rpartition(" ")[2]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


@pytest.mark.parametrize("form", ["script", "module"])
async def test_a_program_runs_as_ever_and_is_seen(form, script):
    named = [str(script)] if form == "script" else ["-m", "a_program"]
    async with (
        asyncio.timeout(SECONDS),
        watched(*named, "--rate", "3", folder=script.parent) as (process, url),
    ):
        printed = (await process.stdout.readline()).decode()
        assert printed == "['--rate', '3'] __main__ beside\n"
        async with viewing(url) as viewer:
            assert "map(Doubling)" in (await viewer.until("epoch 1: 100 items"))["html"]
            process.stdin.write(b"\n")
            assert await process.wait() == 7


RANKS = """
import os, subprocess, sys
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

if "RANK" not in os.environ:
    # As torchrun starts ranks.
    ranks = [
        subprocess.Popen([sys.executable, __file__], env=os.environ | {"RANK": rank})
        for rank in "10"
    ]
    sys.exit(max(rank.wait() for rank in ranks))
with DataLoader2(IterableWrapper(range(100)).map(str)) as loader:
    assert len(list(loader)) == 100
    sys.stdin.readline()
"""


@pytest.mark.soak
async def test_the_ranks_of_a_run_share_one_page(tmp_path):
    program = tmp_path / "ranks.py"
    program.write_text(RANKS)
    async with (
        asyncio.timeout(SECONDS),
        watched(str(program)) as (process, url),
        viewing(url) as viewer,
    ):
        while await viewer.titles() != ["rank 0 · loader 1", "rank 1 · loader 1"]:
            pass
        await viewer.until("epoch 1: 100 items")
        process.stdin.write(b"\n\n")
        process.stdin.close()
        assert await process.wait() == 0


LEFT = """
import os, signal, sys
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

async def same(number):
    return number

graph = IterableWrapper(range(100)).sharding_filter().async_map(same)
loader = DataLoader2(graph, None, MultiProcessingReadingService(int(sys.argv[1])))
items = iter(loader)
print(next(items), flush=True)
# The modules are taken apart while the program's own is still there: dill, and so torch, does so.
sys.kept = dict(sys.modules)
"""

ENDS = {
    "end": ("", 0, ""),
    "exit": ("sys.exit(3)", 3, ""),
    "error": ("raise ValueError('mine')", 1, "ValueError: mine"),
    "Ctrl-C": ("os.kill(os.getpid(), signal.SIGINT)", -signal.SIGINT, "KeyboardInterrupt"),
    "shutdown": ("loader.shutdown()", 0, ""),
}


@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("end", ENDS)
def test_a_watched_program_ends_as_ever_and_prints_nothing_of_ours(end, workers, tmp_path):
    how, code, last = ENDS[end]
    program = tmp_path / "program.py"
    program.write_text(LEFT + how)
    done = subprocess.run(
        [sys.executable, "-m", "asyncloader", "watch", str(program), str(workers)],
        cwd=ROOT, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (code, "0\n")
    first, *others = done.stderr.splitlines()
    assert first.startswith("asyncloader: watch the program at ")
    if not last:
        assert others == []
    assert done.stderr.count("Traceback") == bool(last)
    assert "Exception ignored" not in done.stderr
    assert not last or others[-1] == last


def test_what_cannot_be_run_is_refused(capsys):
    assert main(["watch", "no/such/file.py"]) == 2
    assert "there is no file 'no/such/file.py'" in capsys.readouterr().err


def test_without_the_extra_the_command_says_what_to_install(script):
    code = (
        "import sys; sys.modules['uvicorn'] = None\n"
        "from asyncloader.tools.command import main\n"
        f"sys.exit(main(['watch', {str(script)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=SECONDS
    )
    assert done.returncode == 2
    assert "pip install 'asyncloader[watch]'" in done.stderr


# As text --------------------------------------------------------------------------------


class Terminal(io.StringIO):
    """Closes the page when it was drawn three times."""

    def __init__(self, watch: Any, *, is_terminal: bool) -> None:
        super().__init__()
        self._watch, self._is_terminal, self._drawn = watch, is_terminal, 0

    def isatty(self) -> bool:
        return self._is_terminal

    def flush(self) -> None:
        self._drawn += 1
        if self._drawn == 3:
            self._watch.close()


@pytest.mark.parametrize("is_terminal", [False, True], ids=["file", "terminal"])
def test_a_terminal_shows_the_page_as_text(is_terminal, monkeypatch):
    monkeypatch.setattr(server, "TICK_SECONDS", 0.1)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("LINES", "12")
    with DataLoader2(IterableWrapper(range(100)).map(str)) as loader:
        list(loader)
        watch = loader.watch("training")
        terminal = Terminal(watch, is_terminal=is_terminal)
        draw(watch.url, terminal)
    text = terminal.getvalue()
    assert text.count("training  ") == 3
    assert "epoch 1: 100 items" in text
    assert "map(str)" in text
    assert ("\x1b[H" in text) is is_terminal
    if is_terminal:
        screens = text.split("\x1b[H")[1:]
        assert all(len(screen.split("\n")) <= 11 for screen in screens)


def test_a_text_of_no_page_says_why(capsys):
    loader = DataLoader2(IterableWrapper(range(4)))
    with loader.watch() as watch:
        wrong = f"{watch.url.rsplit('/', 2)[0]}/wrong/"
        assert main(["watch", "--text", wrong]) == 2
        assert "this is not the page's address" in capsys.readouterr().err
    assert main(["watch", "--text", watch.url]) == 2
    assert f"no picture at {watch.url}" in capsys.readouterr().err
    assert main(["watch", "--text", "train.py"]) == 2
    assert "standard error is none" in capsys.readouterr().err


IN_A_TERMINAL = """
import sys
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

with DataLoader2(IterableWrapper(range(100)).map(str)) as loader:
    print("begun", len(list(loader)), flush=True)
    sys.stdin.readline()
print("ended", flush=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_the_lower_half_of_a_terminal_shows_the_program_that_prints_above(tmp_path):
    script = tmp_path / "a_program.py"
    script.write_text(IN_A_TERMINAL)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncloader", "watch", "--text", str(script)], cwd=ROOT,
        stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, text=True,
    )  # fmt: skip
    os.close(theirs)
    with process, open(ours, "rb", buffering=0) as terminal:
        try:
            seen = b""
            while b"epoch 1: 100 items" not in seen:
                seen += terminal.read(4096)
            process.stdin.write("\n")
            process.stdin.close()
            with contextlib.suppress(OSError):  # which is how a terminal ends
                while more := terminal.read(4096):
                    seen += more
            assert process.wait(SECONDS) == 0
        finally:
            process.kill()
    text = seen.decode()
    assert text.index("watch the program at") < text.index("\x1b[1;12r")
    assert "begun 100" in text
    assert "\x1b[13;1Hloader 1" in text
    # In the end the terminal is as it was, with the last picture below what was printed.
    rest = text.rpartition("\x1b[r")[2]
    assert text.index("ended") < text.rindex("\x1b[r")
    assert "epoch 1: 100 items" in rest
