"""What the doctor recommends: the bottleneck by its name, one number of workers, a page, a diff."""

from __future__ import annotations

import re
import signal

import pytest

from asyncloader.loader.stats import StageStats
from asyncloader.tools import doctor
from asyncloader.tools.advice import Advice, Service, Trial, advise, apply_to, page
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
    *trials: Trial, now: int = 0, in_actors: bool = False, is_computing: bool = True
) -> Advice:
    stages = [stage("Numbers()", 1, is_source=True), stage("map(decode)", 9)]
    return advise(stages, trials, now=Service(in_actors, now), is_computing=is_computing)


NONE, ONE, TWO = (
    Trial(0, [98, 100, 102], 0.1),
    Trial(1, [95, 99, 101], 0.1),
    Trial(2, [188, 190, 192], 0.1),
)
TWO_ACTORS, FOUR_ACTORS = Trial(2, [185, 191, 193], 1.5, True), Trial(4, [378, 380, 382], 1.5, True)


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
    one = Trial(1, [90, 130, 200], 0.1)
    _, advised, _ = advice_on(NONE, one, TWO).lines()
    assert advised.startswith("use num_workers=2: about 1.9 times")


def test_fewer_workers_are_advised_where_more_are_slower():
    slower = Trial(3, [50, 51, 52], 0.1)
    assert advice_on(NONE, ONE, slower, now=3).service.workers == 0


def test_actors_of_a_cluster_are_advised_where_they_are_surely_faster_than_processes_here():
    use = "use RayReadingService(num_workers=4): about 3.8 times as many items a second as with"
    _, advised, _ = advice_on(NONE, TWO, TWO_ACTORS, FOUR_ACTORS).lines()
    assert advised == f"{use} num_workers=0"
    _, advised, _ = advice_on(NONE, ONE, TWO, TWO_ACTORS).lines()
    assert advised.startswith("use num_workers=2: about 1.9 times")


def test_a_program_whose_actors_are_no_faster_than_processes_is_told_to_use_those():
    _, kept, _ = advice_on(NONE, TWO, FOUR_ACTORS, now=4, in_actors=True).lines()
    assert kept.startswith("keep RayReadingService(num_workers=4): ")
    faster = Trial(2, [398, 400, 402], 0.1)
    _, advised, _ = advice_on(NONE, faster, FOUR_ACTORS, now=4, in_actors=True).lines()
    assert advised.startswith("use num_workers=2: about 1.1 times")
    assert advised.endswith("as with RayReadingService(num_workers=4)")


def test_a_function_that_waits_needs_no_process():
    _, first, second = advice_on(NONE, TWO, is_computing=False).lines()
    assert "async_map" in first
    assert second.startswith("or use num_workers=2")


def test_what_is_not_decided_is_measured_again_and_only_that():
    wide = Trial(1, [150, 180, 200], 0.1)
    assert undecided([NONE, wide, TWO]) == [wide.service, TWO.service]
    assert undecided([NONE, ONE, TWO]) == []
    close = Trial(1, [186, 190, 191], 0.1)
    assert undecided([NONE, close, TWO]) == []
    wide_actors = Trial(2, [150, 180, 200], 0.1, True)
    assert undecided([wide_actors, NONE, TWO]) == [TWO.service, wide_actors.service]


def test_many_rates_say_more_exactly_which_is_better():
    few = Trial(1, [90, 100, 110], 0.1)
    many = Trial(1, [90, 95, 100, 105, 110] * 20, 0.1)
    assert few.overlaps(Trial(2, [108, 112, 116], 0.1))
    assert not many.overlaps(Trial(2, [108, 112, 116], 0.1))


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
    assert apply_to(file, Service(False, 4)) == [
        f"-service = {before}  # ours",
        f"+service = {after}  # ours",
    ]
    assert file.read_text(encoding="utf-8") == f"first = 'ä'\nservice = {after}  # ours\nlast = 3\n"


def test_a_program_that_says_no_number_is_told_what_to_write(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("DataLoader2(pipe)\n")
    with pytest.raises(ValueError, match=r"reading_service=MultiProcessingReadingService\(3\)"):
        apply_to(file, Service(False, 3))
    with pytest.raises(ValueError, match=r"reading_service=RayReadingService\(3\)"):
        apply_to(file, Service(True, 3))
    assert file.read_text(encoding="utf-8") == "DataLoader2(pipe)\n"


def test_advice_for_actors_is_written_where_the_actors_are(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("here = MultiProcessingReadingService(2)\nthere = RayReadingService(2)\n")
    changed = ["-there = RayReadingService(2)", "+there = RayReadingService(4)"]
    assert apply_to(file, Service(True, 4)) == changed


def test_a_page_shows_any_name_as_it_is():
    advice = advice_on(NONE, TWO)
    text = page("a < b", advice, [stage("map(<lambda>)", 1)], [NONE, TWO])
    assert "map(&lt;lambda&gt;)" in text
    assert "a &lt; b" in text
    assert "<lambda>" not in text
