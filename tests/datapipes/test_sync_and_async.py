"""Methods of the wrong colour are told where a class is defined."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from asyncloader import IterDataPipe


async def begin_async(self: Any) -> Any:
    """Iterate nothing."""


async def give_async(self: Any) -> Any:
    yield 1


def give(self: Any) -> Any:
    yield 1


@pytest.mark.parametrize(
    ("name", "method", "says"),
    [
        ("__iter__", give_async, r"Wrong\.__iter__ is async; name it __aiter__"),
        ("__iter__", begin_async, r"Wrong\.__iter__ is async; name it __aiter__"),
        ("__aiter__", give, r"Wrong\.__aiter__ is no async generator"),
        ("__aiter__", begin_async, r"Wrong\.__aiter__ is no async generator"),
    ],
)
def test_a_pipe_that_could_not_be_iterated_is_not_defined(
    name: str, method: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(TypeError, match=says):
        type("Wrong", (IterDataPipe,), {name: method})
