"""Stats for the eye.

This file is about the tables of stages and of processes, as text, and about the parts of a page or
of what a notebook shows, as HTML: a verdict, a graph, and the rollouts and processes as rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from asyncloader.datapipes.rollouts import RolloutStats
from asyncloader.graph.outline import Node
from asyncloader.loader.stage_stats import StageStats, bytes_text, percent_text, rate_text
from asyncloader.workers.worker_stats import WorkerStats


class Verdict(NamedTuple):
    """A sentence, and the pipe that it blames, if it does."""

    text: str
    stage: StageStats | None = None
    #: Whether it is the consumer that takes the time.
    is_fine: bool = False

    def stage_is(self, name: str) -> bool:
        """Whether it blames the pipe of this name."""
        return self.stage is not None and self.stage.name == name

    def after(self, text: str) -> Verdict:
        """Return this after another part of the sentence."""
        return self._replace(text=f"{text}; {self.text}")


_STAGE_HEADER = "stage", "runs in", "items", "rate", "errors", "time", "share", "held"


def stage_table(stages: Sequence[StageStats]) -> Iterator[str]:
    """Yield a line for each stage, below those of a header."""
    return _aligned([_STAGE_HEADER, *map(_stage_row, stages)])


def _stage_row(stage: StageStats) -> tuple[str, ...]:
    return (
        stage.name,
        stage.where,
        "?" if stage.items is None else f"{stage.items:,}",
        "" if stage.rate is None else rate_text(stage.rate),
        str(stage.errors or ""),
        f"{stage.seconds:.2f} s" if stage.seconds else "",
        percent_text(stage.share) if stage.seconds else "",
        f"{stage.held} of {stage.room}" if stage.room else "",
    )


_PROCESS_HEADER = (
    *("process", "pid", "items", "rate", "works", "sends", "waits", "ready", "shared", "restarts"),
)


def process_table(workers: Sequence[WorkerStats]) -> Iterator[str]:
    """Yield a line for each process, below those of a header."""
    rows = [_PROCESS_HEADER, *map(_process_row, workers)]
    if any(worker.node for worker in workers):
        nodes = ["node", *(worker.node for worker in workers)]
        rows = [(name, node, *rest) for node, (name, *rest) in zip(nodes, rows, strict=True)]
        # Those of one node stand together.
        rows[1:] = sorted(rows[1:], key=itemgetter(1))
    return _aligned(rows)


def _process_row(worker: WorkerStats) -> tuple[str, ...]:
    used, shared = bytes_text(worker.shared_used), bytes_text(worker.shared_bytes)
    return (
        worker.name,
        str(worker.pid),
        f"{worker.items:,}",
        rate_text(worker.rate),
        *map(percent_text, _times(worker).values()),
        f"{worker.ready:,}",
        f"{used} of {shared}" if worker.shared_bytes else "",
        str(worker.restarts or ""),
    )


def _times(worker: WorkerStats) -> dict[str, float]:
    """Return on what a process spent its time, as parts of it."""
    total = (worker.working + worker.waiting) or 1.0
    return {
        "works": (worker.working - worker.handing) / total,
        "sends": worker.handing / total,
        "waits": worker.waiting / total,
    }


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows as text: names left-aligned, numbers right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        cells[:2] = [text.ljust(width) for text, width in zip(row[:2], widths[:2], strict=True)]
        yield "  ".join(cells).rstrip()


def in_notebook(
    headline: str,
    verdict: Verdict,
    nodes: Sequence[Node],
    rollouts: Sequence[RolloutStats],
    workers: Sequence[WorkerStats],
) -> str:
    """Return all parts, with the style that they need."""
    # Few draw pictures, and every process imports this.
    from asyncloader.graph.svg import styled

    parts = (
        *(verdict_of(verdict), graph_of(nodes, verdict)),
        *(rollouts_of(rollouts), processes_of(workers)),
    )
    return styled("\n".join([f'<p class="headline">{escape(headline)}</p>', *parts]))


def verdict_of(verdict: Verdict) -> str:
    """Return who is the bottleneck, in few words and in a sentence."""
    kind, title = "plain", ""
    if verdict.is_fine:
        kind, title = "fine", "<strong>Your loop sets the pace.</strong> "
    elif verdict.stage is not None:
        kind, title = "blames", f"<strong>Bottleneck: {escape(verdict.stage.name)}</strong> "
    text = escape(verdict.text[:1].upper() + verdict.text[1:])
    return f'<p class="verdict {kind}">{title}{text}.</p>'


def graph_of(nodes: Sequence[Node], verdict: Verdict) -> str:
    """Return the drawing of the graph."""
    from asyncloader.graph.svg import picture

    if not nodes:
        return '<p class="empty">The loader has no graph yet.</p>'
    return _scrolled("The graph", picture(nodes, f"The graph. {verdict.text}"))


_ROLLOUT_HEADER = (
    *("rollout", "waits for", "calls in flight", "the oldest", "ready", "not settled"),
    *("lag: trained", "called again"),
)


def rollouts_of(
    rollouts: Sequence[RolloutStats], beside: Mapping[int, str] = MappingProxyType({})
) -> str:
    """Return the rollouts as the rows of a table; nothing where there are none.

    ``beside`` has what stands beside the calls of a rollout, by its number.
    """
    if not rollouts:
        return ""
    rows = "".join(
        _rollout_row(rollout, beside.get(number, "")) for number, rollout in enumerate(rollouts)
    )
    return _scrolled("Rollouts", _html_table("rollouts", _ROLLOUT_HEADER, f"<tbody>{rows}</tbody>"))


def _rollout_row(rollout: RolloutStats, beside: str) -> str:
    most = "" if rollout.capacity is None else f" of {rollout.capacity:,}"
    waiting = rollout.waiting + rollout.resting
    lags = (f"{lag}: {count:,}" for lag, count in sorted(rollout.lags.items()))
    again = {"put back": rollout.again, "failed": rollout.failed, "too old": rollout.stale}
    oldest = rollout.oldest
    return _html_row(
        escape(rollout.name),
        escape(rollout.waits_for),
        f"{beside}{rollout.in_flight:,}{f', {waiting:,} wait' if waiting else ''}",
        "" if oldest is None else f"prompt {oldest[0]:,}, {oldest[1]:.1f} s",
        f"{rollout.finished:,}",
        f"{rollout.unsettled:,}{most}",
        ", ".join(lags),
        ", ".join(f"{count:,} {why}" for why, count in again.items() if count),
    )


def processes_of(
    workers: Sequence[WorkerStats], beside: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return the processes as the rows of a table; nothing where there are none.

    ``beside`` has what stands beside the rate of a process, by its name.
    """
    if not workers:
        return ""
    nodes: dict[str, list[WorkerStats]] = {}
    for worker in workers:
        nodes.setdefault(worker.node, []).append(worker)
    bodies = "\n".join(_body(node, those, beside) for node, those in sorted(nodes.items()))
    table = _html_table("processes", _PROCESS_HEADER, bodies)
    key = (
        '<p class="key"><span class="works"></span> works <span class="sends"></span> sends'
        ' <span class="waits"></span> waits: its prefetch is full</p>'
    )
    return f"{_scrolled('Processes', table)}\n{key}"


def _html_table(kind: str, header: Sequence[str], bodies: str) -> str:
    heads = "".join(f'<th scope="col">{head}</th>' for head in header)
    return f'<table class="{kind}"><thead><tr>{heads}</tr></thead>\n{bodies}</table>'


def _scrolled(label: str, html: str) -> str:
    """Return what may be wider than the page."""
    return f'<div class="scroll" tabindex="0" role="group" aria-label="{label}">{html}</div>'


def _body(node: str, workers: Sequence[WorkerStats], beside: Mapping[str, str]) -> str:
    """Return the rows of the processes of one node of a cluster, or of this machine."""
    rows = [_row(worker, beside.get(worker.name, "")) for worker in workers]
    if node:
        makers = [worker for worker in workers if not worker.is_dispatcher]
        rate = rate_text(sum(worker.rate for worker in makers))
        count = f"{len(makers)} worker{'' if len(makers) == 1 else 's'}"
        rows.insert(
            0,
            f'<tr class="node"><th scope="rowgroup" colspan="{len(_PROCESS_HEADER)}">'
            f"node {escape(node)}<small> {count} · {rate}</small></th></tr>",
        )
    return f"<tbody>{''.join(rows)}</tbody>"


def _row(worker: WorkerStats, beside: str) -> str:
    cells = dict(zip(_PROCESS_HEADER, map(escape, _process_row(worker)), strict=True))
    cells["rate"] = f"{beside}{cells['rate']}"
    cells["works"] = f"{_bar(_times(worker))} {cells['works']}"
    return _html_row(*cells.values())


def _html_row(name: str, *others: str) -> str:
    return f'<tr><th scope="row">{name}</th>{"".join(f"<td>{cell}</td>" for cell in others)}</tr>'


def _bar(parts: Mapping[str, float]) -> str:
    """Return parts of a whole as a bar."""
    said = ", ".join(f"{kind} {percent_text(part)}" for kind, part in parts.items())
    drawn, begin = "", 0.0
    for kind, part in parts.items():
        size = f'x="{100 * begin:.1f}%" width="{100 * max(0.0, part):.1f}%" height="100%"'
        drawn += f'<rect class="{kind}" {size}/>'
        begin += part
    return f'<svg class="bar" role="img" aria-label="{said}">{drawn}</svg>'
