"""What the doctor recommends: the bottleneck by its name, one number of workers, a page, a diff."""

from __future__ import annotations

import re
import signal

import pytest

from asyncloader.loader.stats import StageStats
from asyncloader.tools import doctor
from asyncloader.tools.advice import Advice, Kind, Service, Trial, advise, apply_to, page
from asyncloader.tools.command import main
from asyncloader.tools.doctor import undecided
from tests.tools import graphs

GRAPHS = graphs.__name__


@pytest.fixture
def _short(monkeypatch):
    monkeypatch.setattr(doctor, "_FOR_STAGES", 300)
    monkeypatch.setattr(doctor, "_AT_LEAST", 0.1)
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.sweep
@pytest.mark.usefixtures("_short")
@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("slow_map", "map(slow)"),
        ("slow_source", "SlowNumbers()"),
        ("slow_look_up", "map(slow)"),
        ("slow_prefetched", "SlowNumbers()"),
        ("slow_calls", "thread_map(slow, concurrency=1)"),
        ("slow_awaited", "async_map(soon_done, concurrency=2)"),
    ],
)
def test_the_bottleneck_is_named(name, stage, capsys):
    assert main(["doctor", f"{GRAPHS}:{name}", "--seconds", "0.2", "--workers", "0"]) == 0
    advice = capsys.readouterr().out.partition("Advice\n")[2]
    assert f"the bottleneck is {stage}: " in advice
    assert advice.count("use num_workers=") + advice.count("keep num_workers=") == 1


@pytest.mark.usefixtures("_short")
def test_a_report_is_one_page_that_needs_no_network(capsys, tmp_path):
    file = tmp_path / "report.html"
    options = ["--seconds", "0.2", "--workers", "0,1", "-o", str(file)]
    assert main(["doctor", f"{GRAPHS}:slow_map", *options]) == 0
    text = file.read_text(encoding="utf-8")
    assert text.count("<svg") == 2
    assert "map(slow)" in text
    assert not re.search(r"https?:|src=|@import|<link|<script", text)
    assert "Environment" in capsys.readouterr().out


def stage(name: str, seconds: float, *, is_source: bool = False) -> StageStats:
    return StageStats(name, "loader", 10, 1.0, 0, seconds, 0.5, 0, 0, False, is_source)


def advice_on(
    *trials: Trial, now: int = 0, kind: Kind = Kind.PROCESS, is_computing: bool = True
) -> Advice:
    stages = [stage("Numbers()", 1, is_source=True), stage("map(decode)", 9)]
    return advise(stages, trials, now=Service.of(kind, now), is_computing=is_computing)


def of(workers: int, rates: list[float], first: float = 0.1, kind: Kind = Kind.PROCESS) -> Trial:
    return Trial(Service.of(kind, workers), rates, first)


NONE, ONE, TWO = (
    of(0, [98, 100, 102]),
    of(1, [95, 99, 101]),
    of(2, [188, 190, 192]),
)
TWO_ACTORS, FOUR_ACTORS = (
    of(2, [185, 191, 193], 1.5, Kind.ACTOR),
    of(4, [378, 380, 382], 1.5, Kind.ACTOR),
)


def test_the_advice_says_what_is_gained():
    first, second, third = advice_on(NONE, ONE, TWO).lines()
    assert first == (
        "the bottleneck is map(decode): 90% of the time is spent in it, and it mostly computes"
    )
    assert second == (
        "use num_workers=2: about 1.9 times as many items a second as with num_workers=0"
    )
    assert "thread_map" in third


def test_it_says_where_the_differences_are_smaller_than_the_noise():
    assert "keep num_workers=1" in "".join(advice_on(NONE, ONE, now=1).lines())
    assert "smaller than the noise" in "".join(advice_on(NONE, ONE).lines())
    assert "keep num_workers=2" in "".join(advice_on(NONE, ONE, TWO, now=2).lines())


def test_what_surely_gains_is_advised_where_a_smaller_number_may_gain_as_much_or_nothing():
    one = of(1, [90, 130, 200])
    _, advised, _ = advice_on(NONE, one, TWO).lines()
    assert advised.startswith("use num_workers=2: about 1.9 times")


def test_fewer_workers_are_advised_where_more_are_slower():
    slower = of(3, [50, 51, 52])
    assert advice_on(NONE, ONE, slower, now=3).service.workers == 0


def test_actors_of_a_cluster_are_advised_where_they_are_surely_faster_than_processes_here():
    use = "use RayReadingService(num_workers=4): about 3.8 times as many items a second as with"
    _, advised, _ = advice_on(NONE, TWO, TWO_ACTORS, FOUR_ACTORS).lines()
    assert advised == f"{use} num_workers=0"
    _, advised, _ = advice_on(NONE, ONE, TWO, TWO_ACTORS).lines()
    assert advised.startswith("use num_workers=2: about 1.9 times")


def test_a_program_whose_actors_are_no_faster_than_processes_is_told_to_use_those():
    _, kept, _ = advice_on(NONE, TWO, FOUR_ACTORS, now=4, kind=Kind.ACTOR).lines()
    assert kept.startswith("keep RayReadingService(num_workers=4): ")
    faster = of(2, [398, 400, 402])
    _, advised, _ = advice_on(NONE, faster, FOUR_ACTORS, now=4, kind=Kind.ACTOR).lines()
    assert advised.startswith("use num_workers=2: about 1.1 times")
    assert advised.endswith("as with RayReadingService(num_workers=4)")


def test_a_function_that_waits_needs_no_process():
    _, first, second = advice_on(NONE, TWO, is_computing=False).lines()
    assert "async_map" in first
    assert second.startswith("or use num_workers=2")


def test_what_is_not_decided_is_measured_again_and_only_that():
    wide = of(1, [150, 180, 200])
    assert undecided([NONE, wide, TWO]) == [wide.service, TWO.service]
    assert undecided([NONE, ONE, TWO]) == []
    close = of(1, [186, 190, 191])
    assert undecided([NONE, close, TWO]) == []
    wide_actors = of(2, [150, 180, 200], 0.1, Kind.ACTOR)
    assert undecided([wide_actors, NONE, TWO]) == [TWO.service, wide_actors.service]


def test_many_rates_say_more_exactly_which_is_better():
    few = of(1, [90, 100, 110])
    many = of(1, [90, 95, 100, 105, 110] * 20)
    assert few.overlaps(of(2, [108, 112, 116]))
    assert not many.overlaps(of(2, [108, 112, 116]))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("MultiProcessingReadingService(2)", "MultiProcessingReadingService(4)"),
        ("MultiProcessingReadingService()", "MultiProcessingReadingService(num_workers=4)"),
        (
            "a.MultiProcessingReadingService(timeout=3, num_workers=1 + 1)",
            "a.MultiProcessingReadingService(timeout=3, num_workers=4)",
        ),
        (
            "MultiProcessingReadingService(timeout=3)",
            "MultiProcessingReadingService(timeout=3, num_workers=4)",
        ),
        (
            "DataLoader2.from_dataset(data, num_workers=0)",
            "DataLoader2.from_dataset(data, num_workers=4)",
        ),
    ],
)
def test_the_advice_is_applied_and_the_changed_lines_are_told(before, after, tmp_path):
    file = tmp_path / "train.py"
    file.write_text(f"first = 'ä'\nservice = {before}  # ours\nlast = 3\n", encoding="utf-8")
    assert apply_to(file, Service(Kind.PROCESS, 4)) == [
        f"-service = {before}  # ours",
        f"+service = {after}  # ours",
    ]
    assert file.read_text(encoding="utf-8") == f"first = 'ä'\nservice = {after}  # ours\nlast = 3\n"


def test_a_program_that_says_no_number_is_told_what_to_write(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("DataLoader2(pipe)\n")
    with pytest.raises(ValueError, match=r"reading_service=MultiProcessingReadingService\(3\)"):
        apply_to(file, Service(Kind.PROCESS, 3))
    with pytest.raises(ValueError, match=r"reading_service=RayReadingService\(3\)"):
        apply_to(file, Service(Kind.ACTOR, 3))
    assert file.read_text(encoding="utf-8") == "DataLoader2(pipe)\n"


def test_advice_for_actors_is_written_where_the_actors_are(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("here = MultiProcessingReadingService(2)\nthere = RayReadingService(2)\n")
    changed = ["-there = RayReadingService(2)", "+there = RayReadingService(4)"]
    assert apply_to(file, Service(Kind.ACTOR, 4)) == changed


def test_advice_for_threads_is_written_where_the_threads_are(tmp_path):
    file = tmp_path / "train.py"
    lines = (
        "a = MultiProcessingReadingService(2)",
        "b = MultiThreadingReadingService(2)",
        "c = from_dataset(data, num_workers=2)",
        'd = from_dataset(data, num_workers=2, workers="threads")',
    )
    file.write_text("\n".join(lines) + "\n")
    changed = [line for line in apply_to(file, Service(Kind.THREAD, 4)) if line.startswith("+")]
    assert changed == [
        "+b = MultiThreadingReadingService(4)",
        '+d = from_dataset(data, num_workers=4, workers="threads")',
    ]
    # Where no worker is better than some, it is written where those are.
    here = apply_to(file, Service.of(Kind.PROCESS, 0), Service(Kind.THREAD, 4))
    assert "+b = MultiThreadingReadingService(0)" in here
    assert not any("MultiProcessing" in line for line in here)


def test_threads_are_advised_where_they_are_as_fast_as_processes():
    threads = of(2, [188, 191, 193], kind=Kind.THREAD)
    _, advised, _ = advice_on(NONE, TWO, threads).lines()
    assert advised.startswith("use MultiThreadingReadingService(num_workers=2): about 1.9 times")
    _, kept, _ = advice_on(NONE, TWO, threads, now=2).lines()
    assert kept.startswith("keep num_workers=2")


def test_a_page_shows_any_name_as_it_is():
    advice = advice_on(NONE, TWO)
    text = page("a < b", advice, [stage("map(<lambda>)", 1)], [NONE, TWO])
    assert "map(&lt;lambda&gt;)" in text
    assert "a &lt; b" in text
    assert "<lambda>" not in text
