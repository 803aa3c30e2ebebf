"""Random generators: those that a process has once, or a set of one's own.

This file is about ``Generators``: that of ``random``, of NumPy and of torch, with their states as
plain data. ``ProcessGenerators`` are the global ones; ``OwnGenerators`` belong to one worker that
shares its process with others.
"""

from __future__ import annotations

import ctypes
import importlib
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy
    import torch

#: The states as plain data, by module.
States = dict[str, Any]


class Generators(ABC):
    """The generators of ``random``, NumPy and torch of whoever draws from them."""

    #: The seed that torch's was last given here, 0 where others may have given it one.
    torch_seed = 0

    @abstractmethod
    def present(self) -> dict[str, Any]:
        """Return those that are there, by their modules: nothing was drawn from others."""

    @abstractmethod
    def get(self, module: str) -> Any:
        """Return the generator of a module, which is imported if necessary."""

    @property
    def random(self) -> random.Random:
        """What ``random.random`` and the like draw from."""
        found: random.Random = self.get("random")
        return found

    @property
    def torch_generator(self) -> torch.Generator:
        """What torch draws from."""
        found: torch.Generator = self.get("torch")
        return found

    @property
    def numpy_generator(self) -> numpy.random.Generator:
        """A generator of NumPy's newer kind over the bits that ``numpy.random`` draws from."""
        import numpy

        return numpy.random.Generator(self.get("numpy.random")._bit_generator)

    def states(self) -> States:
        """Return the states of those that are there, to be compared."""
        return {module: _READERS[module](each) for module, each in self.present().items()}

    def set_states(self, states: States) -> None:
        """Set states that ``written`` has made; ValueError and the like for others."""
        for module, state in states.items():
            _SETTERS[module](self.get(module), state)


class ProcessGenerators(Generators):
    """The global generators of this process."""

    def present(self) -> dict[str, Any]:
        # A module that another thread is still importing has none yet: nothing was drawn from it.
        numpy_random, torch = sys.modules.get("numpy.random"), sys.modules.get("torch")
        found = {
            "random": random._inst,
            "numpy.random": getattr(getattr(numpy_random, "mtrand", None), "_rand", None),
            "torch": getattr(torch, "default_generator", None),
        }
        return {module: each for module, each in found.items() if each is not None}

    def get(self, module: str) -> Any:
        importlib.import_module(module)
        return self.present()[module]


#: Those of this process.
PROCESS = ProcessGenerators()


class OwnGenerators(Generators):
    """Generators of one's own, each made when somebody first asks for it."""

    def __init__(self) -> None:
        self._seeds: dict[str, int] = {}
        self._made: dict[str, Any] = {}

    def seed(self, seeds: Sequence[int]) -> None:
        """Begin anew: with a seed each for ``random``, torch and NumPy."""
        random_seed, torch_seed, numpy_seed = seeds
        self.torch_seed = torch_seed
        self._seeds = {
            "random": random_seed,
            "torch": torch_seed,
            "numpy.random": numpy_seed >> 32,
        }
        # Whoever keeps one of them draws the new numbers too.
        for module, generator in self._made.items():
            _SEEDERS[module](generator, self._seeds[module])

    def present(self) -> dict[str, Any]:
        return dict(self._made)

    def get(self, module: str) -> Any:
        if module not in self._made:
            # Of two threads that ask at a time both get the same.
            made = _MAKERS[module]()
            _SEEDERS[module](made, self._seeds.get(module, 0))
            self._made.setdefault(module, made)
        return self._made[module]


def _of_torch() -> torch.Generator:
    import torch

    return torch.Generator()


def _of_numpy() -> numpy.random.RandomState:
    import numpy

    return numpy.random.RandomState()


def _read_numpy(generator: numpy.random.RandomState) -> Any:
    # The legacy form, a tuple, is what it returns unless it is asked otherwise.
    state: Any = generator.get_state()
    kind, keys, *others = state
    return (kind, keys.tobytes(), *others)


def _read_torch(generator: torch.Generator) -> bytes:
    state = generator.get_state()
    # Not by numpy(): torch may be installed without NumPy.
    return ctypes.string_at(state.data_ptr(), state.nbytes)


def _set_random(generator: random.Random, state: Any) -> None:
    version, numbers, gauss = state
    generator.setstate((version, tuple(numbers), gauss))


def _set_numpy(generator: numpy.random.RandomState, state: Any) -> None:
    import numpy

    kind, keys, *others = state
    generator.set_state((kind, numpy.frombuffer(keys, dtype="uint32"), *others))


def _set_torch(generator: torch.Generator, state: Any) -> None:
    import torch

    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def written(states: States) -> States:
    """Return states that were read as plain data."""
    return {module: _WRITERS[module](state) for module, state in states.items()}


def _write_random(state: Any) -> Any:
    version, numbers, gauss = state
    return [version, list(numbers), gauss]


def _write_numpy(state: Any) -> Any:
    kind, keys, position, has_gauss, gauss = state
    return [kind, keys, int(position), int(has_gauss), float(gauss)]


_MAKERS: dict[str, Callable[[], Any]] = {
    "random": random.Random,
    "numpy.random": _of_numpy,
    "torch": _of_torch,
}
_SEEDERS: dict[str, Callable[[Any, int], object]] = {
    "random": lambda generator, seed: generator.seed(seed),
    "numpy.random": lambda generator, seed: generator.seed(seed),
    "torch": lambda generator, seed: generator.manual_seed(seed),
}
_READERS: dict[str, Callable[[Any], Any]] = {
    "random": random.Random.getstate,
    "numpy.random": _read_numpy,
    "torch": _read_torch,
}
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "random": _write_random,
    "numpy.random": _write_numpy,
    "torch": bytes,
}
_SETTERS: dict[str, Callable[[Any, Any], None]] = {
    "random": _set_random,
    "numpy.random": _set_numpy,
    "torch": _set_torch,
}
#: The modules whose generators have states.
MODULES = frozenset(_SETTERS)
