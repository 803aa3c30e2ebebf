"""A cluster of Ray on this machine, for tests.

This file is about ``Nodes``: a head that runs no actors, and nodes that do. They are started
once for all tests of a process, and a node that a test loses is replaced before the next.
"""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Collection, Iterator
from typing import Any

NODES = 3
CPUS = 4
STORE = 200 << 20


class Nodes:
    """The nodes of a cluster, of which ``count`` run actors."""

    def __init__(self, count: int = NODES) -> None:
        from ray.cluster_utils import Cluster

        # Ray notices in ten seconds that a node is lost, not in a minute.
        settings = {
            "prestart_worker_first_driver": False,
            "health_check_initial_delay_ms": 1000,
            "health_check_period_ms": 1000,
            "health_check_timeout_ms": 1000,
            "health_check_failure_threshold": 10,
        }
        head = {"num_cpus": 0, "object_store_memory": STORE, "include_dashboard": False}
        # Nobody here asks for more nodes, or reads what actors print.
        head |= {"no_monitor": True, "include_log_monitor": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.cluster = Cluster(
                initialize_head=True, head_node_args={**head, "_system_config": settings}
            )
        self.count = count
        self.nodes: list[Any] = []
        self.fill_up()
        self.connect()

    def connect(self) -> None:
        """Connect this process to the cluster."""
        import ray

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ray.init(address=self.cluster.address, log_to_driver=False, logging_level=logging.ERROR)

    def fill_up(self) -> None:
        """Let there be as many nodes as at first."""
        while len(self.nodes) < self.count:
            self.nodes.append(self.cluster.add_node(num_cpus=CPUS, object_store_memory=STORE))
        self.cluster.wait_for_nodes(timeout=120)

    def lose(self, node_id: str) -> None:
        """Remove a node with all that runs on it, which Ray notices some seconds later."""
        self._remove(node_id, allow_graceful=False)

    def retire(self, node_id: str) -> None:
        """Remove a node in a way that Ray knows of at once."""
        self._remove(node_id, allow_graceful=True)

    def _remove(self, node_id: str, *, allow_graceful: bool) -> None:
        (node,) = (node for node in self.nodes if node.node_id == node_id)
        self.nodes.remove(node)
        self.cluster.remove_node(node, allow_graceful=allow_graceful)

    def close(self) -> None:
        import ray

        ray.shutdown()
        self.cluster.shutdown()


def live_actors() -> list[str]:
    """Return the ids of the actors of this program that live."""
    from ray._private.state import actors

    return [each for each, facts in actors().items() if facts["State"] != "DEAD"]


def no_actors(seconds: float = 20.0, besides: Collection[str] = ()) -> None:
    """Fail if an actor of this program still lives after so many seconds, but for ``besides``."""
    end = time.monotonic() + seconds
    while (left := set(live_actors()) - set(besides)) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left, f"actors left behind: {left}"


@contextlib.contextmanager
def some_nodes() -> Iterator[Nodes]:
    """Give a cluster, which ends with the block."""
    nodes = Nodes()
    try:
        yield nodes
    finally:
        nodes.close()
