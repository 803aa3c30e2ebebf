"""Which of asyncloader's functions are entered, in every process and thread of a run.

This file is about a profile hook. ``sitecustomize`` beside it installs it when a process
starts, so that no thread is missed; it imports nothing of asyncloader.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

#: The measured package's folder, and where worker processes leave what they recorded.
PACKAGE = os.environ["HOUSE_PACKAGE"] + os.sep
FOLDER = Path(os.environ["HOUSE_FOLDER"])

#: The functions entered since the latest cut, each with the file it was called from.
_entered: list[tuple[str, str, str]] = []
windows: list[list[tuple[str, str, str]]] = []

_own: dict[CodeType, tuple[str, str] | None] = {}


def install() -> None:
    """Record what this thread enters from now on, and every thread that is started later."""
    threading.setprofile(_hook)
    sys.setprofile(_hook)


def cut() -> None:
    """End a window: what is entered from here on belongs to the next."""
    global _entered
    window, _entered = _entered, []
    windows.append(window)


class Cut:
    """A function for ``map`` in a worker: each call cuts, and the last writes all windows down."""

    def __init__(self, last: int, seconds: float = 0.0) -> None:
        self.last = last
        self.seconds = seconds

    def __call__(self, item: Any) -> Any:
        if self.seconds:
            time.sleep(self.seconds)
        cut()
        if len(windows) == self.last:
            (FOLDER / f"{os.getpid()}.json").write_text(json.dumps(windows))
        return item


def _hook(frame: FrameType, event: str, _: Any) -> None:
    if event != "call":
        return
    own = _find(frame.f_code)
    if own is not None:
        _entered.append((*own, _file_of_caller(frame)))


def _find(code: CodeType) -> tuple[str, str] | None:
    """Return the file and the name of a function of asyncloader's."""
    if code not in _own:
        # A comprehension is a paragraph of its function.
        is_function = code.co_name == "<lambda>" or not code.co_name.startswith("<")
        is_own = code.co_filename.startswith(PACKAGE) and is_function
        file = code.co_filename.removeprefix(PACKAGE)
        _own[code] = (file, code.co_qualname) if is_own else None
    return _own[code]


def _file_of_caller(frame: FrameType) -> str:
    """Return the file of the nearest caller of asyncloader's, or an empty string."""
    caller = frame.f_back
    while caller is not None:
        own = _find(caller.f_code)
        if own is not None:
            return own[0]
        caller = caller.f_back
    return ""
