"""A job is the same work however it is shared out."""

import pickle

import pytest

from tests.benchmarks.job import Job, Part, Repeated, forever


def square(number):
    return number * number


def test_parts_make_up_the_whole():
    job = Job(10, square)
    found = sorted([*Part(job, 0, 2), *Part(job, 1, 2)])
    assert found == list(job.part()) == [square(number) for number in range(10)]


def test_batches_have_every_item_once():
    job = Job(10, square, batch_size=4)
    assert [len(batch) for batch in job.part()] == [4, 4, 2]
    assert len(job) == 3


@pytest.mark.parametrize("job", [Job(10, square), Job(10, square, batch_size=4, collate=tuple)])
def test_calls_make_what_a_part_makes(job):
    function, values = job.calls()
    assert [function(value) for value in values] == list(job.part())


def test_the_amount_is_items_or_the_bytes_of_items():
    assert Job(10).amount == 10
    assert Job(10, nbytes=8).amount == 80
    assert Job(10, batch_size=5, nbytes=8).amount == 10


def test_a_part_can_be_iterated_again_and_pickled():
    part = pickle.loads(pickle.dumps(Part(Job(4, square))))
    assert list(part) == list(part) == [0, 1, 4, 9]


def test_epochs_are_cut_from_an_endless_stream():
    epochs = Repeated(forever(range(3)), 3)
    assert list(epochs) == list(epochs) == [0, 1, 2]
