"""The states of a worker's random generators.

This file is about ``RandomStates``, which tells whether a user's functions have drawn from
random, numpy or torch; about ``set_states``, which restores the generators; and about
``SharedGenerators``, which keeps the random numbers of several streams in one worker apart.
"""

from __future__ import annotations

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
from asyncloader.generators import MODULES, Generators, States, written


class RandomStates:
    """Remembers the states that an epoch began with."""

    def __init__(self, generators: Generators) -> None:
        self._generators = generators
        self._first = generators.states()

    def changed(self) -> States | None:
        """Return the states of generators that were used or imported since, or None."""
        states, first = self._generators.states(), self._first
        if states == first:
            return None
        return written({name: each for name, each in states.items() if each != first.get(name)})

    def restore(self, states: States) -> None:
        """Set states that were returned by ``changed``, of this worker or another."""
        set_states(self._generators, states)


class SharedGenerators:
    """A worker's generators, with separate states for each stream of an epoch.

    Each of ``seedings`` seeds them for one stream; at first they are in the first stream's
    state. So a stream's numbers do not depend on the order in which streams make items.
    """

    def __init__(self, generators: Generators, seedings: Sequence[Callable[[], None]]) -> None:
        self._generators = generators
        self._seedings = seedings
        self._states: list[States] = [{} for _ in seedings]
        #: The stream whose states the generators are in.
        self.turn = 0

    def turn_to(self, stream: int) -> None:
        """Switch to this stream's states, as if no other stream had drawn meanwhile."""
        if stream == self.turn:
            return
        self._states[self.turn] = written(self._generators.states())
        states = self._states[stream]
        if states.keys() != self._states[self.turn].keys():
            # A module that was imported since then must be seeded for this stream.
            self._seedings[stream]()
        self.turn = stream
        set_states(self._generators, states)


def check_states(states: Any, where: str, form_of: FormOf) -> None:
    """Raise SnapshotError for values that are no generators' states, or of unknown generators."""
    if type(states) is not dict:
        refuse(where, "a dict of random states", states)
    unknown = {str(name) for name in states} - MODULES
    if unknown:
        raise SnapshotError(
            f"the state holds random states of {', '.join(sorted(unknown))}, but this release only"
            f" sets those of {', '.join(sorted(MODULES))}; resume with the release that took the"
            " state"
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


def set_states(generators: Generators, states: States) -> None:
    """Set the generators' states, importing their modules if necessary."""
    for module, state in states.items():
        try:
            generators.set_states({module: state})
        except (ValueError, TypeError, RuntimeError) as error:
            raise SnapshotError(f"{module} refuses its random state: {error}") from error
