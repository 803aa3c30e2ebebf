"""What prepares a graph for an epoch, on its way to the processes that run it.

This file is about the composed reset and the worker's reset function, as bytes. Most
loaders have neither, and then nothing travels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from asyncloader.datapipes.naming import function_name
from asyncloader.transport.code import dumps_code, loads_code

#: What says that there is nothing to reset.
NO_RESETS = b""

#: A reset of the graph, and the function that is called with a worker's graph, its
#: WorkerInfo and its SeedGenerator.
Resets = tuple[Callable[[Any], Any], Callable[[Any, Any, Any], Any]]


def dump_resets(
    reset: Callable[[Any], Any], worker_reset_fn: Callable[[Any, Any, Any], Any] | None
) -> bytes:
    """Pickle the resets for ``load_resets``, with their code where that is needed."""
    return dumps_code((reset, worker_reset_fn or _kept))


def load_resets(data: bytes) -> Resets:
    """Return the resets, which may be async, where there are any."""
    resets: Resets = loads_code(data)
    return resets


def resets_name(worker_reset_fn: Callable[[Any, Any, Any], Any] | None) -> str:
    """Return what resets are called in messages, of which a worker has this one of its own."""
    if worker_reset_fn is None or worker_reset_fn is _kept:
        return "the reset of a reading service"
    return f"worker_reset_fn={function_name(worker_reset_fn)}, or the reset of a reading service,"


def _kept(pipe: Any, *_: Any) -> Any:
    return pipe
