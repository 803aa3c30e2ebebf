"""The cluster of these tests, and their marker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.ray.cluster import Nodes, some_nodes


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of this folder, and let Ray warn as it likes."""
    item.add_marker("ray")
    # Ray leaves sockets and files to the garbage collector.
    item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def whole_cluster() -> Iterator[Nodes]:
    with some_nodes() as nodes:
        yield nodes


@pytest.fixture
def nodes(whole_cluster: Nodes) -> Nodes:
    """A cluster of a head without CPUs and three nodes, all of them there."""
    whole_cluster.fill_up()
    return whole_cluster
