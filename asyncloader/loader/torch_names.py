"""What trainers ask of torch's DataLoader, as far as a graph says it.

This file is about ``dataset_of`` and ``batcher_of``. Trainers ask a loader for its data set, to
count it, and for the size of its batches. What is not as in torch's loader is not there for
``hasattr`` either: a trainer that finds a name relies on all that belongs to it.
"""

from __future__ import annotations

from typing import Any, NoReturn

from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.sampling import SampledItems
from asyncloader.datapipes.shared_sequence import SharedSequence
from asyncloader.datapipes.sources import SequenceWrapper
from asyncloader.graph.walk import breadth_first


def dataset_of(datapipe: Any) -> Any:
    """Return the data set that the only source of a graph looks up; AttributeError otherwise.

    Of an iterable one a trainer would skip batches by reading it again without the graph.
    """
    sources = [pipe for pipe in breadth_first(datapipe) if not edges_of(pipe)]
    match sources:
        case [SequenceWrapper(sequence=data)] | [SampledItems(dataset=data)]:
            return data
        case [SharedSequence()]:
            return sources[0]
    raise AttributeError("this loader has no data set that is looked up: see loader.datapipe")


def batcher_of(datapipe: Any) -> Batcher[Any] | None:
    """Return the pipe that makes a graph's batches, or None if it is not exactly one."""
    found = [pipe for pipe in breadth_first(datapipe) if isinstance(pipe, Batcher)]
    return found[0] if len(found) == 1 else None


def no_sampler(name: str) -> NoReturn:
    """Raise the AttributeError for who would change or skip batches by torch's samplers.

    Trainers make another loader of torch's with them, whose order would be another one: also
    where a sampler was given, because here it draws from the loader's seed.
    """
    raise AttributeError(
        f"a DataLoader2 has no {name}: its graph decides the order, which is another one in each"
        f" epoch, so leave {name}.set_epoch(...) out. A trainer that skips batches to resume should"
        " not (transformers: TrainingArguments(ignore_data_skip=True)): load the loader's own state"
        " instead"
    )


def no_set_epoch() -> NoReturn:
    """Raise the AttributeError for who tells a loader the epoch, as one of Accelerate's is told."""
    raise AttributeError(
        "a DataLoader2 has no set_epoch: it counts epochs itself, each has an order of its own, and"
        " a state says which one it is in; leave set_epoch(...) out"
    )
