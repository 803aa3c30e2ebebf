"""The Ray of this program.

This file is about whether there is one, what its cluster has, and what it says of failures. Only
this file imports Ray.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from asyncloader.errors import WorkerStartupError
from asyncloader.runtime import in_thread

T = TypeVar("T")

#: How long the cluster may take to say what it has.
ASK_SECONDS = 5.0
#: How long a cluster may take to be connected to.
_CONNECT_SECONDS = 5.0


def initialized_ray() -> Any:
    """Return the module; raise WorkerStartupError where it is missing or not initialized."""
    ray = import_ray()
    if not ray.is_initialized():
        raise WorkerStartupError(
            "RayReadingService uses the Ray of this program, but none is initialized: call"
            " ray.init(), or ray.init(address=...) for a cluster, before the loader is started"
        )
    return ray


def import_ray() -> Any:
    """Return the module; raise WorkerStartupError where it is missing."""
    try:
        import ray  # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError as error:
        raise WorkerStartupError(
            "RayReadingService needs Ray, which is not installed: pip install 'asyncloader[ray]'"
        ) from error
    return ray


def free_resources() -> dict[str, float]:
    """Return what the cluster has free, of all its nodes together; this asks the head."""
    free: dict[str, float] = initialized_ray().available_resources()
    return {name: amount for name, amount in free.items() if not name.startswith("node:")}


class Room(NamedTuple):
    """How many actors with the same options a cluster can hold."""

    #: Beside those that run now.
    free: int
    #: If nothing else ran.
    whole: int


def needs_of(options: dict[str, Any]) -> dict[str, float]:
    """Return the resources that an actor with these options of Ray needs."""
    memory = options["memory"]
    needs = {"CPU": options["num_cpus"], "memory": memory or 0.0, **(options["resources"] or {})}
    return {name: amount for name, amount in needs.items() if amount}


def room_for(options: dict[str, Any]) -> Room:
    """Return how many actors with these options the cluster can hold; this asks the head."""
    # Where an actor needs nothing, one for each CPU is enough.
    needs = needs_of(options) or {"CPU": 1.0}
    strategy = options["scheduling_strategy"]
    ray = initialized_ray()
    group = getattr(strategy, "placement_group", None)
    if group is None:
        only = None if getattr(strategy, "soft", True) else strategy.node_id
        nodes = [node for node in ray.nodes() if node["Alive"] and only in (None, node["NodeID"])]
        places, within = [node["Resources"] for node in nodes], ""
    else:
        bundle = strategy.placement_group_bundle_index
        places = group.bundle_specs if bundle < 0 else [group.bundle_specs[bundle]]
        # What is free of it is counted under names of its own.
        within = f"_group_{group.id.hex()}" if bundle < 0 else f"_group_{bundle}_{group.id.hex()}"
    whole = sum(_times(place, needs) for place in places)
    needs_within = {name + within: amount for name, amount in needs.items()}
    return Room(min(whole, _times(ray.available_resources(), needs_within)), whole)


def _times(has: dict[str, float], needs: dict[str, float]) -> int:
    # Ray counts in ten thousandths.
    return min(round(1e4 * has.get(name, 0.0)) // round(1e4 * needs[name]) for name in needs)


async def answer_of(ask: Callable[..., T], *args: Any, seconds: float = ASK_SECONDS) -> T | None:
    """Ask the head something, in a thread; None if it does not answer in so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            return await in_thread(ask, *args)
    except Exception:  # noqa: BLE001  Ray has many kinds for it
        return None


def cause_of(error: BaseException) -> str:
    """Return what Ray says of a failure, in one line and without what is said elsewhere."""
    text = " ".join(str(error).split())
    text = re.sub(r"class_name: .*? ip: \S+ ", "", text)
    return re.split(" Some common causes| OOM kill reason", text)[0]


class Cluster(NamedTuple):
    """A cluster that this program has joined."""

    version: str
    nodes: int
    #: How many actors of one CPU each can be started.
    room: int


@contextlib.contextmanager
def joined_cluster() -> Iterator[Cluster]:
    """Use the Ray of this program, or join the cluster that RAY_ADDRESS or this machine has."""
    ray = import_ray()
    joins = not ray.is_initialized()
    if joins:
        address = os.environ.get("RAY_ADDRESS", "")
        try:
            _connect_to(address)
            ray.init("auto", log_to_driver=False, logging_level=logging.ERROR)
        except (OSError, RuntimeError, ValueError) as error:
            where = f" at RAY_ADDRESS={address}" if address else ""
            cause = cause_of(error).rstrip(".")
            raise WorkerStartupError(
                f"no Ray cluster can be reached{where}: {cause}. Run this on a node of the cluster,"
                " or set RAY_ADDRESS to host:port"
            ) from None
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield Cluster(ray.__version__, len(nodes), int(ray.available_resources().get("CPU", 0)))
    finally:
        if joins:
            ray.shutdown()


def _connect_to(address: str) -> None:
    """Raise OSError where nobody listens at host:port; Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
