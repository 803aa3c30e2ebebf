"""What may be said between a loader and a worker, and what is refused."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.errors import TransportError
from asyncloader.places.marks import DealStart, Mark, dump_mark, load_mark, load_told
from asyncloader.seeds import SeedGenerator
from asyncloader.worker_info import WorkerInfo
from asyncloader.workers.messages import (
    BeginStream,
    DealtMark,
    EndEpoch,
    Grant,
    Hurry,
    Instruction,
    Note,
    Ready,
    Setup,
    StartEpoch,
    StartFailed,
    StreamEnded,
    StreamFailed,
    dump_message,
    dump_slots,
    items_head,
    load_command,
    load_report,
    load_slots,
    split_items,
)

MARK = Mark(7, {2: {"taken": 7}}, {"random": [1, [2], None]})
COMMANDS = [
    Setup(WorkerInfo(2, 1), b"plan", 1 << 20),
    StartEpoch(1, (1, 2), SeedGenerator(3), b"resets"),
    StartEpoch(1, (1, 2), SeedGenerator(3), b"resets", DealStart(MARK, (1, 2))),
    BeginStream(1, 0, 10, False),
    BeginStream(1, 0, 0, True, MARK, 3),
    Grant(1, 0, 5),
    Hurry(1, 0),
    EndEpoch(1),
    *Instruction,
]
REPORTS = [
    Ready(),
    StartFailed(0, b"error"),
    StreamEnded(1, 0),
    StreamFailed(1, 0, b"error"),
    DealtMark(1, b"mark"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_come_back_as_they_were(command):
    assert load_command(dump_message(command)) == command
    with pytest.raises(TransportError, match="sent to the wrong side"):
        load_report(dump_message(command))


@pytest.mark.parametrize("report", REPORTS)
def test_reports_come_back_as_they_were(report):
    assert load_report(dump_message(report)) == report
    with pytest.raises(TransportError, match="sent to the wrong side"):
        load_command(dump_message(report))


@pytest.mark.parametrize("epoch", [-1, "1", None, 1.0, True])
def test_numbers_that_are_none_are_refused(epoch):
    with pytest.raises(TransportError, match="StreamEnded of epoch"):
        load_report(dump_message(StreamEnded(epoch, 0)))
    with pytest.raises(TransportError, match="StreamEnded of stream"):
        load_report(dump_message(StreamEnded(1, epoch)))


@given(st.binary(max_size=200))
def test_noise_is_no_message(noise):
    with pytest.raises(TransportError):
        load_report(noise)
    with pytest.raises(TransportError):
        load_command(pickle.dumps(noise))


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), *[st.binary()] * 3)
def test_items_know_their_epoch_and_stream_and_where_it_stood(epoch, stream, mark, told, items):
    note = Note(mark, told)
    frame = items_head(epoch, stream, 3, note) + items
    assert split_items(frame) == (epoch, stream, 3, note, items)


def test_a_note_that_is_longer_than_its_frame_is_refused():
    with pytest.raises(TransportError, match="has a note of 9"):
        split_items(items_head(1, 0, 1, Note(b"12345", b"6789"))[:-1])


def test_marks_come_back_as_they_were():
    assert load_mark(dump_mark(MARK)) == MARK
    with pytest.raises(TransportError, match="a mark could not be read"):
        load_mark(b"noise")


def test_what_is_told_comes_back_as_it_was():
    told = [3, (7, 8)], [("filter", 5)]
    assert load_told(pickle.dumps(told)) == told
    with pytest.raises(TransportError, match="told with a frame could not be read"):
        load_told(b"noise")


def test_items_without_a_head_are_refused():
    with pytest.raises(TransportError, match="only 3 bytes"):
        split_items(b"abc")


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_free_slots_are_numbers(slots):
    assert load_slots(dump_slots(slots)) == slots


def test_half_a_number_is_refused():
    with pytest.raises(TransportError, match="12 bytes"):
        load_slots(bytes(12))
