"""What the page shows of each loader."""

from __future__ import annotations

import asyncio
import gc
import re
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService, UnderWay, Version, Wait
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.loader.page.history import History
from asyncloader.loader.page.panels import Panels, panel_of, spark
from asyncloader.loader.stats import LoaderStats
from asyncloader.loader.stats_picture import processes_of
from asyncloader.workers.worker_stats import WorkerStats


def numbers(count: int = 100) -> Any:
    return IterableWrapper(range(count)).map(str)


def test_a_panel_says_how_a_loader_is_doing():
    panels = Panels()
    with DataLoader2(numbers()) as loader:
        panels.add(loader, "training")
        (before,) = panels.look()
        assert before.summary == "not begun"
        assert "no epoch was begun yet" in before.text
        list(loader)
        (after,) = panels.look()
    assert after.title == "training"
    assert after.text.startswith("training  ")
    assert "epoch 1: 100 items" in after.html
    assert '<g class="box blue' in after.html
    assert "style=" not in after.html


def test_an_epochs_end_is_said():
    panels = Panels()
    with DataLoader2(numbers()) as loader:
        panels.add(loader)
        list(loader)
        panels.look()
        (panel,) = panels.look()
    assert panel.summary.endswith("(no epoch runs now)")


def test_a_loader_that_is_shown_twice_has_one_panel():
    panels = Panels()
    loader = DataLoader2(numbers())
    assert panels.add(loader) is panels.add(loader, "training")
    assert [panel.title for panel in panels.look()] == ["training"]


def test_several_loaders_have_their_own_names_and_keys():
    panels, loaders = Panels("rank 1", "a1"), [DataLoader2(numbers()) for _ in range(2)]
    shown = [panels.add(loader) for loader in loaders]
    assert [each.title for each in panels.look()] == ["rank 1 · loader 1", "rank 1 · loader 2"]
    assert [each.key for each in panels.look()] == ["a1-1", "a1-2"]
    panels.remove(shown[0])
    assert [each.key for each in panels.look()] == ["a1-2"]


def test_a_loader_that_is_dropped_is_shown_no_more():
    panels = Panels()
    loader = DataLoader2(numbers())
    panels.add(loader)
    del loader
    gc.collect()
    assert panels.look() == []


def test_stats_that_fail_now_are_asked_for_again_later():
    class Changing:
        fails = True

        def stats(self) -> LoaderStats:
            if self.fails:
                raise RuntimeError("the graph changes")
            return LoaderStats(0, 0)

    panels, loader = Panels(), Changing()
    panels.add(loader)
    assert panels.look() == []
    loader.fails = False
    assert len(panels.look()) == 1


def test_names_of_users_are_escaped_everywhere():
    def stage(items: Any) -> Any:
        return items

    stage.__qualname__ = '<img src=x onerror="alert(1)">'
    panels = Panels()
    with DataLoader2(IterableWrapper(range(4)).map(stage)) as loader:
        panels.add(loader, "<b>bold</b>")
        list(loader)
        (panel,) = panels.look()
    assert "<img" not in panel.html
    assert "<b>" not in panel.html
    assert "&lt;img" in panel.html


def test_workers_are_rows_with_plots():
    panels = Panels()
    graph = IterableWrapper(range(2000)).sharding_filter().map(str).batch(4)
    service = MultiProcessingReadingService(2)
    with DataLoader2(graph, reading_service=service) as loader:
        panels.add(loader)
        list(loader)
        panels.look()
        (panel,) = panels.look()
        html = loader._repr_html_()
    rows = re.findall(r'<th scope="row">(.*?)</th>', panel.html)
    assert rows == ["worker 0", "worker 1"] == re.findall(r'<th scope="row">(.*?)</th>', html)
    assert panel.html.count('class="spark small"') == 2
    assert '<g class="box green' in panel.html
    assert " ready</text>" in html
    assert "prefers-color-scheme: dark" in html


def test_a_plot_is_broken_where_nobody_looked():
    whole = spark([(3.0, 1.0), (2.0, 2.0), (1.0, 3.0), (0.0, 4.0)], "rate", "wide")
    assert whole.count("<polyline") == 1
    broken = spark([(40.0, 1.0), (39.0, 2.0), (1.0, 3.0), (0.0, 4.0)], "rate", "wide")
    assert broken.count("<polyline") == 2
    assert 'points="40.0,22.0 42.0,15.0"' in broken


def test_processes_stand_under_the_nodes_on_which_they_run():
    workers = [
        WorkerStats(items=10, working=1.0, name="worker 0", node="10.0.0.2 (b<)"),
        WorkerStats(items=20, working=1.0, name="worker 1", node="10.0.0.1 (a)"),
        WorkerStats(items=40, working=1.0, name="worker 2", node="10.0.0.2 (b<)"),
        WorkerStats(
            items=9, name="the dispatching process", node="10.0.0.1 (a)", is_dispatcher=True
        ),
    ]
    rows = re.findall(r"<tr.*?</tr>", processes_of(workers), re.DOTALL)[1:]
    heads = [re.sub(r"<[^>]*>", "", row.partition("</th>")[0]) for row in rows]
    assert heads == [
        "node 10.0.0.1 (a) 1 worker · 20/s",
        "worker 1",
        "the dispatching process",
        "node 10.0.0.2 (b&lt;) 2 workers · 50/s",
        "worker 0",
        "worker 2",
    ]
    assert "node" not in processes_of([WorkerStats(name="worker 0")])


def test_a_wait_of_a_minute_is_shown():
    call = UnderWay("async_map(ask)", item=7, seconds=61.0, stack=("train.py:12 in <lambda>",))
    stats = LoaderStats(epochs=1, items=7, seconds=70.0, waits=(Wait(61.0, 7, (call,)),))
    history = History()
    history.add(0.0, stats)
    panel = panel_of("here-1", "training", history)
    assert "has waited 61 s for item 7" in panel.text
    assert panel.waits.startswith("training: the consumer has waited 61 s")
    assert "train.py:12 in &lt;lambda&gt;" in panel.html


async def test_a_rollout_has_a_row_of_its_own():
    may_end = asyncio.Event()

    async def generate(prompt: int) -> int:
        if prompt >= 4:
            await may_end.wait()
        return prompt

    panels = Panels()
    prompts = IterableWrapper(range(50))
    graph = prompts.rollout(generate, version=Version(), max_lag=2, per_step=2).batch(2)
    loader = DataLoader2(graph, acknowledge=True)
    panels.add(loader)
    (before,) = panels.look()
    async with loader:
        batches = aiter(loader)
        await anext(batches)
        (panel,) = panels.look()
        (rollout,) = loader.stats().rollouts
        may_end.set()
    assert "rollouts" not in before.html
    table = panel.html[panel.html.index('<table class="rollouts">') :]
    cells = re.findall(r"<t[dh](?: scope=\"row\")?>(.*?)</t[dh]>", table[table.index("<tbody>") :])
    name, _, calls, oldest, _, unsettled, *_ = cells
    assert name.startswith("rollout(generate")
    assert calls.startswith("<svg")
    assert calls.endswith(f"{rollout.in_flight}")
    assert re.fullmatch(r"prompt [4-7], \d+\.\d s", oldest)
    assert unsettled == f"{rollout.unsettled} of 6"
