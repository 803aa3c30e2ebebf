"""What a pipe can do, told by what it has.

This file is about recognising pipes by the methods they offer, so that torch's
pipes, torchdata's and a user's own are treated as ours are.
"""

from __future__ import annotations

import sys
from typing import Any

from asyncloader.datapipes.pipe.base import DataPipe


def can(pipe: Any, *methods: str) -> bool:
    """Whether a pipe has all these methods."""
    return all(callable(getattr(pipe, method, None)) for method in methods)


def is_random(pipe: Any) -> bool:
    """Whether a pipe takes a seed."""
    return can(pipe, "set_seed")


def is_shuffler(pipe: Any) -> bool:
    """Whether a pipe shuffles, and can be told not to."""
    return can(pipe, "set_shuffle", "set_seed")


def is_filter_of_shards(pipe: Any) -> bool:
    """Whether a pipe keeps one shard of its items, once it is told which."""
    return can(pipe, "apply_sharding")


def is_dispatch(pipe: Any) -> bool:
    """Whether a pipe's items are dealt to the workers by a process of its own."""
    return functional_name(pipe) == "sharding_round_robin_dispatch"


def shards_itself(pipe: Any) -> bool:
    """Whether a source gives each worker items of its own without being told which."""
    return isinstance(pipe, DataPipe) and pipe.shards_itself


def is_sharding(pipe: Any) -> bool:
    """Whether a pipe makes the items of different workers differ."""
    return is_filter_of_shards(pipe) or is_dispatch(pipe) or shards_itself(pipe)


def is_replicable(pipe: Any) -> bool:
    """Whether each worker may run a copy of a pipe; a pipe that does not say may be copied."""
    return bool(pipe.is_replicable()) if can(pipe, "is_replicable") else True


def lives_with_loader(pipe: Any) -> bool:
    """Whether a pipe stays with the loader while its readers may run in workers."""
    return bool(pipe.lives_with_loader()) if can(pipe, "lives_with_loader") else False


def goes_by_clock(pipe: Any) -> bool:
    """Whether what a pipe yields depends on the time."""
    return bool(pipe.goes_by_clock()) if can(pipe, "goes_by_clock") else False


def has_no_place(pipe: Any) -> bool:
    """Whether what a pipe yields never comes again, so that no state says where it stands."""
    return lives_with_loader(pipe) or goes_by_clock(pipe)


def is_without_order(pipe: Any) -> bool:
    """Whether a pipe hands its items out as they come, another time in another order."""
    return bool(pipe.has_no_order()) if can(pipe, "has_no_order") else False


def is_splitter(pipe: Any) -> bool:
    """Whether a pipe is read through branches that share what it holds (fork, demux)."""
    if can(pipe, "is_splitter"):
        return bool(pipe.is_splitter())
    # torch's splitters are told by the method that their branches call.
    return can(pipe, "get_next_element_by_instance")


def functional_name(pipe: Any) -> str | None:
    """Return the name by which a pipe is made fluently, ours or torch's."""
    name: str | None = getattr(type(pipe), "functional_name", None)
    return name or _torch_names().get(type(pipe))


def _torch_names() -> dict[type, str]:
    module = sys.modules.get("torch.utils.data.datapipes.datapipe")
    if module is None:
        return {}
    kinds = (module.IterDataPipe, module.MapDataPipe)
    # torch keeps the methods as partial functions over the class they build.
    return {
        function.args[0]: name
        for kind in kinds
        for name, function in kind.functions.items()
        if getattr(function, "args", ())
    }
