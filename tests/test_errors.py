"""Errors cross process borders with all that they know."""

import inspect
import pickle

import pytest

import asyncloader.errors
from asyncloader.errors import (
    HttpError,
    HttpUnavailable,
    LoaderError,
    RankError,
    RankTimeout,
    TooManyErrors,
    TransportError,
    WorkerDied,
    WorkerTimeout,
)

WITH_MORE = (HttpError, HttpUnavailable, TooManyErrors, TransportError, WorkerDied, WorkerTimeout)
PLAIN = [
    kind
    for _, kind in inspect.getmembers(asyncloader.errors, inspect.isclass)
    if issubclass(kind, LoaderError) and kind not in WITH_MORE
]
EXAMPLES = [
    *(kind("what was wrong") for kind in PLAIN),
    HttpError("404", url="http://127.0.0.1/", status=404),
    HttpUnavailable("503", url="http://127.0.0.1/", status=503, retry_after=2.0),
    TooManyErrors("4 of them", errors=4),
    TransportError("garbage", worker=2),
    WorkerDied("gone", worker=1, pid=77, exitcode=-9),
    WorkerTimeout("silent", worker=0, stack="File …"),
    RankError("lost", ranks=(1, 2)),
    RankTimeout("late", ranks=(1,)),
]


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_a_copy_is_the_same_error(error):
    error.add_note("a note")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_death_by_signal_names_the_signal_and_one_by_exit_does_not():
    assert WorkerDied("gone", worker=1, exitcode=-9).signal == 9
    assert WorkerDied("gone", worker=1, exitcode=3).signal is None
