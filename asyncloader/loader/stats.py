"""How a loader is doing.

This file is about ``LoaderStats``, a picture of one moment: how many items there were, who
waited for whom, and where the time went; as a table, as one sentence (the verdict) and as
metrics for a program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from asyncloader.datapipes.edges import edges_of
from asyncloader.datapipes.rollouts import RolloutStats
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.watch.watching import UNCOUNTED, Tally, Watching
from asyncloader.graph.outline import Node
from asyncloader.loader.long_waits import Wait
from asyncloader.loader.stage_stats import (
    DISPATCHER,
    LOADER,
    WORKERS,
    StageStats,
    percent_text,
    rate_text,
)
from asyncloader.loader.stats_picture import Verdict, in_notebook, process_table, stage_table
from asyncloader.workers.worker_stats import WorkerStats

Named = TypeVar("Named", "StageStats", WorkerStats)


@dataclass(frozen=True, repr=False)
class LoaderStats:
    """How a loader is doing in the present epoch, or in the last one if that is over.

    Printed, it is a table. The time in the pipes is sampled about 20 times a second, so
    nothing is known about the pipes of a very short epoch.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper(range(7)).batch(2)) as loader:
    ...     assert len(list(loader)) == 4
    ...     stats = loader.stats()
    >>> stats.epochs, stats.items, [stage.name for stage in stats.stages]
    (1, 4, ['IterableWrapper()', 'batch(2)'])
    """

    #: Epochs that were begun.
    epochs: int
    #: Items that the loader yielded in this epoch.
    items: int
    #: Processes that died and were replaced since the loader was started.
    restarts: int = 0
    #: How many seconds the epoch has run.
    seconds: float = 0.0
    #: For how many of them the consumer waited.
    waited: float = 0.0
    #: The pipes, sources first.
    stages: tuple[StageStats, ...] = ()
    #: The worker processes, with the dispatching process if there is one.
    workers: tuple[WorkerStats, ...] = ()
    #: What was chosen for settings that are "auto", and why. After a change in the middle of the
    #: epoch, stages and workers are counted from there.
    choices: tuple[str, ...] = ()
    #: How many numbers were left out behind ``repeatable=False``, by the reason; those before the
    #: state that the epoch was resumed from count as well.
    left_out: Mapping[str, int] = field(default_factory=dict)
    #: How many items were yielded and not acknowledged; None without ``acknowledge=True``.
    unacknowledged: int | None = None
    #: How each ``rollout`` of the graph is doing.
    rollouts: tuple[RolloutStats, ...] = ()
    #: What the consumer waits for, once it has waited a minute.
    waits: tuple[Wait, ...] = ()
    #: The graph, as it is drawn.
    outline: tuple[Node, ...] = ()

    @property
    def rate(self) -> float:
        """Items a second."""
        return self.items / self.seconds if self.seconds else 0.0

    @property
    def errors(self) -> int:
        """Items that functions failed on, in pipes that tolerate failures."""
        return sum(stage.errors for stage in self.stages)

    def verdict(self) -> str:
        """Return what the bottleneck is, and what to do about it, in one sentence."""
        return judge(self).text

    def bottleneck(self) -> StageStats | None:
        """Return the pipe that the verdict blames, if it blames one."""
        return judge(self).stage

    def is_fast_enough(self) -> bool:
        """Whether the consumer hardly waits, so that a faster loader would not help."""
        return self.seconds >= _EARLY_SECONDS and self.waited / self.seconds <= _LITTLE

    def since(self, before: LoaderStats) -> LoaderStats:
        """Return the stats of the time since others were taken of the same loader.

        They are those of the present epoch if it has begun since then. What is held, ready or
        not acknowledged is that of the present moment.
        """
        return _since(before, self)

    def as_metrics(self) -> Iterator[Metric]:
        """Yield ``(name, labels, value)`` for each number, named by the rules of Prometheus.

        Counters start again with each epoch, like those of a restarted program, which
        Prometheus and OpenTelemetry understand.

        >>> [metric for metric in LoaderStats(epochs=2, items=7).as_metrics()][1]
        Metric(name='asyncloader_items_total', labels={}, value=7)
        """
        return _metrics_of(self)

    def __repr__(self) -> str:
        return _table(self)

    def _repr_html_(self) -> str:
        return in_notebook(headline_of(self), judge(self), drawn(self), self.rollouts, self.workers)


def stats_of(
    pipes: Sequence[Any],
    watching: Watching,
    workers: Sequence[WorkerStats],
    outline: tuple[Node, ...],
    *,
    epochs: int,
    items: int,
    restarts: int,
    earlier: tuple[float, float] = (0.0, 0.0),
    choices: tuple[str, ...] = (),
    left_out: Mapping[str, int] = MappingProxyType({}),
    unacknowledged: int | None = None,
    rollouts: tuple[RolloutStats, ...] = (),
    waits: tuple[Wait, ...] = (),
) -> LoaderStats:
    """Return how the loader of a graph with these pipes is doing.

    ``earlier`` is how long the consumer waited, and was away, before what is watched now.
    """
    waited, idle = watching.main.times() if epochs else (0.0, 0.0)
    seconds = waited + idle
    own = watching.tallies({id(pipe): items for pipe in watching.pipes[:1]})
    found = [(tally, LOADER, seconds) for tally in _counted(own)]
    for where, those in _by_place(workers):
        total = sum(worker.working + worker.waiting for worker in those)
        found += [(tally, where, total) for tally in _merged(worker.pipes for worker in those)]
    # Sources first. A pipe that a service added has a name in place of a number, and comes last.
    found.sort(key=lambda each: -each[0].pipe if isinstance(each[0].pipe, int) else 1)
    return LoaderStats(
        epochs=epochs,
        items=items,
        restarts=restarts,
        seconds=seconds + sum(earlier),
        waited=waited + earlier[0],
        stages=tuple(_stage(*each, seconds, pipes) for each in found),
        workers=tuple(workers),
        choices=choices,
        left_out=dict(left_out),
        unacknowledged=unacknowledged,
        rollouts=rollouts,
        waits=waits,
        outline=outline,
    )


def _stage(
    tally: Tally, where: str, total: float, seconds: float, pipes: Sequence[Any]
) -> StageStats:
    """Return the stats of a pipe that runs where there were ``total`` seconds in all."""
    pipe = None if isinstance(tally.pipe, str) else pipes[tally.pipe]
    items = None if tally.yielded == UNCOUNTED else tally.yielded
    return StageStats(
        name=str(tally.pipe) if pipe is None else stage_name(pipe),
        where=where,
        items=items,
        rate=items / seconds if items is not None and seconds else None,
        errors=tally.errors,
        seconds=tally.seconds,
        share=min(1.0, tally.seconds / total) if total else 0.0,
        held=tally.held,
        room=tally.room,
        holds_calls=tally.holds_calls,
        is_source=pipe is not None and not edges_of(pipe),
        number=None if isinstance(tally.pipe, str) else tally.pipe,
    )


def _since(before: LoaderStats, after: LoaderStats) -> LoaderStats:
    if before.epochs != after.epochs or before.seconds > after.seconds:
        return after
    workers = tuple(_worker_since(_same(each, before.workers), each) for each in after.workers)
    seconds = after.seconds - before.seconds
    totals = {LOADER: seconds}
    for where, those in _by_place(workers):
        totals[where] = sum(worker.working + worker.waiting for worker in those)
    return replace(
        after,
        items=max(0, after.items - before.items),
        seconds=seconds,
        waited=min(seconds, max(0.0, after.waited - before.waited)),
        stages=tuple(
            _stage_since(_same(each, before.stages), each, totals[each.where], seconds)
            for each in after.stages
        ),
        workers=workers,
        left_out={
            reason: count - before.left_out.get(reason, 0)
            for reason, count in after.left_out.items()
        },
    )


def _same(stage: Named, among: Iterable[Named]) -> Named | None:
    """Return what was known of the same stage or worker before, if anything was."""
    return next((each for each in among if _identity(each) == _identity(stage)), None)


def _identity(of: StageStats | WorkerStats) -> tuple[object, ...]:
    if isinstance(of, WorkerStats):
        # A process that replaces another begins to count again.
        return of.name, of.pid
    return of.name, of.number, of.where


def _stage_since(
    before: StageStats | None, after: StageStats, total: float, seconds: float
) -> StageStats:
    items, took, errors = after.items, after.seconds, after.errors
    if before is not None:
        # What a worker that died had counted is not there any more.
        took, errors = max(0.0, took - before.seconds), max(0, errors - before.errors)
        if items is not None and before.items is not None:
            items = max(0, items - before.items)
    return replace(
        after,
        items=items,
        rate=items / seconds if items is not None and seconds else None,
        errors=errors,
        seconds=took,
        share=min(1.0, took / total) if total else 0.0,
    )


def _worker_since(before: WorkerStats | None, after: WorkerStats) -> WorkerStats:
    if before is None or before.items > after.items:
        return after
    return replace(
        after,
        items=after.items - before.items,
        working=max(0.0, after.working - before.working),
        handing=max(0.0, after.handing - before.handing),
        waiting=max(0.0, after.waiting - before.waiting),
    )


def _by_place(workers: Sequence[WorkerStats]) -> Iterator[tuple[str, list[WorkerStats]]]:
    for where in (WORKERS, DISPATCHER):
        yield where, [each for each in workers if each.is_dispatcher == (where == DISPATCHER)]


def _counted(tallies: Sequence[Tally]) -> list[Tally]:
    """Return the tallies of one process with more numbers of items, told by those of others."""
    counts = {tally.pipe: tally.yielded for tally in tallies}
    for tally in tallies:
        # A pipe that counts what it takes tells how many items its source yielded.
        if tally.source is not None and counts.get(tally.source) == UNCOUNTED:
            own = counts[tally.pipe] if tally.follows_source else UNCOUNTED
            counts[tally.source] = tally.taken if own == UNCOUNTED else own
    for tally in reversed(tallies):
        if tally.source is not None and tally.follows_source and counts[tally.pipe] == UNCOUNTED:
            counts[tally.pipe] = counts.get(tally.source, UNCOUNTED)
    return [tally._replace(yielded=counts[tally.pipe]) for tally in tallies]


def _merged(tallies: Iterable[Sequence[Tally]]) -> list[Tally]:
    """Return the sums of the tallies of the same pipes in several processes."""
    merged: dict[int | str, Tally] = {}
    for tally in (each for one in tallies for each in _counted(one)):
        before = merged.get(tally.pipe)
        merged[tally.pipe] = tally if before is None else _sum(before, tally)
    return list(merged.values())


def _sum(one: Tally, other: Tally) -> Tally:
    is_counted = UNCOUNTED not in (one.yielded, other.yielded)
    return one._replace(
        yielded=one.yielded + other.yielded if is_counted else UNCOUNTED,
        errors=one.errors + other.errors,
        seconds=one.seconds + other.seconds,
        held=one.held + other.held,
        room=one.room + other.room,
    )


#: The text for a loader that nobody has iterated.
_NOT_BEGUN = "no epoch was begun yet"


def _table(stats: LoaderStats) -> str:
    """Return the stats as a table of the stages and one of the processes."""
    lines = [headline_of(stats)]
    if stats.stages:
        lines += ["", *stage_table(stats.stages)]
    if stats.workers:
        lines += ["", *process_table(stats.workers)]
    if stats.left_out:
        counts = (f"{count:,} by {reason}" for reason, count in sorted(stats.left_out.items()))
        lines += ["", f"left out: {', '.join(counts)}"]
    if stats.rollouts:
        lines += ["", *map(str, stats.rollouts)]
    if stats.choices:
        lines += ["", *stats.choices]
    for wait in stats.waits:
        lines += ["", str(wait)]
    return "\n".join(lines)


def headline_of(stats: LoaderStats) -> str:
    """Return how many items there were, in how much time."""
    if not stats.epochs:
        return _NOT_BEGUN
    text = f"epoch {stats.epochs}: {stats.items:,} items in {stats.seconds:.1f} s"
    text += f" ({rate_text(stats.rate)})"
    if stats.restarts:
        text += f", {stats.restarts} restarts"
    if stats.unacknowledged is not None:
        text += f", {stats.unacknowledged:,} not acknowledged"
    return f"{text}; the consumer waited {percent_text(waited_share(stats))} of the time"


def waited_share(stats: LoaderStats) -> float:
    """Return for which part of the time the consumer waited, from 0 to 1."""
    return stats.waited / stats.seconds if stats.seconds else 0.0


def drawn(stats: LoaderStats) -> tuple[Node, ...]:
    """Return the graph as it is drawn: with what is known of each pipe, and with the consumer."""
    if not stats.epochs or not stats.outline:
        return stats.outline
    # Of a pipe that runs in several places, that in which it takes the most time.
    stages = {stage.number: stage for stage in sorted(stats.stages, key=attrgetter("seconds"))}
    blamed, waited = stats.bottleneck(), waited_share(stats)
    nodes = []
    for number, node in enumerate(stats.outline):
        stage = stages.get(number, _UNSEEN)
        known = node._replace(
            figures=" · ".join(_figures(stage)),
            share=stage.share if stage.seconds else None,
            beside=" · ".join(_beside(stats, number, stage)),
            verdict="blames" if stage is blamed else "",
        )
        nodes.append(known)
    consumer = Node(
        "your loop",
        reads=(0,),
        figures=f"waits {percent_text(waited)}",
        share=1.0 - waited,
        verdict="fine" if stats.is_fast_enough() else "",
    )
    return (*nodes, consumer)


_UNSEEN = StageStats("", "", None, None, 0, 0.0, 0.0, 0, 0, False, False)


def _figures(stage: StageStats) -> Iterator[str]:
    """Yield what is known of a pipe itself."""
    if stage.seconds:
        yield percent_text(stage.share)
    if stage.holds_calls and stage.room:
        yield f"{stage.held} of {stage.room} calls"
    if stage.errors:
        yield f"{stage.errors:,} errors"


def _beside(stats: LoaderStats, number: int, stage: StageStats) -> Iterator[str]:
    """Yield what is known of the items that leave a pipe."""
    rate = stage.rate if number else stats.rate
    if rate is not None:
        yield rate_text(rate)
    if stage.room and not stage.holds_calls:
        yield f"holds {stage.held} of {stage.room}"
    where = stats.outline[number].label
    # The other places at which its items are read; those of the last pipe are the consumer's.
    readers = {node.label for node in stats.outline if number in node.reads} or {LOADER}
    if where == WORKERS and readers != {WORKERS}:
        yield f"{sum(worker.ready for worker in stats.workers if not worker.is_dispatcher)} ready"
    for each in stats.stages:
        # It only waits for what other processes make.
        is_inlet = each.number is None and each.name.startswith(("FromDispatcher", "FromWorkers"))
        if is_inlet and each.seconds and each.where in readers - {where}:
            yield f"waited for {percent_text(each.share)}"


#: In a shorter time too little was seen.
_EARLY_SECONDS = 0.5

#: If the consumer waits for at most this part of the time, the loader is fast enough.
_LITTLE = 0.1

#: What takes more than this part of the time is the cause.
_MUCH = 0.4


def judge(stats: LoaderStats) -> Verdict:
    """Return what the bottleneck is in the present epoch, and what to do about it."""
    if not stats.epochs:
        return Verdict(_NOT_BEGUN)
    if stats.seconds < _EARLY_SECONDS:
        return Verdict(f"too short to tell: the epoch has run for {stats.seconds:.2f} s")
    share = percent_text(waited_share(stats))
    if stats.is_fast_enough():
        return Verdict(
            f"the consumer is the bottleneck: it waits for items {share} of the time,"
            " and a faster loader would not help",
            is_fine=True,
        )
    cause = _cause(stats)
    rollout = next((each for each in stats.rollouts if cause.stage_is(each.name)), None)
    if rollout is not None:
        cause = cause._replace(text=_why_of_rollout(rollout))
    return cause.after(f"the consumer waits {share} of the time")


def _why_of_rollout(rollout: RolloutStats) -> str:
    """Return what a rollout lacks, and what to do about it."""
    trained = sum(rollout.lags.values())
    if rollout.stale > _MUCH * max(trained, 1):
        return (
            f"{rollout.name} called again for {rollout.stale} prompts that were too old for their"
            f' batch, and trained {trained}: use order="source", or a larger max_lag'
        )
    if rollout.failed > _MUCH * rollout.calls:
        return f"{rollout.failed} of {rollout.calls} calls of {rollout.name} failed: see the server"
    if rollout.waits_for == "the trainer":
        return (
            f"{rollout.name} may begin no more prompts before some of {rollout.unsettled} are"
            " trained and acknowledged by loader.ack(): raise per_step to the prompts of a step,"
            " or max_lag"
        )
    if rollout.waits_for == "the oldest prompt":
        return (
            f"{rollout.name} may not hand on {rollout.finished} prompts that are finished before an"
            " older one: a window in order, such as order=8, lets some go on"
        )
    if rollout.waits_for == "the source":
        return f"{rollout.name} waits for prompts: make the pipes before it faster"
    return (
        f"{rollout.name} waits for the policy, with {rollout.in_flight} calls in flight: raise"
        " concurrency if the server can do more at a time, or add servers"
    )


def _cause(stats: LoaderStats) -> Verdict:
    workers = [worker for worker in stats.workers if not worker.is_dispatcher]
    if not workers:
        return _busiest(_stages(stats, "loader"), "the loader's", _FROM_LOADER)
    waiting, handing = _share(workers, "waiting"), _share(workers, "handing")
    if waiting > _MUCH:
        return _behind_workers(stats, waiting)
    stages = _stages(stats, "workers")
    dealt = max((stage.share for stage in stages if _is_dealt(stage)), default=0.0)
    if dealt > _MUCH:
        why = _busiest(_stages(stats, "dispatcher"), "the dispatching process's", _FROM_DISPATCHER)
        return why.after(
            f"the workers wait {percent_text(dealt)} of their time for the dispatching process"
        )
    importing = _share(workers, "importing")
    if importing > _MUCH:
        return Verdict(
            f"{percent_text(importing)} of a worker's time goes into importing modules, which each"
            " does once: look again at a longer epoch, or at the next one"
        )
    if handing > _MUCH:
        return Verdict(
            f"{percent_text(handing)} of a worker's time goes into sending items: send less data,"
            " or give a larger prefetch_bytes if it waits for shared memory"
        )
    # Workers that are threads have one process.
    are_threads = len({(worker.node, worker.pid) for worker in workers}) < len(workers)
    return _busiest(stages, "a worker's", _OF_THREADS if are_threads else _OF_PROCESSES)


_OF_PROCESSES = "add workers or thread_map"
_OF_THREADS = (
    "use MultiProcessingReadingService if it holds the GIL, otherwise add workers while there are"
    " cores"
)
_FROM_LOADER = "use workers (MultiProcessingReadingService), or thread_map if it releases the GIL"
_FROM_DISPATCHER = "do it in the workers, after the dispatch, unless it must run only once"
_FROM_LOADERS_PART = "do it in the workers if it can be copied there"


def _behind_workers(stats: LoaderStats, waiting: float) -> Verdict:
    share = percent_text(waiting)
    idle = f"the workers are idle {share} of their time, because their prefetch is full"
    stages = _stages(stats, "loader")
    if max((stage.share for stage in stages), default=0.0) > _MUCH:
        return _busiest(stages, "the loader's", _FROM_LOADERS_PART).after(idle)
    return Verdict(
        f"{idle}: look at what runs on the event loop between the workers and the consumer"
    )


def _busiest(stages: Sequence[StageStats], whose: str, advice: str) -> Verdict:
    """Return which of the stages takes the time, and what to do about it."""
    seen = [stage for stage in stages if stage.seconds or _is_full(stage)]
    if not seen:
        return Verdict("no sample of the pipes' work was taken yet")
    stage = max(seen, key=lambda each: (each.share > _MUCH, _is_full(each), each.seconds))
    time = f"{percent_text(stage.share)} of {whose} time is in {stage.name}"
    if _is_full(stage):
        full = f"{stage.name} has {stage.held} of {stage.room} calls in progress"
        text = f"{full}: raise its concurrency"
    elif stage.holds_calls or stage.name.startswith("thread"):
        text = f"{time}: raise its concurrency, or add workers"
    else:
        text = f"waiting for the source: {time}" if stage.is_source else f"{time}: {advice}"
    return Verdict(text, stage)


def _stages(stats: LoaderStats, where: str) -> list[StageStats]:
    return [stage for stage in stats.stages if stage.where == where]


def _is_full(stage: StageStats) -> bool:
    return stage.holds_calls and stage.held >= stage.room > 0


def _is_dealt(stage: StageStats) -> bool:
    return stage.name.startswith("FromDispatcher")


def _share(workers: Sequence[WorkerStats], field: str) -> float:
    total = sum(worker.working + worker.waiting for worker in workers)
    return sum(getattr(worker, field) for worker in workers) / total if total else 0.0


class Metric(NamedTuple):
    """One number: a counter if its name ends in ``_total``, a gauge otherwise.

    >>> str(Metric("asyncloader_stage_items_total", {"stage": "map(decode)"}, 7))
    'asyncloader_stage_items_total{stage="map(decode)"} 7'
    """

    #: Named by the rules of Prometheus.
    name: str
    #: What it is counted of: the stage, the worker.
    labels: dict[str, str]
    #: How many, or how much: seconds, bytes.
    value: float

    def __str__(self) -> str:
        """The metric as a line that Prometheus reads."""
        labels = ",".join(f'{name}="{_escaped(text)}"' for name, text in self.labels.items())
        return f"{self.name}{{{labels}}} {self.value}" if labels else f"{self.name} {self.value}"


def _metrics_of(stats: LoaderStats) -> Iterator[Metric]:
    """Yield every number of the stats; Prometheus wants those of one name together."""
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
    if stats.unacknowledged is not None:
        yield from _metrics({}, {"unacknowledged_items": stats.unacknowledged})
    for reason, count in stats.left_out.items():
        yield from _metrics({"reason": reason}, {"left_out_total": count})
    for number, stage in enumerate(stats.stages):
        yield from _stage_metrics(stage, number)
    for worker in stats.workers:
        yield from _worker_metrics(worker)
    for number, rollout in enumerate(stats.rollouts):
        yield from _rollout_metrics(rollout, number)


def _stage_metrics(stage: StageStats, number: int) -> Iterable[Metric]:
    # Two stages may have the same name.
    labels = {"stage": stage.name, "number": str(number), "where": stage.where}
    values: dict[str, float] = {"stage_seconds_total": stage.seconds}
    values["stage_errors_total"] = stage.errors
    if stage.items is not None:
        values["stage_items_total"] = stage.items
    if stage.room:
        values |= {"stage_held": stage.held, "stage_room": stage.room}
    return _metrics(labels, values)


def _rollout_metrics(rollout: RolloutStats, number: int) -> Iterable[Metric]:
    labels = {"rollout": rollout.name, "number": str(number)}
    yield from _metrics(
        labels,
        {
            "rollout_calls_total": rollout.calls,
            "rollout_in_flight": rollout.in_flight,
            "rollout_waiting": rollout.waiting + rollout.resting,
            "rollout_finished_prompts": rollout.finished,
            "rollout_unsettled_prompts": rollout.unsettled,
            "rollout_put_back_total": rollout.again,
            "rollout_failed_total": rollout.failed,
            "rollout_stale_total": rollout.stale,
        },
    )
    for lag, count in rollout.lags.items():
        yield from _metrics({**labels, "lag": str(lag)}, {"rollout_trained_total": count})


def _worker_metrics(worker: WorkerStats) -> Iterable[Metric]:
    return _metrics(
        {"worker": worker.name},
        {
            "worker_items_total": worker.items,
            "worker_working_seconds_total": worker.working,
            "worker_sending_seconds_total": worker.handing,
            "worker_importing_seconds_total": worker.importing,
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
