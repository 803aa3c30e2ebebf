"""A loader's stats, for a program that watches it.

This file is about ``metrics_of``: every number by itself, named and labelled as Prometheus
and OpenTelemetry would have it. Counters begin again with each epoch, as they do where a
program was started again, which both know how to read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from asyncloader.loader.stats import LoaderStats, StageStats
    from asyncloader.workers.worker_stats import WorkerStats


class Metric(NamedTuple):
    """One number. A name that ends in ``_total`` is a counter's, any other a gauge's."""

    name: str
    labels: dict[str, str]
    value: float

    def __str__(self) -> str:
        """The metric as a line of what Prometheus reads."""
        labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value}" if labels else f"{self.name} {self.value}"


def metrics_of(stats: LoaderStats) -> Iterator[Metric]:
    """Yield every number of the stats, those of one name together, as Prometheus wants them."""
    by_name: dict[str, list[Metric]] = {}
    for metric in _numbers(stats):
        by_name.setdefault(metric.name, []).append(metric)
    for metrics in by_name.values():
        yield from metrics


def _numbers(stats: LoaderStats) -> Iterator[Metric]:
    yield from _metrics(
        {},
        {
            "epochs_total": stats.epochs,
            "items_total": stats.items,
            "restarts_total": stats.restarts,
            "epoch_seconds": stats.seconds,
            "consumer_waited_seconds_total": stats.waited,
        },
    )
    for number, stage in enumerate(stats.stages):
        yield from _stage(stage, number)
    for worker in stats.workers:
        yield from _worker(worker)


def _stage(stage: StageStats, number: int) -> Iterable[Metric]:
    # Two stages may have the same name.
    labels = {"stage": stage.name, "number": str(number), "where": stage.where}
    values: dict[str, float] = {"stage_seconds_total": stage.seconds}
    values["stage_errors_total"] = stage.errors
    if stage.items is not None:
        values["stage_items_total"] = stage.items
    if stage.room:
        values |= {"stage_held": stage.held, "stage_room": stage.room}
    return _metrics(labels, values)


def _worker(worker: WorkerStats) -> Iterable[Metric]:
    return _metrics(
        {"worker": worker.name},
        {
            "worker_items_total": worker.items,
            "worker_working_seconds_total": worker.working,
            "worker_sending_seconds_total": worker.handing,
            "worker_waiting_seconds_total": worker.waiting,
            "worker_ready_items": worker.ready,
            "worker_restarts_total": worker.restarts,
            "worker_shared_memory_used_bytes": worker.shared_used,
            "worker_shared_memory_bytes": worker.shared_bytes,
        },
    )


def _metrics(labels: dict[str, str], values: dict[str, float]) -> Iterator[Metric]:
    for name, value in values.items():
        yield Metric(f"asyncloader_{name}", labels, value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
