"""Garbage that is collected wherever it can be, and threads that are looked at all the time.

This file is about a plugin for what goes wrong once a week, since it needs that something is
collected in the midst of something else, and that another thread goes on just then:

    python -m pytest -p tests.eagerly [-n 2] tests/faults
"""

from __future__ import annotations

import gc
import time
from typing import Any

from asyncloader.datapipes.running.watch import watching


class Letting:
    """Garbage that lets another thread go on when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        time.sleep(0)


def _leave_garbage(phase: str, _: Any) -> None:
    if phase == "start":
        Letting()


gc.callbacks.append(_leave_garbage)
gc.set_threshold(25, 4, 4)
watching.Sampler.rest_seconds = 0.002
