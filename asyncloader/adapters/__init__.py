"""Changes to a graph that are made before it runs; each is a function from graph to graph."""

from asyncloader.adapters.base import Adapter, AdapterFn, adapted
from asyncloader.adapters.cache_timeout import CacheTimeout
from asyncloader.adapters.full_sync import FullSync
from asyncloader.adapters.invalidate_cache import InvalidateCache
from asyncloader.adapters.pin_memory import PinMemory
from asyncloader.adapters.prefetch_policy import PrefetchPolicy
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
