"""What has to come out of a random graph, as far as that follows from its lines.

This file is about ``promise_of``, which knows nothing of how graphs are run: only what each
line does to items, and that behind a division each worker does it to its own share.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

from tests.random_graphs.pieces import ids
from tests.random_graphs.recipe import Effect, Recipe, Step

#: How the items are like those of this process alone: who knows; but for their order; altogether.
NOTHING, SAME_ITEMS, SAME_ORDER = range(3)

_SOURCES = (Effect.SOURCE, Effect.SHARES)
_DIVIDES = (Effect.SHARD, Effect.DEAL)
_SPLITS = (Effect.KINDS, Effect.TURNS)
_BY_ITSELF = (Effect.EACH, Effect.KINDS, Effect.CHAINED, Effect.MIXED)


@dataclass(frozen=True)
class Promise:
    """What has to come out in an epoch."""

    #: How often each id comes, or at most; None where nobody knows.
    ids: Counter[int] | None
    is_exact: bool
    likeness: int


@dataclass(frozen=True)
class _Flow:
    """What is known of one result."""

    #: How often what each source yields, or goes into a branch, is in it.
    parts: Counter[Any] | None
    is_exact: bool
    #: Equal for results that are equally long.
    length: Any
    likeness: int = SAME_ORDER
    #: Whether each worker has its own share of it; None where that cannot be said.
    is_divided: bool | None = False
    is_in_loader: bool = False
    is_dealt: bool = False


def promise_of(recipe: Recipe, workers: int) -> Promise:
    """Say what has to come out in so many workers, or in this process alone."""
    if not workers or not any(each.effect in _DIVIDES for each in recipe.adapters):
        return _promise_of_lines(_with_endings(recipe), workers)
    # An adapter divides the items somewhere, or elsewhere than the lines do.
    alone = _promise_of_lines(recipe, 0)
    is_divided = any(step.effect in (*_DIVIDES, Effect.SHARES) for step in recipe.steps)
    return Promise(None if is_divided else alone.ids, False, NOTHING)


def _with_endings(recipe: Recipe) -> Recipe:
    """Return a recipe in which lines at the end do what the adapters do."""
    shuffles = any(
        word in str(step) for word in ("shuffle", "bucketbatch") for step in recipe.steps
    )
    for adapter in recipe.adapters:
        text = "{0}.shuffle()" if adapter.effect is Effect.MIXED else adapter.text
        if adapter.effect is Effect.LOADER or (adapter.effect is Effect.MIXED and not shuffles):
            step = Step(text, adapter.effect, (recipe.end,), (recipe.end + 1,))
            recipe = replace(recipe, steps=(*recipe.steps, step))
    return recipe


def _promise_of_lines(recipe: Recipe, workers: int) -> Promise:
    divided_below = _divided_below(recipe)
    flows: dict[int, _Flow] = {}
    split: dict[int, _Flow] = {}
    for step in recipe.steps:
        flow = _flow_of(
            step, [flows[source] for source in step.sources], step in divided_below, workers
        )
        for place, out in enumerate(step.outs):
            branch = Counter({out: 1})
            is_branch = step.effect in _SPLITS
            flows[out] = replace(flow, parts=branch, length=(step, place)) if is_branch else flow
            split[out] = flow
    end = flows[recipe.end]
    promise = _of_ids(end, recipe, split)
    if workers < 2:
        return promise
    if _is_cut_above_a_split(recipe) or end.is_divided is None or promise.ids is None:
        return Promise(None, False, NOTHING)
    if end.is_divided:
        return promise
    # Nothing divides the items: all of them come from each worker.
    return Promise(_times(promise.ids, workers), promise.is_exact, NOTHING)


def _is_cut_above_a_split(recipe: Recipe) -> bool:
    """Whether branches may stay in the loader's process, since one of them has to."""
    return recipe.stays_here and bool(recipe.effects & {*_SPLITS, Effect.COPIES})


def _divided_below(recipe: Recipe) -> set[Step]:
    """Return the steps whose items reach a pipe that divides them: their seeds are shared."""
    results: set[int] = set()
    steps: set[Step] = set()
    for step in reversed(recipe.steps):
        if step.effect in (*_DIVIDES, Effect.SHARES) or results & set(step.outs):
            steps.add(step)
            results |= set(step.sources)
    return steps


def _flow_of(step: Step, read: list[_Flow], is_divided_below: bool, workers: int) -> _Flow:
    flow = (
        _joined(read)
        if read
        else _Flow(Counter({("source", *step.outs): 1}), True, (step.count, step.text))
    )
    is_shared = workers > 1 and bool(flow.is_divided) and not flow.is_in_loader
    # Behind the division a worker draws seeds of its own.
    draws_otherwise = workers > 0 and step.draws and (not is_divided_below or flow.is_in_loader)
    likeness = flow.likeness
    if step.effect in _BY_ITSELF or (step.effect is Effect.SOURCE and draws_otherwise):
        if is_shared or draws_otherwise or likeness < SAME_ORDER:
            likeness = min(likeness, SAME_ITEMS)
    elif step.effect in (Effect.PLACED, Effect.PAIRED, Effect.TURNS, Effect.GATHER):
        is_apart = is_shared and step.effect is not Effect.GATHER
        if is_apart or draws_otherwise or likeness < SAME_ORDER:
            likeness = NOTHING
    if step.makes_batches_of_shares and workers > 1:
        likeness = NOTHING
    parts = None if flow.parts is None else _times(flow.parts, abs(step.times))
    if "replacement" in step.text:
        parts = None
    is_cut_short = step.effect is Effect.PAIRED and len({each.length for each in read}) > 1
    is_exact = flow.is_exact and step.times > 0 and not is_cut_short
    is_of_branch = parts is not None and not all(map(_is_of_source, parts))
    if is_of_branch and any(word in step.text for word in ("cache", "cycle", "ReadTwice")):
        # What came into a branch may be kept when other items come, or come in another order.
        parts = None
    keeps_length = (*_SOURCES, Effect.ONE, Effect.COPIES, Effect.LOADER, Effect.PAIRED)
    length = flow.length if step.effect in keeps_length else step
    if step.effect in _DIVIDES:
        length = ("a share of", flow.length)
    return _placed(
        step, replace(flow, parts=parts, is_exact=is_exact, length=length, likeness=likeness)
    )


def _is_of_source(part: Any) -> bool:
    return isinstance(part, tuple)


def _placed(step: Step, flow: _Flow) -> _Flow:
    """Say where the items are: divided or not, and in which process."""
    if step.effect is Effect.SHARES:
        return replace(flow, is_divided=True)
    if step.effect in _DIVIDES:
        # What is divided twice is not what anybody wants; the dealing is no division of those.
        is_first = flow.is_divided is False and not flow.is_in_loader
        is_dealt = step.effect is Effect.DEAL
        return replace(flow, is_divided=True if is_first else None, is_dealt=is_dealt)
    if step.effect in (Effect.LOADER, Effect.GATHER):
        is_divided = flow.is_divided or None
        return replace(flow, is_divided=is_divided, is_in_loader=True)
    return flow


def _joined(read: list[_Flow]) -> _Flow:
    first, *others = read
    for each in others:
        known = first.parts is not None and each.parts is not None
        is_alike = first.is_divided is each.is_divided
        # Of dealt items that meet, the dealing process runs all up to there, and deals that.
        are_dealt = first.is_dealt and each.is_dealt
        first = _Flow(
            first.parts + each.parts if known else None,
            first.is_exact and each.is_exact,
            first.length,
            min(first.likeness, each.likeness),
            first.is_divided if is_alike else None,
            (first.is_in_loader or each.is_in_loader) and not are_dealt,
            are_dealt,
        )
    return first


def _of_ids(end: _Flow, recipe: Recipe, split: dict[int, _Flow]) -> Promise:
    """Say how often each id comes, given how often what was split or yielded does."""
    if end.parts is None:
        return Promise(None, False, end.likeness)
    parts, is_exact = Counter(end.parts), end.is_exact
    found: Counter[int] = Counter()
    for step in reversed(recipe.steps):
        if step.effect in _SPLITS:
            # Only all branches together have every item.
            times = {parts.pop(out, 0) for out in step.outs}
            whole = split[step.outs[0]]
            if whole.parts is None:
                return Promise(None, False, end.likeness)
            is_exact = is_exact and whole.is_exact and len(times) == 1
            parts += _times(whole.parts, max(times))
        elif step.effect in _SOURCES:
            for each in ids(step.source, step.count):
                found[each] += parts["source", step.outs[0]]
    return Promise(+found, is_exact, end.likeness)


def _times(counts: Counter[Any], number: int) -> Counter[Any]:
    return Counter({each: count * number for each, count in counts.items()})
