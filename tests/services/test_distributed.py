"""DistributedReadingService and fullsync on real ranks, which play ``rank_scenes``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
from tests.processes.ranks import Company
from tests.recorded.lines import settled_in

#: How many numbers the scenes shuffle.
COUNT = 24

Play = Callable[..., list[Any]]


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    with Company("tests.services.rank_scenes", tmp_path_factory.mktemp("ranks")) as company:
        company.start(3)
        yield company


#: The scenes are played by three ranks where soaks are run.
THREE = pytest.param(3, marks=pytest.mark.soak)


@pytest.fixture(scope="module", params=(2, THREE), ids="{} ranks".format)
def play(company: Company, request: pytest.FixtureRequest) -> Play:
    """Play a scene on two ranks, and on three."""

    def play(name: str, *given: Any, **named: Any) -> list[Any]:
        return company.play(name, request.param, *given, **named)

    return play


def in_process(seed: int, epochs: int = 2) -> list[list[int]]:
    """Return the whole order of a seed's first epochs."""
    with DataLoader2(IterableWrapper(range(COUNT)).shuffle()) as loader:
        loader.seed(seed)
        return [list(loader) for _ in range(epochs)]


# Shares and seeds -----------------------------------------------------------------------


@pytest.mark.sweep
def test_ranks_divide_one_order_among_them(play):
    found = play("shares_of_a_seed", 5, 0)
    size = len(found)
    for rank, (epochs, length) in enumerate(found):
        assert epochs == [order[rank::size] for order in in_process(5)]
        assert length == COUNT // size


@pytest.mark.soak
@pytest.mark.sweep
def test_workers_divide_the_share_of_their_rank(play):
    check_shares_of_two_workers(play("shares_of_a_seed", 5, 2))


def test_forked_workers_divide_the_share_of_their_rank(company):
    check_shares_of_two_workers(company.play("shares_by_forked_workers", 2))


def check_shares_of_two_workers(found: list[Any]) -> None:
    instances = 2 * len(found)
    for rank, (epochs, length) in enumerate(found):
        for items, order in zip(epochs, in_process(5), strict=True):
            shares = [order[2 * rank + worker :: instances] for worker in range(2)]
            assert items == [item for pair in zip(*shares, strict=True) for item in pair]
            assert len(items) == length


def test_another_seed_gives_another_order(play):
    found = play("shares_of_a_seed", 6, 0)
    (first, second), other = zip(*(epochs for epochs, _ in found), strict=True), in_process(6)
    assert [interleaved(first), interleaved(second)] == other
    assert len({tuple(order) for order in other + in_process(5)}) == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_a_dataset_divides_its_batches_among_ranks(company, workers):
    found = company.play("from_a_dataset", 2, workers)
    for epoch in zip(*(epochs for epochs, _ in found), strict=True):
        assert len({len(batches) for batches in epoch} | {length for _, length in found}) == 1
        numbers = [number for batches in epoch for batch in batches for number in batch]
        assert sorted(numbers) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_has_one_order_on_all_ranks_and_resumes(company, workers):
    found = company.play("from_a_sampler", 2, workers)
    for epoch in zip(*found, strict=True):
        numbers = [number for batches in epoch for batch in batches for number in batch]
        assert sorted(numbers) == list(range(COUNT))


def test_a_loader_of_an_iterable_dataset_divides_it_among_ranks_and_workers(company):
    found = company.play("from_a_stream", 2)
    numbers = [number for batches in found for batch in batches for number in batch]
    assert sorted(numbers) == list(range(COUNT))


def test_both_forms_give_the_same_share(play):
    for by_for, by_async, by_for_again in play("shares_by_for"):
        assert by_for == by_async == by_for_again


def test_pipes_of_torch_are_divided_alike(company):
    items = interleaved(company.play("shares_of_torch_pipes", 2))
    assert sorted(items) == list(range(COUNT))


def test_unseeded_ranks_agree_on_an_order_of_their_own_for_each_epoch(play):
    found = play("unseeded")
    epochs = list(zip(*found, strict=True))
    orders = [interleaved(shares) for shares in epochs]
    assert [sorted(order) for order in orders] == [list(range(COUNT))] * 2
    assert orders[0] != orders[1]


def interleaved(shares: Any) -> list[Any]:
    return [item for items in zip(*shares, strict=True) for item in items]


def test_the_seed_of_rank_0_counts(play):
    found = play("seeded_on_rank_0")
    assert [error for _, error in found] == [""] * len(found)
    assert interleaved(items for items, _ in found) == in_process(5)[0]


def test_seeds_that_differ_are_an_error_for_that_epoch_alone(play):
    found = play("seeded_differently")
    for (items, error), _ in found:
        assert items == []
        assert "seed that was given to rank 1 for this epoch differs" in error
    assert [error for _, (_, error) in found] == [""] * len(found)
    assert interleaved(items for _, (items, _) in found) == in_process(2)[0]


@pytest.mark.soak
def test_every_worker_of_every_rank_has_randomness_of_its_own(play):
    numbers: dict[int, list[float]] = {}
    found = play("randomness_of_workers")
    for items in found:
        for pid, number in items:
            numbers.setdefault(pid, []).append(number)
    assert len(numbers) == 2 * len(found)
    drawn = [number for each in numbers.values() for number in each]
    assert len(set(drawn)) == len(drawn) == COUNT


# Going on -------------------------------------------------------------------------------


def test_ranks_go_on_together_where_their_states_were_taken(play):
    found = play("resumed_in_the_middle")
    size = len(found)
    for rank, (begun, rest, following) in enumerate(found):
        first, second = ([2 * item for item in order[rank::size]] for order in in_process(5))
        assert begun == first[:3]
        assert rest == first[3:]
        assert following == second


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("workers", [0, 1])
def test_each_rank_goes_on_with_what_it_has_not_settled_of_its_own_share(play, workers):
    found = play("recorded_and_resumed", workers)
    size = len(found)
    for rank, (begun, rest, error, _) in enumerate(found):
        assert error == ""
        items = begun + rest
        assert len(set(items)) == len(items)
        assert set(items) <= set(in_process(5)[0][rank::size])
    assert len({len(rest) for _, rest, *_ in found}) == 1


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("saved", "loaded"), [((2, 0), (3, 0)), ((2, 1), (3, 2)), ((3, 2), (2, 0)), ((2, 2), (1, 2))]
)
def test_other_ranks_go_on_with_what_no_rank_has_settled(company, saved, loaded):
    begun = company.play("recorded", saved[0], saved[1], 2, None)
    states = [state for *_, state in begun]
    found = company.play("recorded", loaded[0], loaded[1], 0, states)
    settled = [number for numbers, *_ in (*begun, *found) for number in numbers]
    assert len(set(settled)) == len(settled)
    # Each number is the position before the division, and counted once.
    order = in_process(5)[0]
    items = [item for _, items, *_ in (*begun, *found) for item in items]
    assert items == [order[number] for number in settled]
    left_out = sum(count for *_, count, _ in found)
    # What some ranks have more than others is not delivered.
    assert COUNT - 8 * loaded[0] <= len(settled) + left_out <= COUNT


@pytest.mark.parametrize(("saved", "loaded"), [(2, 2), (2, 3), (3, 1)])
def test_a_rollout_tells_each_prompt_by_its_number_on_all_ranks(company, saved, loaded):
    begun = company.play("generated", saved, 3, None)
    found = company.play("generated", loaded, 0, [state for _, state in begun])
    told = [each for each, _ in (*begun, *found) for each in each]
    assert all(prompt == number == own for prompt, number, own in told)
    assert sorted(prompt for prompt, *_ in told) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_rank_has_read_and_others_have_not_is_left_out_by_fullsync(play, workers):
    found = play("recorded_where_ranks_have_more", workers)
    for rank, (numbers, left_out, state, rest) in enumerate(found):
        assert len(numbers) == 5
        assert left_out.keys() <= {"fullsync"}
        assert bool(left_out) == (rank > 0)
        assert rest == numbers[3:]
        read = settled_in(state) | set(rest)
        assert read == set(range(5 + sum(left_out.values())))


def test_fullsync_before_a_section_is_refused_by_name_as_ranks_would_agree_on_other_items(play):
    for work, state, items in play("recorded_behind_fullsync"):
        assert work.startswith("fullsync(30.0) comes before map(double, repeatable=False)")
        assert state.startswith("fullsync(30.0) comes before async_map(double_soon")
        assert all("Put fullsync(30.0) at the end" in why for why in (work, state))
        assert items == [0, 2, 4, 6]


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize(("workers", "count"), [(0, 3), (1, 2)])
def test_ranks_go_on_together_after_what_was_acknowledged(play, workers, count):
    found = play("resumed_after_what_was_acknowledged", workers, count)
    size = len(found)
    for rank, (begun, all_again, rest) in enumerate(found):
        first = [2 * item for item in in_process(5)[0][rank::size]]
        assert begun == first[:5]
        assert all_again == first
        assert rest == first[count:]


def test_ranks_that_go_on_from_different_moments_say_so(play):
    for (later, other_epoch, not_restored), (rest, error) in play("resumed_from_several_moments"):
        assert later[0] == other_epoch[0] == not_restored[0] == []
        assert "rank 1 would resume after another item of the epoch than rank 0" in later[1]
        assert "rank 1 would resume an epoch with another seed than rank 0" in other_epoch[1]
        assert "rank 1 would resume after another item of the epoch than rank 0" in not_restored[1]
        assert error == ""
        assert rest


@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_that_are_set_back_go_on_from_there(company, workers):
    for (first, second), found in company.play("set_back_in_the_midst", 2, workers):
        for step, begun_again, epochs in found:
            assert begun_again == first[step : step + 1]
            assert epochs == [first[step:], second]


def test_a_rank_that_is_set_back_alone_is_named(company):
    for _, error in company.play("set_back_on_one_rank", 2):
        assert "RankError" in error


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize(("saved", "loaded"), [((2, 1), (3, 0)), ((3, 0), (2, 1))], ids=str)
def test_a_checkpoint_of_some_ranks_is_gone_on_with_on_others(company, tmp_path, saved, loaded):
    folder = str(tmp_path / "checkpoint")
    first, second = ([2 * item for item in order] for order in in_process(5))
    begun = company.play("saved_by_distributed_checkpoint", saved[0], folder, 3, saved[1])
    assert interleaved(begun) == first[: 3 * saved[0]]
    given = (folder, saved[0], loaded[1])
    found = company.play("loaded_by_distributed_checkpoint", loaded[0], *given)
    rests, epochs = zip(*found, strict=True)
    # Each goes on with its own share of the order, of which the shortest counts.
    left = first[3 * saved[0] :]
    shares = [
        [item for item in first[rank :: loaded[0]] if item in left] for rank in range(loaded[0])
    ]
    assert list(rests) == [share[: min(map(len, shares))] for share in shares]
    assert interleaved(epochs) == second


# What must be the same ------------------------------------------------------------------


def test_graphs_that_differ_are_an_error_at_once_that_names_the_rank(play):
    for rank, ((items, error), is_quick) in enumerate(play("another_graph_on_rank_1")):
        assert items == []
        assert error.startswith("RankError: the graph on rank 1 differs from that on rank 0")
        assert is_quick
        assert ("half" if rank == 1 else "double") in error


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("graph of ranks", "fullsync"),
        ("graph", "zip() reads"),
        ("order", "the graph runs in worker processes"),
        ("service", "the service cannot start"),
    ],
)
def test_a_loader_that_is_refused_on_one_rank_keeps_no_other_waiting(company, what, why):
    for rank, (error, seconds, count) in enumerate(company.play("refused_on_rank_1", 3, what)):
        assert error.startswith(f"ValueError: {why}" if rank == 1 else "RankError")
        assert rank == 1 or "lost rank 1" in error
        assert seconds < 15
        assert count == COUNT // 3


def test_a_rank_that_comes_too_late_is_named_and_all_can_try_again(company):
    found = company.play("rank_1_opens_a_group_too_late", 3)
    for rank, ((kind, error, ranks, seconds), said) in enumerate(found):
        assert kind == ("RankError" if rank == 1 else "RankTimeout")
        assert ("gave up waiting" if rank == 1 else "waited 2 s for rank 1") in error
        assert rank == 1 or tuple(ranks) == (1,)
        assert seconds < 15
        assert said == [0, 1, 2]


def test_loaders_that_start_at_the_same_time_do_not_meet_one_another(company):
    for rank, found in enumerate(company.play("starting_two_loaders_at_once", 3)):
        shares = [list(range(100 * each + rank, 100 * each + COUNT, 3)) for each in range(4)]
        assert found == shares


def test_worker_counts_that_differ_name_the_rank_and_the_counts(play):
    found = play("other_workers_on_the_last_rank")
    size = len(found)
    counts = ", ".join(["1"] * (size - 1) + ["2"])
    for items, error in found:
        assert items == []
        assert f"number of workers on rank {size - 1} differs" in error
        assert f"(by rank: {counts})" in error


# Equal counts ---------------------------------------------------------------------------


@pytest.mark.soak
def test_uneven_shares_end_together_with_and_without_workers(play):
    # 7, 4, 5 items; 0, 5, 5; and without workers 5, 0, 5; 300, 200, 1000. Each in two epochs.
    expected = [[4, 4], [0, 0], [0, 0], [200, 200], [4, 4], [0, 0]]
    assert all(found == expected for found in play("uneven"))


@pytest.mark.parametrize("name", ["uneven_by_for", "uneven_without_a_service", "uneven_by_itself"])
def test_uneven_shares_are_cut_at_their_end(play, name):
    for found in play(name):
        passes = [found] if isinstance(found[0], int) else found
        assert passes == [[0, 1, 2, 3]] * len(passes)


def test_two_full_syncs_do_not_disturb_each_other(play):
    # Of 9, 8 and 7 items and of 5, 6 and 7.
    expected = [[2 * number, number] for number in range(5)]
    assert all(found == [expected] * 2 for found in play("two_of_them"))


def test_many_items_share_a_collective(company):
    # How much quicker that is than one all_reduce for each item, tests.benchmarks.full_sync says.
    for items, collectives in company.play("agreeing_on_many", 2, 20_000):
        assert items == 20_000
        assert collectives < items / 10


# Errors ---------------------------------------------------------------------------------


def test_an_error_on_one_rank_is_raised_on_all_after_the_items_before_it(play):
    for rank, (first, second) in enumerate(play("failing_on_rank_1")):
        items, error = first
        assert items == [0, 1, 2]
        own, others = "LookupError: no item 3", "RankError: rank 1 failed at an item"
        assert error.startswith(own if rank == 1 else others)
        assert second == [[0, 1, 2, 3, 4, 5], ""]


def test_an_epoch_that_all_leave_is_followed_by_a_whole_one(play):
    found = play("leaving_at_the_same_item")
    assert interleaved(items for ((items, _),) in found) == in_process(5)[0]


@pytest.mark.sweep
def test_a_rank_that_others_left_behind_says_so_and_goes_on_with_them(play):
    for rank, (error, rest) in enumerate(play("leaving_earlier_on_rank_0")):
        if rank > 0:
            assert error.startswith("RankError: rank 0 left the epoch")
        assert rest == [list(range(9000)), ""]


def test_a_loop_goes_on_while_its_rank_waits_for_another(play):
    assert all(found == [0, [[1], ""]] for found in play("waiting_for_rank_1"))


@pytest.mark.soak
def test_waiting_ends_after_the_timeout_and_names_who_is_missing(play):
    found = play("waiting_too_long_for_rank_1")
    assert [items for items, _ in found] == [[0]] * len(found)
    errors = [error for _, error in found]
    check_waited_for_rank_1(errors, "3 s")
    assert is_lost(errors[1], 1)


def test_the_log_names_a_rank_that_others_wait_for(company):
    (patience, messages), _ = company.play("log_while_rank_1_is_late", 2)
    assert patience == 60
    waited = "rank 0 has waited 0.3 s for rank 1 to {}, as all ranks must; it waits up to 30 s"
    # On a machine that is busy there are more of them.
    assert messages[0] == waited.format("start a loader")
    assert messages[-1] == waited.format("read a loader")


# Other services -------------------------------------------------------------------------


def test_resets_of_services_in_between_reach_workers_and_the_loader(company):
    for pid, epochs in company.play("resets_everywhere", 2):
        for number, items in enumerate(epochs, start=1):
            assert {inner[1] for inner, _, _ in items} == {number}
            assert {outer for _, outer, _ in items} == {number}
            assert {where for _, _, where in items} == {pid}
            assert len({inner[2] for inner, _, _ in items} - {pid}) == 2


@pytest.mark.soak
def test_epochs_leave_nothing(company):
    company.play("ten_epochs_leave_nothing", 3)


@pytest.mark.soak
@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_closes_while_its_workers_are_stuck_and_another_rank_is_silent(company, workers):
    for error, seconds in company.play("closing_while_rank_1_is_silent", 3, workers):
        assert error.startswith("LoaderClosed")
        # It takes less than 3 s where the machine is not busy; the others' timeout is 30 s.
        assert seconds < 15


def test_a_loader_closes_quickly_in_the_middle_of_an_epoch(play):
    assert all(seconds < 15 for seconds in play("closing_in_the_middle"))


def check_waited_for_rank_1(errors: list[str], seconds: str) -> None:
    """Fail unless the others waited for rank 1, or one of them for another who had given up."""
    timeout = rf"RankTimeout: rank \d waited {seconds} for ranks? ([^;]*);"
    waited = [re.match(timeout, error) for error in errors]
    assert any(found and "1" in found[1] for found in waited), errors
    for rank, found in enumerate(waited):
        # A machine that is busy stops one of them for so long that the other was first.
        assert rank == 1 or found or is_lost(errors[rank], rank), errors


def is_lost(error: str, rank: int) -> bool:
    """Whether a rank says that it has lost others."""
    return re.match(rf"RankError: rank {rank} lost ranks? \d", error) is not None


# Ranks that end ------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize(
    ("how", "size", "timeout"), [("SIGKILL", 3, 30.0), ("SIGSTOP", 3, 3.0), ("SIGKILL", 2, 30.0)]
)
def test_a_rank_that_ends_is_named_on_the_others_and_again(company, how, size, timeout):
    played = company.play("rank_1_ends", size, how, timeout, ends=1)
    errors = [found[0] if found else "" for found in played]
    if how == "SIGSTOP":
        check_waited_for_rank_1(errors, "3 s")
    for rank, found in enumerate(played):
        if rank != 1:
            error, again, seconds = found
            if how == "SIGKILL":
                assert error.startswith(f"RankError: rank {rank} lost rank 1: a process ended")
            assert again == error
            # Of gloo's own timeout, the run's, a minute would be left.
            assert seconds < 20


def test_a_rank_that_has_lost_another_tells_those_who_wait_for_it(company):
    check_lost_rank_1_at_once(company.play("rank_1_ends_when_only_rank_2_has_heard_it", 3, ends=1))


def test_a_rank_that_leaves_is_missed_at_once_whatever_still_refers_to_its_group(company):
    check_lost_rank_1_at_once(company.play("rank_1_leaves_a_group_that_is_referred_to", 3))


def check_lost_rank_1_at_once(played: list[Any]) -> None:
    for rank in (0, 2):
        message, ranks, seconds = played[rank]
        assert message.startswith(f"rank {rank} lost rank 1: a process ended")
        assert ranks == [1]
        # The timeout is 30 s.
        assert seconds < 15


def test_only_the_rank_that_said_nothing_is_named(company):
    played = company.play("rank_1_says_nothing_in_time", 3)
    for rank in (0, 2):
        message, ranks, _ = played[rank]
        assert message.startswith(f"rank {rank} waited 2 s for rank 1;")
        assert ranks == [1]


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
