"""A graph examined: what is around it, what each stage costs, how many workers help.

This file is about ``examine``. The report goes to the output as it grows; what is being
done meanwhile goes to the error output.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.kinds import lives_with_loader
from asyncloader.graph.walk import breadth_first
from asyncloader.loader.dataloader2 import DataLoader2
from asyncloader.tools.environment import findings, usable_cores
from asyncloader.tools.stages import Stage, timed
from asyncloader.tools.target import Target
from asyncloader.tools.trials import (
    ExaminationError,
    Trial,
    as_rate,
    counts_up_to,
    tried,
    verdict,
    what_is_tried,
)

#: What is below this is mostly the stopwatch itself.
_RESOLUTION = 2e-6
#: How much of the time goes to the stages; the trials share the rest.
_FOR_STAGES = 0.3
_AT_LEAST = 0.5
#: How much longer the first item of all may take.
_WARM_UP = 10.0

_NOTHING = object()


async def examine(target: Target, seconds: float, counts: Sequence[int] | None = None) -> None:
    """Print a report on a graph, measuring for about so many seconds."""
    _check(target.graph)
    _say("Environment", *_environment())
    _note(f"running the graph by itself for up to {seconds * _FOR_STAGES:.3g} s")
    try:
        if await _stages(target.graph, seconds * _FOR_STAGES):
            await _workers(target.graph, seconds * (1 - _FOR_STAGES), counts)
    except ExaminationError:
        raise
    except Exception as error:
        raise ExaminationError(f"the graph failed: {error!r}") from error


def _check(datapipe: Any) -> None:
    for pipe in breadth_first(datapipe):
        if lives_with_loader(pipe):
            raise ExaminationError(
                f"{stage_name(pipe)} waits for requests, of which there are none here; examine"
                " the same graph over an IterableWrapper of sample requests"
            )


def _environment() -> Iterator[str]:
    for finding in findings():
        yield f"  {finding.name:<13} {finding.what}"
        if finding.advice:
            yield f"  {'':<13} ! {finding.advice}"


# Stages ---------------------------------------------------------------------------------


async def _stages(datapipe: Any, seconds: float) -> bool:
    """Print what each stage takes; return whether any item came out."""
    graph, stages = timed(datapipe)
    items, outcome = 0, f"in {seconds + _WARM_UP:.3g} s"
    try:
        async with asyncio.timeout(seconds + _WARM_UP) as limit, DataLoader2(graph) as loader:
            # Much is done once only, for the first item: modules are imported, files opened.
            await _first_item(loader)
            for stage in stages:
                stage.begin_again()
            outcome = f"in {seconds:.3g} s"
            limit.reschedule(asyncio.get_running_loop().time() + seconds)
            async for _ in loader:
                items += 1
            outcome = "a whole epoch"
    except TimeoutError:
        if not limit.expired():
            raise
    _say("Stages", *_table(stages), f"  {items:,} items came out, {outcome}")
    if not items:
        slowest = max(stages, key=lambda stage: stage.seconds)
        _print(f"  ! most of the time went to {slowest.name}; workers were not tried")
    return items > 0


async def _first_item(loader: DataLoader2[Any]) -> None:
    items = aiter(loader)
    try:
        if await anext(items, _NOTHING) is _NOTHING:
            raise ExaminationError("the graph yields no items")
    finally:
        await items.aclose()


def _table(stages: Sequence[Stage]) -> Iterator[str]:
    seconds = [stage.seconds for stage in stages]
    whole = sum(seconds) or 1.0
    yield "  share  own time per item      items  stage"
    for stage, own in zip(stages, seconds, strict=True):
        yield f"  {own / whole:5.1%}  {_per_item(stage, own):>17} {stage.items:>10,}  {stage.name}"


def _per_item(stage: Stage, seconds: float) -> str:
    if not stage.items:
        return f"over {_duration(seconds)}"
    own = seconds / stage.items
    return _duration(own) if own >= _RESOLUTION else f"under {_duration(_RESOLUTION)}"


def _duration(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-6:.3g} us"


# Workers --------------------------------------------------------------------------------


async def _workers(datapipe: Any, seconds: float, counts: Sequence[int] | None) -> None:
    adapters, remark = what_is_tried(datapipe)
    counts = counts_up_to(usable_cores()) if counts is None else counts
    _say("Workers", "  workers  items/s  (from - to)  first item after")
    trials = []
    for count in counts:
        each = max(seconds / len(counts), _AT_LEAST)
        _note(f"trying {count} worker{'s' * (count != 1)} for {each:.3g} s")
        trials.append(await tried(datapipe, adapters, count, each))
        _print(_row(trials[-1]))
    _print(f"  {verdict(trials)}")
    if remark:
        _print(f"  ! {remark}")


def _row(trial: Trial) -> str:
    if trial.first_item_seconds is None:
        return f"  {trial.workers:>7}  no item came"
    if not trial.rates:
        return f"  {trial.workers:>7}  too few items came"
    low, high = min(trial.rates), max(trial.rates)
    return (
        f"  {trial.workers:>7}  {as_rate(trial.rate):>7}  ({as_rate(low)} - {as_rate(high)})"
        f"  {_duration(trial.first_item_seconds)}"
    )


# Speaking -------------------------------------------------------------------------------


def _say(heading: str, *lines: str) -> None:
    _print(heading, *lines)


def _print(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)


def _note(text: str) -> None:
    print(f"... {text}", file=sys.stderr, flush=True)
