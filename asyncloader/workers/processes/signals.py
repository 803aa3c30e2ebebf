"""Which signals are held back while a process is being born.

This file is about the moment between a fork or exec and the child's own handling
of signals, in which it must not act on what was meant for the loader, nor miss what
it waits for because the loader has blocked it.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator


def signals_held(numbers: Iterable[int]) -> contextlib.AbstractContextManager[None]:
    """Block signals in this thread and in the processes it starts, which unblock them."""
    return _masked(signal.SIG_BLOCK, numbers)


def signals_let_through(numbers: Iterable[int]) -> contextlib.AbstractContextManager[None]:
    """Unblock signals in this thread and in the processes it starts."""
    return _masked(signal.SIG_UNBLOCK, numbers)


def sigint_held() -> contextlib.AbstractContextManager[None]:
    """Ctrl-C during the start of an interpreter would be a traceback on the terminal."""
    return signals_held({signal.SIGINT})


@contextlib.contextmanager
def _masked(how: int, numbers: Iterable[int]) -> Iterator[None]:
    before = signal.pthread_sigmask(how, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
