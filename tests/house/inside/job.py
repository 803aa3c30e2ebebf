"""What is measured: ``python job.py items``, ``async_items``, ``epochs`` or ``resume``.

This file is about four small runs of the checkout on the path. Each prints as JSON what the
loader's process entered between two items; the last what it entered to load a state.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import recorder

import asyncloader
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

#: So many items of one worker, which asks for leave to make each of them.
_ITEMS = 25
#: An item takes so long that it travels alone, and that both sides write down where it stood:
#: that is done only as often as a fiftieth of the time allows, and the hook makes it slow.
_ITEM_SECONDS = 0.02
#: So many tiny items in an epoch of two workers.
_TINY_ITEMS = 100
_EPOCHS = 12


def main(job: str) -> None:
    """Run it and print the windows."""
    assert Path(asyncloader.__file__).is_relative_to(recorder.PACKAGE), asyncloader.__file__
    if job == "async_items":
        asyncio.run(_async_items())
    else:
        {"items": _items, "epochs": _epochs, "resume": _resume}[job]()
    json.dump(recorder.windows, sys.stdout)


def _loader(function: Any, *, count: int, workers: int, ahead: int = 10) -> DataLoader2[Any]:
    graph = IterableWrapper(range(count)).shuffle().sharding_filter().map(function)
    service = MultiProcessingReadingService(num_workers=workers, worker_prefetch_cnt=ahead)
    loader = DataLoader2(graph, reading_service=service)
    loader.seed(1)
    return loader


def _slow_loader() -> DataLoader2[Any]:
    return _loader(recorder.Cut(_ITEMS, _ITEM_SECONDS), count=_ITEMS, workers=1, ahead=1)


def _items() -> None:
    with _slow_loader() as loader:
        for _ in loader:
            recorder.cut()


async def _async_items() -> None:
    async with _slow_loader() as loader:
        async for _ in loader:
            recorder.cut()


def _epochs() -> None:
    function = recorder.Cut(last=_EPOCHS * _TINY_ITEMS // 2)
    with _loader(function, count=_TINY_ITEMS, workers=2) as loader:
        for _ in range(_EPOCHS):
            for _ in loader:
                recorder.cut()


def _resume() -> None:
    with _loader(str, count=_TINY_ITEMS, workers=2) as loader:
        items = iter(loader)
        for _ in range(_TINY_ITEMS // 2):
            next(items)
        state = loader.state_dict(include_datapipe=False)
    with _loader(str, count=_TINY_ITEMS, workers=2) as loader:
        recorder.cut()
        loader.load_state_dict(state)
        recorder.cut()


if __name__ == "__main__":
    main(sys.argv[1])
