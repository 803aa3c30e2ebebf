"""What torch says of our workers.

This file is about ``torch.utils.data.get_worker_info``, by which data sets and other libraries take
their shares: ``answer_torch`` makes it answer in our workers too.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any

from asyncloader.datapipes.base import is_pipe
from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.sampling import SampledItems
from asyncloader.datapipes.sources import IterableWrapper, SequenceWrapper
from asyncloader.graph.walk import breadth_first
from asyncloader.worker_info import WorkerInfo, generators_here, is_hidden, this_worker

#: The data set of the worker that is a thread and runs in this context.
data_set_here: ContextVar[Any] = ContextVar("data set", default=None)


def data_set_of(ends: Sequence[Any], *, is_shared: bool = False) -> Any:
    """Return what torch calls the data set of a worker that runs these graphs, or None.

    If workers share data, that is one that they do not share: it may be changed for one of them.
    """
    pipes = {id(pipe): pipe for end in ends for pipe in breadth_first(end)}.values()
    match [pipe for pipe in pipes if is_pipe(pipe) and not edges_of(pipe)]:
        case [IterableWrapper(iterable=data)]:
            return data
        case [SequenceWrapper(sequence=data)] | [SampledItems(dataset=data)] if not is_shared:
            return data
    return None


def answer_torch() -> None:
    """Let torch's ``get_worker_info`` answer as ours does; call it when torch is imported."""
    from torch.utils.data._utils import worker as torch_worker

    worker: Any = torch_worker
    # Many hold the function itself, so it is the function that has to answer otherwise.
    worker.asked_of_asyncloader = _asked
    worker.get_worker_info.__code__ = _get_worker_info.__code__


def torch_info(info: WorkerInfo, seed: int | None, data_set: Any) -> Any:
    """Return what torch says of a worker."""
    from torch.utils.data._utils import worker

    facts: dict[str, Any] = {
        "id": info.worker_id,
        "num_workers": info.num_workers,
        "seed": seed or 0,
        "dataset": data_set,
    }
    return worker.WorkerInfo(**facts)


def _asked(of_torch: Any) -> Any:
    """Answer, where ``of_torch`` is what torch itself knows."""
    if is_hidden():
        return None
    info = this_worker()
    # Outside of our workers there may be torch's own; and one that is a process is known to torch.
    if info is None or of_torch is not None:
        return of_torch
    return torch_info(info, generators_here().torch_seed, data_set_here.get())


#: These stand for variables of torch's module.
_worker_info: Any = None
asked_of_asyncloader: Any = None


def _get_worker_info() -> Any:
    return asked_of_asyncloader(_worker_info)
