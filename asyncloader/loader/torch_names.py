"""What trainers ask of torch's DataLoader, as far as a graph says it.

This file is about ``dataset_of`` and ``batcher_of``. Trainers ask a loader for its data set, to
count it, and for the size of its batches.
"""

from __future__ import annotations

from typing import Any, NoReturn

from asyncloader.datapipes.batching import Batcher
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.sampling import SampledItems
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
    raise AttributeError("this loader has no data set that is looked up: see loader.datapipe")


def batcher_of(datapipe: Any) -> Batcher[Any] | None:
    """Return the pipe that makes a graph's batches, or None if it is not exactly one."""
    found = [pipe for pipe in breadth_first(datapipe) if isinstance(pipe, Batcher)]
    return found[0] if len(found) == 1 else None


def no_batch_sampler() -> NoReturn:
    """Raise the AttributeError for a trainer that would skip batches by torch's samplers."""
    raise AttributeError(
        "a DataLoader2 has no batch_sampler by which a trainer could skip batches: load the"
        " loader's own state instead, and tell the trainer not to skip (transformers:"
        " TrainingArguments(ignore_data_skip=True))"
    )


def sampler_of(datapipe: Any) -> Any:
    """Return the sampler that decides a graph's order, or None."""
    found = (pipe for pipe in breadth_first(datapipe) if isinstance(pipe, SampledItems))
    return next((pipe.sampler for pipe in found), None)
