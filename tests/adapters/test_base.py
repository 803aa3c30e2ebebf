"""Adapters, one after the other."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader.adapters import Adapter, PrefetchPolicy, Shuffle, adapted
from asyncloader.datapipes.iter import IterableWrapper


def test_one_adapter_or_several_are_applied_in_order() -> None:
    source = IterableWrapper([1])
    assert adapted(source, None) is source
    assert list(adapted(source, lambda pipe: pipe.map(str))) == ["1"]
    adapters = [lambda pipe: pipe.map(str), lambda pipe: pipe.batch(1), Shuffle(None)]
    assert list(adapted(source, adapters)) == [["1"]]
    assert list(adapted(source, iter(adapters))) == [["1"]]


def test_what_is_no_adapter_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="must be callable, got int"):
        adapted(IterableWrapper([1]), [1])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="must be callable, got str"):
        adapted(IterableWrapper([1]), ["shuffle"])  # type: ignore[list-item]


def test_the_class_of_an_adapter_is_told_from_an_adapter() -> None:
    with pytest.raises(TypeError, match=r"got the class Shuffle: pass Shuffle\(\.\.\.\)"):
        adapted(IterableWrapper([1]), Shuffle)


def test_an_adapter_returns_a_graph() -> None:
    class Forgetful(Adapter):
        def __call__(self, datapipe: Any) -> Any:
            datapipe.map(str)

    with pytest.raises(TypeError, match=r"Forgetful\(\) returned NoneType"):
        adapted(IterableWrapper([1]), Forgetful())


def test_adapters_show_what_they_were_told() -> None:
    assert repr(Shuffle(False)) == "Shuffle(enable=False)"
    assert repr(PrefetchPolicy(3)) == "PrefetchPolicy(buffer_size=3, buffer_bytes=None, after={})"
