from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch.utils.data.datapipes.iter as torch_iter
import torch.utils.data.datapipes.map as torch_map
from hypothesis import given
from hypothesis import strategies as st

from asyncloader.datapipes.iter import IterableWrapper, Multiplexer, Zipper, ZipperLongest
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.map import Zipper as MapZipper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from tests.datapipes.resuming import place_of
from tests.datapipes.watched import Failing, Watched

several = st.lists(st.lists(st.integers(), max_size=5), min_size=1, max_size=4)


@pytest.mark.parametrize("name", ["zip", "mux"])
@given(several)
def test_items_are_taken_in_turn_as_by_torch(name: str, lists: list[list[int]]) -> None:
    ours, *others = [IterableWrapper(items) for items in lists]
    theirs, *their_others = [torch_iter.IterableWrapper(items) for items in lists]
    our_pipe = getattr(ours, name)(*others)
    their_pipe = getattr(theirs, name)(*their_others)

    assert list(our_pipe) == list(their_pipe)
    assert len(our_pipe) == len(their_pipe)


@given(several)
def test_the_longest_forms_leave_nothing_out(lists: list[list[int]]) -> None:
    first, *others = [IterableWrapper(items) for items in lists]
    rounds = list(first.zip_longest(*others, fill_value="-"))

    assert [[row[n] for row in rounds if row[n] != "-"] for n in range(len(lists))] == lists
    assert list(first.mux_longest(*others)) == [n for row in rounds for n in row if n != "-"]
    assert len(first.zip_longest(*others)) == len(rounds)
    assert len(first.mux_longest(*others)) == sum(map(len, lists))


def test_what_ends_early_is_closed_with_all_others() -> None:
    sources = [Watched(range(count)) for count in (9, 2, 9)]

    assert len(list(Zipper(*sources))) == 2
    assert [source.open for source in sources] == [0, 0, 0]


def test_one_source_that_fails_closes_the_others() -> None:
    source = Watched(range(9))

    with pytest.raises(KeyError):
        list(source.zip(Failing([1], KeyError())))
    assert source.open == 0


def test_mux_takes_whole_rounds() -> None:
    pipe = Multiplexer("abc", "de")
    RunTree([pipe])

    assert [(n, latest_pass(pipe).taken_each()) for n in pipe] == [
        ("a", [1, 1]),
        ("d", [1, 1]),
        ("b", [2, 2]),
        ("e", [2, 2]),
    ]


def test_mux_longest_knows_whose_turn_it_was_and_who_has_ended() -> None:
    pipe = IterableWrapper("abc").mux_longest("d")
    RunTree([pipe])
    state = [(n, *place_of(pipe, "turn", "ended")) for n in pipe]

    assert state == [("a", 0, []), ("d", 1, []), ("b", 0, []), ("c", 0, [1])]


@pytest.mark.parametrize("kind", [Zipper, ZipperLongest, Multiplexer, MapZipper])
def test_at_least_one_source_is_needed(kind: Any) -> None:
    with pytest.raises(ValueError, match="at least one source"):
        kind()


@given(several)
def test_looked_up_tuples_are_those_of_torch(lists: list[list[int]]) -> None:
    ours = MapZipper(*map(SequenceWrapper, lists))
    theirs = torch_map.Zipper(*map(torch_map.SequenceWrapper, lists))

    assert list(ours) == [theirs[index] for index in range(len(theirs))]
    assert len(ours) == len(theirs)


def test_looked_up_tuples_end_with_the_shortest_source() -> None:
    pipe = SequenceWrapper(range(5)).zip(SequenceWrapper("ab"))

    assert pipe[-1] == pipe[numpy.int64(-1)] == (1, "b")
    with pytest.raises(IndexError):
        pipe[2]
    with pytest.raises(TypeError, match="map pipes, got generator"):
        SequenceWrapper("ab").zip(n for n in "cd")  # type: ignore[arg-type]


@pytest.mark.parametrize("other", [[1, 2], "-", 0])
def test_zip_longest_reads_nothing_but_datapipes(other: Any) -> None:
    with pytest.raises(TypeError, match=r"zip_longest reads pipes, got .*fill_value="):
        IterableWrapper(range(3)).zip_longest(other)
