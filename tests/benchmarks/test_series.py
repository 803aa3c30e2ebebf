"""What runs found is kept line by line, and what becomes worse is said."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.benchmarks.comparison import Comparison, Outcome, Results
from tests.benchmarks.cost import Rate
from tests.benchmarks.series import FILE, PICTURE, read, record, svg

FACTS = {"when": "2026-11-28 02:00 UTC", "cores": "2", "Python": "3.11", "torch": "2.13"}
OTHER = "torch DataLoader"


def outcome(
    ours: list[float], *, less: bool = False, earlier: list[float] | None = None
) -> Outcome:
    comparison = Comparison("W0: <numbers>", "s", [], against=[OTHER], less_is_better=less)
    results: Results = {"asyncloader, for": [Rate(each, 1e-6) for each in ours], OTHER: [1.0] * 3}
    return Outcome(comparison, results | ({"earlier asyncloader, for": earlier} if earlier else {}))


def recorded(
    folder: Path, commit: str, found: Outcome, earlier: str = "", **more: str
) -> list[str]:
    facts = {**FACTS, "commit": commit, **more}
    file, picture = folder / "series.jsonl", folder / "over-time.svg"
    said = list(record(facts, [found], earlier, file=file, picture=picture))
    ElementTree.fromstring(picture.read_text())
    return said


@pytest.mark.parametrize("less", [False, True])
def test_what_becomes_worse_beyond_noise_is_said(tmp_path, less):
    good, bad = ([1.0, 1.1, 1.2], [2.0, 2.1, 2.2])[:: 1 if less else -1]
    assert recorded(tmp_path, "a", outcome(good, less=less)) == []
    assert recorded(tmp_path, "b", outcome(good, less=less)) == []
    (said,) = recorded(tmp_path, "c", outcome(bad, less=less))
    assert "times as bad as before: W0: <numbers>: asyncloader, for" in said
    assert recorded(tmp_path, "d", outcome(good, less=less)) == []
    assert [line.commit for line in read(tmp_path / "series.jsonl")] == ["a", "b", "c", "d"]


def test_ranges_that_touch_and_other_machines_say_nothing(tmp_path):
    recorded(tmp_path, "a", outcome([2.0, 2.1, 2.2]))
    assert recorded(tmp_path, "b", outcome([1.0, 1.1, 2.0])) == []
    assert recorded(tmp_path, "c", outcome([1.0, 1.1, 1.2]), cores="64") == []


def test_an_earlier_commit_of_the_run_has_a_line_of_its_own(tmp_path):
    (said,) = recorded(tmp_path, "b", outcome([1.0, 1.0, 1.0], earlier=[2.0, 2.0, 2.0]), "a")
    assert said.startswith("2.00 times as bad")
    first, second = read(tmp_path / "series.jsonl")
    assert (first.commit, second.commit) == ("a", "b")
    assert first.ratios[0].range == (2.0, 2.0, 2.0)
    assert first.ratios[0].key == second.ratios[0].key


def test_the_picture_is_of_the_series():
    assert PICTURE.read_text() == svg(read(FILE))
