"""The harness measures in fresh processes and relates numbers of the same round only."""

import os

from tests.benchmarks.harness import Case, table


def process_number() -> float:
    return os.getpid()


def test_a_case_is_measured_in_a_process_of_its_own():
    case = Case("process", process_number)
    numbers = {case.measure(), case.measure(), float(os.getpid())}
    assert len(numbers) == 3


def test_a_case_is_possible_if_what_it_needs_is_there():
    assert Case("with json", process_number, needs=("json",)).is_possible()
    assert not Case("with nothing", process_number, needs=("no_such_module",)).is_possible()


def test_ratios_are_those_of_the_same_round():
    # The machine was ten times slower in the second round; the ratio stays.
    text = table({"one": [100.0, 10.0], "two": [300.0, 30.0]}, unit="items/s", against=["one"])
    assert "3.00 (3.00 - 3.00)" in text
    assert "not resolved" not in text


def test_close_and_overlapping_numbers_are_not_resolved():
    text = table({"one": [100.0, 90.0], "two": [110.0, 95.0]}, unit="items/s", against=["one"])
    assert "not resolved" in text
