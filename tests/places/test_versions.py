from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.errors import SnapshotError
from asyncloader.places.versions import NEXT, VERSION
from tests.before.golden import FOLDER, read
from tests.places.kept_forms import as_of_6


def graph() -> Any:
    return IterableWrapper(range(20)).shuffle().batch(3)


def state_and_rest(taken: int = 2) -> tuple[dict[str, Any], list[Any]]:
    with DataLoader2(graph()) as loader:
        iterator = iter(loader)
        for _ in range(taken):
            next(iterator)
        return loader.state_dict(), list(iterator)


def refused(state: dict[str, Any]) -> str:
    with DataLoader2(graph()) as loader, pytest.raises(SnapshotError) as caught:
        loader.load_state_dict(state)
    return str(caught.value)


def test_a_state_says_its_number_and_the_release_that_wrote_it():
    state, _ = state_and_rest()
    assert (state["version"], state["release"]) == (VERSION, version("asyncloader"))


def test_a_state_of_an_earlier_number_resumes():
    state, rest = state_and_rest()
    with DataLoader2(graph()) as loader:
        loader.load_state_dict(as_of_6(state))
        assert list(loader) == rest
        assert loader.state_dict()["version"] == VERSION
    with DataLoader2.from_state(as_of_6(state)) as loader:
        assert list(loader) == rest


def test_there_is_a_function_and_there_are_kept_states_for_every_earlier_number():
    assert sorted(NEXT) == list(range(min(NEXT), VERSION))
    for number in NEXT:
        files = sorted(FOLDER.glob(f"version-{number}-*.xz"))
        assert files, f"python -m tests.before.golden --make version-{number}, by what wrote them"
        for file in files:
            kept = [each.state(0) for each in read(file) if each.states]
            assert {state["version"] for state in kept} == {number}


@pytest.mark.parametrize("name", ["randomness_state", "position", "fingerprint", "release"])
def test_what_was_damaged_in_a_state_of_an_earlier_number_is_refused_by_name(name):
    state = as_of_6(state_and_rest()[0])
    if name == "release":
        # It had none then.
        state["release"] = "0.1.0"
    elif name == "fingerprint":
        state[name] = state[name].replace("3", "4")
    else:
        count = {"randomness_state": "epoch", "position": "items"}[name]
        state[name] = {**state[name], count: state[name][count] + 1}
    assert refused(state).startswith(f"{name} was damaged")


def test_a_state_of_a_later_number_names_the_release_to_install():
    state, _ = state_and_rest()
    later = {"version": VERSION + 2, "release": "7.1.0", "cursors": [1, 2]}
    ours = re.escape(version("asyncloader"))
    assert re.fullmatch(
        rf"the state's version is {VERSION + 2}, and asyncloader {ours} reads 6 to {VERSION}: the"
        r" state is of a later release\. Install that one, or a later one: asyncloader 7\.1\.0",
        refused(later),
    )
    for release in (None, 3, "", "x" * 1000):
        assert refused({**state, "version": 99, "release": release}).endswith("newest asyncloader")


def test_a_state_of_a_number_that_is_no_longer_read_says_what_can_be_done():
    state, _ = state_and_rest()
    for number in (0, 5):
        assert "Go on with asyncloader 0.1.0" in refused({**state, "version": number})
    for number in (-1, True, 2**70, "7", None, 7.0, [7]):
        assert "no number of a release's states" in refused({**state, "version": number})
