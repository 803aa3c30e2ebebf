"""What a type checker knows of a user's script."""

import subprocess
import sys

SCRIPT = """
from pathlib import Path
from typing import Any, assert_type

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import FileLister, IterableWrapper, IterDataPipe
from asyncloader.datapipes.map import SequenceWrapper


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


async def main() -> None:
    async for batch in loader:
        assert_type(batch, list[str])
"""


def test_items_are_typed_from_the_source_to_the_loop(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(script)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert checked.returncode == 0, checked.stdout
