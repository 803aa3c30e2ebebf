"""The page of a loader whose workers are on the nodes of a cluster, in a real browser."""

from __future__ import annotations

import asyncio

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

from asyncloader import RayReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.browser import SECONDS, WITHOUT_CHROMIUM, browsing, save
from tests.loader.page.viewing import training
from tests.ray.called import decode
from tests.ray.cluster import NODES, Nodes, live_actors, no_actors

pytestmark = WITHOUT_CHROMIUM

TOLD = "[...document.querySelectorAll('tr.node')].map((row) => row.textContent)"
ROWS = "[...document.querySelectorAll('tbody tr')].map((row) => row.firstChild.textContent)"


async def test_a_person_sees_what_each_node_does_and_that_a_lost_one_is_replaced(nodes: Nodes):
    # Ray Train leaves actors of its own for the tests that follow.
    before = live_actors()
    graph = IterableWrapper(range(10**9), deepcopy=False).sharding_filter().map(decode)
    service = RayReadingService(NODES)
    async with training(graph, service) as loader, browsing() as tab, asyncio.timeout(2 * SECONDS):
        with loader.watch() as watch:
            await tab.open(watch.url, 1200, 900, is_dark=False)
            await tab.until(f"{TOLD}.length == {NODES}")
            told = await tab.value(TOLD)
            ids = sorted(node.node_id[:8] for node in nodes.nodes)
            assert sorted(row.partition("(")[2][:8] for row in told) == ids
            assert all(" 1 worker · " in row for row in told)
            rows = await tab.value(ROWS)
            assert [row.startswith("node ") for row in rows] == [True, False] * NODES
            workers = sorted(row for row in rows if not row.startswith("node "))
            assert workers == [f"worker {number}" for number in range(NODES)]
            await tab.until(f"{TOLD}.every((row) => !row.endsWith(' 0/s'))")
            save(await tab.picture(), "page-ray.png")
            lost = nodes.nodes[0].node_id
            nodes.lose(lost)
            # Its actors are started on the others, where they are shown.
            await tab.until(f"{TOLD}.length == {NODES - 1}")
            assert lost[:8] not in "".join(await tab.value(TOLD))
            restarts = "[...document.querySelectorAll('tbody td:last-child')]"
            await tab.until(f"{restarts}.filter((each) => each.textContent == '1').length == 1")
            await tab.until(f"{TOLD}.every((row) => !row.endsWith(' 0/s'))")
    no_actors(besides=before)
