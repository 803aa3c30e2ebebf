"""The worker that this process, or this thread, is, if it is one."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncloader.generators import PROCESS, Generators

if TYPE_CHECKING:
    import random

    import numpy
    import torch


@dataclass(frozen=True)
class WorkerInfo:
    """Which of how many workers this is, and the random generators that it draws from.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def named(pipe, info):
    ...     return pipe.map(lambda number: f"{number} of worker {info.worker_id}")
    >>> pipe = IterableWrapper(range(2)).sharding_filter()
    >>> service = MultiProcessingReadingService(2, worker_init_fn=named)
    >>> with DataLoader2(pipe, None, service) as loader:
    ...     list(loader)
    ['0 of worker 0', '1 of worker 1']
    """

    #: How many workers there are.
    num_workers: int
    #: Which of them this is, from 0.
    worker_id: int

    @property
    def random(self) -> random.Random:
        """The generator of the worker that asks, seeded for its epoch, as ``random`` has one.

        In a worker that is a process these are the global generators. Threads share those with the
        whole program, so each worker that is a thread has three of its own, with the same numbers.
        """
        return generators_here().random

    @property
    def torch_generator(self) -> torch.Generator:
        """The same for torch: ``torch.rand(3, generator=info.torch_generator)``."""
        return generators_here().torch_generator

    @property
    def numpy_generator(self) -> numpy.random.Generator:
        """The same for NumPy: ``info.numpy_generator.random(3)``."""
        return generators_here().numpy_generator


#: The worker that this process is.
_worker_info: WorkerInfo | None = None
#: The worker that runs in this context, in a process that has several, and its generators.
_here: ContextVar[tuple[WorkerInfo, Generators] | None] = ContextVar("worker", default=None)


def get_worker_info() -> WorkerInfo | None:
    """Return what worker this process, or this thread, is; or None outside of workers.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(2)).sharding_filter().map(lambda number: get_worker_info())
    >>> with DataLoader2(pipe, None, MultiProcessingReadingService(2)) as loader:
    ...     list(loader)
    [WorkerInfo(num_workers=2, worker_id=0), WorkerInfo(num_workers=2, worker_id=1)]
    >>> get_worker_info() is None
    True
    """
    return None if is_hidden() else this_worker()


def this_worker() -> WorkerInfo | None:
    """Return which worker this is, even where ``get_worker_info`` hides it."""
    here = _here.get()
    return _worker_info if here is None else here[0]


def generators_here() -> Generators:
    """Return the generators of this worker, or those of the process."""
    here = _here.get()
    return PROCESS if here is None else here[1]


class Unaware:
    """Hides the worker from code within ``with``.

    With a ``refusal``, asking for the worker raises a ValueError with this text.
    """

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.was_asked = False
        self._before: Unaware | None = None

    def __enter__(self) -> None:
        self._before = _unaware.get()
        _unaware.set(self)

    def __exit__(self, *_: object) -> None:
        _unaware.set(self._before)

    def check(self) -> None:
        """Raise the refusal if somebody has asked; the asking code may have caught the error."""
        if self.was_asked and self.refusal:
            raise ValueError(self.refusal)


_unaware: ContextVar[Unaware | None] = ContextVar("unaware", default=None)


def is_hidden() -> bool:
    """Whether the worker is hidden; raise ValueError if asking is refused."""
    unaware = _unaware.get()
    if unaware is None:
        return False
    unaware.was_asked = True
    unaware.check()
    return True


def set_worker_info(info: WorkerInfo) -> None:
    """Make this process a worker."""
    global _worker_info
    _worker_info = info


def set_worker_here(info: WorkerInfo, generators: Generators) -> None:
    """Make this context a worker: this thread, and what is begun from it with its context."""
    _here.set((info, generators))
