"""Holding signals back while a process is being born.

This file is about the moment between a fork or exec and the child's own handling
of signals, in which it must not act on what was meant for the loader.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator


@contextlib.contextmanager
def signals_held(numbers: Iterable[int]) -> Iterator[None]:
    """Block signals in this thread and in the processes it starts, which unblock them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def sigint_held() -> contextlib.AbstractContextManager[None]:
    """Ctrl-C during the start of an interpreter would be a traceback on the terminal."""
    return signals_held({signal.SIGINT})
