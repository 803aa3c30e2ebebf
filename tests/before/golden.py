"""States that are kept as files, to be resumed by every later asyncloader.

``python -m tests.before.golden`` resumes all of them. ``--make NAME`` writes new files, of 500
random graphs and every sample of the contract tests, at every step of two epochs, in this process
and in workers. The files of a version of the state's format stay as they are for as long as that
version is read.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import lzma
import random
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests import sample_files
from tests.before import side
from tests.before.comparing import is_overtaken, without_noise
from tests.before.subjects import Subject, of_samples, of_seeds

FOLDER = Path(__file__).parent / "states"
#: What is made: the states of these.
SEEDS = range(40_000_000, 40_000_500)
_FILES = "{FILES}"
#: Of so many random graphs one is kept in workers, too.
_EVERY = 2


@dataclass(frozen=True)
class Kept:
    """The epochs of a graph in one way, and its states along them."""

    graph: str
    service: str
    epochs: list[list[str]]
    #: What is the same in all states.
    common: dict[str, Any]
    #: The number of the epoch, how many items came, and what is of this state.
    states: list[tuple[int, int, dict[str, Any]]]
    #: Whether numbers with a point are drawn by functions, and nobody's promise.
    is_noisy: bool

    def __str__(self) -> str:
        return f"{self.service}\n{self.graph}"

    def state(self, at: int) -> dict[str, Any]:
        """Return a state as it was given, with the folder of this run's files in it."""
        _, _, own = self.states[at]
        text = json.dumps({**self.common, **own})
        folder = json.dumps(json.dumps(str(sample_files.folder()))[1:-1])[1:-1]
        state: dict[str, Any] = json.loads(text.replace(_FILES, folder))
        sums = {name: _checksum(value) for name, value in state.items() if name != "version"}
        return {**state, "checksums": sums}

    def expected(self, at: int) -> list[list[str]]:
        """Return what comes after a state, in its epoch and the next one."""
        number, step, _ = self.states[at]
        return self.told(side.after(self.epochs, number, step))

    def told(self, epochs: list[list[str]]) -> list[list[str]]:
        return [without_noise(items) for items in epochs] if self.is_noisy else epochs


def read(file: Path) -> Iterator[Kept]:
    """Yield what a file keeps."""
    with lzma.open(file, "rt") as lines:
        for line in lines:
            yield Kept(**json.loads(line))


def check(graphs: side.Graphs, kept: Kept, places: Iterable[int]) -> int:
    """Resume a graph at some of its states; AssertionError where another rest comes."""
    count = 0
    for at in places:
        task = {"graph": kept.graph, "service": kept.service, "state": kept.state(at)}
        number, step, _ = kept.states[at]
        form = "async for" if step % 2 else "for"
        found = kept.told(side.rest(graphs, {**task, "form": form})["epochs"])
        expected = kept.expected(at)
        where = f"{kept}\nafter {step} items of epoch {number}, by {form}"
        assert found[: len(expected)] == expected[: len(found)], where
        count += 1
    return count


# Making them --------------------------------------------------------------------------------------


def make(name: str) -> None:
    """Write the files of this asyncloader."""
    side.pin_places()
    graphs = (subject for subject in of_seeds(SEEDS) if _is_kept(subject))
    for kind, subjects in (("graphs", graphs), ("samples", of_samples())):
        file = FOLDER / f"{name}-{kind}.xz"
        file.parent.mkdir(exist_ok=True)
        with lzma.open(file, "wt", preset=9 | lzma.PRESET_EXTREME) as lines:
            counts: Counter[str] = Counter()
            for subject in subjects:
                with contextlib.closing(side.Graphs()) as made:
                    kept = _kept(made, subject)
                if isinstance(kept, str):
                    counts[kept] += 1
                    continue
                counts["graphs"] += 1
                counts["states"] += len(kept.states)
                lines.write(json.dumps(asdict(kept)) + "\n")
        figures = ", ".join(f"{count} {what}" for what, count in counts.items())
        print(f"{file.name}: {figures}, {file.stat().st_size / 2**20:.2f} MiB", flush=True)


def _is_kept(subject: Subject) -> bool:
    recipe = subject.recipe
    assert recipe is not None
    # What is read twice is refused at times, by a matter of time.
    return not recipe.reads_twice and (not subject.way.workers or subject.seed % _EVERY == 0)


def _kept(graphs: side.Graphs, subject: Subject) -> Kept | str:
    """Return what is kept of a graph, or why nothing is."""
    task = {"graph": subject.lines, "service": subject.way.service}
    try:
        record = side.record(graphs, task)
    except Exception:  # noqa: BLE001 - it is refused, by name
        return "refused"
    if any(map(is_overtaken, record["epochs"])):
        return "that end by a matter of time"
    common: dict[str, Any] = {}
    states = []
    for number, step, state in record["states"]:
        if isinstance(state, str):
            continue
        sums = state.pop("checksums")
        assert sums == {name: _checksum(value) for name, value in state.items() if name in sums}
        common = common or {name: value for name, value in state.items() if name not in _OF_EACH}
        own = {name: value for name, value in state.items() if common.get(name) != value}
        states.append((number, step, _without_folder(own)))
    is_noisy = subject.recipe is not None and subject.recipe.is_noisy
    kept = Kept(
        subject.lines,
        subject.way.service,
        record["epochs"],
        _without_folder(common),
        states,
        is_noisy,
    )
    try:
        check(graphs, kept, range(len(states)))
    except Exception as error:  # noqa: BLE001 - whatever it is, later ones need not be better
        print(f"not resumed by its maker: {type(error).__name__}: {error}\n{kept}", flush=True)
        return "not resumed by their maker"
    return kept


_OF_EACH = ("randomness_state", "position")


def _without_folder(fields: dict[str, Any]) -> dict[str, Any]:
    folder = json.dumps(json.dumps(str(sample_files.folder()))[1:-1])[1:-1]
    fields = json.loads(json.dumps(fields).replace(folder, _FILES))
    return fields


def _checksum(value: Any) -> str:
    """The checksum of a part of a state, written down here once more: it is part of the format."""
    parts = []
    leaves = sorted(value.items()) if isinstance(value, dict) else [("", value)]
    for name, leaf in leaves:
        data = leaf if isinstance(leaf, bytes) else ascii(leaf).encode()
        parts += [f"{name}:{type(leaf).__name__}:{len(data)}:".encode(), data]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.before.golden", description=__doc__)
    parser.add_argument("--make", metavar="NAME", help="write new files")
    parser.add_argument("--each", type=int, help="only so many states of each graph")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    if given.make:
        make(given.make)
        return 0
    failed = count = 0
    begin = time.monotonic()
    for file in sorted(FOLDER.glob("*.xz")):
        for kept in read(file):
            places = range(len(kept.states))
            if given.each:
                places = random.Random(kept.graph).sample(places, min(given.each, len(places)))
            try:
                with contextlib.closing(side.Graphs()) as graphs:
                    count += check(graphs, kept, places)
            except Exception as error:  # noqa: BLE001 - it is counted
                failed += 1
                print(f"\n{type(error).__name__}: {error}\n{kept}", flush=True)
    print(f"{count} states resumed, {failed} graphs failed in {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
