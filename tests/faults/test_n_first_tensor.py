"""Row N11: the first tensor finds a program without torch, whose loop goes on meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.scripts import run_script

ITEMS = {
    "small tensors": "torch.full((3,), number)",
    "large tensors": "torch.full((100_000,), number)",
    "tensors in a dict": '{"image": torch.full((50, 50), number), "label": number}',
    "dtypes": "[torch.float32, number]",
    "no tensors": "(torch.zeros(1).item(), number, b'1' * 100)",
}

PROGRAM = """
import asyncio, sys, time
from asyncloader import DataLoader2, Feed, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def made(number):
    # The worker is the first that imports torch, and says how long that takes at the moment.
    begun = time.perf_counter()
    import torch
    if number == 0:
        print(time.perf_counter() - begun)
    return {item}

gaps = []

async def heartbeat():
    last = time.perf_counter()
    while True:
        await asyncio.sleep(0.001)
        now = time.perf_counter()
        gaps.append(now - last)
        last = now

async def by_workers():
    graph = IterableWrapper(range(200)).sharding_filter().map(made)
    async with DataLoader2(graph, None, MultiProcessingReadingService(1)) as loader:
        return len([item async for item in loader])

async def by_feed():
    feed = Feed()
    loader = DataLoader2(feed.map(made), None, MultiProcessingReadingService(1))
    async with feed.serve(loader):
        return len(await asyncio.gather(*(feed.ask(number) for number in range(200))))

async def main():
    beat = asyncio.create_task(heartbeat())
    assert await {how}() == 200
    beat.cancel()

assert "torch" not in sys.modules
asyncio.run(main())
print("torch" in sys.modules, max(gaps))
"""


def run(folder: Path, how: str, item: str) -> tuple[bool, float]:
    """Return whether the program has torch in the end, and its loop's longest gap.

    The gap is in parts of what the import takes.
    """
    done = run_script(folder, PROGRAM.format(how=how, item=ITEMS[item]))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    import_seconds, has_torch, gap = done.stdout.split()
    return has_torch == "True", float(gap) / float(import_seconds)


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize(
    ("how", "item"),
    [("by_workers", item) for item in ITEMS if item != "no tensors"]
    + [("by_feed", "small tensors"), ("by_feed", "large tensors")],
)
def test_n11_the_loop_goes_on_while_torch_is_imported_for_the_first_tensor(how, item, tmp_path):
    # It stood still for all of the import, and without opening torch's libraries first it would
    # for a third. What is left holds the GIL: the start of torch._C, which is one call of C, and
    # Python's garbage collections, each of them about a tenth of the import at most.
    gaps = []
    for _ in range(3):
        has_torch, gap = run(tmp_path, how, item)
        assert has_torch
        gaps.append(gap)
        if gaps[-1] < 0.25:
            break
    print(f"longest gap, in parts of the import: {min(gaps):.2f}")
    assert min(gaps) < 0.25


@pytest.mark.soak
@pytest.mark.sweep
@pytest.mark.parametrize("how", ["by_workers", "by_feed"])
def test_n11_without_tensors_torch_is_not_imported_though_workers_have_it(how, tmp_path):
    has_torch, _ = run(tmp_path, how, "no tensors")
    assert not has_torch
