"""``python -m asyncloader doctor``: its report, and an answer for every graph that has none."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from asyncloader import system
from asyncloader.datapipes.running.watch.watching import SAMPLER
from asyncloader.machine import cgroup_cores, usable_cores
from asyncloader.tools import command, doctor
from asyncloader.tools.advice import HERE, Advice, Kind, Service, Trial
from asyncloader.tools.command import main
from asyncloader.tools.doctor import (
    Stretches,
    counts_up_to,
    findings,
    to_try,
    tried,
    verdict,
)
from tests.tools import graphs

GRAPHS = graphs.__name__

#: Long enough for a process to come as far as it should, even on a busy machine.
ENOUGH_SECONDS = 60


@pytest.fixture(autouse=True)
def _interrupts():
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _times(monkeypatch):
    # An epoch comes to its end however busy the machine is, and a trial is short.
    monkeypatch.setattr(doctor, "_FOR_STAGES", ENOUGH_SECONDS / 0.2)
    monkeypatch.setattr(doctor, "_AT_LEAST", 0.1)


def report_on(name, *options, capsys):
    status = main(["doctor", f"{GRAPHS}:{name}", "--seconds", "0.2", *options])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


@pytest.mark.soak
def test_a_report_has_the_surroundings_the_stages_and_the_workers(capsys):
    status, out, err = report_on("doubled", "--workers", "0,1", capsys=capsys)
    assert status == 0
    environment, stages, workers = (out.index(head) for head in ("Environment", "Stages", "Worker"))
    assert environment < stages < workers
    for name in ("IterableWrapper()", "shuffle()", "sharding_filter()", "map(double)"):
        assert out.count(f" 100  {name}\n") == 1
    assert "100 items came out, a whole epoch" in out
    assert "best here: " in out or "undecided" in out
    assert "... trying 1 process for" in err
    assert "... trying 1 thread for" in err


@pytest.mark.sweep
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("slow_map", "map(slow)"),
        ("slow_source", "SlowNumbers()"),
        ("slow_look_up", "map(slow)"),
        ("slow_fork", "map(slow)"),
        ("slow_prefetched", "SlowNumbers()"),
        ("slow_calls_source", "SlowNumbers()"),
        ("slow_calls", "thread_map(slow, concurrency=1)"),
        ("slow_awaited", "async_map(soon_done, concurrency=2)"),
    ],
)
def test_a_stage_is_charged_for_its_own_time_and_for_what_its_reader_waits(name, stage, capsys):
    status, out, _ = report_on(name, "--workers", "0", capsys=capsys)
    assert status == 0
    rows = re.findall(r"^ +([\d.]+)% +(?:under )?([\d.]+ \w+) +(\d+)  (.+)$", out, re.MULTILINE)
    shares = {found: float(share) for share, _, _, found in rows}
    assert shares[stage] > 60
    assert sum(shares.values()) == pytest.approx(100, abs=1)
    (row,) = (row for row in rows if row[3] == stage)
    assert row[1].endswith(" ms")
    assert row[2] == "100"


def test_what_nobody_counts_and_an_epoch_that_is_too_short_are_told(capsys):
    _, out, _ = report_on("own_of_own", "--workers", "0", capsys=capsys)
    assert re.search(r"^ +0\.0% +\? +\?  Own\(\)$", out, re.MULTILINE)
    assert "! the epoch was too short to see where its time went: give it more items" in out


def test_the_program_is_looked_at_as_seldom_as_before_afterwards(capsys):
    before = SAMPLER.rest_seconds, SAMPLER.begin_seconds
    assert report_on("doubled", "--workers", "0", capsys=capsys)[0] == 0
    assert (SAMPLER.rest_seconds, SAMPLER.begin_seconds) == before


def test_an_unsharded_graph_is_tried_as_a_policy_would_shard_it(capsys):
    status, out, _ = report_on("unsharded", "--workers", "0", capsys=capsys)
    assert status == 0
    assert "nothing shards this graph: it was tried with a sharding_filter" in out


def test_workers_are_not_written_into_a_program_whose_graph_nothing_shards(
    capsys, tmp_path, monkeypatch
):
    async def examined(*arguments, **settings):
        return doctor.Examination(
            Advice(None, 0.0, True, HERE, Service(Kind.PROCESS, 2), 1.9, ""), [], []
        )

    monkeypatch.setattr(command, "examine", examined)
    program = tmp_path / "train.py"
    program.write_text("service = MultiProcessingReadingService(0)\n")
    status, _, err = report_on("unsharded", "--apply-to", str(program), capsys=capsys)
    assert status == 2
    assert "train.py was not changed: nothing shards this graph" in err
    assert program.read_text() == "service = MultiProcessingReadingService(0)\n"


def test_a_graph_that_workers_cannot_run_says_so(capsys):
    status, out, _ = report_on("kept", "--workers", "0", capsys=capsys)
    assert status == 0
    assert "no part of this graph can be copied into workers" in out


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", "the graph failed: KeyError('no number 0')"),
        ("empty", "the graph yields no items"),
        ("once", "an iterator, which can be read only once"),
        ("requests", "waits for requests, and there are none here"),
        ("pip", "did you mean pipe?"),
    ],
)
def test_what_cannot_be_examined_is_told(name, says, capsys):
    status, _, err = report_on(name, capsys=capsys)
    assert status == 2
    assert says in err.splitlines()[-1]


def test_a_graph_that_is_stuck_is_given_up(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_FOR_STAGES", 0.3)
    monkeypatch.setattr(doctor, "_WARM_UP", 0.5)
    status, out, _ = report_on("stuck", capsys=capsys)
    graphs.go.set()
    assert status == 0
    assert "0 items came out, in 0.56 s" in out
    assert out.endswith("! most of the time went to map(stuck_on); workers were not tried\n")


@pytest.mark.parametrize("options", [["--seconds", "-1"], ["--seconds", "x"], ["--workers", "a"]])
def test_options_are_checked(options, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"{GRAPHS}:doubled", *options])
    assert "argument --" in capsys.readouterr().err


def test_without_ray_the_cluster_is_an_error_that_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    status, out, err = report_on("doubled", "--ray", capsys=capsys)
    assert status == 2
    assert out == ""
    assert err.splitlines()[-1].endswith("not installed: pip install 'asyncloader[ray]'")


def test_a_loader_with_actors_is_tried_without_them_unless_they_are_asked_for(capsys):
    _, out, _ = report_on("on_a_cluster", "--workers", "0", capsys=capsys)
    assert "the loader runs its graph in actors: to try those too, add --ray" in out
    assert "RayReadingService" not in out


def test_an_interrupt_ends_it_at_once():
    command = [sys.executable, "-u", "-m", "asyncloader", "doctor", f"{GRAPHS}:stuck"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        killer = threading.Timer(ENOUGH_SECONDS, process.kill)
        killer.start()
        assert b"running the graph by itself" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        killer.cancel()


def trial(workers: int, *rates: float, kind: Kind = Kind.PROCESS) -> Trial:
    return Trial(Service.of(kind, workers), rates, 0.1)


@pytest.mark.parametrize(
    ("trials", "says"),
    [
        ([trial(0, 9, 10, 11), trial(1, 19, 20, 21)], "best here: 1 process, 20 items/s"),
        ([trial(0, 19, 20, 21), trial(1, 9, 10, 11)], "best here: 0 workers, 20 items/s"),
        (
            [trial(0, 5, 6, 7), trial(1, 9, 10, 12), trial(2, 11, 12, 13)],
            "undecided between 1 and 2 processes, because their ranges overlap;",
        ),
        (
            [trial(0, 9, 12), trial(1, 9, 10), trial(2, 9, 11)],
            "undecided between 0, 1 and 2 processes, because their ranges overlap;",
        ),
        ([trial(0), trial(1, 9, 10, 12)], "best here: 1 process, 10 items/s"),
        ([trial(0), trial(1)], "undecided: no trial saw enough items"),
        ([trial(2, 9), trial(2, 20, kind=Kind.ACTOR)], "best here: 2 actors, 20 items/s"),
        (
            [trial(0, 5), trial(2, 18, 21), trial(2, 19, 20, kind=Kind.THREAD)],
            "undecided between 2 threads and 2 processes, because their ranges overlap;",
        ),
        (
            [trial(2, 19, 20, kind=Kind.ACTOR), trial(0, 9, 10), trial(1, 18, 21)],
            "undecided between 1 process and 2 actors, because their ranges overlap;",
        ),
    ],
)
def test_what_was_measured_is_said_without_an_advice(trials, says):
    said = verdict(trials)
    assert said.startswith(says)
    assert not {"take", "use", "keep"} & set(said.split())


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, [0, 1]), (2, [0, 1, 2]), (5, [0, 1, 2, 3, 4, 5]), (20, [0, 1, 2, 3, 4, 6, 8, 12, 16, 20])],
)
def test_what_is_tried_ends_with_all_cores(cores, counts):
    assert counts_up_to(cores) == counts


@pytest.mark.parametrize(
    ("cores", "counts", "threads"),
    [(1, None, []), (2, None, [2]), (5, None, [2, 4]), (4, [0, 1, 3], [1, 3])],
)
def test_threads_are_tried_beside_processes(cores, counts, threads, monkeypatch):
    monkeypatch.setattr(doctor, "usable_cores", lambda: cores)
    kinds = {can: to_try(counts, HERE, None, threads_can=can) for can in (True, False)}
    tried_threads = [each.workers for each in kinds[True] if each.kind is Kind.THREAD]
    assert tried_threads == threads
    assert [each for each in kinds[True] if each.kind is not Kind.THREAD] == kinds[False]


def test_where_there_are_no_worker_processes_threads_alone_are_tried(monkeypatch):
    monkeypatch.setattr(system, "HAS_WORKERS", False)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 3)
    services = to_try(None, HERE, None, threads_can=True)
    assert services == [HERE, *((Kind.THREAD, count) for count in (1, 2, 3))]
    assert to_try([2], HERE, None, threads_can=False) == [HERE]


def test_a_rate_is_of_whole_stretches_and_the_first_is_not_kept(monkeypatch):
    class Clock:
        now = 0.0

        def perf_counter(self):
            return self.now

    clock = Clock()
    monkeypatch.setattr(doctor, "time", clock)
    stretches = Stretches(1.0)
    is_enough = stretches.note()
    steps = iter([0.01] * 100 + [0.5] * 100)  # what was held ready, and then what is made
    while not is_enough:
        clock.now += next(steps)
        is_enough = stretches.note()
    assert stretches.rates == pytest.approx([2.0] * doctor.STRETCHES, rel=0.01)


@pytest.mark.parametrize("kind", [Kind.PROCESS, Kind.THREAD])
async def test_a_graph_is_run_again_and_again_in_workers(kind):
    found = await tried(graphs.doubled, [], Service(kind, 1), 0.25)
    assert found.service == (kind, 1)
    assert len(found.rates) == doctor.STRETCHES
    assert found.first_item_seconds > 0


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
