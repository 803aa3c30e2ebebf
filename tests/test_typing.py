"""What a type checker knows of a user's script, and of those in the pages."""

import inspect
import os
import re
import subprocess
import sys

import pytest

from asyncloader import DataLoader2
from asyncloader.loader.collated import CollatingOptions
from tests.test_readme import BLOCKS, ROOT

SCRIPT = """
from pathlib import Path
from collections.abc import Callable
from typing import Any, assert_type

from asyncloader import (
    CheckpointableReadingServiceInterface, DataLoader2, InProcessReadingService,
    MultiProcessingReadingService, ReadingServiceInterface, SeedGenerator, WorkerInfo,
)
from asyncloader.adapters import Adapter
from asyncloader.datapipes.iter import (
    FileLister, IterableWrapper, IterDataPipe, RandomSplitter, SampleMultiplexer,
)
from asyncloader.datapipes.map import SequenceWrapper
from asyncloader.graph import DataPipe


def decode(number: int) -> str:
    return str(number)


pipe = IterableWrapper([1, 2]).map(decode).batch(2).shuffle().prefetch(2)
assert_type(pipe, IterDataPipe[list[str]])
loader = DataLoader2(pipe)
assert_type(loader, DataLoader2[list[str]])
for batch in loader:
    assert_type(batch, list[str])


class Squares:
    # A dataset, as torch wants one to be.

    def __getitem__(self, number: int) -> int:
        return number * number

    def __len__(self) -> int:
        return 10


assert_type(SequenceWrapper(Squares()), SequenceWrapper[int])
assert_type(SequenceWrapper(range(2)), SequenceWrapper[int])
assert_type(SequenceWrapper({"a": 1}), SequenceWrapper[int])
assert_type(SequenceWrapper(Squares(), deepcopy=False).batch(2)[0], list[int])
files = FileLister(Path("data"), "*.txt").open_files("rb")
assert_type(files, IterDataPipe[tuple[str, Any]])
files = IterableWrapper([Path("a.txt")]).open_files("rb")


async def generate(number: int) -> float:
    return float(number)


assert_type(IterableWrapper([1]).rollout(generate), IterDataPipe[float])
assert_type(IterableWrapper([1]).rollout(generate, group=2), IterDataPipe[list[float]])


async def main() -> None:
    async for batch in loader:
        assert_type(batch, list[str])


def padded(rows: list[int]) -> tuple[int, ...]:
    return tuple(rows)


assert_type(DataLoader2(pipe, seed=1), DataLoader2[list[str]])
of_data = DataLoader2.from_dataset(Squares(), 4, True, collate_fn=padded, num_workers="auto")
assert_type(of_data, DataLoader2[tuple[int, ...]])
for row in of_data:
    assert_type(row, tuple[int, ...])
single = DataLoader2.from_dataset(Squares(), batch_size=None, collate_fn=decode, seed=1)
assert_type(single, DataLoader2[str])
DataLoader2.from_dataset(Squares(), 4, None, None, None, 0, padded)
DataLoader2.from_dataset(Squares(), 4, distributed=(0, 2), uneven="pad")
DataLoader2.from_dataset(Squares(), 4, uneven="pads")  # type: ignore[call-overload]
assert_type(of_data.is_padding, bool)
DataLoader2.from_dataset(Squares(), collate_fn=padded, batchsize=4)  # type: ignore[call-overload]

numbers = IterableWrapper([1, 2])
pairs = numbers.enumerate()
prices = SequenceWrapper([1.0])
assert_type(numbers.thread_map(lambda n: str(n)), IterDataPipe[str])
assert_type(pairs.thread_map(decode, input_col=1), IterDataPipe[Any])
assert_type(numbers.threadpool_map(decode, max_workers=2), IterDataPipe[str])
assert_type(pairs.threadpool_map(decode, input_col=1), IterDataPipe[Any])
assert_type(numbers.zip_with_map(prices, lambda n: n), IterDataPipe[tuple[int, float]])
assert_type(numbers.zip_with_iter(pairs, lambda n: n, lambda p: p[0]).header(1),
            IterDataPipe[tuple[int, tuple[int, int]]])
first, second = numbers.fork(2)
weights = {first: 0.5, second: 0.5}
SampleMultiplexer(weights).batch(2)
train, valid = RandomSplitter(numbers, {"train": 0.5, "valid": 0.5}, seed=0)
train.override_seed(1).map(decode)


class InTorchdatasStyle(CheckpointableReadingServiceInterface):
    def initialize(self, datapipe: DataPipe) -> DataPipe:
        return datapipe.batch(2)

    def initialize_iteration(
        self,
        seed_generator: SeedGenerator,
        iter_reset_fn: Callable[[DataPipe], DataPipe] | None = None,
    ) -> Callable[[DataPipe], DataPipe] | None:
        return iter_reset_fn

    def finalize(self) -> None:
        pass

    def checkpoint(self) -> bytes:
        return b""

    def restore(self, datapipe: DataPipe, serialized_state: bytes) -> DataPipe:
        return datapipe


class Brief(ReadingServiceInterface):
    def initialize_iteration(self, seed_generator: SeedGenerator) -> None:
        seed_generator.generate_seed()


class Async(ReadingServiceInterface):
    async def initialize(self, datapipe: IterDataPipe[int]) -> IterDataPipe[list[int]]:
        return datapipe.batch(2)

    async def finalize(self) -> None:
        await super().finalize()


class Head(Adapter):
    def __call__(self, datapipe: IterDataPipe[int]) -> IterDataPipe[int]:
        return datapipe.header(1)


def init(datapipe: IterDataPipe[int], info: WorkerInfo) -> IterDataPipe[int]:
    return datapipe


for service in (InTorchdatasStyle(), Brief(), Async(), InProcessReadingService(init_fn=init)):
    DataLoader2(numbers, [Head()], service)
DataLoader2(numbers, Head(), MultiProcessingReadingService(2, worker_init_fn=init))
"""


#: What torch's ``default_collate`` makes of items, as far as their types tell.
DATA_SETS = """
import json
from collections.abc import Iterator
from typing import Any, NamedTuple, TypedDict, TypeVar, assert_type

import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from asyncloader import DataLoader2

T = TypeVar("T")


class Of(Dataset[T]):
    def __init__(self, item: T) -> None:
        self.item = item

    def __getitem__(self, key: int) -> T:
        return self.item

    def __len__(self) -> int:
        return 8


class Untyped:
    def __getitem__(self, key):  # type: ignore[no-untyped-def]
        return json.loads(key)


class Point(NamedTuple):
    x: float
    y: int


class Row(TypedDict):
    a: int
    b: str


of = DataLoader2.from_dataset
assert_type(of(Of(1), 4), DataLoader2[Tensor])
assert_type(of(Of(1.5), batch_size=4, num_workers=2), DataLoader2[Tensor])
assert_type(of(Of(torch.ones(2))), DataLoader2[Tensor])
assert_type(of([1, 2, 3], 4), DataLoader2[Tensor])
assert_type(of(range(3), 4), DataLoader2[Tensor])
assert_type(of(Of("a"), 4), DataLoader2[list[str]])
assert_type(of(Of(b"a"), 4), DataLoader2[list[bytes]])
image_label: Of[tuple[Tensor, int]] = Of((torch.ones(2), 1))
assert_type(of(image_label, 4, shuffle=True, num_workers=2), DataLoader2[list[Tensor]])
for images, labels in of(image_label, 4):
    assert_type(images, Tensor)
several: Of[tuple[Tensor, ...]] = Of((torch.ones(2),))
assert_type(of(several, 4), DataLoader2[list[Tensor]])
assert_type(of(Of({"a": 1}), 4), DataLoader2[dict[str, Tensor]])
assert_type(of(Of(Point(1, 2)), 4), DataLoader2[Any])
row: Of[Row] = Of({"a": 1, "b": "c"})
assert_type(of(row, 4), DataLoader2[Any])
mixed: Of[tuple[Tensor, str]] = Of((torch.ones(2), "a"))
assert_type(of(mixed, 4), DataLoader2[Any])
anys: Of[tuple[Any, Any]] = Of((1, 2))
assert_type(of(anys, 4), DataLoader2[Any])
assert_type(of(Untyped(), 4), DataLoader2[Any])
assert_type(of(Of(1), None), DataLoader2[Any])
assert_type(of(Of(1), batch_size=None), DataLoader2[Any])


assert_type(of(json.loads("[1]"), 4), DataLoader2[Any])
assert_type(of(Of(1), 4, collate_fn=None), DataLoader2[Tensor])


def total(batch: list[int]) -> str:
    return str(sum(batch))


assert_type(of(Of(1), 4, collate_fn=total), DataLoader2[str])


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        yield 1


assert_type(of(Stream(), 4), DataLoader2[Tensor])
partly: Of[tuple[Tensor, Any]] = Of((torch.ones(2), 1))
assert_type(of(partly, 4), DataLoader2[Any])
unsure: Of[dict[str, Any]] = Of({"a": 1})
assert_type(of(unsure, 4), DataLoader2[Any])
"""

#: What that script needs of torch; what the pages use besides is of any type.
TORCH = {
    "torch/__init__.pyi": """
from typing import Any
class Tensor:
    def __array__(self, dtype: Any = None) -> Any: ...
def ones(size: int) -> Tensor: ...
def __getattr__(name: str) -> Any: ...
""",
    "torch/utils/__init__.pyi": "",
    "torch/utils/data/__init__.pyi": """
from abc import ABCMeta
from collections.abc import Iterable
from typing import Any, Generic, TypeVar
T_co = TypeVar("T_co", covariant=True)
class Dataset(Generic[T_co]):
    def __getitem__(self, index: Any) -> T_co: ...
class IterableDataset(Dataset[T_co], Iterable[T_co], metaclass=ABCMeta): ...
def __getattr__(name: str) -> Any: ...
""",
}

SCRIPTS = {"graphs.py": SCRIPT, "data_sets.py": DATA_SETS}
PAGES = {re.sub(r"\W", "_", str(each.id)) + ".py": str(each.values[0]) for each in BLOCKS}

#: The scripts are checked strictly. A block's own functions and lists need no types; what it does
#: with pipes, loaders and Python is checked. Of torch, whose types nothing here depends on, mypy
#: would read for a minute, and of the others for as long as of all the rest.
SETTINGS = """
[mypy]
check_untyped_defs = true
allow_untyped_globals = true
warn_redundant_casts = true
warn_unused_ignores = true
mypy_path = $MYPY_CONFIG_FILE_DIR/stubs
[mypy-graphs,data_sets]
allow_untyped_globals = false
disallow_any_generics = true
disallow_incomplete_defs = true
disallow_subclassing_any = true
disallow_untyped_calls = true
disallow_untyped_decorators = true
disallow_untyped_defs = true
extra_checks = true
implicit_reexport = false
strict_equality = true
warn_return_any = true
[mypy-asyncloader.*]
follow_imports = silent
[mypy-torch.*]
follow_imports = skip
ignore_missing_imports = true
[mypy-numpy.*,rich.*,markdown_it.*,pydantic.*,aiohttp.*,uvicorn.*,starlette.*,obstore.*]
follow_imports = skip
follow_imports_for_stubs = true
[mypy-torch,torch.utils,torch.utils.data]
follow_imports = normal
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory):
    """The lines of errors in the scripts and the pages; most of the time goes to the package."""
    folder = tmp_path_factory.mktemp("typing")
    stubs = {f"stubs/{name}": stub for name, stub in TORCH.items()}
    for name, text in {"mypy.ini": SETTINGS, **SCRIPTS, **PAGES, **stubs}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    settings = ["--config-file", "mypy.ini", "--cache-dir", folder, "--no-error-summary"]
    mypy = [sys.executable, "-m", "mypy", *settings, *SCRIPTS, *PAGES]
    package = os.environ | {"MYPYPATH": str(ROOT)}
    checked = subprocess.run(
        mypy, cwd=folder, env=package, capture_output=True, text=True, timeout=200
    )
    lines = checked.stdout.splitlines()
    assert checked.returncode == bool(lines), checked.stderr
    return lines


def test_items_are_typed_from_the_source_to_the_loop(errors):
    assert [line for line in errors if line.startswith(tuple(SCRIPTS))] == []


def test_every_python_block_is_right_for_a_type_checker(errors):
    assert [line for line in errors if not line.startswith(tuple(SCRIPTS))] == []


def test_from_dataset_takes_all_its_options_without_collate_fn() -> None:
    parameters = inspect.signature(DataLoader2.from_dataset).parameters
    named = {"dataset", "batch_size", "shuffle"}
    assert CollatingOptions.__annotations__.keys() == parameters.keys() - named
