"""What README says of the usual recipe, a thread around torch's DataLoader, is so."""

import asyncio
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from torch.utils.data import DataLoader, Dataset

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: Long enough for torch to be imported, even on a busy machine.
ENOUGH_SECONDS = 60


@pytest.mark.soak
def test_it_does_not_come_to_its_end(tmp_path):
    (recipe,) = re.findall(r"^```python never ends\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    script = tmp_path / "recipe.py"
    script.write_text(recipe)
    process = subprocess.Popen(
        [sys.executable, "-u", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        # Both come: all batches, and then what takes the place of the end.
        killer = threading.Timer(ENOUGH_SECONDS, process.kill)
        killer.start()
        complaint = next(line for line in process.stderr if "cannot be raised into a Fut" in line)
        killer.cancel()
        if complaint.startswith("TypeError"):
            # It waits now for what will not come.
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(2)
            process.kill()
        else:
            assert complaint.startswith("RuntimeError")
        assert process.stdout.read().count("tensor") == 2


class Held(Dataset):
    """Numbers that can be had once ``go`` is set."""

    def __init__(self):
        self.asked, self.go = threading.Event(), threading.Event()

    def __len__(self):
        return 3

    def __getitem__(self, number):
        self.asked.set()
        self.go.wait()
        return number


async def test_a_task_that_is_cancelled_loses_a_batch():
    held = Held()
    batches = iter(DataLoader(held))
    task = asyncio.create_task(asyncio.to_thread(next, batches))
    await asyncio.to_thread(held.asked.wait)
    task.cancel()
    await asyncio.wait([task])
    held.go.set()
    assert await asyncio.to_thread(next, batches) == 1
