"""Whole bodies that were read over a network.

This file is about putting one together without stopping the loop, within a limit,
and what it is handed on as.
"""

from __future__ import annotations

import io
from collections.abc import AsyncIterable, Callable
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
        if size > max_bytes:
            raise too_large(name, max_bytes)
    return b"".join(held) if size < LARGE else await joined(held)


async def joined(held: list[Any]) -> bytes:
    """Return pieces as one, where there is much to copy: other threads run meanwhile."""
    return await in_thread(b"".join, held)


def too_large(name: str, max_bytes: float) -> ResourceExhausted:
    """Return the error for a body that has more bytes than it may."""
    return ResourceExhausted(
        f"{name}: the body has more than max_bytes={max_bytes} bytes; pass a larger max_bytes if"
        " it may be as large"
    )


def form_of(as_bytes: bool) -> Callable[[bytes], Any]:
    """Return what makes of a body what is handed on: a stream, or the body as it is."""
    return bytes if as_bytes else io.BytesIO
