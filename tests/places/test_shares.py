"""What is settled of a whole, and of its shares: the arithmetic alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.settled import Settled
from asyncloader.places.elastic import RankOrder, joined_shares, shared

SOME = st.sets(st.integers(0, 60), max_size=50)


def settled(numbers: set[int]) -> Settled:
    found = Settled()
    for number in sorted(numbers):
        found.add(number)
    return found


def numbers_of(one: Settled) -> set[int]:
    assert one.frontier not in one
    found = {number for number in range(one.end) if number in one}
    assert Settled.of(one.plain()).plain() == one.plain()
    assert found == {*range(one.frontier), *(n for n in found if n > one.frontier)}
    return found


@given(SOME, st.integers(1, 5))
def test_shares_together_are_the_whole(numbers, count):
    shares = shared(settled(numbers), count)
    for at, share in enumerate(shares):
        assert numbers_of(share) == {each // count for each in numbers if each % count == at}
    assert numbers_of(joined_shares(shares)) == numbers


@given(st.lists(SOME, min_size=1, max_size=4))
def test_a_whole_is_what_its_shares_have_settled(each):
    whole = joined_shares(list(map(settled, each)))
    expected = {at * len(each) + k for k, numbers in enumerate(each) for at in numbers}
    assert numbers_of(whole) == expected


@given(SOME, st.integers(1, 4), st.integers(1, 3))
def test_each_number_is_of_one_rank_in_its_order(numbers, ranks, block):
    whole = settled(numbers)
    found: set[int] = set()
    for rank in range(ranks):
        order = RankOrder(rank, ranks, block)
        own = numbers_of(order.share_of(whole))
        assert {order.number(index) for index in own} == {
            number for number in numbers if order.own_index(number) is not None
        }
        assert order.number(order.before(20) - 1) < 20 <= order.number(order.before(20))
        found.update(map(order.number, own))
    assert found == numbers
