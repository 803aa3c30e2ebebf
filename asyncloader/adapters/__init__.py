"""Changes to a graph that are made before it runs; each is a function from graph to graph."""

from asyncloader.adapters.base import Adapter, AdapterFn, adapted
from asyncloader.adapters.endings import FullSync, PinMemory, PrefetchPolicy
from asyncloader.adapters.settings import CacheTimeout, InvalidateCache, Shuffle
from asyncloader.adapters.sharding_policy import ShardingPolicy

__all__ = [
    "Adapter",
    "AdapterFn",
    "CacheTimeout",
    "FullSync",
    "InvalidateCache",
    "PinMemory",
    "PrefetchPolicy",
    "ShardingPolicy",
    "Shuffle",
    "adapted",
]


def __dir__() -> list[str]:
    return __all__
