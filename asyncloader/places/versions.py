"""The numbers of a state's form, and how a state of an earlier number becomes one of the present.

This file is about ``as_present``, and about the functions that it calls: for each earlier number
one that makes a state of the next number. Whoever changes what a state has raises ``VERSION``,
writes such a function, and keeps states of the number before as files for the tests.
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

from asyncloader.errors import SnapshotError
from asyncloader.places.checksums import checksum, checksum_in

VERSION = 7


def _says_its_release(state: dict[str, Any]) -> dict[str, Any]:
    """Number 7: a state says which release wrote it, and always what seed was drawn."""
    randomness = state.get("randomness_state")
    if isinstance(randomness, dict):
        state = changed(state, "randomness_state", {"drawn": None, **randomness})
    return changed(state, "release", None)


#: By the number of the state that each of them takes.
NEXT: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {6: _says_its_release}


@functools.cache
def this_release() -> str | None:
    """Return the version of this package; None where it was not installed."""
    try:
        return importlib.metadata.version("asyncloader")
    except importlib.metadata.PackageNotFoundError:
        return None


def as_present(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state as one of the present number; SnapshotError where this cannot be."""
    version = state["version"]
    if type(version) is not int or not 0 <= version < 2**70:
        raise SnapshotError("the state's version is no number of a release's states")
    oldest = min(NEXT)
    ours = f"asyncloader {this_release() or ''}".rstrip() + f" reads {oldest} to {VERSION}"
    if version < oldest:
        raise SnapshotError(
            f"the state's version is {version}, which no release after 0.1.0 resumes exactly;"
            f" {ours}. Go on with asyncloader 0.1.0, or begin a new run, which may load the"
            " weights"
        )
    if version > VERSION:
        release = state.get("release")
        named = isinstance(release, str) and 0 < len(release) < 40
        of_release = f"asyncloader {release}" if named else "the newest asyncloader"
        raise SnapshotError(
            f"the state's version is {version}, and {ours}: the state is of a later"
            f" release. Install that one, or a later one: {of_release}"
        )
    while version < VERSION:
        state = NEXT[version](state)
        version += 1
    return state


def changed(state: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return a state with another value in a field, and the checksum for it.

    A field that was damaged keeps its wrong checksum, by which it is refused afterwards.
    """
    sums = state.get("checksums")
    if not isinstance(sums, dict):
        return {**state, name: value}
    was_right = name not in state or sums.get(name) == checksum_in(state, name)
    own = checksum(value) if was_right else sums.get(name)
    return {**state, name: value, "checksums": {**sums, name: own}}
