"""What a machine or a container lets a program use."""

from __future__ import annotations

import os

import pytest

from asyncloader import machine
from asyncloader.machine import available_memory, private_memory


def test_a_process_has_memory_of_its_own():
    assert private_memory(os.getpid()) > 1 << 20
    assert available_memory() > 0


@pytest.mark.parametrize(
    ("most", "used", "free"), [("max", "5", 2048), ("1500", "1000", 500), ("9000", "10", 2048)]
)
def test_a_containers_memory_counts_where_it_is_less(most, used, free, tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemTotal: 9 kB\nMemAvailable:   2 kB\n")
    (tmp_path / "max").write_text(most)
    (tmp_path / "current").write_text(used)
    monkeypatch.setattr(machine, "_CGROUP_MEMORY", ((tmp_path / "max", tmp_path / "current"),))
    assert available_memory(tmp_path) == free


def test_what_the_system_does_not_say_is_not_known(tmp_path):
    assert available_memory(tmp_path) is None
    assert private_memory(1, tmp_path) is None


def test_private_pages_are_added_up(tmp_path):
    (tmp_path / "7").mkdir()
    text = "Rss: 90 kB\nPrivate_Clean:  3 kB\nPrivate_Dirty:  4 kB\n"
    (tmp_path / "7" / "smaps_rollup").write_text(text)
    assert private_memory(7, tmp_path) == 7 * 1024
