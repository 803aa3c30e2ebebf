"""Programs that fork by hand, and those that are not to be forked."""

from __future__ import annotations

import contextlib
import os
import threading
import warnings
from collections.abc import Iterator


def fork() -> int:
    """Return ``os.fork()``, without Python's warning of other threads."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


@contextlib.contextmanager
def nothing_forked() -> Iterator[None]:
    """Have another thread, so that by default no workers are forked from the program."""
    end = threading.Event()
    thread = threading.Thread(target=end.wait, name="somebody's")
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()
