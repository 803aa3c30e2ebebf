"""What came out, for people at a terminal and for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from tests.benchmarks.comparison import Outcome, Results, is_limit, is_ours, is_peer, ratio
from tests.benchmarks.cost import Rate, seconds


def header(facts: Mapping[str, str]) -> str:
    """Return the facts, one a line."""
    width = max(map(len, facts))
    return "\n".join(f"{name.ljust(width)}  {fact}" for name, fact in facts.items())


def text(outcome: Outcome) -> str:
    """Return a comparison's table, how ours stands, its targets, and who is not in it."""
    comparison, results = outcome.comparison, outcome.results
    lines = [f"{comparison.title} ({comparison.unit}, {comparison.better})"]
    if results:
        lines.append(table(results, unit=comparison.unit, against=comparison.against))
        lines.append(outcome.standing())
    lines += [f"target: {target}: {target.verdict(results)}" for target in comparison.targets]
    lines += [f"{name}: {why}" for name, why in outcome.without.items()]
    return "\n".join(lines)


def table(results: Results, *, unit: str, against: Sequence[str] = ()) -> str:
    """Return the numbers as text: medians, ranges, and ratios within the same rounds."""
    references = [name for name in against if name in results]
    costs = {name: _cost(numbers) for name, numbers in results.items()}
    has_costs = any(costs.values())
    head = ["", f"median {unit}", "range", *(f"to {name}" for name in references)]
    rows = [head + [f"CPU for {ONE.get(unit, 'one')}"] * has_costs]
    for name, numbers in results.items():
        span = f"{short(min(numbers))} - {short(max(numbers))}"
        ratios = [_ratio_to(results, name, other) for other in references]
        rows.append([name, short(median(numbers)), span, *ratios] + [costs[name]] * has_costs)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
        for row in rows
    )


#: What a rate is the number of.
ONE = {"items/s": "an item", "GB/s": "a GB", "images/s": "an image", "rows/s": "a row"}


def _cost(numbers: Sequence[float]) -> str:
    costs = [number.cpu for number in numbers if isinstance(number, Rate)]
    return seconds(median(costs)) if costs else ""


def _ratio_to(results: Results, name: str, other: str) -> str:
    return "" if name == other else str(ratio(results[name], results[other]))


def short(number: float) -> str:
    """Return three digits and a letter for the size."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= size:
            return f"{number / size:.3g}{letter}"
    return f"{number:.3g}"


def markdown(facts: Mapping[str, str], outcomes: Sequence[Outcome]) -> str:
    """Return a table with the best of ours, the best peer and the best limit of each."""
    machine = ", ".join(facts[name] for name in ("cores", "Python", "commit") if name in facts)
    rows = [
        f"Medians of one run ({machine}); ratios are of the same rounds.",
        "",
        "| | asyncloader | best peer | ratio | limit |",
        "|---|---|---|---|---|",
        *(_row(outcome) for outcome in outcomes if outcome.best(is_ours)),
    ]
    return "\n".join(rows) + "\n"


def _row(outcome: Outcome) -> str:
    ours, peer = outcome.best(is_ours), outcome.best(is_peer)
    found = str(ratio(outcome.results[ours], outcome.results[peer])) if peer else ""
    cells = [_cell(outcome, name) for name in (ours, peer, outcome.best(is_limit))]
    cells.insert(2, found)
    comparison = outcome.comparison
    return f"| {comparison.title} ({comparison.better}) | {' | '.join(cells)} |"


def _cell(outcome: Outcome, name: str) -> str:
    if not name:
        return ""
    number = f"{short(median(outcome.results[name]))} {outcome.comparison.unit}"
    return f"{number} ({name.removeprefix('limit: ').removeprefix('asyncloader, ')})"


def as_json(facts: Mapping[str, str], settings: Mapping[str, Any], all_: Sequence[Outcome]) -> str:
    """Return everything that was found out, every round of it."""
    found = {
        "facts": dict(facts),
        "settings": dict(settings),
        "comparisons": [_plain(outcome) for outcome in all_],
    }
    return json.dumps(found, indent=1)


def _plain(outcome: Outcome) -> dict[str, Any]:
    comparison = outcome.comparison
    return {
        "title": comparison.title,
        "unit": comparison.unit,
        "less_is_better": comparison.less_is_better,
        "rounds": outcome.results,
        "medians": {name: median(numbers) for name, numbers in outcome.results.items()},
        "cpu seconds": {
            name: [number.cpu for number in numbers if isinstance(number, Rate)]
            for name, numbers in outcome.results.items()
        },
        "against": list(comparison.against),
        "standing": outcome.standing(),
        "targets": {str(one): one.verdict(outcome.results) for one in comparison.targets},
        "without": outcome.without,
    }
