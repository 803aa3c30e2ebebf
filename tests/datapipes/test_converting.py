from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.datapipes.running.run import RunTree
from asyncloader.datapipes.running.watch.frames import latest_pass
from tests.datapipes.resuming import new_pass
from tests.datapipes.watched import Watched, WatchedAsync

PAIRS = [("a", 1), ("b", 2)]


def keyed(number: int) -> tuple[int, str]:
    return number, str(number)


def test_a_stream_is_read_once_at_the_first_lookup() -> None:
    source = Watched(PAIRS)
    pipe = source.to_map_datapipe()

    assert len(pipe) == 2
    assert source.taken == 0
    assert (pipe["b"], pipe["a"]) == (2, 1)
    assert source.taken == 2


async def akeyed(number: int) -> tuple[int, str]:
    return keyed(number)


@pytest.mark.parametrize("function", [keyed, akeyed])
@pytest.mark.parametrize("kind", [Watched, WatchedAsync])
def test_a_function_makes_the_pairs(function: Any, kind: Any) -> None:
    pipe = kind(range(3)).to_map_datapipe(function)

    assert list(pipe) == ["0", "1", "2"]


def test_a_key_that_is_not_there_is_an_index_error() -> None:
    with pytest.raises(IndexError, match="'c'"):
        IterableWrapper(PAIRS).to_map_datapipe()["c"]


def test_of_equal_keys_the_last_counts() -> None:
    pipe = IterableWrapper([("a", 1), ("a", 2)]).to_map_datapipe()

    with pytest.warns(UserWarning, match="'a' more than once"):
        assert pipe["a"] == 2
    assert len(pipe) == 1


@pytest.mark.parametrize(
    ("item", "error"), [(5, TypeError), ((1, 2, 3), ValueError), ((1,), ValueError)]
)
def test_what_is_no_pair_is_an_error(item: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"\(key, value\) pairs, got"):
        IterableWrapper([item]).to_map_datapipe()[0]


def test_a_length_that_is_unknown_is_found_by_reading() -> None:
    pipe = IterableWrapper(pair for pair in PAIRS).to_map_datapipe()

    with pytest.warns(UserWarning, match="set_length"):
        assert len(pipe) == 2
    assert len(pipe) == 2


def test_many_threads_read_the_stream_only_once() -> None:
    source = Watched(enumerate(range(1000)))
    pipe = source.to_map_datapipe()
    ready = threading.Barrier(4)

    def look_up() -> None:
        ready.wait()
        assert pipe[999] == 999

    threads = [threading.Thread(target=look_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert source.taken == 1000


def test_a_failed_reading_can_be_tried_again_and_names_the_pipe() -> None:
    pipe = IterableWrapper([0]).to_map_datapipe(lambda n: 1 / n)

    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as caught:
            pipe[0]
        assert caught.value.__notes__ == ["raised in to_map_datapipe(<lambda>)"]


def test_a_copy_is_read_by_itself() -> None:
    pipe = pickle.loads(pickle.dumps(IterableWrapper(range(3)).to_map_datapipe(keyed)))

    assert pipe[2] == "2"


def test_the_same_seed_gives_the_same_whether_or_not_something_was_looked_up_before() -> None:
    pipe = IterableWrapper(range(9)).shuffle().enumerate().to_map_datapipe()
    before = items_of(pipe)
    assert pipe[0] in range(9)
    assert items_of(pipe) == before


def items_of(pipe: Any) -> list[Any]:
    with DataLoader2(pipe) as loader:
        loader.seed(7)
        return list(loader)


def test_items_are_looked_up_under_the_indices_in_their_order() -> None:
    source = SequenceWrapper({"a": 1, "b": 2})
    pipe = source.to_iter_datapipe(["b", "a"])
    RunTree([pipe])

    assert [(n, latest_pass(pipe).yielded) for n in pipe] == [(2, 1), (1, 2)]
    assert (len(pipe), list(source.to_iter_datapipe([]))) == (2, [])
    assert list(SequenceWrapper("ab").to_iter_datapipe()) == ["a", "b"]
    with pytest.raises(TypeError, match="indices must be a sequence, got list_iterator"):
        source.to_iter_datapipe(iter(["a"]))  # type: ignore[arg-type]


def test_a_pass_goes_on_from_any_position() -> None:
    state = new_pass(SequenceWrapper("abcd").to_iter_datapipe())
    state.resume_at(2, None, {})

    assert list(state) == ["c", "d"]


def test_there_and_back_again() -> None:
    pipe = SequenceWrapper("abc").to_iter_datapipe().enumerate().to_map_datapipe()

    assert list(pipe) == ["a", "b", "c"]
