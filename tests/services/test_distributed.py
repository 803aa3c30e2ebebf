"""DistributedReadingService and fullsync on real ranks, which play ``rank_scenes``."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader import (
    DataLoader2,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    SequentialReadingService,
)
from asyncloader.datapipes.iter import IterableWrapper
from tests.processes.ranks import Played, play
from tests.services.rank_scenes import COUNT

SIZES = (2, 3)


@pytest.fixture(scope="module", params=SIZES, ids="{} ranks".format)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("ranks")
    return play("tests.services.rank_scenes", request.param, folder)


def in_process(seed: int, epochs: int = 2) -> list[list[int]]:
    """Return the whole order of a seed's first epochs."""
    with DataLoader2(IterableWrapper(range(COUNT)).shuffle()) as loader:
        loader.seed(seed)
        return [list(loader) for _ in range(epochs)]


# Shares and seeds -----------------------------------------------------------------------


def test_ranks_divide_one_order_among_them(run):
    found = run.found("shares_of_a_seed")
    size = len(found)
    for rank, (epochs, length) in enumerate(found):
        assert epochs == [order[rank::size] for order in in_process(5)]
        assert length == COUNT // size


@pytest.mark.parametrize("name", ["shares_of_a_seed_with_workers", "shares_by_forked_workers"])
def test_workers_divide_the_share_of_their_rank(run, name):
    found = run.found(name)
    instances = 2 * len(found)
    for rank, (epochs, length) in enumerate(found):
        for items, order in zip(epochs, in_process(5), strict=True):
            shares = [order[2 * rank + worker :: instances] for worker in range(2)]
            assert items == [item for pair in zip(*shares, strict=True) for item in pair]
            assert len(items) == length


def test_both_forms_give_the_same_share(run):
    for by_for, by_async, by_for_again in run.found("shares_by_for"):
        assert by_for == by_async == by_for_again


def test_ranks_go_on_together_where_their_states_were_taken(run):
    found = run.found("shares_resumed_in_the_middle")
    size = len(found)
    for rank, (begun, rest, following) in enumerate(found):
        first, second = ([2 * item for item in order[rank::size]] for order in in_process(5))
        assert begun == first[:3]
        assert rest == first[3:]
        assert following == second


def test_pipes_of_torch_are_divided_alike(run):
    items = interleaved(run.found("shares_of_torch_pipes"))
    assert sorted(items) == list(range(COUNT))


def test_unseeded_ranks_agree_on_an_order_of_their_own_for_each_epoch(run):
    found = run.found("unseeded")
    epochs = list(zip(*found, strict=True))
    orders = [interleaved(shares) for shares in epochs]
    assert [sorted(order) for order in orders] == [list(range(COUNT))] * 2
    assert orders[0] != orders[1]


def interleaved(shares: Any) -> list[Any]:
    return [item for items in zip(*shares, strict=True) for item in items]


def test_the_seed_of_rank_0_counts(run):
    found = run.found("seeded_on_rank_0")
    assert [error for _, error in found] == [""] * len(found)
    assert interleaved(items for items, _ in found) == in_process(5)[0]


def test_seeds_that_differ_are_an_error_for_that_epoch_alone(run):
    found = run.found("seeded_differently")
    for (items, error), _ in found:
        assert items == []
        assert "seed that was given to rank 1 for this epoch differs" in error
    assert [error for _, (_, error) in found] == [""] * len(found)
    assert interleaved(items for _, (items, _) in found) == in_process(2)[0]


def test_every_worker_of_every_rank_has_randomness_of_its_own(run):
    numbers: dict[int, list[float]] = {}
    for items in run.found("randomness_of_workers"):
        for pid, number in items:
            numbers.setdefault(pid, []).append(number)
    assert len(numbers) == 2 * len(run.outputs)
    drawn = [number for each in numbers.values() for number in each]
    assert len(set(drawn)) == len(drawn) == COUNT


# What must be the same ------------------------------------------------------------------


def test_graphs_that_differ_are_an_error_at_once_that_names_the_rank(run):
    for (items, error), is_quick in run.found("another_graph_on_rank_1"):
        assert items == []
        assert error.startswith("RankError: the graph on rank 1 differs from that on rank 0")
        assert is_quick
    for rank, ((_, error), _) in enumerate(run.found("another_graph_on_rank_1")):
        assert ("half" if rank == 1 else "double") in error


def test_worker_counts_that_differ_name_the_rank_and_the_counts(run):
    size = len(run.outputs)
    counts = ", ".join(["1"] * (size - 1) + ["2"])
    for items, error in run.found("other_workers_on_the_last_rank"):
        assert items == []
        assert f"number of workers on rank {size - 1} differs" in error
        assert f"(by rank: {counts})" in error


# Equal counts ---------------------------------------------------------------------------


def test_uneven_shares_end_together_with_and_without_workers(run):
    # 7, 4, 5 items; 0, 5, 5; 5, 0, 5; 300, 200, 1000. Each in two epochs.
    expected = [[4, 4], [0, 0], [0, 0], [200, 200]] * 2
    assert run.found("uneven") == [expected] * len(run.outputs)


@pytest.mark.parametrize("name", ["uneven_by_for", "uneven_without_a_service", "uneven_by_itself"])
def test_uneven_shares_are_cut_at_their_end(run, name):
    for found in run.found(name):
        passes = [found] if isinstance(found[0], int) else found
        assert passes == [[0, 1, 2, 3]] * len(passes)


def test_two_full_syncs_do_not_disturb_each_other(run):
    # Of 9, 8 and 7 items and of 5, 6 and 7.
    expected = [[2 * number, number] for number in range(5)]
    assert run.found("two_of_them") == [[expected] * 2] * len(run.outputs)


# Errors ---------------------------------------------------------------------------------


def test_an_error_on_one_rank_is_raised_on_all_after_the_items_before_it(run):
    for rank, (first, second) in enumerate(run.found("failing_on_rank_1")):
        items, error = first
        assert items == [0, 1, 2]
        own, others = "LookupError: no item 3", "RankError: rank 1 failed at an item"
        assert error.startswith(own if rank == 1 else others)
        assert second == [[0, 1, 2, 3, 4, 5], ""]


def test_an_epoch_that_all_leave_is_followed_by_a_whole_one(run):
    found = run.found("leaving_at_the_same_item")
    assert interleaved(items for ((items, _),) in found) == in_process(5)[0]


def test_a_rank_that_others_left_behind_says_so_and_goes_on_with_them(run):
    for rank, (error, rest) in enumerate(run.found("leaving_earlier_on_rank_0")):
        if rank > 0:
            assert error.startswith("RankError: rank 0 left the epoch")
        assert rest == [list(range(9000)), ""]


def test_a_loop_goes_on_while_its_rank_waits_for_another(run):
    for items, worst_gap in run.found("waiting_for_rank_1"):
        assert items == [[0, 1], ""]
        assert worst_gap < 0.5


def test_waiting_ends_after_the_timeout(run):
    found = run.found("waiting_too_long_for_rank_1")
    for rank, ((items, error), seconds) in enumerate(found):
        assert items == [0]
        if rank != 1:
            assert error.startswith(f"RankTimeout: rank {rank} waited 1.5 s for")
            assert seconds < 3.4
        else:
            assert error.startswith("RankError: rank 1 lost ")


def test_a_rank_that_is_killed_is_named_on_the_others_at_once_and_again(run):
    assert run.exitcodes == [0, -9, 0][: len(run.exitcodes)], run.outputs
    for error, again, seconds in run.found("rank_1_is_killed", without=1):
        assert "lost rank 1, whose process ended" in error
        assert "lost rank 1" in again
        assert seconds < 5


# Other services -------------------------------------------------------------------------


def test_resets_of_services_in_between_reach_workers_and_the_loader(run):
    for pid, epochs in run.found("resets_everywhere"):
        for number, items in enumerate(epochs, start=1):
            assert {inner[1] for inner, _, _ in items} == {number}
            assert {outer for _, outer, _ in items} == {number}
            assert {where for _, _, where in items} == {pid}
            assert len({inner[2] for inner, _, _ in items} - {pid}) == 2


def test_epochs_leave_nothing(run):
    run.found("ten_epochs_leave_nothing")


def test_a_loader_closes_in_time_while_another_rank_is_silent(run):
    found = run.found("closing_while_others_are_silent")
    for rank, (said, seconds) in enumerate(found):
        if rank == 1:
            # Whether it needed the others once more depends on who was sooner.
            assert said == "" or said.startswith("RankError: rank 1 lost ")
        else:
            assert len(said) == 1
            assert said[0].startswith(f"rank {rank} still waited for the others")
            assert seconds < 3.5


def test_a_loader_closes_quickly_in_the_middle_of_an_epoch(run):
    assert all(seconds < 3 for seconds in run.found("closing_in_the_middle"))


# Without ranks --------------------------------------------------------------------------


def test_torch_distributed_must_be_initialized():
    graph = IterableWrapper(range(3)).sharding_filter()
    loader = DataLoader2(graph, reading_service=DistributedReadingService())
    with pytest.raises(RuntimeError, match="init_process_group"):
        next(iter(loader))
    loader.shutdown()


@pytest.mark.parametrize(
    ("timeout", "error"), [(0, ValueError), (float("inf"), ValueError), ("1", TypeError)]
)
def test_a_timeout_is_a_number_of_seconds(timeout, error):
    with pytest.raises(error, match="timeout must be"):
        DistributedReadingService(timeout)
    with pytest.raises(error, match="timeout must be"):
        IterableWrapper([]).fullsync(timeout)


def test_workers_of_services_are_counted():
    service = SequentialReadingService(
        DistributedReadingService(), MultiProcessingReadingService(3), InProcessReadingService()
    )
    assert service.worker_count() == 3
