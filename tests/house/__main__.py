"""Count what there is to know: ``python -m tests.house [--root BEFORE --root AFTER]``.

Prints one table. ``--root`` is a checkout, of any version; without it, this one is counted. Given
twice, the table has both and how the second compares. ``--suite`` is the seconds that the test
suite took, once for each root.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from tests.house.reading import declared_by_hand, floors, read, words_for_where
from tests.house.running import run

_HERE = Path(__file__).parents[2]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.house",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", type=Path, action="append", help="a checkout, at most two")
    parser.add_argument("--suite", type=float, action="append", help="seconds of its test suite")
    given = parser.parse_args()
    roots = given.root or [_HERE]
    suites = given.suite or []
    if len(roots) > 2 or len(suites) not in (0, len(roots)):
        parser.error("at most two roots, and as many --suite as roots or none")
    columns = [figures(root.resolve()) for root in roots]
    for column, seconds in zip(columns, suites, strict=False):
        column["test suite, seconds"] = seconds
    print(table(columns))


def figures(root: Path) -> dict[str, float]:
    """Return what was counted of a checkout, by its description."""
    facts, ways = read(root / "asyncloader"), run(root)
    found: dict[str, float] = {
        "files": facts.files,
        "lines": facts.lines,
        "lines of code": facts.code,
        "lines that are imports, %": 100 * facts.import_lines / facts.lines,
        "classes": facts.classes.total(),
        "class names more than once": len(facts.ambiguous),
        "modules with one importer": len(facts.lonely),
        "private functions used once": len(facts.used_once),
        "floors of datapipes": floors(root / "asyncloader/datapipes"),
        "words for where": words_for_where(root / "docs/internals.md"),
        "places declared by hand, in datapipes": declared_by_hand(root / "asyncloader/datapipes"),
    }
    sides = {
        "worker": ways.worker,
        "loader, for": ways.loader,
        "loader, async for": ways.async_loader,
    }
    walks = {f"one item, {side}": way for side, way in sides.items()}
    for name, way in {**walks, "load_state_dict": ways.resume}.items():
        found[f"{name}: functions"] = len(way.functions)
        found[f"{name}: files"] = len(way.files)
        found[f"{name}: jumps between files"] = way.jumps
    found["epoch of 100 items, loader: Python calls"] = ways.epoch_in_loader
    found["epoch of 100 items, each worker: Python calls"] = ways.epoch_in_worker
    return found


def table(columns: Sequence[dict[str, float]]) -> str:
    """Return a line for each description, with the ratio of the second column to the first."""
    lines = []
    if len(columns) == 2:
        lines.append(f"{'':<46} {'before':>9} {'after':>9} {'ratio':>6}")
    for name in columns[0]:
        values = [column[name] for column in columns]
        # A percentage of 8.9 is not the same as one of 8.5, but there are no half files.
        shown = [f"{each:>9,.1f}" if name.endswith("%") else f"{each:>9,.0f}" for each in values]
        if len(values) == 2:
            before, after = values
            shown.append(f"{after / before:>6.2f}" if before else f"{'-':>6}")
        lines.append(f"{name:<46} {' '.join(shown)}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
