"""The command that holds this asyncloader against an earlier one sees what it has to see."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pytest

from tests.before.comparing import Differs, Way
from tests.before.running import ROOT, Side
from tests.before.subjects import Subject

BATCHED = "p0 = IterableWrapper(range(12)).batch(2)"
SHUFFLED = "p0 = IterableWrapper(range(12)).shuffle(buffer_size=4)\np1 = p0.sharding_filter()"


def compared(tmp_path: Path, *subjects: Subject, was: str = "", instead: str = "") -> Counter[str]:
    """Compare with a copy of the package, in one of whose files a text was another one."""
    package = tmp_path / "earlier"
    shutil.copytree(ROOT / "asyncloader", package / "asyncloader")
    if was:
        (file,) = (path for path in package.rglob("*.py") if was in path.read_text())
        file.write_text(file.read_text().replace(was, instead))
    counts: Counter[str] = Counter()
    with (
        Side("the earlier one", package, files=tmp_path) as old,
        Side("this one", files=tmp_path) as new,
    ):
        for subject in subjects:
            counts += subject.compare(old, new)
    return counts


# Each imports all in two processes more.
pytestmark = pytest.mark.soak


def test_a_copy_is_the_same_in_this_process_and_in_workers(tmp_path):
    counts = compared(
        tmp_path,
        Subject(0, SHUFFLED, Way(0)),
        Subject(0, SHUFFLED, Way(2)),
        Subject(0, "p0 = sample('iter.BucketBatcher')", Way(0)),
    )
    assert counts["epochs equal"] == 9
    assert counts["states equal"] > 50
    assert counts["states loaded across"] > 10
    assert not counts["states changed"]


def test_another_order_is_a_difference(tmp_path):
    with pytest.raises(Differs, match="epochs: "):
        compared(tmp_path, Subject(0, SHUFFLED, Way(0)), was="0xD2511F53", instead="0xD2511F55")


def test_states_of_another_form_are_counted_and_load(tmp_path):
    counts = compared(
        tmp_path, Subject(0, BATCHED, Way(0)), was='else "[]",', instead='else "[ ]",'
    )
    assert counts["states changed"] == 16
    assert counts["states loaded across"] > 10


def test_a_state_that_no_longer_loads_is_a_difference(tmp_path):
    with pytest.raises(Differs, match=r"loaded by this one: SnapshotError: .* version"):
        compared(tmp_path, Subject(0, SHUFFLED, Way(0)), was="VERSION = 7", instead="VERSION = 8")


def test_a_side_that_dies_is_a_difference(tmp_path):
    ends = "p0 = IterableWrapper([0]).map(lambda _: __import__('os')._exit(3))"
    with pytest.raises(Differs, match="dies or hangs: exit code 3"):
        compared(tmp_path, Subject(0, ends, Way(0)))
