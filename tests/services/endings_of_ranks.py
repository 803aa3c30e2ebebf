"""Ranks that train, and end in one of many ways: a script for ``test_endings_of_ranks.py``.

One interpreter imports what they need and forks them, each in a process group of its own, in which
Ctrl-C reaches the rank and its workers. A rank leaves the script at its bottom, so that its
interpreter ends as that of any program does; the first one says how all ended.

    script.py KIND WORKERS SIZE ENDING...
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import importlib
import itertools
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

DATA = [(torch.tensor([n / 64]), torch.tensor([2 * n / 64 - 1])) for n in range(64)]

#: By name; each gets what makes a loader, and what trains on a batch.
ENDINGS: dict[str, Callable[[Callable[[], Any], Callable[[Any], None]], None]] = {}


def ending(function: Any) -> Any:
    """Let a function be a way to end."""
    ENDINGS[function.__name__] = function
    return function


def say_who_still_talks() -> None:
    """Print it if a thread still has a process group when the interpreter is about to go.

    Whether that ends the process by SIGABRT is a matter of luck.
    """
    left = [each.name for each in threading.enumerate() if each.name == "asyncloader ranks"]
    if left:
        sys.stdout.write(f"not joined: {left}\n")


def train(loader: Any, step: Callable[[Any], None]) -> None:
    for _ in range(2):
        for batch in loader:
            step(batch)


def three_of(loader: Any, step: Callable[[Any], None]) -> Iterator[Any]:
    """Train on three batches, and leave the epoch open."""
    items = iter(loader)
    for batch in itertools.islice(items, 3):
        step(batch)
    return items


@ending
def with_then_destroyed(loader_of: Any, step: Any) -> None:
    with loader_of() as loader:
        train(loader, step)
    dist.destroy_process_group()


@ending
def with_not_destroyed(loader_of: Any, step: Any) -> None:
    with loader_of() as loader:
        train(loader, step)


@ending
def destroyed_within(loader_of: Any, step: Any) -> None:
    with loader_of() as loader:
        train(loader, step)
        dist.destroy_process_group()


@ending
def local_then_destroyed(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    train(loader, step)
    dist.destroy_process_group()


@ending
def local_not_destroyed(loader_of: Any, step: Any) -> None:
    train(loader_of(), step)


@ending
def shut_down_after_it_was_destroyed(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    train(loader, step)
    dist.destroy_process_group()
    loader.shutdown()


@ending
def global_then_destroyed(loader_of: Any, step: Any) -> None:
    global kept
    kept = loader_of()
    train(kept, step)
    dist.destroy_process_group()


@ending
def global_in_mid_epoch(loader_of: Any, step: Any) -> None:
    global kept
    loader = loader_of()
    kept = loader, three_of(loader, step)


@ending
def local_in_mid_epoch(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    three_of(loader, step)
    dist.destroy_process_group()


@ending
def raises(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    three_of(loader, step)
    raise ValueError("the program's own")


@ending
def raises_within(loader_of: Any, step: Any) -> None:
    with loader_of() as loader:
        three_of(loader, step)
        raise ValueError("the program's own")


@ending
def exits(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    three_of(loader, step)
    sys.exit(3)


@ending
def exits_within(loader_of: Any, step: Any) -> None:
    with loader_of() as loader:
        three_of(loader, step)
        sys.exit(3)


def press_ctrl_c() -> None:
    """Interrupt the rank and its workers, as a terminal does."""
    os.killpg(0, signal.SIGINT)
    # Another thread may be the one that receives it.
    time.sleep(60)


@ending
def interrupted(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    three_of(loader, step)
    press_ctrl_c()


@ending
def interrupted_within(loader_of: Any, step: Any) -> None:
    with loader_of() as loader:
        three_of(loader, step)
        press_ctrl_c()


@ending
def interrupted_while_rank_1_is_missing(loader_of: Any, step: Any) -> None:
    # Nobody can wake the thread that waits for rank 1.
    atexit.unregister(say_who_still_talks)
    if dist.get_rank() == 0:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        train(loader_of(), step)
    time.sleep(1)
    signal.raise_signal(signal.SIGINT)


@ending
def by_async_for(loader_of: Any, step: Any) -> None:
    async def main() -> None:
        async with loader_of() as loader:
            async for batch in loader:
                step(batch)

    asyncio.run(main())
    dist.destroy_process_group()


@ending
def by_async_for_in_mid_epoch(loader_of: Any, step: Any) -> None:
    async def main() -> None:
        loader, taken = loader_of(), 0
        async for batch in loader:
            step(batch)
            if (taken := taken + 1) == 3:
                break

    asyncio.run(main())


@ending
def in_a_daemon_thread(loader_of: Any, step: Any) -> None:
    begun = threading.Event()

    def run() -> None:
        loader = loader_of()
        while True:
            for _ in loader:
                begun.set()

    threading.Thread(target=run, daemon=True).start()
    begun.wait()


@ending
def never_iterated(loader_of: Any, step: Any) -> None:
    loader = loader_of()
    dist.destroy_process_group()
    del loader


kept: Any = None


def import_what_ranks_need(kind: str) -> None:
    # What is registered first comes last, so asyncloader must not have been imported yet.
    atexit.register(say_who_still_talks)
    modules = ["asyncloader.datapipes.iter", "tests.processes.spare"]
    if kind != "plain":
        # DistributedDataParallel imports the first of them, which takes seconds.
        modules += ["torch._dynamo", "torch.distributed.fsdp"]
    for module in modules:
        importlib.import_module(module)


def be_a_rank(rank: int, size: int, folder: Path, kind: str, workers: int, name: str) -> None:
    os.setpgrp()
    output = os.open(folder / str(rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    if workers:
        from tests.processes.spare import keep_a_template

        keep_a_template()
    store = dist.FileStore(str(folder / "store"), size)
    limit = timedelta(seconds=60)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=limit)
    from asyncloader import DataLoader2

    model: Any = nn.Linear(1, 1)
    if kind == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
        # torch 2.13 may hang where one is dropped right after a step: who drops it waits, with the
        # GIL, for a thread of gloo's that waits for the GIL to drop what the step left.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(model))
    elif kind == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model, mesh=dist.device_mesh.init_device_mesh("cpu", (size,)))

    def loader_of() -> Any:
        return DataLoader2.from_dataset(
            DATA, batch_size=4, shuffle=True, num_workers=workers, distributed=True
        )

    def step(batch: Any) -> None:
        place, height = batch
        nn.functional.mse_loss(model(place), height).backward()
        if kind == "plain":
            dist.all_reduce(model.weight.grad)

    ENDINGS[name](loader_of, step)


def played(kind: str, workers: int, size: int, names: list[str]) -> bool:
    """Fork the ranks for each ending, and print how they ended; False in a rank at its end."""
    for name in names:
        folder = Path(tempfile.mkdtemp())
        pids = []
        for rank in range(size):
            pids.append(os.fork())
            if not pids[-1]:
                be_a_rank(rank, size, folder, kind, workers, name)
                return False
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        printed = [(folder / str(rank)).read_text() for rank in range(size)]
        sys.stdout.write(json.dumps([name, codes, printed]) + "\n")
        sys.stdout.flush()
        if -signal.SIGABRT in codes:
            break  # somebody made them end, to see where they were
    return True


if __name__ == "__main__":
    warnings.resetwarnings()
    # As in any program, nobody hears of a loader that was dropped without a shutdown.
    warnings.simplefilter("ignore", ResourceWarning)
    torch.set_num_threads(1)
    import_what_ranks_need(sys.argv[1])
    played(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] or list(ENDINGS))
