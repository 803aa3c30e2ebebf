"""``python -m asyncloader doctor --ray``: actors of a cluster beside processes and none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs pip install 'asyncloader[ray]'")

from asyncloader.tools import doctor
from asyncloader.tools.command import main
from tests.ray.cluster import CPUS, NODES, Nodes, no_actors

LIMIT_SECONDS = 120
#: In a file of its own, which no node can import. Two at a time wait twice as fast as one, also on
#: a busy machine: the waits are long beside what an item costs.
PROGRAM = """
import time
import asyncloader.datapipes.iter as it
from asyncloader import DataLoader2, RayReadingService

def waits(number):
    time.sleep(0.04)
    return number

pipe = it.IterableWrapper(range(10_000)).shuffle().sharding_filter().map(waits)
loader = DataLoader2(pipe, reading_service=RayReadingService(1))
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    file = tmp_path / "program_of_a_user.py"
    file.write_text(PROGRAM)
    return file


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    interrupt, path = signal.getsignal(signal.SIGINT), list(sys.path)
    yield
    signal.signal(signal.SIGINT, interrupt)
    sys.path[:] = path
    sys.modules.pop("program_of_a_user", None)


def rates_in(report: str) -> dict[str, float]:
    rows = re.findall(r"^ +(\d+ \w+)  +([\d.,]+)  \(", report, re.MULTILINE)
    return {name: float(rate.replace(",", "")) for name, rate in rows}


@pytest.mark.usefixtures("nodes")
def test_actors_are_tried_beside_processes_and_none_and_one_advice_is_given(
    program: Path, capsys: Any, monkeypatch: Any
):
    monkeypatch.setattr(doctor, "_AT_LEAST", 1.0)
    options = ["--ray", "--workers", "0,2", "--seconds", "1"]
    assert main(["doctor", f"{program}:pipe", *options]) == 0
    report, progress = capsys.readouterr()
    assert f"{NODES + 1} nodes with room for {NODES * CPUS} actors" in report
    rates = rates_in(report)
    assert list(rates) == ["0 workers", "2 threads", "2 processes", "2 actors"]
    assert rates["2 actors"] > 1.3 * rates["0 workers"]
    assert "... trying 2 actors for" in progress
    advice = report.partition("Advice\n")[2]
    # What is alike to threads or processes of this machine is not worth a cluster.
    assert re.search(r"num_workers=2\)?: about", advice)
    assert "RayReadingService" not in advice
    assert advice.count("num_workers=") == 2
    no_actors()


def command_with(address: str | None, target: str, *options: str) -> Any:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    if address is not None:
        environment["RAY_ADDRESS"] = address
    command = [sys.executable, "-m", "asyncloader", "doctor", target, "--ray", *options]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False
    )


def test_the_command_joins_the_cluster_that_is_named_and_knows_the_programs_own_actors(
    program: Path, nodes: Nodes
):
    done = command_with(
        nodes.cluster.address, f"{program}:loader", "--workers", "1", "--seconds", "1"
    )
    assert done.returncode == 0, done.stderr
    assert list(rates_in(done.stdout)) == ["1 thread", "1 process", "1 actor"]
    assert re.search(r"(keep|as with) RayReadingService\(num_workers=1\)", done.stdout)


def test_a_cluster_that_cannot_be_reached_is_an_error_that_says_what_to_do(program: Path):
    done = command_with("127.0.0.1:1", f"{program}:pipe")
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert "no Ray cluster can be reached at RAY_ADDRESS=127.0.0.1:1: " in last
    assert last.endswith("Run this on a node of the cluster, or set RAY_ADDRESS to host:port")
    assert "Traceback" not in done.stderr
