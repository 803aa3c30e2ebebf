"""The Ray of this program.

This file is about whether there is one, what its cluster has, and what it says of failures. Only
this file imports Ray.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

from asyncloader.errors import WorkerStartupError

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
