"""Collecting no garbage for a while, for several who want that at a time."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator

from asyncloader.system import in_forked_child

_changing = threading.RLock()
#: How many are in ``collecting_nothing``, and whether it was them who stopped the collector.
_wanted_by = 0
_has_stopped = False


@contextlib.contextmanager
def collecting_nothing() -> Iterator[None]:
    """Collect no garbage meanwhile; afterwards as before, when the last of several is done.

    A collector that the program has stopped stays so.
    """
    global _wanted_by, _has_stopped
    try:
        with _changing:
            # A signal may come between any two of these, with a handler that comes here.
            _wanted_by += 1
            if gc.isenabled():
                _has_stopped = True
                gc.disable()
        yield
    finally:
        with _changing:
            _wanted_by = max(0, _wanted_by - 1)
            if not _wanted_by:
                _go_on()


@in_forked_child
def _only_this_thread() -> None:
    """Go on collecting: those of other threads who wanted none do not exist here."""
    global _changing, _wanted_by
    _changing, _wanted_by = threading.RLock(), 0
    _go_on()


def _go_on() -> None:
    global _has_stopped
    if _has_stopped:
        _has_stopped = False
        gc.enable()
