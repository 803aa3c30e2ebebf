"""``python -m asyncloader watch``: a program with its live picture.

This file is about ``watched_program``, whose loaders are shown on a page of this process, and
about ``draw`` and ``draw_below``, which show a page in a terminal: that of a program that runs
elsewhere, or in the lower half that of the program that prints above it.
"""

from __future__ import annotations

import io
import os
import runpy
import shutil
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from http.client import HTTPException
from pathlib import Path
from types import ModuleType
from typing import TextIO

from asyncloader.loader.page.watch import PAGES
from asyncloader.runtime import at_exit, start_thread

#: A page says something once a second, unless its process is very busy.
_SILENCE_SECONDS = 60.0

_HOME, _TO_LINE_END, _TO_SCREEN_END = "\x1b[H", "\x1b[K", "\x1b[J"
_KEEP_CURSOR, _BACK_TO_CURSOR, _SCROLL_ALL = "\x1b7", "\x1b8", "\x1b[r"


def watched_program(
    target: str, arguments: Sequence[str], *, is_module: bool = False, as_text: bool = False
) -> Callable[[], None]:
    """Open a page, and return what runs a script, or a module as ``python -m`` does.

    The loaders of the program are shown on the page, and those of the processes that it starts:
    the ranks of torchrun, for example. As text it is drawn in the terminal, too.
    """
    if as_text and not sys.stderr.isatty():
        raise ValueError("--text draws in a terminal, and standard error is none")
    if not is_module and not Path(target).is_file():
        raise ValueError(f"there is no file {target!r} in {Path.cwd()}; to run a module, write -m")
    try:
        page = PAGES.open()
    except ImportError as error:
        raise ValueError(str(error)) from None
    if as_text:
        _begin_to_draw_below(page.url, sys.stderr)
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


def _begin_to_draw_below(url: str, terminal: TextIO) -> None:
    thread = threading.Thread(
        target=draw_below, args=(url, terminal), name="asyncloader text", daemon=True
    )
    start_thread(thread)

    @at_exit
    def end() -> None:
        # The thread ends with the page, and leaves the terminal as it was.
        PAGES.close()
        thread.join(_END_SECONDS)


_END_SECONDS = 2.0


def draw_below(url: str, terminal: TextIO) -> None:
    """Draw the page at an address in the lower half of a terminal, until it is closed."""
    size, text = os.terminal_size((0, 0)), ""
    try:
        for text in _texts(url):
            before, size = size, os.get_terminal_size(terminal.fileno())
            terminal.write(_lower_half(text, size, is_new=size != before))
            terminal.flush()
    except (OSError, HTTPException) as error:
        text = f"{text}\nno picture at {url}: {error}"
    terminal.write(f"{_KEEP_CURSOR}{_SCROLL_ALL}{_BACK_TO_CURSOR}{_TO_SCREEN_END}{text}\n")
    terminal.flush()


def _lower_half(text: str, size: os.terminal_size, *, is_new: bool) -> str:
    """Return what draws a text there; what is printed scrolls above it from the first time on."""
    height = size.lines // 2
    above = size.lines - height
    lines = _cut(text, size.columns, height)
    lines += [""] * (height - len(lines))
    drawn = "".join(
        f"\x1b[{row};1H{line}{_TO_LINE_END}" for row, line in enumerate(lines, above + 1)
    )
    drawn = f"{_KEEP_CURSOR}{drawn}{_BACK_TO_CURSOR}"
    if not is_new:
        return drawn
    room = "\n" * height + f"\x1b[{height}A"
    return f"{room}{_KEEP_CURSOR}\x1b[1;{above}r{_BACK_TO_CURSOR}{drawn}"


def draw(url: str, terminal: TextIO) -> None:
    """Draw the page at an address as text, until it is closed; ValueError if there is none."""
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
    shown = f"{_TO_LINE_END}\n".join(_cut(text, size.columns, size.lines - 1))
    return f"{_HOME}{shown}{_TO_LINE_END}{_TO_SCREEN_END}"


def _cut(text: str, columns: int, height: int) -> list[str]:
    return [line[: columns - 1] for line in text.split("\n")][:height]
