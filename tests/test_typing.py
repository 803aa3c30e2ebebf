"""What a type checker knows of a user's script."""

import subprocess
import sys

SCRIPT = """
from typing import assert_type

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe


def decode(number: int) -> str:
    return str(number)


pipe = IterableWrapper([1, 2]).map(decode).batch(2).shuffle().prefetch(2)
assert_type(pipe, IterDataPipe[list[str]])
loader = DataLoader2(pipe)
assert_type(loader, DataLoader2[list[str]])
for batch in loader:
    assert_type(batch, list[str])


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
