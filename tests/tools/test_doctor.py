"""``python -m asyncloader doctor``: a report, and an answer to every graph that has none."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from asyncloader.tools import doctor
from asyncloader.tools.command import main
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


def test_a_report_has_the_surroundings_the_stages_and_the_workers(capsys):
    status, out, err = report_on("doubled", "--workers", "0,1", capsys=capsys)
    assert status == 0
    environment, stages, workers = (out.index(head) for head in ("Environment", "Stages", "Worker"))
    assert environment < stages < workers
    for name in ("IterableWrapper()", "shuffle()", "sharding_filter()", "map(double)"):
        assert out.count(f" 100  {name}\n") == 1
    assert "100 items came out, a whole epoch" in out
    assert "best here: " in out or "not resolved" in out
    assert "... trying 1 worker for" in err


def test_an_unsharded_graph_is_tried_as_a_policy_would_shard_it(capsys):
    status, out, _ = report_on("unsharded", "--workers", "0", capsys=capsys)
    assert status == 0
    assert "nothing shards this graph: it was tried as ShardingPolicy() divides it" in out


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
        ("requests", "waits for requests, of which there are none here"),
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
    assert out.endswith("; workers were not tried\n")


@pytest.mark.parametrize("options", [["--seconds", "-1"], ["--seconds", "x"], ["--workers", "a"]])
def test_options_are_checked(options, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["doctor", f"{GRAPHS}:doubled", *options])
    assert "argument --" in capsys.readouterr().err


def test_an_interrupt_ends_it_at_once():
    command = [sys.executable, "-u", "-m", "asyncloader", "doctor", f"{GRAPHS}:stuck"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        killer = threading.Timer(ENOUGH_SECONDS, process.kill)
        killer.start()
        assert b"running the graph by itself" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        assert process.wait() == -signal.SIGINT
        killer.cancel()
