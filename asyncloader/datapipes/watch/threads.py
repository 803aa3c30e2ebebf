"""Where the threads of this process are.

This file is about the frames of threads that go on meanwhile: they can be looked at for a
moment, in which nothing else may happen to them.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Iterator
from types import FrameType

#: Whether making any object may collect garbage, and so run anything, on the way.
_ANYWHERE = sys.version_info < (3, 12)


def can_be_looked_at() -> bool:
    """Whether a thread stands still while another one looks at its frames."""
    has_gil = getattr(sys, "_is_gil_enabled", None)
    return has_gil is None or has_gil()


@contextlib.contextmanager
def present_frames() -> Iterator[dict[int, FrameType]]:
    """Look at the innermost frame of each thread, and at those around it, for this moment only.

    An object for a frame is made when it is asked for. If garbage were collected on the way,
    whatever that runs could let the thread go on and leave the frame before its object is
    there, which would crash; and it could wait for the list of threads, which is locked.
    """
    global _has_stopped_collecting
    stops = _ANYWHERE and gc.isenabled()
    frames: dict[int, FrameType] = {}
    try:
        if stops:
            _has_stopped_collecting = True
            gc.disable()
        frames = sys._current_frames()
        yield frames
    finally:
        if stops:
            gc.enable()
            _has_stopped_collecting = False
        frames.clear()


_has_stopped_collecting = False


def _collect_again() -> None:
    # Whoever looked in the parent is not there in its forked child.
    global _has_stopped_collecting
    if _has_stopped_collecting:
        gc.enable()
        _has_stopped_collecting = False


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_collect_again)
