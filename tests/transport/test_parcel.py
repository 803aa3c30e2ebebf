"""A graph's arrays, tensors and mapped files on their way to other processes."""

from __future__ import annotations

import gc
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from asyncloader.errors import ResourceExhausted
from asyncloader.transport import parcel as parcels
from asyncloader.transport.parcel import Parcel, pack_code, unpack_code
from tests.leaks import leaves_nothing
from tests.needs import needs_file_mappings

SIZE = 1 << 20


def opened(parcel: Parcel) -> Any:
    return unpack_code(parcel.data, parcel.fds())


def sent(value: Any) -> Any:
    return opened(pack_code(value))


@dataclass
class Holder:
    first: Any
    others: list[Any]


def test_arrays_and_tensors_are_written_once_wherever_they_are() -> None:
    array, tensor = np.arange(SIZE), torch.arange(SIZE, dtype=torch.float32)
    parcel = pack_code(Holder(array, [tensor, {"again": array}]))
    assert parcel.pickled < 10_000
    assert parcel.beside < array.nbytes + tensor.nbytes + 1000
    twin = opened(parcel)
    assert np.array_equal(twin.first, array)
    assert twin.others[1]["again"] is twin.first
    assert torch.equal(twin.others[0], tensor)


def test_what_one_receiver_writes_no_other_sees() -> None:
    array, tensor = np.zeros(SIZE), torch.zeros(SIZE)
    parcel = pack_code([array, tensor])
    one, other = opened(parcel), opened(parcel)
    for each in one:
        each[:] = 1
    for untouched in ([array, tensor], other, opened(parcel)):
        assert not any(each.any() for each in untouched)


def test_views_of_one_memory_stay_views_of_one_memory() -> None:
    array, tensor = np.zeros(SIZE), torch.zeros(SIZE)
    parcel = pack_code([array, array[: SIZE // 2], tensor, tensor[SIZE // 2 :], tensor.view(-1, 4)])
    assert parcel.beside < array.nbytes + tensor.nbytes + 1000
    array, part, tensor, half, matrix = opened(parcel)
    array[0], tensor[SIZE // 2] = 1, 1
    assert (part[0], half[0], matrix[SIZE // 8, 0]) == (1, 1, 1)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(SIZE).reshape(-1, 4, order="F"),
        np.arange(SIZE)[::2],
        np.zeros(SIZE, dtype=[("a", "<i4"), ("b", "<f8")]),
        np.array([{"a": 1}] * 5000, dtype=object),
        np.array(["text"] * 5000),
        np.ones(SIZE, dtype=bool).reshape(2, -1)[:, 1:],
        np.ma.masked_array(np.arange(SIZE), mask=np.arange(SIZE) % 2 == 0),
    ],
    ids=["columns first", "strided", "records", "objects", "text", "part", "masked"],
)
def test_arrays_of_every_kind_arrive(array: Any) -> None:
    twin = sent(array)
    assert type(twin) is type(array)
    assert twin.dtype == array.dtype
    assert np.array_equal(twin, array)


def test_an_array_that_nobody_may_write_stays_so() -> None:
    array = np.arange(SIZE)
    array.flags.writeable = False
    assert not sent(array).flags.writeable


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(SIZE).to(torch.bfloat16),
        torch.arange(SIZE).view(2, -1).T,
        torch.ones(SIZE, requires_grad=True),
        torch.nn.Parameter(torch.ones(SIZE)),
        torch.complex(torch.ones(SIZE), torch.ones(SIZE)).conj(),
        torch.eye(1000).to_sparse(),
        torch.zeros(0, 5),
    ],
    ids=["bfloat16", "turned", "grad", "parameter", "conj", "sparse", "empty"],
)
@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_tensors_of_every_kind_arrive(tensor: Any) -> None:
    twin = sent(tensor)
    assert type(twin) is type(tensor)
    assert (twin.dtype, twin.shape, twin.requires_grad) == (
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
    )
    dense, own = (each.to_dense() if each.is_sparse else each for each in (twin, tensor))
    assert torch.equal(dense, own)


def test_a_model_keeps_its_shared_weights() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(100, 100), torch.nn.Linear(100, 100))
    model[1].weight = model[0].weight
    twin = sent(model)
    assert twin[1].weight is twin[0].weight
    assert torch.equal(twin(torch.ones(100)), model(torch.ones(100)))


def test_columns_of_pandas_and_arrow_are_beside_the_pickle() -> None:
    pandas, arrow = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"a": range(SIZE), "b": np.arange(SIZE) / 2})
    table = arrow.table({"c": np.arange(SIZE), "text": ["some text"] * SIZE})
    parcel = pack_code([frame, table])
    assert parcel.pickled < 100_000
    other_frame, other_table = opened(parcel)
    assert other_frame.equals(frame)
    assert other_table.equals(table)


def test_two_loaders_of_the_same_data_share_its_memory() -> None:
    array = np.zeros(SIZE)
    first, second = pack_code([array]), pack_code({"other": array})
    assert first.shared[1] is second.shared[1]
    array[5] = 1
    third = pack_code([array])
    assert third.shared[1] is not first.shared[1]
    assert [opened(each)[0][5] for each in (first, third)] == [0, 1]


def test_memory_is_gone_with_the_last_who_holds_it() -> None:
    array = np.zeros(SIZE)
    with leaves_nothing():
        parcel = pack_code([array, torch.from_numpy(array)])
        twin = opened(parcel)
        part = twin[0][5:]
        del parcel, twin
        gc.collect()
        assert part[0] == 0
        del part


def test_data_that_does_not_fit_into_memory_twice_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parcels, "available_memory", lambda: SIZE)
    with leaves_nothing(), pytest.raises(ResourceExhausted, match='context="fork" needs no copy'):
        pack_code(np.zeros(SIZE))


# Files that are mapped ------------------------------------------------------------------


@pytest.fixture
def path(tmp_path: Any) -> Any:
    path = tmp_path / "numbers"
    np.arange(SIZE, dtype=np.float32).tofile(path)
    return path


def mapped_from(array: Any) -> str:
    """Return the file that holds an array's memory, or ""."""
    address = array.data_ptr() if isinstance(array, torch.Tensor) else array.ctypes.data
    with open("/proc/self/maps") as lines:
        for line in lines:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split(maxsplit=5)[5].strip() if len(line.split()) > 5 else ""
    return ""


def as_memmap(path: Any) -> Any:
    return np.memmap(path, np.float32, mode="r")


def as_part_of_a_memmap(path: Any) -> Any:
    return np.memmap(path, np.float32, mode="r+")[1000:-1000]


def as_array(path: Any) -> Any:
    return np.asarray(np.memmap(path, np.float32, mode="c", offset=4000))


def as_tensor(path: Any) -> Any:
    return torch.from_file(str(path), size=SIZE, dtype=torch.float32)


def as_shared_tensor(path: Any) -> Any:
    return torch.from_file(str(path), shared=True, size=SIZE, dtype=torch.float32)


@needs_file_mappings
@pytest.mark.parametrize(
    "mapped", [as_memmap, as_part_of_a_memmap, as_array, as_tensor, as_shared_tensor]
)
def test_a_mapped_file_is_mapped_again_and_not_copied(path: Any, mapped: Any) -> None:
    data = mapped(path)
    parcel = pack_code([data])
    assert parcel.beside == 0
    assert parcel.pickled < 10_000
    (twin,) = opened(parcel)
    assert mapped_from(twin) == str(path)
    assert type(twin) is type(data)
    assert twin.tolist() == data.tolist()


@needs_file_mappings
def test_what_is_written_goes_to_the_file_where_it_did_before(path: Any) -> None:
    shared = np.memmap(path, np.float32, mode="r+")
    private = np.memmap(path, np.float32, mode="c")
    twin, own = sent([shared, private])
    twin[5], own[6] = -1, -1
    assert np.fromfile(path, np.float32)[[5, 6]].tolist() == [-1, 6]


@needs_file_mappings
@pytest.mark.parametrize("how", ["written", "replaced", "deleted"])
def test_memory_that_differs_from_its_file_is_copied(path: Any, how: str) -> None:
    data = np.memmap(path, np.float32, mode="c")
    expected = data.copy()
    if how == "written":
        data[7] = expected[7] = -1
    else:
        os.unlink(path)
    if how == "replaced":
        np.zeros(SIZE, dtype=np.float32).tofile(path)
    twin = sent(data)
    assert np.array_equal(twin, expected)
    assert mapped_from(twin) != str(path)


@needs_file_mappings
def test_an_open_mmap_is_opened_again(path: Any) -> None:
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data.seek(8)
    twin = sent({"data": data})["data"]
    assert twin.tell() == 8
    assert twin[:] == data[:]
    assert pack_code(data).beside == 0
