"""Ranks of groups divide the items, on four real ranks that are a mesh of 2 x 2."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from asyncloader import DataLoader2, DistributedReadingService
from tests.processes.ranks import Company
from tests.services.group_scenes import COUNT


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with Company("tests.services.group_scenes", tmp_path_factory.mktemp("groups")) as company:
        yield company


def check_divided(found: list[Any]) -> None:
    """Fail unless pairs have the same batches, and both pairs together each item once."""
    assert found[0] == found[1]
    assert found[2] == found[3]
    orders = []
    for epoch in zip(found[0], found[2], strict=True):
        orders.append([number for batches in epoch for batch in batches for number in batch])
        assert sorted(orders[-1]) == list(range(COUNT))
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    ("kind", "workers"),
    [
        ("mesh", 0),
        *(
            pytest.param(kind, workers, marks=[pytest.mark.soak, pytest.mark.sweep])
            for kind, workers in [("group", 2), ("mesh", 2), ("group", 0), ("pair", 0), ("pair", 2)]
        ),
    ],
)
def test_unseeded_ranks_of_one_model_group_load_the_same_and_groups_divide(company, kind, workers):
    check_divided(company.play("epochs_in_group", 4, kind, workers))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_async_for_divides_among_groups_too(company, workers):
    check_divided(company.play("epochs_by_async_for", 4, workers))


def test_a_distributed_sampler_of_data_parallel_ranks_is_taken_for_its_group(company):
    check_divided(company.play("epochs_of_a_sampler", 4))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_sampler_that_divides_among_ranks_itself_is_not_divided_again(company, workers):
    for rank, (divided, own) in enumerate(
        company.play("epochs_of_a_sampler_that_divides", 4, workers)
    ):
        assert "the sampler on ranks 2 and 3 yields other keys" in divided
        # By a loader that leaves the dividing to it.
        assert own == ([[0, 1, 2], [6, 7, 8]], [[3, 4, 5], [9, 10, 11]])[rank // 2]


@pytest.mark.soak
def test_a_worker_that_is_killed_on_one_rank_changes_nothing(company):
    check_divided(company.play("with_a_killed_worker", 4))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_a_state_is_that_of_a_data_parallel_rank_and_resumes_to_the_same_epochs(company, workers):
    found = company.play("resumed_in_group", 4, workers)
    assert found == [[True, [rank // 2, 2]] for rank in range(4)]


def test_states_of_two_data_parallel_ranks_resume_on_four_and_on_one(company):
    found = company.play("resumed_in_others", 4)
    begun = [batch for rank in (0, 2) for batch in found[rank][0]]
    alone = found[0][1][1]
    assert all(rests[1] == alone for _, rests in found)
    numbers = [number for batch in begun + alone for number in batch]
    assert sorted(numbers) == list(range(COUNT))
    of_four = [str(batch) for _, rests in found for batch in rests[0]]
    assert len(of_four) == len(set(of_four)) == 4 * len(found[0][1][0])
    assert set(of_four) <= set(map(str, alone))


def test_a_share_that_is_empty_ends_the_epoch_on_all_ranks(company):
    assert company.play("empty_shares", 4) == [[[], []]] * 4


def test_uneven_shares_may_be_an_error_on_every_rank_after_the_items_that_all_have(company):
    error = "RankError: ranks 2 and 3 still had items at the end of ranks 0 and 1"
    for taken, said in company.play("uneven_is_an_error", 4, [3, 40]):
        assert taken == [0, 1, 2]
        assert said.startswith(error)
    assert company.play("uneven_is_an_error", 4, [3, 3]) == [[[0, 1, 2], ""]] * 4
    for taken, said in company.play("uneven_is_an_error", 4, [1, 0]):
        assert taken == []
        assert said.startswith("RankError: ranks 0 and 1 still had items")


def test_from_dataset_takes_what_happens_to_uneven_shares(company):
    for count, said in company.play("uneven_data_is_an_error", 4):
        assert count == COUNT // 2
        # At the end of the others one of the two may not have come to its last item yet.
        assert re.match("RankError: (ranks 0 and 1|rank 0|rank 1) still had items", said)
    with pytest.raises(ValueError, match="uneven='error' goes with distributed"):
        DataLoader2.from_dataset(range(4), uneven="error")


def check_padded(found: list[Any]) -> None:
    """Fail unless pairs have the same items, and all as many, each once but for padding."""
    assert found[0] == found[1]
    assert found[2] == found[3]
    for epoch in range(2):
        shares = [found[0][epoch], found[2][epoch]]
        assert [len(share) for share in shares] == [COUNT // 2 + 1] * 2
        counted = [number for share in shares for number, is_padding in share if not is_padding]
        assert sorted(counted) == list(range(COUNT))
        assert shares[1][-1] == [shares[1][-2][0], True]
    assert found[0][0] != found[0][1]


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 2])
def test_padded_shares_have_each_item_once_but_for_what_is_marked(company, workers):
    check_padded(company.play("padded_epochs", 4, workers))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_padding_is_marked_in_async_for_too(company, workers):
    check_padded(company.play("padded_epochs_by_async_for", 4, workers))


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.soak)])
def test_padded_shares_resume_at_every_step_with_their_marks(company, workers):
    found = company.play("padded_resumed_at_every_step", 4, workers)
    for rank, whole in enumerate(found):
        own = (2, 7)[rank // 2]
        assert [is_padding for _, is_padding in whole] == ([False] * own + [True] * (7 - own)) * 2
        for epoch in (whole[:7], whole[7:]):
            assert sorted(number for number, is_padding in epoch if not is_padding) == [*range(own)]
            assert {number for number, is_padding in epoch if is_padding} <= {epoch[own - 1][0]}


def test_padded_shares_resume_after_what_was_acknowledged(company):
    for rank, (whole, rests) in enumerate(company.play("padded_and_acknowledged", 4)):
        assert sum(is_padding for _, is_padding in whole) == (5, 0)[rank // 2]
        assert rests == [whole[step:] for step in range(7)]


def test_a_share_that_is_empty_cannot_be_padded(company):
    for one, none in company.play("padded_and_empty", 4):
        assert one.startswith("RankError: ranks 2 and 3 had no item at all")
        assert none == "[]"


def test_a_fullsync_before_the_end_is_refused_where_shares_are_padded(company):
    for said in company.play("padded_before_the_end", 4):
        assert said.startswith("fullsync() leaves out")


def test_a_state_of_padded_shares_is_refused_where_its_rest_would_be_another(company):
    for refusals, counted in company.play("padded_states_elsewhere", 4):
        other_ranks, no_list, other_way, again = refusals
        assert "which has another share" in other_ranks
        assert "which has another share" in no_list
        assert 'with uneven="pad", and this loader is without it' in other_way
        assert other_way == again
        assert counted in (5, 6)


def test_a_rank_that_dies_while_others_pad_is_named(company):
    found = company.play("padded_while_one_dies", 4, 3, ends=3)
    for rank, said in enumerate(found[:3]):
        # The others end too, and one of them may be missed first.
        assert said.startswith(f"rank {rank} lost rank")
    assert any("lost rank 3: a process ended" in said for said in found[:3])


def test_a_group_that_cannot_divide_is_refused_by_name(company):
    divides_nothing = "RankError: the items cannot be divided among these groups"
    for rank, errors in enumerate(company.play("wrong_groups", 4)):
        *refused, no_second, uneven, other_sizes = errors
        assert [each.partition(":")[0] for each in refused] == [
            "ValueError",
            "ValueError",
            "TypeError",
            "ValueError",
        ]
        assert f"this process, rank {rank} of the run, is not in the group" in refused[0]
        assert "'dp', 'tp'" in refused[1]
        assert "got str" in refused[2]
        assert "got (2, 2)" in refused[3]
        assert no_second.startswith(divides_nothing)
        assert uneven.startswith(divides_nothing)
        assert uneven.endswith("0 of 3, 1 of 3, 2 of 3, 2 of 3")
        assert other_sizes.startswith(divides_nothing)


def test_what_has_no_order_is_refused_where_ranks_load_the_same(company):
    for said in company.play("without_an_order", 4):
        assert "thread_map" in said
        assert "different orders" in said


@pytest.mark.soak
def test_workers_without_an_order_are_refused_where_ranks_load_the_same(company):
    for in_pairs, among_all in company.play("workers_without_an_order", 4):
        assert "in_order=False" in in_pairs
        assert "different orders" in in_pairs
        assert among_all == ""


def test_seeds_that_differ_in_one_model_group_are_an_error(company):
    for said in company.play("seeds_that_differ_in_a_pair", 4):
        assert said.startswith("RankError: the seed that was given to ranks 1, 2 and 3")


def test_uneven_takes_what_it_knows():
    with pytest.raises(ValueError, match="uneven must be"):
        DistributedReadingService(uneven="pads")  # type: ignore[arg-type]
