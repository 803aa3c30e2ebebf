"""Loops that are told something from a thread that is not theirs.

This file is about ``refuse_other_threads``. A loop in debug mode checks the same, and keeps a
stack for every call and every future besides, which is a third of what some tests take.
"""

from __future__ import annotations

import functools
from asyncio import BaseEventLoop
from typing import Any


def refuse_other_threads() -> None:
    """Let asyncio's loops raise where they are not told by ``call_soon_threadsafe``."""
    for name in ("call_soon", "call_at"):
        setattr(BaseEventLoop, name, _checked(getattr(BaseEventLoop, name)))


def _checked(method: Any) -> Any:
    @functools.wraps(method)
    def checked(loop: Any, *args: Any, **options: Any) -> Any:
        loop._check_thread()
        return method(loop, *args, **options)

    return checked
