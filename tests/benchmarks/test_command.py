"""The command runs, prints, and writes; every workload can be listed and chosen."""

import json
import os
import subprocess
import sys

import pytest

from tests.benchmarks.__main__ import all_comparisons, with_peers, workloads
from tests.benchmarks.environments import ROOT
from tests.benchmarks.sizes import QUICK

#: They take some seconds, and on a machine that is busy minutes.
LIMIT_SECONDS = 600


def run_command(*arguments):
    command = [sys.executable, "-m", "tests.benchmarks", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_workload_is_found():
    found = workloads()
    assert {f"w{number}" for number in range(1, 12)} <= set(found)
    assert {"cpu", "full_sync", "latency", "memory"} <= set(found)
    numbers = [int(name[1:]) for name in found if name[0] == "w"]
    assert numbers == sorted(numbers)


def test_titles_are_of_one_comparison_each():
    titles = [comparison.title for _, comparison in all_comparisons([])]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize("comparison", [found for _, found in all_comparisons([])])
def test_targets_and_references_are_cases(comparison):
    names = {case.name for case in comparison.cases}
    assert set(comparison.against) <= names
    for target in comparison.targets:
        assert target.case in names
        assert target.times in names | {""}


def test_chosen_peers_are_beside_ours_and_the_limits():
    (_, comparison), *_ = all_comparisons(["w1"])
    names = [case.name for case in with_peers(comparison, ["grain"]).cases]
    assert "grain" in names
    assert "webdataset" not in names
    assert "asyncloader, for" in names
    assert "limit: plain generators, append" in names


def test_a_quick_run_prints_a_table_and_writes_json_and_a_picture(tmp_path):
    arguments = ["w1", "--quick", "--only", "plain", "--no-install", "--folder", str(tmp_path)]
    said = run_command(*arguments)
    assert "cores" in said
    assert "What this does not measure" in said
    assert "limit: plain generators, append" in said
    assert "numbers mean nothing" in said
    found = json.loads((tmp_path / "benchmark.json").read_text())
    assert found["settings"]["quick"] is True
    assert list(found["comparisons"][0]["rounds"]) == [
        "limit: plain generators, append",
        "limit: plain generators, islice",
    ]
    assert (tmp_path / "benchmark.svg").read_text().startswith("<svg")


def test_the_list_names_cases_and_measures_nothing():
    said = run_command("w2", "--list")
    assert "W2a: integers one by one from 2 workers" in said
    assert "    torch DataLoader" in said


def test_an_unknown_workload_is_refused():
    command = [sys.executable, "-m", "tests.benchmarks", "w99"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "w99" in done.stderr


def test_an_earlier_version_stands_beside_each_case_of_ours():
    said = run_command("w2", "--list", "--earlier", "HEAD")
    assert "    earlier asyncloader, for" in said
    assert "    earlier asyncloader, async for" in said
    assert "earlier limit" not in said


@pytest.mark.soak
def test_what_recording_costs_is_printed():
    command = [sys.executable, "-m", "tests.benchmarks.recorded"]
    quick = os.environ | {QUICK: "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quick, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "map, filter, batch" in done.stdout
    assert "10,000 in 2 workers" in done.stdout


@pytest.mark.soak
def test_what_a_rollout_costs_beside_its_calls_is_printed():
    command = [sys.executable, "-m", "tests.benchmarks.rollouts"]
    quick = os.environ | {QUICK: "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quick, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "group=8 concurrency=512" in done.stdout
    assert "calls in flight, at most (ms): half" in done.stdout


@pytest.mark.soak
def test_what_the_states_of_many_ranks_cost_is_printed():
    command = [sys.executable, "-m", "tests.benchmarks.ranks"]
    quick = os.environ | {QUICK: "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quick, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    assert "counted      100" in done.stdout
    assert "recorded     100" in done.stdout


@pytest.mark.soak
def test_what_grows_is_printed_for_calls_loaders_and_epochs():
    command = [sys.executable, "-m", "tests.benchmarks.growth", "--seconds", "2"]
    quick = os.environ | {QUICK: "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=quick, capture_output=True, text=True, timeout=LIMIT_SECONDS
    )
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert sum(row.startswith("async_map, ordered") for row in rows) == 2
    of_loaders = [row for row in rows if row.startswith(("in one loop", "one by one"))]
    assert len(of_loaders) == 4
    # No thread, no descriptor and no task is left.
    assert [row for row in of_loaders if " 0, 0, 0, " not in row] == []
    assert sum(row.startswith("2 workers, tenth") for row in rows) == 10


def test_a_part_of_what_grows_that_is_unknown_is_refused():
    command = [sys.executable, "-m", "tests.benchmarks.growth", "pipes"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pipes" in done.stderr
