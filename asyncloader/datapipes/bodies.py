"""Whole bodies that were read over a network.

This file is about putting one together without stopping the loop, within a limit,
and what it is handed on as.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterable
from typing import Any

from asyncloader.errors import ResourceExhausted
from asyncloader.runtime import in_thread

#: Joining more than this would stop the loop for some milliseconds.
LARGE = 8 << 20


async def whole_body(chunks: AsyncIterable[Any], name: str, max_bytes: int) -> bytes:
    """Return all chunks as one; raise ResourceExhausted when they become too many bytes."""
    held, size = [], 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(memoryview(chunk))
        check_size(size, name, max_bytes)
    # Large joins let other threads run.
    return b"".join(held) if size < LARGE else await in_thread(b"".join, held)


def check_size(size: int, name: str, max_bytes: float) -> None:
    """Raise ResourceExhausted for a body that is too large."""
    if size > max_bytes:
        raise ResourceExhausted(
            f"{name}: the body has more than max_bytes={max_bytes} bytes; raise the limit if it"
            " may be as large"
        )


def handed_on(body: bytes, as_bytes: bool) -> Any:
    """Return a body as a stream, or as it is."""
    return body if as_bytes else io.BytesIO(body)
