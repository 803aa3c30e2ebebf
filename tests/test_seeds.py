"""Seeds: the original's numbers, and the published ones of the generator beneath."""

import pickle
import subprocess
import sys

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.seeds import SeedGenerator, checked_seed, philox

uint64 = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize(
    ("counter", "key", "block"),
    [
        (
            (0, 0, 0, 0),
            (0, 0),
            (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        ),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_holds_against_the_published_answers(counter, key, block):
    assert philox(counter, key) == block


SHARED = [9025247384375923790, 16000952678483384606, 4620172586781465253]
SPAWNED = [4163719935875787874, 13444131963280986346, 8997394162330671076]


def test_draws_are_those_of_the_original():
    generator = SeedGenerator(123)
    assert [generator.generate_shared_seed() for _ in SHARED] == SHARED
    assert [generator.generate_seed() for _ in SHARED] == SHARED
    assert [generator.spawn(worker).generate_seed() for worker in range(3)] == SPAWNED


def test_spawning_keeps_the_shared_stream_where_it_stands():
    generator = SeedGenerator(123)
    generator.generate_shared_seed()
    spawned = generator.spawn(1)
    assert spawned.generate_shared_seed() == SHARED[1]
    assert generator.generate_shared_seed() == SHARED[1]


def test_spawning_in_place_changes_and_returns_the_generator():
    generator = SeedGenerator(123)
    assert generator.spawn(2, inplace=True) is generator
    assert generator.generate_seed() == SPAWNED[2]


def test_seeding_starts_both_streams_again():
    generator = SeedGenerator(5).spawn(3)
    generator.generate_shared_seed()
    generator.seed(123)
    assert generator.generate_shared_seed() == SHARED[0]
    assert generator.generate_seed() == SHARED[0]


@given(uint64, st.integers(0, 5), st.integers(0, 5), st.integers(0, 2**40))
def test_copies_draw_the_same(seed, shared, own, worker):
    generator = SeedGenerator(seed)
    for _ in range(shared):
        generator.generate_shared_seed()
    generator.spawn(worker, inplace=True)
    for _ in range(own):
        generator.generate_seed()
    for copy in (pickle.loads(pickle.dumps(generator)), generator.clone()):
        assert copy == generator
        assert copy.generate_seed() == generator.clone().generate_seed()
        assert copy.generate_shared_seed() == generator.clone().generate_shared_seed()


@given(uint64)
def test_spawned_streams_differ(seed):
    generator = SeedGenerator(seed)
    assert len({generator.spawn(worker).generate_seed() for worker in range(50)}) == 50


@pytest.mark.parametrize("seed", [-1, 2**64, "1", 1.0, True])
def test_a_seed_that_is_no_number_of_64_bits_is_refused(seed):
    with pytest.raises(ValueError, match=r"from 0 to 2\*\*64 - 1"):
        SeedGenerator(seed)


def test_numbers_of_numpy_are_seeds():
    largest = numpy.uint64(2**64 - 1)
    assert SeedGenerator(largest) == SeedGenerator(2**64 - 1)
    assert type(checked_seed(largest)) is int


def test_a_negative_worker_is_refused():
    with pytest.raises(ValueError, match="worker_id must be an integer of at least 0, got -1"):
        SeedGenerator(1).spawn(-1)


def test_without_a_seed_torch_governs():
    torch.manual_seed(1)
    first, second = SeedGenerator(), SeedGenerator()
    torch.manual_seed(1)
    again = SeedGenerator()
    assert again == first
    again.seed()
    assert again == second != first


def test_importing_the_package_imports_no_torch():
    code = "import asyncloader, sys; sys.exit(sum(m in sys.modules for m in ('torch', 'numpy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_generator_that_adopts_a_key_goes_on_as_one_with_that_seed():
    adopting, seeded = SeedGenerator(1), SeedGenerator(2)
    for generator in (adopting, seeded):
        generator.generate_shared_seed()
    adopting.adopt(seeded.key)
    assert adopting == seeded
    assert adopting.generate_shared_seed() == seeded.generate_shared_seed()
    with pytest.raises(ValueError, match="seed must be"):
        adopting.adopt(-1)


def test_a_generator_knows_whether_it_was_given_its_seed():
    assert SeedGenerator(1).clone().is_chosen
    assert not SeedGenerator().spawn(3).is_chosen


@pytest.mark.parametrize("worker_id", [1.5, True, "1", None])
def test_a_worker_that_is_no_integer_is_refused(worker_id):
    with pytest.raises(ValueError, match="worker_id must be an integer of at least 0, got"):
        SeedGenerator(1).spawn(worker_id)


def test_numbers_of_numpy_are_workers():
    for number in range(4):
        spawned = SeedGenerator(1).spawn(numpy.int64(number))
        assert spawned.generate_seed() == SeedGenerator(1).spawn(number).generate_seed()
