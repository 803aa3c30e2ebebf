"""Names of torchdata and torch: what is not here says what to use, and pipes of both mix."""

from __future__ import annotations

import gzip
import importlib
import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch.utils.data
from torch.utils.data.datapipes.datapipe import IterDataPipe as TorchIterDataPipe
from torch.utils.data.datapipes.datapipe import MapDataPipe as TorchMapDataPipe
from torch.utils.data.datapipes.iter import IterableWrapper as TorchWrapper

import asyncloader.datapipes.iter
import asyncloader.datapipes.map
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe, functional_datapipe
from asyncloader.datapipes.map import MapDataPipe, SequenceWrapper
from asyncloader.datapipes.torch_dataset import as_torch_dataset
from asyncloader.datapipes.torchdata_names import ELSEWHERE, RENAMED, advice_for

MODULES = [asyncloader.datapipes.iter, asyncloader.datapipes.map]


@pytest.mark.parametrize("name", ELSEWHERE)
def test_importing_a_pipe_that_is_not_here_says_what_to_use(name: str) -> None:
    with pytest.raises(ImportError, match="has no " + name) as raised:
        exec(f"from asyncloader.datapipes.iter import {name}")
    assert str(raised.value).endswith(ELSEWHERE[name][1])


@pytest.mark.parametrize("name", [fluent_name for fluent_name, _ in ELSEWHERE.values()])
def test_calling_a_pipe_that_is_not_here_says_what_to_use(name: str) -> None:
    if name in TorchIterDataPipe.functions:
        pytest.skip("torch has it: its pipe is made")
    if name:
        with pytest.raises(AttributeError, match="; use "):
            getattr(IterableWrapper([1]), name)


def test_an_earlier_name_of_torchdatas_is_the_pipe_that_has_a_later_one() -> None:
    from asyncloader.datapipes.iter import Extractor  # type: ignore[attr-defined]

    assert Extractor is asyncloader.datapipes.iter.Decompressor
    packed: Any = IterableWrapper([("a.gz", io.BytesIO(gzip.compress(b"text")))], deepcopy=False)
    ((_, stream),) = packed.extract(file_type="gzip")
    assert stream.read() == b"text"


@pytest.mark.parametrize(("earlier", "later"), RENAMED.items())
def test_each_earlier_name_has_a_later_one(earlier: str, later: str) -> None:
    home: Any = asyncloader.datapipes.iter if later[0].isupper() else IterableWrapper([])
    assert getattr(home, earlier) == getattr(home, later)


def test_what_advice_names_exists() -> None:
    words = {word.strip("(),;") for _, advice in ELSEWHERE.values() for word in advice.split()}
    of_ours = {word for word in words if word.startswith(("load_", "read_", "open_files"))}
    assert of_ours
    assert [word for word in of_ours if not hasattr(IterDataPipe, word.partition("(")[0])] == []


@pytest.mark.parametrize("module", MODULES)
def test_another_name_is_missing_as_in_any_module(module: Any) -> None:
    assert not hasattr(module, "NoSuchPipe")
    with pytest.raises(ImportError, match="cannot import name 'NoSuchPipe'"):
        exec(f"from {module.__name__} import NoSuchPipe")


@pytest.mark.parametrize("module", MODULES)
def test_no_name_is_both_here_and_elsewhere(module: Any) -> None:
    assert set(vars(importlib.import_module(module.__name__))) & ELSEWHERE.keys() == set()
    assert advice_for("Mapper") == ""


def test_pipes_are_concatenated_by_plus() -> None:
    assert list(IterableWrapper([1]) + IterableWrapper([2, 3])) == [1, 2, 3]
    assert list(IterableWrapper([1]) + TorchWrapper([2])) == [1, 2]
    pipe = SequenceWrapper("ab") + SequenceWrapper("c")
    assert (len(pipe), pipe[2]) == (3, "c")


@pytest.mark.parametrize("pipe", [IterableWrapper([1]), SequenceWrapper([1])])
@pytest.mark.parametrize("other", [5, [2]])
def test_only_pipes_of_one_kind_are_concatenated(pipe: Any, other: Any) -> None:
    with pytest.raises(TypeError, match="unsupported operand"):
        _ = pipe + other


@torch.utils.data.functional_datapipe("doubled_by_torch")
class TorchsDoubler(TorchIterDataPipe):  # type: ignore[type-arg]
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        for item in self.source:
            yield 2 * item


@functional_datapipe("halved_by_us")
class OurHalver(IterDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __iter__(self) -> Iterator[int]:
        for item in self.source:
            yield item // 2


@functional_datapipe("looked_up_by_us")
class OurLookup(MapDataPipe[int]):
    def __init__(self, source: Any) -> None:
        self.source = source

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, key: Any) -> int:
        return self.source[key]  # type: ignore[no-any-return]


def test_a_pipe_that_torch_has_registered_is_fluent_on_ours() -> None:
    pipe: Any = IterableWrapper([1, 2])
    assert list(pipe.doubled_by_torch().map(str)) == ["2", "4"]


def test_a_users_pipe_that_is_registered_here_is_fluent_on_torchs() -> None:
    pipe: Any = TorchWrapper([2, 4])
    assert list(pipe.halved_by_us()) == [1, 2]
    looked_up: Any = torch.utils.data.datapipes.map.SequenceWrapper([5])
    assert looked_up.looked_up_by_us()[0] == 5
    assert TorchMapDataPipe.functions["looked_up_by_us"] is OurLookup


def test_the_error_for_an_unknown_name_knows_those_of_torch() -> None:
    pipe: Any = IterableWrapper([1])
    with pytest.raises(AttributeError, match="did you mean doubled_by_torch"):
        _ = pipe.doubled_by_torsh


def test_torchs_loader_says_how_it_takes_a_pipe() -> None:
    pipe: Any = IterableWrapper(range(4))
    with pytest.raises(TypeError, match=r"as_torch_dataset\(pipe\)"):
        list(torch.utils.data.DataLoader(pipe))
    assert len(list(torch.utils.data.DataLoader(as_torch_dataset(pipe)))) == 4


@pytest.mark.parametrize("settings", [{}, {"shuffle": True}, {"num_workers": 1}], ids=str)
def test_torchs_loader_says_so_too_where_the_pipe_has_no_length(settings: Any) -> None:
    pipe: Any = IterableWrapper(range(4)).filter(bool)
    with pytest.raises(TypeError, match=r"has no length: .* as_torch_dataset\(pipe\)"):
        list(torch.utils.data.DataLoader(pipe, **settings))
    assert len(list(torch.utils.data.DataLoader(as_torch_dataset(pipe)))) == 3


def test_a_pipe_without_a_length_is_true_and_a_list_as_before() -> None:
    pipe: Any = IterableWrapper(range(4)).filter(bool)
    assert pipe
    assert pipe.batch(2)
    assert IterableWrapper([1])
    assert not IterableWrapper([])
    assert list(pipe) == [1, 2, 3]


def test_a_stream_is_no_sequence_of_keys() -> None:
    pipe: Any = IterableWrapper(range(4))
    with pytest.raises(TypeError, match="indices must be a sequence"):
        SequenceWrapper(range(3)).shuffle(indices=pipe)


def test_a_stream_is_no_look_up() -> None:
    pipe: Any = IterableWrapper(range(4))
    with pytest.raises(TypeError, match="items are looked up in map pipes"):
        SequenceWrapper(range(3)).zip(pipe)
