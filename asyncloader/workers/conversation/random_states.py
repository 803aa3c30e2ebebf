"""The states of a process's global random generators.

This file is about ``RandomStates``: telling whether a user's functions have drawn from
random, numpy or torch, and setting the generators back to where they were; and about
``SharedGenerators``, with which several streams of a process do not draw one another's
numbers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from asyncloader.errors import SnapshotError

#: The states as plain data, by module.
States = dict[str, Any]


class RandomStates:
    """Remembers the states that an epoch began with."""

    def __init__(self) -> None:
        self._first = _states()

    def changed(self) -> States | None:
        """Return the states of those that were drawn from or imported since, or None."""
        states, first = _states(), self._first
        if states == first:
            return None
        return _written({name: each for name, each in states.items() if each != first.get(name)})


class SharedGenerators:
    """The global generators, of which each stream of an epoch has states of its own.

    ``seedings`` seed them for one stream each; now they are as the first stream begins. So
    what a stream draws does not depend on whose items are made before whose.
    """

    def __init__(self, seedings: Sequence[Callable[[], None]]) -> None:
        self._seedings = seedings
        self._states: list[States] = [{} for _ in seedings]
        self._turn = 0

    def turn_to(self, stream: int) -> None:
        """Let this stream draw next, as if no other had drawn meanwhile."""
        if stream == self._turn:
            return
        self._states[self._turn] = _written(_states())
        states = self._states[stream]
        if states.keys() != self._states[self._turn].keys():
            # A module that is imported in its own or another's turn is to be seeded for it.
            self._seedings[stream]()
        self._turn = stream
        set_states(states)


def check_states(states: States) -> None:
    """Raise SnapshotError for states of generators that are not known here."""
    unknown = states.keys() - _SETTERS.keys()
    if unknown:
        raise SnapshotError(
            f"the state holds random numbers of {', '.join(sorted(unknown))}, and this release"
            f" sets those of {', '.join(_SETTERS)}; go on with the release that took the state"
        )


def set_states(states: States) -> None:
    """Set the generators, whose modules are imported if need be."""
    for name, state in states.items():
        _SETTERS[name](state)


def _written(states: dict[str, Any]) -> States:
    return {name: _WRITERS[name](state) for name, state in states.items()}


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    # Another thread may be in the middle of importing one: nobody has drawn from that yet.
    if numpy_random is not None and hasattr(numpy_random, "get_state"):
        kind, keys, *others = numpy_random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *others)
    if torch is not None and hasattr(torch, "get_rng_state"):
        states["torch"] = torch.get_rng_state().numpy().tobytes()
    return states


def _write_random(state: Any) -> Any:
    version, numbers, gauss = state
    return [version, list(numbers), gauss]


def _write_numpy(state: Any) -> Any:
    kind, keys, position, has_gauss, gauss = state
    return [kind, keys, int(position), int(has_gauss), float(gauss)]


def _set_random(state: Any) -> None:
    version, numbers, gauss = state
    random.setstate((version, tuple(numbers), gauss))


def _set_numpy(state: Any) -> None:
    import numpy

    kind, keys, *others = state
    numpy.random.set_state((kind, numpy.frombuffer(keys, dtype="uint32"), *others))


def _set_torch(state: Any) -> None:
    import torch

    torch.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


_WRITERS: dict[str, Callable[[Any], Any]] = {
    "random": _write_random,
    "numpy.random": _write_numpy,
    "torch": bytes,
}
_SETTERS: dict[str, Callable[[Any], None]] = {
    "random": _set_random,
    "numpy.random": _set_numpy,
    "torch": _set_torch,
}
