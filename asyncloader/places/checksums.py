"""Checksums of the parts of a state."""

from __future__ import annotations

import hashlib
from typing import Any

from asyncloader.errors import SnapshotError


def checksum(value: Any) -> str:
    """Return a checksum of a leaf of a state, or of a dict of such."""
    leaves = sorted(value.items(), key=_name) if isinstance(value, dict) else [("", value)]
    whole = b"".join(_whole(name, leaf) for name, leaf in leaves)
    return hashlib.blake2b(whole, digest_size=16).hexdigest()


def _whole(name: Any, leaf: Any) -> bytes:
    """Return a leaf with its name, type and length, as bytes."""
    if isinstance(leaf, bytes):
        return f"{name}:{type(leaf).__name__}:{len(leaf)}:".encode() + leaf
    text = ascii(leaf)
    return f"{name}:{type(leaf).__name__}:{len(text)}:{text}".encode()


def _name(leaf: tuple[Any, Any]) -> str:
    return str(leaf[0])


def checksum_in(state: dict[str, Any], name: str) -> str:
    """Return the checksum of a field of a state that may hold anything; SnapshotError names it."""
    try:
        return checksum(state[name])
    except Exception as error:
        raise SnapshotError(f"{name} is not plain data: {error!r}") from error
