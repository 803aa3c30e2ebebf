"""Switching shuffling on and off."""

from __future__ import annotations

from typing import Any

import pytest
import torch.utils.data.datapipes.iter as torch_iter

from asyncloader.adapters import Shuffle
from asyncloader.datapipes.iter import IterableWrapper, Shuffler

wrappers = pytest.mark.parametrize("wrap", [IterableWrapper, torch_iter.IterableWrapper])


@wrappers
def test_shuffling_is_switched_off_and_on_again(wrap: Any) -> None:
    end = wrap(range(50)).shuffle().map(int)
    assert list(Shuffle(False)(end)) == list(range(50))
    assert list(Shuffle(None)(end)) == list(range(50))
    shuffled = list(Shuffle()(end))
    assert shuffled != list(range(50))
    assert sorted(shuffled) == list(range(50))


def test_a_shuffle_is_added_where_there_is_none() -> None:
    source = IterableWrapper(range(50))
    with pytest.warns(UserWarning, match="no shuffle in the graph"):
        end = Shuffle(True)(source)
    assert isinstance(end, Shuffler)
    assert list(end.set_seed(1)) != list(range(50))


def test_what_is_neither_on_nor_off_is_refused() -> None:
    with pytest.raises(ValueError, match="enable must be True, False or None, got 'no'"):
        Shuffle("no")  # type: ignore[arg-type]
