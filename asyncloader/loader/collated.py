"""What a type checker knows of batches that torch's ``default_collate`` makes.

This file is about the types of ``DataLoader2.from_dataset`` without ``collate_fn``. Nothing here
does anything when a program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol, TypedDict, TypeVar, final

from asyncloader.datapipes.full_sync import Uneven
from asyncloader.loader.from_dataset import WorkerKind

T_co = TypeVar("T_co", covariant=True)
#: What is left in a list.
Text = TypeVar("Text", str, bytes)


class Keyed(Protocol[T_co]):
    """A data set whose items are looked up."""

    def __getitem__(self, key: int, /) -> T_co: ...


class HasArray(Protocol):
    """A tensor, an array of NumPy or one of its numbers."""

    def __array__(self) -> Any: ...


class IsNamedTuple(Protocol):
    """A tuple with names, which stays one."""

    def _asdict(self) -> dict[str, Any]: ...


@final
class Untold:
    """What is of this type has none that is known: there are no objects of it."""


#: What is stacked.
Number = HasArray | float

#: Data sets of whose batches nothing is known, as their items, or parts of them, have no type.
Unknown = (
    Keyed[Untold]
    | Keyed[IsNamedTuple]
    | Keyed[tuple[Untold, ...]]
    | Keyed[tuple[Number, Untold]]
    | Keyed[tuple[Untold, Number]]
    | Keyed[Mapping[Any, Untold]]
)


class CollatingOptions(TypedDict, total=False):
    """The parameters that change nothing in what the batches are."""

    sampler: Iterable[Any] | None
    batch_sampler: Iterable[Any] | None
    num_workers: int | Literal["auto"]
    collate_fn: None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], Any] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    seed: int | None
    distributed: Any
    uneven: Uneven
    on_worker_death: Literal["raise", "restart"]
    workers: WorkerKind | None
    acknowledge: bool
