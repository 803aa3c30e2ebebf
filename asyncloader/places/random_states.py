"""The states of a process's global random generators.

This file is about ``RandomStates``, which tells whether a user's functions have drawn from
random, numpy or torch, and can restore the generators; and about ``SharedGenerators``, which
keeps the random numbers of several streams in one process apart.
"""

from __future__ import annotations

import ctypes
import random
import sys
from collections.abc import Callable, Sequence
from typing import Any

from asyncloader.datapipes.running.cursor_forms import (
    Form,
    FormOf,
    just,
    just_bytes,
    list_of,
    or_none,
    refuse,
    row,
    whole,
)
from asyncloader.errors import SnapshotError

#: The states as plain data, by module.
States = dict[str, Any]


class RandomStates:
    """Remembers the states that an epoch began with."""

    def __init__(self) -> None:
        self._first = _states()

    def changed(self) -> States | None:
        """Return the states of generators that were used or imported since, or None."""
        states, first = _states(), self._first
        if states == first:
            return None
        return _written({name: each for name, each in states.items() if each != first.get(name)})


class SharedGenerators:
    """The global generators, with separate states for each stream of an epoch.

    Each of ``seedings`` seeds them for one stream; at first they are in the first stream's
    state. So a stream's numbers do not depend on the order in which streams make items.
    """

    def __init__(self, seedings: Sequence[Callable[[], None]]) -> None:
        self._seedings = seedings
        self._states: list[States] = [{} for _ in seedings]
        #: The stream whose states the generators are in.
        self.turn = 0

    def turn_to(self, stream: int) -> None:
        """Switch to this stream's states, as if no other stream had drawn meanwhile."""
        if stream == self.turn:
            return
        self._states[self.turn] = _written(_states())
        states = self._states[stream]
        if states.keys() != self._states[self.turn].keys():
            # A module that was imported since then must be seeded for this stream.
            self._seedings[stream]()
        self.turn = stream
        set_states(states)


def check_states(states: Any, where: str, form_of: FormOf) -> None:
    """Raise SnapshotError for values that are no generators' states, or of unknown generators."""
    if type(states) is not dict:
        refuse(where, "a dict of random states", states)
    unknown = {str(name) for name in states} - _SETTERS.keys()
    if unknown:
        raise SnapshotError(
            f"the state holds random states of {', '.join(sorted(unknown))}, but this release only"
            f" sets those of {', '.join(_SETTERS)}; resume with the release that took the state"
        )
    for name, state in states.items():
        _FORMS[name](state, f"{where}[{name!r}]", form_of)


def _of_random(state: Any, where: str, form_of: FormOf) -> None:
    row(just(random.Random.VERSION), list_of(_WORD), or_none(_fraction))(state, where, form_of)
    numbers = state[1]
    if len(numbers) != _WORDS + 1 or numbers[-1] > _WORDS:
        refuse(where, "a state of random.Random", state)


def _of_numpy(state: Any, where: str, form_of: FormOf) -> None:
    place, has_gauss = whole(most=_WORDS), whole(most=1)
    words = just_bytes(4 * _WORDS)
    row(just("MT19937"), words, place, has_gauss, _fraction)(state, where, form_of)


def _of_torch(state: Any, where: str, form_of: FormOf) -> None:
    just_bytes(_BYTES_OF_TORCH)(state, where, form_of)
    torch = sys.modules.get("torch")
    if torch is None:
        return  # torch is not imported here; the worker checks it
    try:
        torch.Generator().set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    except RuntimeError as error:
        raise SnapshotError(f"{where} is no state of torch's generator: {error}") from error


def _fraction(value: Any, where: str, form_of: FormOf) -> None:
    if type(value) is not float:
        refuse(where, "a float", value)


_WORDS = 624
_WORD = whole(most=2**32 - 1)
_BYTES_OF_TORCH = 5056
_FORMS: dict[str, Form] = {
    "random": _of_random,
    "numpy.random": _of_numpy,
    "torch": _of_torch,
}


def set_states(states: States) -> None:
    """Set the generators' states, importing their modules if necessary."""
    for name, state in states.items():
        try:
            _SETTERS[name](state)
        except (ValueError, TypeError, RuntimeError) as error:
            raise SnapshotError(f"{name} refuses its random state: {error}") from error


def _written(states: dict[str, Any]) -> States:
    return {name: _WRITERS[name](state) for name, state in states.items()}


def _states() -> dict[str, Any]:
    states: dict[str, Any] = {"random": random.getstate()}
    numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
    # Skip a module that another thread is still importing: nothing was drawn from it yet.
    if numpy_random is not None and hasattr(numpy_random, "get_state"):
        kind, keys, *others = numpy_random.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *others)
    if torch is not None and hasattr(torch, "get_rng_state"):
        state = torch.get_rng_state()
        # Not by numpy(): torch may be installed without NumPy.
        states["torch"] = ctypes.string_at(state.data_ptr(), state.nbytes)
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
