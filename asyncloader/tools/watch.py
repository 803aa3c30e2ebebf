"""``python -m asyncloader watch``: a program with its live picture.

This file is about ``watched_program``, whose loaders are shown on a page of this process, and
about ``draw``, which shows the page of a program that runs elsewhere in a terminal.
"""

from __future__ import annotations

import io
import runpy
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import TextIO

from asyncloader.loader.page.watch import PAGES

#: A page says something once a second, unless its process is very busy.
_SILENCE_SECONDS = 60.0

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"


def watched_program(
    target: str, arguments: Sequence[str], *, is_module: bool = False
) -> Callable[[], None]:
    """Open a page, and return what runs a script, or a module as ``python -m`` does.

    The loaders of the program are shown on the page, and those of the processes that it starts:
    the ranks of torchrun, for example.
    """
    if not is_module and not Path(target).is_file():
        raise ValueError(f"there is no file {target!r} in {Path.cwd()}; to run a module, write -m")
    try:
        PAGES.open()
    except ImportError as error:
        raise ValueError(str(error)) from None
    sys.argv = [target, *arguments]
    return partial(_run_module if is_module else _run_script, target)


def _run_module(name: str) -> None:
    runpy.run_module(name, run_name="__main__", alter_sys=True)


def _run_script(target: str) -> None:
    # As Python does for a script.
    sys.path[0] = str(Path(target).resolve().parent)
    with io.open_code(str(Path(target).resolve())) as file:
        code = compile(file.read(), target, "exec")
    main = ModuleType("__main__")
    main.__file__ = target
    # It stays the main module to the end: what the program does at exit needs its globals.
    sys.modules["__main__"] = main
    exec(code, vars(main))


def draw(url: str, terminal: TextIO) -> None:
    """Draw the page at an address as text, until it is closed; ValueError if there is none."""
    if not url.startswith("http://"):
        raise ValueError(
            f"--text draws the page of a program that runs: give it the address that the program"
            f" printed, got {url!r}"
        )
    try:
        for text in _texts(url):
            terminal.write(_screen(text) if terminal.isatty() else f"{text}\n\n")
            terminal.flush()
    except urllib.error.HTTPError as error:
        with error:
            raise ValueError(f"{url}: {error.read().decode(errors='replace')}") from None
    except (OSError, HTTPException) as error:
        raise ValueError(f"no picture at {url}: {error}") from None
    except KeyboardInterrupt:
        pass


def _texts(url: str) -> Iterator[str]:
    # The page is on this machine, whatever proxy there is.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"{url.rstrip('/')}/events?as=text", timeout=_SILENCE_SECONDS) as answer:
        lines: list[str] = []
        for line in answer:
            text = line.decode().rstrip("\n")
            if text:
                lines.append(text.removeprefix("data: "))
            else:
                yield "\n".join(lines)
                lines = []


def _screen(text: str) -> str:
    """Return what draws a text in place of the one before, as far as the terminal has room."""
    size = shutil.get_terminal_size()
    lines = [line[: size.columns - 1] for line in text.split("\n")][: size.lines - 1]
    shown = f"{_TO_LINE_END}\n".join(lines)
    return f"{_HOME}{shown}{_TO_LINE_END}{_TO_SCREEN_END}"
