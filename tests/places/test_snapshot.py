"""States as plain data, and what is read once of the states of many ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from asyncloader.errors import SnapshotError
from asyncloader.places.checksums import checksum
from asyncloader.places.snapshot import (
    MAX_DEPTH,
    Snapshot,
    SnapshotEncoder,
    decode,
    decode_each,
    from_text,
    to_text,
)

RANKS = 5


def nested(depth: int, innermost: Any, *, in_dicts: bool) -> Any:
    value = innermost
    for _ in range(depth):
        value = {"a": value, "b": 1} if in_dicts else [1, value]
    return value


@pytest.mark.parametrize("in_dicts", [False, True])
@pytest.mark.parametrize("innermost", [1, "text", None, b"bytes"])
def test_what_is_nested_as_deep_as_it_may_be_is_read_and_one_level_more_is_refused(
    in_dicts, innermost
):
    deepest = nested(MAX_DEPTH, innermost, in_dicts=in_dicts)
    assert from_text(to_text(deepest, "it"), "it") == deepest
    for deeper in (
        nested(MAX_DEPTH + 1, 1, in_dicts=in_dicts),
        nested(MAX_DEPTH, [], in_dicts=True),
    ):
        with pytest.raises(SnapshotError, match="nested more than 32 levels deep"):
            from_text(json.dumps(deeper), "it")


def test_a_mark_is_read_however_it_is_written():
    assert from_text('{"__plain__": "bytes", "data": "AAE="}', "it") == b"\x00\x01"
    assert from_text('{"__pl\\u0061in__": "bytes", "data": "AAE="}', "it") == b"\x00\x01"
    with pytest.raises(SnapshotError, match="not a kind of plain data"):
        from_text('[{"\\u005f_plain__": "code", "data": ""}]', "it")


def states_of_ranks() -> list[dict[str, Any]]:
    """Return states that share no object, as they come from files."""
    encoder = SnapshotEncoder([{"class": "Source", "reads": [], "settings": {}}])
    snapshots = [
        Snapshot(1, 1, 1, items=3, rank=rank, ranks=RANKS, lengths={0: 9}) for rank in range(RANKS)
    ]
    return [json.loads(json.dumps(encoder.encode(each))) for each in snapshots]


def test_the_states_of_ranks_are_read_together_as_they_are_one_by_one():
    states = states_of_ranks()
    assert decode_each(states) == list(map(decode, states))
    first, *others = decode_each(states)
    assert all(each.fingerprint is first.fingerprint for each in others)


def with_right_checksum(state: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    return {**state, name: value, "checksums": {**state["checksums"], name: checksum(value)}}


@pytest.mark.parametrize("rank", range(RANKS))
def test_what_is_wrong_in_one_of_the_states_of_ranks_is_refused_by_name(rank):
    for name, wrong in (("fingerprint", "{}"), ("fingerprint", 1), ("fingerprint", ["[]"])):
        states = states_of_ranks()
        states[rank] = with_right_checksum(states[rank], name, wrong)
        with pytest.raises(SnapshotError, match=name):
            decode_each(states)
    for lengths in ("[[0]]", ["[]"], None):
        states = states_of_ranks()
        position = {**states[rank]["position"], "lengths": lengths}
        states[rank] = with_right_checksum(states[rank], "position", position)
        with pytest.raises(SnapshotError, match=r"position\.lengths"):
            decode_each(states)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("name", ["release", "serialized_datapipe", "fingerprint", "position"])
def test_a_damaged_field_of_one_of_the_states_of_ranks_is_refused_by_name(rank, name):
    states = states_of_ranks()
    damaged = {
        "release": "another",
        "serialized_datapipe": b"another",
        "fingerprint": states[rank]["fingerprint"] + " ",
        "position": {**states[rank]["position"], "items": 4},
    }
    states[rank][name] = damaged[name]
    with pytest.raises(SnapshotError, match=f"{name} was damaged"):
        decode_each(states)


@pytest.mark.parametrize("rank", range(RANKS))
def test_one_state_of_a_rank_with_another_graph_has_a_fingerprint_of_its_own(rank):
    states = states_of_ranks()
    other = json.dumps([{"class": "Other", "reads": [], "settings": {}}])
    states[rank] = with_right_checksum(states[rank], "fingerprint", other)
    classes = [each.fingerprint[0]["class"] for each in decode_each(states)]
    assert classes == ["Other" if at == rank else "Source" for at in range(RANKS)]
