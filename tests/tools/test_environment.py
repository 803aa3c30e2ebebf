"""What a loader finds around it."""

from __future__ import annotations

import os

import pytest

from asyncloader.tools.environment import cgroup_cores, findings, usable_cores


def test_everything_is_looked_at():
    found = {finding.name: finding for finding in findings()}
    assert list(found)[:6] == ["Python", "torch", "uvloop", "cores", "start method", "threads"]
    assert all(finding.what for finding in found.values())
    assert 1 <= usable_cores() <= os.cpu_count()


@pytest.mark.parametrize(
    ("text", "cores"), [("max 100000", None), ("150000 100000", 1.5), ("-1", None), ("", None)]
)
def test_a_containers_share_of_the_cores(text, cores, tmp_path):
    file = tmp_path / "cpu.max"
    file.write_text(text)
    tmp_path.joinpath("cpu.cfs_period_us").write_text("100000")
    assert cgroup_cores((tmp_path / "missing", file)) == cores


def test_the_older_form_keeps_the_period_in_a_file_of_its_own(tmp_path):
    tmp_path.joinpath("cpu.cfs_quota_us").write_text("50000\n")
    tmp_path.joinpath("cpu.cfs_period_us").write_text("100000\n")
    assert cgroup_cores((tmp_path / "cpu.cfs_quota_us",)) == 0.5
