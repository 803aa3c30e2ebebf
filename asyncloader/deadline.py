"""The time limit of a close.

This file is about one deadline for everything that is closed together. Every wait of a close
takes at most ``time_left(its own limit)``, so that two stuck parts do not take twice as long as
one.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
import time
from collections.abc import Iterator

#: The seconds that are kept for each later step.
STEP_SECONDS = 0.5

_end: contextvars.ContextVar[float] = contextvars.ContextVar("asyncloader_end", default=math.inf)


@contextlib.contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Let everything that is closed in the block share these seconds."""
    before = _end.get()
    _end.set(min(before, time.monotonic() + seconds))
    try:
        yield
    finally:
        _end.set(before)


@contextlib.contextmanager
def leaving_time(steps: int) -> Iterator[None]:
    """Shorten the block's deadline, so that each of ``steps`` later steps has a little time.

    The block always has at least half of the time left.
    """
    left = time_left()
    with ends_within(max(left / 2, left - steps * STEP_SECONDS)):
        yield


def give_time_left(context: contextvars.Context) -> None:
    """Give a context the deadline of the present one."""
    # A context that is running at this moment, as it closes itself, cannot be entered.
    with contextlib.suppress(RuntimeError):
        context.run(_end.set, _end.get())


def time_left(most: float = math.inf) -> float:
    """Return how long a close may wait here: ``most`` seconds, or less if the deadline is near."""
    return max(0.0, min(most, _end.get() - time.monotonic()))
