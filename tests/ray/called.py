"""What actors of these tests call.

This file is about functions that are in no file of tests: an actor imports the module of what it
is sent, and with a test's module come pytest and torch, which take longer than all the rest.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any


def as_it_is(item: Any, device: Any) -> Any:
    return item


def fails_at_seven(number: int) -> int:
    if number == 7:
        raise ValueError("seven", number)
    return number


def unpicklable(number: int) -> Any:
    return threading.Lock() if number == 3 else number


class Strange(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__("strange")


def fails_strangely(number: int) -> int:
    raise Strange(1, 2)


def exits(number: int) -> int:
    if number == 3:
        os._exit(3)
    return number


#: Seconds.
LONG_CALL = 60


def sleeps(number: int) -> int:
    time.sleep(LONG_CALL)
    return number


def asleep(number: int) -> int:
    """Take a moment, in which the consumer waits."""
    time.sleep(0.01)
    return number


def late(number: int) -> int:
    """Let the first of two workers be later than the other one."""
    if number == 0:
        time.sleep(2.0)
    return number


def texts(pipe: Any, info: Any) -> Any:
    return pipe.map(str)


def is_stuck_here(number: int) -> int:
    time.sleep(600)
    return number


def with_name(name: str, item: Any) -> tuple[str, str]:
    return name, repr(item)


def decode(number: int) -> int:
    return sum(range(20_000 + number % 2))


def distinct(number: int) -> bytes:
    return bytes([number]) * (1 << 20)
