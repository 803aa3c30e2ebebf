"""The bytes of a body, up to a limit; without aiohttp."""

from __future__ import annotations

from collections.abc import AsyncIterable
from typing import Any

from asyncloader.errors import ResourceExhausted
from asyncloader.runtime import in_thread

#: Joining more than this would stop the loop for some milliseconds.
LARGE = 8 << 20


async def whole_body(chunks: AsyncIterable[Any], name: str, max_bytes: float) -> bytes:
    """Return all chunks as one; raise ResourceExhausted when they become too many bytes."""
    held, size = [], 0
    async for chunk in chunks:
        held.append(chunk)
        size += len(memoryview(chunk))
        if size > max_bytes:
            raise too_large(name, max_bytes)
    return b"".join(held) if size < LARGE else await in_thread(b"".join, held)


def too_large(name: str, max_bytes: float) -> ResourceExhausted:
    """Return the error for a body that has more bytes than it may."""
    return ResourceExhausted(
        f"{name}: the body has more than max_bytes={max_bytes} bytes; pass a larger max_bytes to"
        " allow it"
    )
