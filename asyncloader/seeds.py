"""Seeds for everything random in a loader.

This file is about ``SeedGenerator``, which draws the numbers that pipes and
processes are seeded with. It is built on Philox4x32-10, a counter-based
generator: a draw is a pure function of a key and a position, so a stream is
two integers, and copies, pickles and comparisons are trivial.
"""

from __future__ import annotations

import functools
import operator
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

_WORD = 0xFFFFFFFF
_UINT64 = 2**64

Block = tuple[int, int, int, int]


def philox(counter: Block, key: tuple[int, int]) -> Block:
    """Return the Philox4x32-10 block of ``counter`` under ``key`` (32-bit words)."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        product0 = 0xD2511F53 * c0
        product1 = 0xCD9E8D57 * c2
        c0, c1 = (product1 >> 32) ^ c1 ^ k0, product1 & _WORD
        c2, c3 = (product0 >> 32) ^ c3 ^ k1, product0 & _WORD
        k0 = (k0 + 0x9E3779B9) & _WORD
        k1 = (k1 + 0xBB67AE85) & _WORD
    return c0, c1, c2, c3


@dataclass(frozen=True)
class SeedStream:
    """A sequence of 64-bit numbers, two to a Philox block, from ``position`` on."""

    key: int
    position: int = 0

    def draw(self) -> int:
        """Return the number at this position."""
        # Block 0 is reserved for the children's keys.
        return _draw(self.key, 1 + self.position // 2, self.position % 2)

    def advanced(self) -> SeedStream:
        """Return the stream that begins one number later."""
        return SeedStream(self.key, self.position + 1)

    def child(self, index: int) -> SeedStream:
        """Return the stream of child ``index``, which depends on the key alone."""
        return SeedStream(_draw(_draw(self.key, 0, 0), index - index % 2, index % 2))


def _draw(key: int, block: int, half: int) -> int:
    words = _block(key, block)
    return words[2 * half] | words[2 * half + 1] << 32


@functools.lru_cache(maxsize=4)
def _block(key: int, block: int) -> Block:
    # Cached: the second of its two numbers is usually drawn next.
    counter = (block & _WORD, block >> 32 & _WORD, block >> 64 & _WORD, block >> 96 & _WORD)
    return philox(counter, (key & _WORD, key >> 32))


class SeedGenerator:
    """The single source of randomness of a loader: a shared and a worker stream.

    Every process that clones a generator draws the same *shared* seeds, which is
    how all workers agree on one shuffle. ``spawn`` gives each worker a stream of
    its own for whatever must differ. Without a seed, one is drawn from torch's
    global generator, or from the operating system while torch is not imported.

    >>> generator = SeedGenerator(123)
    >>> generator.generate_shared_seed()
    9025247384375923790
    >>> workers = [generator.spawn(worker) for worker in range(2)]
    >>> [worker.generate_shared_seed() for worker in workers]
    [16000952678483384606, 16000952678483384606]
    >>> [worker.generate_seed() for worker in workers]
    [4163719935875787874, 13444131963280986346]
    """

    def __init__(self, seed: int | None = None) -> None:
        self.seed(seed)
        #: Whether it was given its seed, and did not draw one.
        self.is_chosen = seed is not None
        #: The number of the epoch that it is for.
        self.epoch = 0
        #: After how many items on every rank the epoch resumes; None for a new epoch.
        self.resumed_after: int | None = None
        #: How many of those items were padding on this rank.
        self.padding = 0
        #: The number of workers when the state was taken, if it or the number of ranks differs
        #: now; otherwise None.
        self.taken_with: int | None = None
        #: The seed that was adopted from another rank, if any.
        self.adopted: int | None = None

    @property
    def key(self) -> int:
        """The seed from which all processes draw the shared seeds."""
        return self._shared.key

    def seed(self, seed: int | None = None) -> None:
        """Start both streams again from ``seed``, a number of 64 bits, or from one drawn anew."""
        self._shared = self._worker = SeedStream(checked_seed(entropy() if seed is None else seed))

    def adopt(self, key: int) -> None:
        """Continue as a generator with the seed ``key`` that has drawn as many numbers as this."""
        self.adopted = key
        self._shared = replace(self._shared, key=checked_seed(key))
        self._worker = replace(self._worker, key=checked_seed(key))

    def generate_shared_seed(self) -> int:
        """Draw a 64-bit seed that is the same in every process."""
        number, self._shared = self._shared.draw(), self._shared.advanced()
        return number

    def generate_seed(self) -> int:
        """Draw a 64-bit seed that is this worker's own."""
        number, self._worker = self._worker.draw(), self._worker.advanced()
        return number

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return a generator with the worker stream of ``worker_id``.

        The shared stream continues from its position. With ``inplace`` this very
        generator is changed and returned.
        """
        number = _integer(worker_id)
        if number < 0:
            raise ValueError(f"worker_id must be an integer of at least 0, got {worker_id!r}")
        spawned = self if inplace else self.clone()
        spawned._worker = self._worker.child(number)
        return spawned

    def clone(self) -> SeedGenerator:
        """Return a generator that draws what this one would, independently."""
        clone = SeedGenerator.__new__(SeedGenerator)
        clone._shared, clone._worker = self._shared, self._worker
        clone.is_chosen, clone.adopted = self.is_chosen, self.adopted
        clone.epoch = self.epoch
        clone.resumed_after, clone.taken_with = self.resumed_after, self.taken_with
        clone.padding = self.padding
        return clone

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SeedGenerator):
            return NotImplemented
        return (self._shared, self._worker) == (other._shared, other._worker)

    __hash__ = None  # type: ignore[assignment]  # it changes with every draw

    def __repr__(self) -> str:
        return f"SeedGenerator(shared={self._shared}, worker={self._worker})"


def _from_system() -> int:
    return int.from_bytes(os.urandom(8), "little")


def entropy(otherwise: Callable[[], int] = _from_system) -> int:
    """Return a fresh seed; if torch is in use, ``torch.manual_seed`` decides it.

    Otherwise it comes from ``otherwise``, by default the operating system.
    """
    torch = sys.modules.get("torch")
    # If another thread is still importing torch, it is not in use yet.
    if torch is None or not hasattr(torch, "empty"):
        return otherwise()
    return int(torch.empty((), dtype=torch.int64).random_().item())


def checked_seed(seed: int) -> int:
    """Return ``seed`` if it is a number of 64 bits; raise ValueError otherwise."""
    number = seed if type(seed) is int else _integer(seed)
    if not 0 <= number < _UINT64:
        raise ValueError(f"seed must be an integer from 0 to 2**64 - 1, got {seed!r}")
    return number


def _integer(value: object) -> int:
    """Return a value as a Python int, or -1 if it is no integer."""
    try:
        return -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        return -1
