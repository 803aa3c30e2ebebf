"""The order in which a sampler has the keys of a data set.

This file is about ``Order``: the keys of one epoch, which are the same for the same seed, in every
process and when they are drawn again. So they come from a copy of the sampler that is made for the
epoch, and whatever it draws from is the order's own:

    Order ── Draw ── SamplerCopy ── copies of its lists and arrays, of the samplers inside it …
                 │              └── seeded generators in place of those that the sampler holds
                 └── GlobalGenerators, for a sampler that may draw from those of the process
"""

from __future__ import annotations

import contextlib
import copy
import random
import sys
import threading
from collections import deque
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice, repeat
from time import perf_counter
from typing import Any

from asyncloader.arguments import kind_name
from asyncloader.datapipes.running.run_place import at_consumer
from asyncloader.seeds import SeedStream
from asyncloader.system import in_forked_child

#: How many keys are drawn together. To set the global generators' states takes as long as to draw
#: a thousand, and the first item should not wait for so many.
_TOGETHER = (64, 512, 4096)

#: A sampler that takes longer for its first keys is asked for them twice in the first epoch alone.
_CHEAP_SECONDS = 1.0

#: How often that is tried, as another thread may have drawn from the global generators meanwhile.
_TRIES = 3


class Order:
    """The keys that a sampler yields in an epoch, drawn from a seed.

    The sampler itself is neither iterated nor changed, and ``dataset``, which it may hold, is not
    copied. A ``set_epoch`` is called on the copy, with ``epoch``. A sampler that yields other keys
    the second time is a RuntimeError; one that takes long is asked a second time for its first keys
    in the first epoch alone, which every run begins with.
    """

    def __init__(self, sampler: Any, seed: int, *, epoch: int = 0, dataset: Any = None) -> None:
        self._sampler, self._dataset = sampler, dataset
        self._seed, self._epoch = seed, epoch

    def __iter__(self) -> Iterator[Any]:
        copied = self._copied()
        return iter(copied.sampler) if copied.owns_all else self._drawn()

    def _copied(self) -> SamplerCopy:
        return SamplerCopy(self._sampler, self._seed, self._epoch, self._dataset)

    def _drawn(self) -> Iterator[Any]:
        # In the thread that takes the items: it cannot draw from the global generators meanwhile.
        draw, twin, first = at_consumer(self._begun)
        some = first
        for count in chain(_TOGETHER[1:], repeat(_TOGETHER[-1])):
            yield from some
            if draw.is_over:
                break
            # Nobody can have come between if it did not draw.
            twin = twin if draw.has_drawn else None
            some = at_consumer(partial(self._next, draw, twin, count))
        at_consumer(partial(self._check_next_epoch, draw, first))

    def _begun(self) -> tuple[Draw, Draw | None, list[Any]]:
        """Return a draw, another one that gives the same keys, and the first keys."""
        for _ in range(_TRIES):
            begun = perf_counter()
            draw, twin = self._new_draw(), None
            first = draw.next(_TOGETHER[0])
            takes_long = perf_counter() - begun > _CHEAP_SECONDS
            is_copied = draw.copied.sampler is not self._sampler
            if not is_copied or (takes_long and self._epoch):
                break
            twin = self._new_draw()
            if _are_same(first, twin.next(_TOGETHER[0])):
                twin = None if takes_long else twin
                break
        else:
            raise self._changes()
        self._check_next_epoch(draw, first)
        return draw, twin, first

    def _new_draw(self) -> Draw:
        return Draw(self._copied(), self._seed)

    def _next(self, draw: Draw, twin: Draw | None, count: int) -> list[Any]:
        some = draw.next(count)
        if twin is not None and not _are_same(some, twin.next(count)):
            raise self._changes()
        return some

    def _changes(self) -> RuntimeError:
        return RuntimeError(
            f"{kind_name(self._sampler)} yields other keys each time for the same random numbers,"
            " so items would be lost with workers and after resuming. Let it draw from generators"
            " of random, numpy.random or torch that it holds in its attributes, which are seeded"
            " for each epoch. The global ones are seeded for it too, but then no other thread may"
            " draw from them at the same time"
        )

    def _check_next_epoch(self, draw: Draw, first: list[Any]) -> None:
        """Raise RuntimeError if other keys follow from what the sampler has noted of itself."""
        changed = draw.copied.changed()
        if not changed:
            return
        later = self._new_draw()
        later.copied.change(changed)
        if not _are_same(first, later.next(_TOGETHER[0])):
            names = ", ".join(sorted({name for _, name in changed}))
            raise RuntimeError(
                f"{kind_name(self._sampler)} yields other keys once it has changed its {names},"
                " which other workers and resumed programs do not know. Give it a method"
                " set_epoch(epoch), which is called with the number of each epoch, or let it draw"
                " random numbers"
            )


def _are_same(one: list[Any], other: list[Any]) -> bool:
    try:
        return one == other
    except (ValueError, RuntimeError):  # arrays and tensors have no single truth
        return repr(one) == repr(other)


class Draw:
    """Keys that are drawn from a copy of a sampler, many at a time."""

    def __init__(self, copied: SamplerCopy, seed: int) -> None:
        self.copied = copied
        self._generators = GlobalGenerators(seed)
        self._keys: Iterator[Any] | None = None
        #: Whether the latest keys were drawn from the global generators.
        self.has_drawn = False
        #: Whether there are no more keys.
        self.is_over = False

    def next(self, count: int) -> list[Any]:
        """Return the next ``count`` keys, or the last ones."""
        with self._generators.in_place():
            if self._keys is None:
                self._keys = iter(self.copied.sampler)
            some = list(islice(self._keys, count))
        self.has_drawn = self._generators.were_used
        self.is_over = len(some) < count
        return some


# The copy of a sampler ------------------------------------------------------------------

#: Samplers of torch that draw from its global generator, unless they were given one.
_DRAWING = frozenset({"RandomSampler", "SubsetRandomSampler", "WeightedRandomSampler"})
#: Those that draw from nothing else, and note nothing of themselves.
_OF_TORCH = _DRAWING | {"SequentialSampler", "BatchSampler", "DistributedSampler"}

#: Data of which no copy is needed.
_PLAIN = frozenset({int, float, complex, bool, str, bytes, type(None)})

#: Attributes of a sampler, by its number in the copy and their name.
Notes = dict[tuple[int, str], Any]


class SamplerCopy:
    """A copy of a sampler for one epoch, with generators of its own.

    What the sampler may change is copied as well: the samplers, arrays, lists, sets and dicts in
    its attributes, and arrays and lists in such lists and dicts, but not ``dataset``.
    """

    def __init__(self, sampler: Any, seed: int, epoch: int, dataset: Any) -> None:
        #: Whether it draws from generators of its own only, as all of it is torch's.
        self.owns_all = True
        self._seed = seed
        self._seeded = 0
        # All samplers in it, the outermost first.
        self._parts: list[Any] = []
        # Copies by the ids of what they are of, as several may hold one, or each other.
        self._made: dict[int, Any] = {id(dataset): dataset}
        #: The copy.
        self.sampler = sampler if _has_keys(sampler) else self._part(sampler)
        numbered = [part for part in self._parts if callable(getattr(part, "set_epoch", None))]
        # One that holds another may have something to say to it.
        for part in reversed(numbered):
            part.set_epoch(epoch)
        self._is_numbered = bool(numbered)
        self._noted = self._notes()

    def changed(self) -> Notes:
        """Return the numbers and texts in attributes of samplers that are not as they were.

        None of one with a ``set_epoch``: its later keys depend on that.
        """
        if self._is_numbered:
            return {}
        return {
            at: value
            for at, value in self._notes().items()
            if at not in self._noted or self._noted[at] != value
        }

    def change(self, notes: Notes) -> None:
        """Set attributes to what ``changed`` has returned of another copy."""
        for (number, name), value in notes.items():
            vars(self._parts[number])[name] = value

    def _notes(self) -> Notes:
        return {
            (number, name): value
            for number, part in enumerate(self._parts)
            for name, value in _attributes(part).items()
            if type(value) in _PLAIN
        }

    def _part(self, sampler: Any) -> Any:
        """Return the copy of a sampler."""
        if id(sampler) in self._made:
            return self._made[id(sampler)]
        self._made[id(sampler)] = part = _shallow_copy(sampler)
        self._parts.append(part)
        is_of_torch = _is_of_torch(part)
        self.owns_all &= is_of_torch
        if part is not sampler:
            for name, value in _attributes(sampler).items():
                if name in ("sampler", "batch_sampler") and not _has_keys(value):
                    _attributes(part)[name] = self._part(value)
                # What torch's samplers hold beside a generator they do not change.
                elif name == "generator" or not is_of_torch:
                    _attributes(part)[name] = self._copy(value, _DEPTH)
        if is_of_torch and type(part).__qualname__ in _DRAWING and part.generator is None:
            part.generator = self._generator_for(part)
        return part

    def _generator_for(self, sampler: Any) -> Any:
        """Return the generator of one of torch's samplers that was given none."""
        import torch

        generator = torch.Generator().manual_seed(self._next_seed())
        if type(sampler).__qualname__ == "RandomSampler":
            # It draws the seed of another one first, where it has none.
            number = torch.empty((), dtype=torch.int64).random_(generator=generator)
            generator.manual_seed(int(number.item()))
        return generator

    def _copy(self, value: Any, depth: int) -> Any:
        """Return a copy of what a sampler holds, or the value itself if it is no list and such."""
        if type(value) in _PLAIN:
            return value
        if id(value) in self._made:
            return self._made[id(value)]
        made = self._new_copy(value, depth)
        if made is not value:
            self._made[id(value)] = made
        return made

    def _new_copy(self, value: Any, depth: int) -> Any:
        if (seeded := self._seeded_like(value)) is not None:
            return seeded
        if _is_array(value):
            return value.clone() if hasattr(value, "clone") else value.copy()
        kind = type(value)
        if kind in (list, tuple) and depth and not set(map(type, value)) <= _PLAIN:
            return kind(self._copy(each, depth - 1) for each in value)
        if kind in (list, set, deque) and depth:
            return value.copy()
        # Of many records, which nobody changes, there may be more than of keys.
        if kind is dict and depth == _DEPTH:
            return {key: self._copy(each, depth - 1) for key, each in value.items()}
        return self._part(value) if kind not in _LISTS and _is_sampler(value) else value

    def _seeded_like(self, generator: Any) -> Any:
        """Return a seeded generator of the same kind, or None if it is no generator."""
        if isinstance(generator, random.Random):
            if isinstance(generator, random.SystemRandom):
                return generator
            made = copy.copy(generator)
            made.seed(self._next_seed())
            return made
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(generator, torch.Generator):
            return torch.Generator(generator.device).manual_seed(self._next_seed())
        numpy = sys.modules.get("numpy.random")
        if numpy is None:
            return None
        if isinstance(generator, numpy.BitGenerator):
            return type(generator)(self._next_seed())
        if isinstance(generator, numpy.Generator):
            return numpy.Generator(self._copy(generator.bit_generator, 0))
        if isinstance(generator, numpy.RandomState):
            return numpy.RandomState(numpy.MT19937(self._next_seed()))
        return None

    def _next_seed(self) -> int:
        """Return the seed of the next generator: that of the order itself for the first."""
        number, self._seeded = self._seeded, self._seeded + 1
        return SeedStream(self._seed).child(number).draw() if number else self._seed


_LISTS = frozenset({list, tuple, range, set, deque, dict})
#: How deep in a sampler's attributes lists are copied.
_DEPTH = 2


def _is_of_torch(sampler: Any) -> bool:
    kind = type(sampler)
    return kind.__module__.startswith("torch.utils.data.") and kind.__qualname__ in _OF_TORCH


def _is_sampler(value: Any) -> bool:
    """Whether something yields keys, as far as its class tells: data sets are looked up."""
    kind = type(value)
    return hasattr(kind, "__iter__") and not hasattr(kind, "__getitem__")


def _has_keys(value: Any) -> bool:
    """Whether something is a list of keys, and no sampler."""
    return type(value) in _LISTS or type(value) in _PLAIN or _is_array(value)


def _is_array(value: Any) -> bool:
    return any(
        module is not None and type(value) is getattr(module, name, None)
        for module, name in (
            (sys.modules.get("torch"), "Tensor"),
            (sys.modules.get("numpy"), "ndarray"),
        )
    )


def _attributes(sampler: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = getattr(sampler, "__dict__", {})
    return attributes


def _shallow_copy(sampler: Any) -> Any:
    """Return a copy of a sampler; itself if it cannot be copied, as an iterator cannot."""
    kind = type(sampler)
    has_slots = any(vars(each).get("__slots__") for each in kind.__mro__)
    try:
        if has_slots or getattr(kind, "__new__", None) is not object.__new__:
            return copy.copy(sampler)
        # Not by its pickle, which may leave something out.
        made = object.__new__(kind)
        made.__dict__.update(_attributes(sampler))
        return made
    except TypeError:
        return sampler


# The generators of the process ----------------------------------------------------------


class GlobalGenerators:
    """States of the global generators of random, numpy and torch, first those of a seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._states: list[Any] | None = None
        #: Whether somebody drew from them when they were in place last.
        self.were_used = False

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the generators of the process be in these states, and then as they were before."""
        # Two loaders may draw in two threads.
        with _turn:
            outside = _states()
            try:
                if self._states is None:
                    _seed_all(self._seed)
                    self._states = _states()
                else:
                    _set_states(self._states)
                yield
                before, self._states = self._states, _states()
                self.were_used = not _are_as(before, self._states)
            finally:
                _set_states(outside)


_turn = threading.RLock()


@in_forked_child
def _renew_turn() -> None:
    # Another thread of the parent may have had it.
    global _turn
    _turn = threading.RLock()


def _numpy_random() -> Any:
    """Return numpy's module, or None where there is none.

    It is imported here: numpy does so when somebody first looks at it, or a sampler imports numpy,
    and then it would begin in the midst of an order with a seed from the system.
    """
    try:
        import numpy.random
    except ImportError:
        return None
    return numpy.random


def _states() -> list[Any]:
    import torch

    numpy_random = _numpy_random()
    of_numpy = None if numpy_random is None else numpy_random.get_state()
    return [random.getstate(), torch.get_rng_state(), of_numpy]


def _are_as(one: list[Any], other: list[Any]) -> bool:
    import torch

    is_numpy_as = one[2] is None or (
        one[2][2:] == other[2][2:] and bool((one[2][1] == other[2][1]).all())
    )
    return one[0] == other[0] and torch.equal(one[1], other[1]) and is_numpy_as


def _set_states(states: list[Any]) -> None:
    import torch

    of_random, of_torch, of_numpy = states
    random.setstate(of_random)
    torch.set_rng_state(of_torch)
    if of_numpy is not None:
        _numpy_random().set_state(of_numpy)


def _seed_all(seed: int) -> None:
    import torch

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    if (numpy_random := _numpy_random()) is not None:
        numpy_random.seed(seed >> 32)
