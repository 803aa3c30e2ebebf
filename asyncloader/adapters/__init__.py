"""Changes to a graph that are made before it runs; each is a function from graph to graph."""

from asyncloader.adapters.base import Adapter, AdapterFn, adapted
from asyncloader.adapters.caches import CacheTimeout, InvalidateCache
from asyncloader.adapters.endings import FullSync, PinMemory, PrefetchPolicy
from asyncloader.adapters.sharding_policy import ShardingPolicy
from asyncloader.adapters.shuffle import Shuffle

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
