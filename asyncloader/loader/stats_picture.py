"""A loader's stats as a picture.

This file is about a ``Scene`` and its parts as HTML: the verdict, the graph with what is known of
each pipe in its box, the rollouts as rows, and the processes. A page shows them, and so do
notebooks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from asyncloader.datapipes.rollouts import RolloutStats
from asyncloader.graph.outline import Outline
from asyncloader.loader.stage_stats import (
    LOADER,
    WORKERS,
    StageStats,
    bytes_text,
    percent_text,
    rate_text,
)
from asyncloader.workers.worker_stats import WorkerStats

if TYPE_CHECKING:
    from asyncloader.graph.figure import PipeNote


class Scene(NamedTuple):
    """What a picture shows of a loader."""

    #: Whether an epoch was begun.
    is_begun: bool
    headline: str
    verdict: str
    #: The pipe that the verdict blames, if it blames one.
    bottleneck: StageStats | None
    #: Whether it is the consumer that takes the time.
    is_fast_enough: bool
    rate: float
    #: For which part of the time the consumer waited, from 0 to 1.
    waited: float
    stages: tuple[StageStats, ...]
    workers: tuple[WorkerStats, ...]
    rollouts: tuple[RolloutStats, ...]
    outline: Outline


def in_notebook(scene: Scene) -> str:
    """Return the picture with its style."""
    # Few draw pictures, and every process imports this.
    from asyncloader.graph.figure import styled

    headline = f'<p class="headline">{escape(scene.headline)}</p>'
    parts = [headline, verdict_of(scene), graph_of(scene), rollouts_of(scene), processes_of(scene)]
    return styled("\n".join(parts))


def verdict_of(scene: Scene) -> str:
    """Return who is the bottleneck, in few words and in a sentence."""
    kind = "fine" if scene.is_fast_enough else "blames" if scene.bottleneck else "plain"
    text = escape(scene.verdict[:1].upper() + scene.verdict[1:])
    if scene.is_fast_enough:
        return f'<p class="verdict {kind}"><strong>Your loop sets the pace.</strong> {text}.</p>'
    if scene.bottleneck is None:
        return f'<p class="verdict {kind}">{text}.</p>'
    name = escape(scene.bottleneck.name)
    return f'<p class="verdict {kind}"><strong>Bottleneck: {name}</strong> {text}.</p>'


def graph_of(scene: Scene) -> str:
    """Return the drawing of the graph."""
    from asyncloader.graph.figure import drawn

    outline = scene.outline
    if not outline.names:
        return '<p class="empty">The loader has no graph yet.</p>'
    picture = drawn(*_columns(outline), _notes(scene), f"The graph. {scene.verdict}")
    return f'<div class="scroll" tabindex="0" role="group" aria-label="The graph">{picture}</div>'


def _columns(
    outline: Outline,
) -> tuple[Sequence[str], Sequence[Sequence[int]], Sequence[str]]:
    return outline.names, outline.reads, outline.places


def _notes(scene: Scene) -> dict[int, PipeNote]:
    from asyncloader.graph.figure import CONSUMER, PipeNote

    if not scene.is_begun:
        return {}
    stages = {stage.number: stage for stage in sorted(scene.stages, key=_seconds)}
    found = {number: _note(scene, number, stages) for number in range(len(scene.outline.names))}
    works = f"waits {percent_text(scene.waited)}"
    found[CONSUMER] = PipeNote(works, 1.0 - scene.waited, "", scene.is_fast_enough)
    return found


def _seconds(stage: StageStats) -> float:
    return stage.seconds


def _note(scene: Scene, number: int, stages: Mapping[int | None, StageStats]) -> PipeNote:
    from asyncloader.graph.figure import PipeNote

    stage = stages.get(number)
    parts = [] if stage is None else list(_figures(stage))
    return PipeNote(
        text=" · ".join(parts),
        share=stage.share if stage is not None and stage.seconds else None,
        rate=" · ".join(_beside_arrow(scene, number, stage)),
        is_bottleneck=stage is not None and stage == scene.bottleneck,
    )


def _figures(stage: StageStats) -> Iterator[str]:
    """Yield what is known of a pipe itself."""
    if stage.seconds:
        yield percent_text(stage.share)
    if stage.holds_calls and stage.room:
        yield f"{stage.held} of {stage.room} calls"
    if stage.errors:
        yield f"{stage.errors:,} errors"


def _beside_arrow(scene: Scene, number: int, stage: StageStats | None) -> Iterator[str]:
    """Yield what is known of the items that leave a pipe."""
    if number == 0:
        yield rate_text(scene.rate)
    elif stage is not None and stage.rate is not None:
        yield rate_text(stage.rate)
    if stage is not None and stage.room and not stage.holds_calls:
        yield f"holds {stage.held} of {stage.room}"
    leads_to = _places_it_leads_to(scene.outline, number)
    if scene.outline.places[number] == WORKERS and leads_to:
        yield f"{sum(worker.ready for worker in scene.workers if not worker.is_dispatcher)} ready"
    for stage in scene.stages:
        if stage.where in leads_to and stage.seconds and _stands_for_others(stage):
            yield f"waited for {percent_text(stage.share)}"


def _places_it_leads_to(outline: Outline, number: int) -> set[str]:
    """Return the other places at which a pipe's items are read."""
    readers = [at for at, sources in enumerate(outline.reads) if number in sources]
    places = {outline.places[reader] for reader in readers} or {LOADER}
    return places - {outline.places[number]}


def _stands_for_others(stage: StageStats) -> bool:
    """Whether a stage only waits for what other processes make."""
    return stage.number is None and stage.name.startswith(("FromDispatcher", "FromWorkers"))


def rollouts_of(scene: Scene, beside: Mapping[int, str] | None = None) -> str:
    """Return the rollouts as the rows of a table; nothing where there are none.

    ``beside`` has what else stands in the row of a rollout, by its number.
    """
    heads = ["rollout", "calls in flight", "the oldest", "ready", "not settled", "lag: trained"]
    heads += ["called again", "waits for"]
    rows = (
        _rollout(rollout, (beside or {}).get(number, ""))
        for number, rollout in enumerate(scene.rollouts)
    )
    lines = [*_head("rollouts", "Rollouts", heads), "<tbody>", *rows, "</tbody>", "</table></div>"]
    return "\n".join(lines) if scene.rollouts else ""


def _rollout(rollout: RolloutStats, beside: str) -> str:
    most = "" if rollout.capacity is None else f" of {rollout.capacity:,}"
    waiting = rollout.waiting + rollout.resting
    lags = (f"{lag}: {count:,}" for lag, count in sorted(rollout.lags.items()))
    again = {"put back": rollout.again, "failed": rollout.failed, "too old": rollout.stale}
    oldest = "-" if rollout.oldest is None else "prompt {:,}, {:.1f} s".format(*rollout.oldest)
    return _row(
        escape(rollout.name),
        f"{beside}{rollout.in_flight:,}{f', {waiting:,} wait' if waiting else ''}",
        oldest,
        f"{rollout.finished:,}",
        f"{rollout.unsettled:,}{most}",
        ", ".join(lags) or "-",
        ", ".join(f"{count:,} {why}" for why, count in again.items() if count) or "-",
        escape(rollout.waits_for) or "-",
    )


def _head(kind: str, name: str, heads: Iterable[str]) -> Iterator[str]:
    """Yield the beginning of a table."""
    yield f'<div class="scroll" tabindex="0" role="group" aria-label="{name}">'
    yield f'<table class="{kind}"><thead><tr>'
    yield from (f'<th scope="col">{head}</th>' for head in heads)
    yield "</tr></thead>"


def _row(first: str, *rest: str) -> str:
    return f'<tr><th scope="row">{first}</th>{"".join(f"<td>{cell}</td>" for cell in rest)}</tr>'


def processes_of(scene: Scene, beside: Mapping[str, str] | None = None) -> str:
    """Return the processes as the rows of a table; nothing where there are none.

    ``beside`` has what else stands in the row of a process, by its name.
    """
    return "\n".join(_table(scene, beside or {})) if scene.workers else ""


def _table(scene: Scene, beside: Mapping[str, str]) -> Iterator[str]:
    heads = ["process", "pid", "items/s", "its time", "ready", "shared memory", "restarts"]
    yield from _head("processes", "Processes", heads)
    nodes: dict[str, list[WorkerStats]] = {}
    for worker in scene.workers:
        nodes.setdefault(worker.node, []).append(worker)
    for node, workers in sorted(nodes.items()):
        yield "<tbody>"
        if node:
            yield _node(node, workers, len(heads))
        yield from (_process(worker, beside.get(worker.name, "")) for worker in workers)
        yield "</tbody>"
    yield "</table></div>"
    yield (
        '<p class="key"><span class="works"></span> works <span class="sends"></span> sends'
        ' <span class="waits"></span> waits: its prefetch is full</p>'
    )


def _node(name: str, workers: Sequence[WorkerStats], columns: int) -> str:
    """Return the row above the processes of one node of a cluster."""
    makers = [worker for worker in workers if not worker.is_dispatcher]
    rate = rate_text(sum(worker.rate for worker in makers))
    count = f"{len(makers)} worker{'' if len(makers) == 1 else 's'}"
    return (
        f'<tr class="node"><th scope="rowgroup" colspan="{columns}">node {escape(name)}'
        f"<small> {count} · {rate}</small></th></tr>"
    )


def _process(worker: WorkerStats, beside: str) -> str:
    shared = (
        f"{bytes_text(worker.shared_used)} of {bytes_text(worker.shared_bytes)}"
        if worker.shared_bytes
        else "-"
    )
    return _row(
        escape(worker.name),
        str(worker.pid),
        f"{beside}{rate_text(worker.rate)}",
        _bar(worker),
        f"{worker.ready:,}",
        shared,
        str(worker.restarts or "-"),
    )


def _bar(worker: WorkerStats) -> str:
    """Return how a process spent its time, as a bar of three parts."""
    total = (worker.working + worker.waiting) or 1.0
    parts = {
        "works": (worker.working - worker.handing) / total,
        "sends": worker.handing / total,
        "waits": worker.waiting / total,
    }
    said = ", ".join(f"{kind} {percent_text(part)}" for kind, part in parts.items())
    bar = f'<svg class="bar" role="img" aria-label="{said}">{_stretches(parts.items())}</svg>'
    return f"{bar} works {percent_text(parts['works'])}"


def _stretches(parts: Iterable[tuple[str, float]]) -> str:
    drawn, begin = [], 0.0
    for kind, part in parts:
        drawn.append(
            f'<rect class="{kind}" x="{100 * begin:.1f}%" width="{100 * max(0.0, part):.1f}%"'
            ' height="100%"/>'
        )
        begin += part
    return "".join(drawn)
