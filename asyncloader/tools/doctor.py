"""A graph examined: what it runs on, what each stage costs, how many workers help.

This file is about ``examine``. The report goes to the output as it grows; what is being done
meanwhile goes to the error output. Rates vary, so a ``Trial`` of a number of workers measures
several, and two trials whose ranges overlap do not say which number is better.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asyncloader import system
from asyncloader.adapters.sharding_policy import ShardingPolicy
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import lives_with_loader
from asyncloader.datapipes.running.watch.watching import SAMPLER
from asyncloader.errors import LoaderError
from asyncloader.graph.cut import cut_graph
from asyncloader.graph.refusals import Purpose, first_refusal
from asyncloader.graph.walk import breadth_first
from asyncloader.loader.dataloader2 import DataLoader2
from asyncloader.loader.stage_stats import StageStats
from asyncloader.machine import usable_cores
from asyncloader.services.multi_processing import MultiProcessingReadingService
from asyncloader.services.multi_threading import MultiThreadingReadingService
from asyncloader.services.on_workers import WorkersReadingService
from asyncloader.services.ray import RayReadingService
from asyncloader.tools.advice import FEW, HERE, LITTLE, Advice, Kind, Service, Trial, advise
from asyncloader.workers.actors.cluster import Cluster

#: How many seconds lie between two looks at where the graph is: more often than usual.
_BETWEEN_LOOKS = 0.01
_BEFORE_LOOKS = 0.05

#: The part of the time that is for the stages; the trials share the rest.
_FOR_STAGES = 0.3

#: A trial takes at least so many seconds.
_AT_LEAST = 0.5

#: A graph that computes for at least this share of the time does not mostly wait.
_COMPUTING = 0.5

#: How many seconds the very first item may take besides.
_WARM_UP = 10.0
_NOTHING = object()


@dataclass(frozen=True)
class Examination:
    """What came out: the advice, and what it is made of; no trials if no item came."""

    advice: Advice
    stages: Sequence[StageStats]
    trials: Sequence[Trial]


async def examine(
    datapipe: Any,
    seconds: float,
    counts: Sequence[int] | None = None,
    *,
    now: Service = HERE,
    most: float | None = None,
    cluster: Cluster | None = None,
) -> Examination | None:
    """Print a report on a graph, and return it; None if no item came.

    This measures for about so many ``seconds``, or up to ``most`` as long as nothing is decided.
    ``now`` is what runs the program's graph. On a cluster actors are tried as well.
    """
    _check(datapipe)
    _say("Environment", *_environment(cluster))
    _note(f"running the graph by itself for up to {seconds * _FOR_STAGES:.3g} s")
    try:
        seen = await _stages(datapipe, seconds * _FOR_STAGES)
        if seen is None:
            return None
        stages, is_computing = seen
        for_workers = seconds * (1 - _FOR_STAGES)
        longest = for_workers if most is None else max(for_workers, most)
        threads_can = first_refusal(datapipe, Purpose.THREADS) is None
        services = to_try(counts, now, cluster, threads_can=threads_can)
        trials = await _workers(datapipe, for_workers, longest, services)
        advice = advise(stages, trials, now=now, is_computing=is_computing)
        _say("Advice", *(f"  {line}" for line in advice.lines()))
        return Examination(advice, stages, trials)
    except ExaminationError:
        raise
    except Exception as error:
        raise ExaminationError(f"the graph failed: {error!r}") from error


def _check(datapipe: Any) -> None:
    for pipe in breadth_first(datapipe):
        if lives_with_loader(pipe):
            raise ExaminationError(
                f"{stage_name(pipe)} waits for requests, and there are none here; examine the same"
                " graph over an IterableWrapper of sample requests"
            )


def _environment(cluster: Cluster | None) -> Iterator[str]:
    for finding in [*findings(), *_cluster(cluster)]:
        yield f"  {finding.name:<13} {finding.what}"
        if finding.advice:
            yield f"  {'':<13} ! {finding.advice}"


# Stages ---------------------------------------------------------------------------------


async def _stages(datapipe: Any, seconds: float) -> tuple[Sequence[StageStats], bool] | None:
    """Print the time of each stage; return them, and whether it was spent in computing.

    None if no item came out.
    """
    loader = DataLoader2(datapipe)
    usually = SAMPLER.rest_seconds, SAMPLER.begin_seconds
    SAMPLER.rest_seconds, SAMPLER.begin_seconds = _BETWEEN_LOOKS, _BEFORE_LOOKS
    items, outcome = 0, f"in {seconds + _WARM_UP:.3g} s"
    try:
        async with asyncio.timeout(seconds + _WARM_UP) as limit, loader:
            # Much work is done only for the first item: imports, opening files.
            await _first_item(loader)
            outcome = f"in {seconds:.3g} s"
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
            began, computed = time.perf_counter(), time.process_time()
            async for _ in loader:
                items += 1
            outcome = "a whole epoch"
    except TimeoutError:
        if not limit.expired():
            raise
    finally:
        SAMPLER.rest_seconds, SAMPLER.begin_seconds = usually
    if items:
        passed, computed = time.perf_counter() - began, time.process_time() - computed
    stages = loader.stats().stages
    _say("Stages", *_stage_rows(stages), f"  {items:,} items came out, {outcome}")
    slowest = max(stages, key=lambda stage: stage.seconds)
    if not items:
        _print(f"  ! most of the time went to {slowest.name}; workers were not tried")
    elif not slowest.seconds:
        _print("  ! the epoch was too short to see where its time went: give it more items")
    return (stages, computed > _COMPUTING * passed) if items else None


async def _first_item(loader: DataLoader2[Any]) -> None:
    items = aiter(loader)
    try:
        if await anext(items, _NOTHING) is _NOTHING:
            raise ExaminationError("the graph yields no items")
    finally:
        await items.aclose()


def _stage_rows(stages: Sequence[StageStats]) -> Iterator[str]:
    whole = sum(stage.seconds for stage in stages) or 1.0
    yield "  share  own time per item      items  stage"
    for stage in stages:
        items = "?" if stage.items is None else f"{stage.items:,}"
        yield f"  {stage.seconds / whole:5.1%}  {_per_item(stage):>17} {items:>10}  {stage.name}"


def _per_item(stage: StageStats) -> str:
    if not stage.items:
        return f"over {_duration(stage.seconds)}" if stage.items == 0 else "?"
    if not stage.seconds:
        return f"under {_duration(_BETWEEN_LOOKS / stage.items)}"
    return _duration(stage.seconds / stage.items)


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


# Workers --------------------------------------------------------------------------------


async def _workers(
    datapipe: Any, seconds: float, longest: float, services: Sequence[Service]
) -> list[Trial]:
    """Print and return the rates of some numbers of workers."""
    adapters, remark = what_is_tried(datapipe)
    _say("Workers", "      workers  items/s  (from - to)  first item after")
    each = max(seconds / len(services), _AT_LEAST)
    end = time.perf_counter() + longest

    async def trial_of(service: Service) -> Trial:
        _note(f"trying {service} for {each:.3g} s")
        return await tried(datapipe, adapters, service, each)

    trials = {service: await trial_of(service) for service in services}
    # What is not decided is measured again by turns, so that whatever else the machine does
    # meanwhile changes all of them alike.
    while len(alike := undecided(trials.values())) > 1:
        if time.perf_counter() + each * len(alike) > end:
            break
        for service in alike:
            trials[service] = trials[service].and_more(await trial_of(service))
    _print(*map(_trial_row, trials.values()))
    _print(f"  {verdict(list(trials.values()))}")
    if remark:
        _print(f"  ! {remark}")
    return list(trials.values())


def undecided(trials: Iterable[Trial]) -> list[Service]:
    """Return the services that may be best, unless all are alike within 5 %."""
    measured = [trial for trial in trials if trial.rates]
    if not measured:
        return []
    best = max(measured, key=lambda trial: trial.rate)
    alike = list(_alike(best, measured))
    is_close = all(trial.range()[0] > (1 - LITTLE) * best.range()[1] for trial in alike)
    return [] if is_close else sorted(trial.service for trial in alike)


def _trial_row(trial: Trial) -> str:
    name = str(trial.service)
    if trial.first_item_seconds is None:
        return f"{name:>13}  no item came"
    if not trial.rates:
        return f"{name:>13}  too few items came"
    low, high = trial.range()
    return (
        f"{name:>13}  {as_rate(trial.rate):>7}  ({as_rate(low)} - {as_rate(high)})"
        f"  {_duration(trial.first_item_seconds)}"
    )


# Speaking -------------------------------------------------------------------------------


def _say(heading: str, *lines: str) -> None:
    _print(heading, *lines)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _note(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)


#: A trial is cut into so many stretches of time, each of which gives a rate.
STRETCHES = FEW

#: How many seconds a trial may take to start and to fill its buffers, besides measuring.
STARTUP_SECONDS = 20.0
#: The same for actors, each of which imports Ray, and torch.
ACTORS_STARTUP_SECONDS = 120.0


class ExaminationError(LoaderError):
    """A graph cannot be examined, or it failed; the cause is its own error."""


def counts_up_to(cores: int) -> list[int]:
    """Return the numbers of workers to try: all up to 4, then fewer and fewer of them."""
    steps = [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128]
    return sorted({count for count in steps if count < cores} | {cores})


def threads_up_to(cores: int) -> list[int]:
    """Return the numbers of threads to try beside processes, which scale where threads do not."""
    return [count for count in (2, 4, 8, 16, 32) if count <= cores]


def to_try(
    counts: Sequence[int] | None, now: Service, cluster: Cluster | None, *, threads_can: bool
) -> list[Service]:
    """Return what to try: these numbers, or what there is now and all that there is room for."""
    cores = usable_cores()
    here = counts_up_to(cores) if counts is None else counts
    services = set()
    if system.HAS_WORKERS:
        services |= {Service.of(Kind.PROCESS, count) for count in here}
    if threads_can:
        few = system.HAS_WORKERS and counts is None
        services |= {
            Service.of(Kind.THREAD, each) for each in (threads_up_to(cores) if few else here)
        }
    if cluster is not None:
        there = counts_up_to(cluster.room) if counts is None else counts
        services |= {Service.of(Kind.ACTOR, each) for each in there if 1 <= each <= cluster.room}
    return sorted(services | ({now} if counts is None else set())) or [HERE]


def what_is_tried(datapipe: Any) -> tuple[list[ShardingPolicy], str]:
    """Return the adapters that a graph needs to be divided among workers, and a remark."""
    parts = cut_graph(datapipe).parts
    if not parts:
        return [], "no part of this graph can be copied into workers, so they cannot help"
    if all(part.is_sharded for part in parts):
        return [], ""
    return [ShardingPolicy()], (
        "nothing shards this graph: it was tried with a sharding_filter behind the shuffle. Put"
        " .sharding_filter() there before you use workers, or each will yield every item"
    )


_SERVICES: dict[Kind, Callable[[int], WorkersReadingService]] = {
    Kind.NONE: MultiProcessingReadingService,
    Kind.THREAD: MultiThreadingReadingService,
    Kind.PROCESS: MultiProcessingReadingService,
    Kind.ACTOR: RayReadingService,
}


async def tried(
    datapipe: Any, adapters: Iterable[ShardingPolicy], service: Service, seconds: float
) -> Trial:
    """Run epochs of a graph in so many workers for so long; raise what it raises."""
    watch = Stretches(seconds / STRETCHES)
    kind = _SERVICES[service.kind]
    startup = ACTORS_STARTUP_SECONDS if service.kind is Kind.ACTOR else STARTUP_SECONDS
    began = time.perf_counter()
    try:
        async with asyncio.timeout(seconds + startup) as limit:
            async with DataLoader2(datapipe, adapters, kind(service.workers)) as loader:
                await _watch(loader, watch)
    except TimeoutError:
        if not limit.expired():
            raise
    first = None if watch.began is None else watch.began - began
    return Trial(service, watch.rates, first)


async def _watch(loader: DataLoader2[Any], watch: Stretches) -> None:
    while True:
        items = aiter(loader)
        try:
            async for _ in items:
                if watch.note():
                    return
        finally:
            await items.aclose()
        if watch.began is None:
            raise ExaminationError("the graph yields no items")


class Stretches:
    """Counts items in stretches of time; the first one, which fills the buffers, is dropped."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.began: float | None = None
        self.rates: list[float] = []
        self._since = self._ends = 0.0
        self._items = 0
        self._is_filled = False

    def note(self) -> bool:
        """Count an item that came now; return whether there are enough stretches."""
        now = time.perf_counter()
        if self.began is None:
            self.began = now
            self._begin(now)
            return False
        self._items += 1
        if now < self._ends:
            return False
        if self._is_filled:
            self.rates.append(self._items / (now - self._since))
        self._is_filled = True
        self._begin(now)
        return len(self.rates) == STRETCHES

    def _begin(self, now: float) -> None:
        self._since, self._ends, self._items = now, now + self.seconds, 0


def verdict(trials: Sequence[Trial]) -> str:
    """Say which number of workers was best, or which may have been; what to do is the advice's."""
    measured = [trial for trial in trials if trial.rates]
    if not measured:
        return "undecided: no trial saw enough items; try again with more --seconds"
    best = max(measured, key=lambda trial: trial.rate)
    alike = sorted(trial.service for trial in _alike(best, measured))
    if len(alike) == 1:
        return f"best here: {best.service}, {as_rate(best.rate)} items/s"
    kinds = {service.kind for service in alike} - {Kind.NONE}
    names, kind = list(map(str, alike)), ""
    if len(kinds) == 1:
        names, kind = [str(service.workers) for service in alike], f" {kinds.pop().many()}"
    return (
        f"undecided between {', '.join(names[:-1])} and {names[-1]}{kind}, because their ranges"
        " overlap; more --seconds may decide it"
    )


def as_rate(rate: float) -> str:
    """Return a rate as a text with no more digits than were measured."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def _alike(best: Trial, trials: Iterable[Trial]) -> Iterator[Trial]:
    return (trial for trial in trials if trial is best or trial.overlaps(best))


#: File descriptors for the loader itself, and for each worker.
_FDS, _FDS_PER_WORKER = 64, 8


@dataclass(frozen=True)
class Finding:
    """One fact about this machine or process, and what to do about it, if anything."""

    name: str
    what: str
    advice: str = ""


def findings() -> Iterator[Finding]:
    """Yield the facts that decide how well a loader can run here."""
    yield Finding("Python", f"{platform.python_version()} on {system.NAME}")
    yield _torch()
    yield _uvloop()
    yield _cores()
    yield _start_method()
    yield _threads()
    yield from _descriptors()
    yield from _shared_memory()


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        return Finding("torch", "not installed", "pip install torch")
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return Finding("torch", f"{version}; the graph does not import it, so workers start fast")
    threads = torch.get_num_threads()
    advice = ""
    if threads > usable_cores():
        advice = f"more threads than cores: torch.set_num_threads({usable_cores()})"
    return Finding("torch", f"{version}, {threads} threads here, one in each worker", advice)


def _uvloop() -> Finding:
    version = _version("uvloop")
    if version is None:
        return Finding("uvloop", "not installed", "pip install uvloop, for a faster `for`")
    return Finding("uvloop", version)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _cores() -> Finding:
    usable, there = usable_cores(), os.cpu_count() or 1
    what = f"{usable} usable" if usable == there else f"{usable} usable of {there}"
    advice = "workers will share one core with this process" if usable == 1 else ""
    return Finding("cores", what, advice)


def _start_method() -> Finding:
    if system.HAS_WORKERS:
        return Finding("start method", "forked by a template process of our own")
    return Finding("start method", "none", "no worker processes here: let workers be threads")


def _threads() -> Finding:
    others = [thread.name for thread in threading.enumerate() if not _is_ours(thread)]
    if not others:
        return Finding("threads", "only the main thread and ours")
    names = ", ".join(sorted(others))
    return Finding("threads", names, 'multiprocessing_context="fork" is refused while they run')


def _is_ours(thread: threading.Thread) -> bool:
    return thread is threading.main_thread() or thread.name.startswith("asyncloader")


def _descriptors() -> Iterator[Finding]:
    limits = system.descriptor_limits()
    if limits is None:
        return
    soft, hard = limits
    needed = _FDS + _FDS_PER_WORKER * usable_cores()
    advice = f"ulimit -n {needed}, for as many workers as cores" if soft < needed else ""
    more = f" ({hard} by ulimit -n {hard})" if soft != hard else ""
    yield Finding("open files", f"at most {soft}{more}", advice)


def _cluster(cluster: Cluster | None) -> Iterator[Finding]:
    if cluster is not None:
        nodes = "1 node" if cluster.nodes == 1 else f"{cluster.nodes} nodes"
        what = f"Ray {cluster.version}, {nodes} with room for {Service(Kind.ACTOR, cluster.room)}"
        advice = "" if cluster.room else "no CPU is free, so no actor is tried"
        yield Finding("cluster", what, advice)


def _shared_memory(folder: str = system.SHARED_MEMORY) -> Iterator[Finding]:
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return
    use = "asyncloader uses none of it" if system.can_seal() else "where workers share memory"
    yield Finding(folder, f"{usage.free >> 20:,} MiB free; {use}")
