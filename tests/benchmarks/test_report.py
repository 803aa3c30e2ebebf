"""What came out is a table, JSON and a picture."""

import json
from xml.etree import ElementTree

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Outcome, Target
from tests.benchmarks.cost import Rate, seconds
from tests.benchmarks.plot import LEFT, OURS, RIGHT, Scale, svg
from tests.benchmarks.report import as_json, header, markdown, short, table, text

COMPARISON = Comparison(
    "W0: <numbers> & more", "items/s", [], against=["peer"], targets=[Target("asyncloader", 2)]
)
OUTCOME = Outcome(
    COMPARISON,
    {"asyncloader": [2e6, 1e6, 3e6], "peer": [1e6, 1e6, 1e6]},
    {"ghost": "left out, needs ghosts"},
)


def test_a_table_has_medians_ranges_and_ratios():
    rows = table(OUTCOME.results, unit="items/s", against=["peer", "nobody"]).splitlines()
    assert rows[0].endswith("  to peer")
    assert "nobody" not in rows[0]
    assert rows[1].split() == ["asyncloader", "2M", "1M", "-", "3M", "2.00", "(1.00", "-", "3.00)"]
    assert rows[2].split() == ["peer", "1M", "1M", "-", "1M"]


def test_a_table_says_what_one_cost_in_cpu_time():
    results = {"asyncloader": [Rate(2e6, 4e-7), Rate(1e6, 6e-7)], "peer": [1e6, 1e6]}
    head, ours, peer = table(results, unit="items/s").splitlines()
    assert head.endswith("  CPU for an item")
    assert ours.endswith("  500 ns")
    assert not peer.endswith("s")


def test_a_cost_is_that_of_the_unit_of_its_rate():
    gigabytes = Rate(4e9, 5e-10) / 1e9
    assert (gigabytes, seconds(gigabytes.cpu)) == (4.0, "500 ms")
    assert seconds(3.2e-5) == "32 µs"


def test_a_report_names_targets_and_who_is_missing():
    lines = text(OUTCOME).splitlines()
    assert lines[0] == "W0: <numbers> & more (items/s, more is better)"
    assert "target: asyncloader >= 2: reached: 2e+06" in lines
    assert "ghost: left out, needs ghosts" in lines
    assert any(line.startswith("ahead of the best peer") for line in lines)


def test_numbers_have_three_digits_and_a_letter():
    assert [short(number) for number in (0.01234, 12.3456, 1234.5, 5.9e6, 2.5e9)] == [
        "0.0123",
        "12.3",
        "1.23k",
        "5.9M",
        "2.5G",
    ]


def test_facts_are_one_a_line():
    assert header({"cores": "2", "Python": "3.11"}) == "cores   2\nPython  3.11"


def test_json_has_every_round():
    found = json.loads(as_json({"cores": "2"}, {"rounds": 3}, [OUTCOME]))
    assert found["facts"] == {"cores": "2"}
    assert found["settings"] == {"rounds": 3}
    (comparison,) = found["comparisons"]
    assert comparison["rounds"]["asyncloader"] == [2e6, 1e6, 3e6]
    assert comparison["medians"] == {"asyncloader": 2e6, "peer": 1e6}
    assert comparison["without"] == {"ghost": "left out, needs ghosts"}


def test_the_picture_has_a_dot_for_each_case_in_order_of_size():
    root = ElementTree.fromstring(svg([OUTCOME, Outcome(COMPARISON, {})]))
    dots = [one for one in root if one.tag.endswith("circle")]
    assert [dot.get("fill") == OURS for dot in dots] == [True, False]
    assert float(dots[0].get("cx")) > float(dots[1].get("cx"))
    words = [one.text for one in root if one.tag.endswith("text")]
    assert "W0: <numbers> & more (items/s, more is better)" in words
    assert "asyncloader" in words


def test_a_scale_places_by_logarithm_between_whole_powers():
    scale = Scale([2.0, 50.0])
    assert list(scale.powers()) == [0, 1, 2]
    assert (scale.place(1.0), scale.place(10.0), scale.place(100.0)) == (
        LEFT,
        (LEFT + RIGHT) / 2,
        RIGHT,
    )


def test_a_scale_of_one_number_or_of_nothing_positive_has_a_width():
    assert len(Scale([10.0]).powers()) == 2
    assert Scale([-1.0]).place(-1.0) == LEFT


def test_a_page_has_the_best_of_each_kind_in_a_row():
    cases = [Case(name, abs) for name in ("asyncloader", "peer", "slow peer", "limit: all")]
    results = {"asyncloader": [200.0], "peer": [100.0], "slow peer": [1.0], "limit: all": [400.0]}
    outcome = Outcome(Comparison("W0: things", "items/s", cases), results)
    page = markdown({"cores": "2"}, [outcome])
    assert page.splitlines()[-1] == (
        "| W0: things (more is better) | 200 items/s (asyncloader) | 100 items/s (peer)"
        " | 2.00 (2.00 - 2.00) | 400 items/s (all) |"
    )
