"""W14: the same work by two workers that are processes and by two that are threads.

JPEG images, which decoders make without the GIL; tensors of 4 and 32 MiB; and texts that are taken
apart in pure Python, which threads do side by side only where Python has no GIL. Beside them
``thread_map``, and the peers' own threads and processes; and how much memory it takes.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any

from tests.benchmarks import w4
from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import (
    WORKERS,
    Take,
    async_rate,
    graph_of,
    one,
    peer_rate,
    single_threaded,
    sync_rate,
    worker_loader,
)
from tests.benchmarks.peers.catalogue import PROCESSES, THREADS, TORCH
from tests.benchmarks.peers.peer import cases
from tests.benchmarks.sizes import sized
from tests.benchmarks.w3 import MIB, Ones, nbytes_of
from tests.leaks import descendants

EPOCHS = 3
_WORDS = re.compile(r"\w+")
#: A text of 40 kB.
TEXT = "It was the best of times, it was the worst of times, said one to another. " * 540


def tokens(number: int) -> int:
    """Take a text apart, count what there is, and return how many different words there are."""
    counts: dict[str, int] = {}
    for word in _WORDS.findall(TEXT):
        low = word.lower()
        counts[low] = counts.get(low, 0) + len(low) % 3
    return len(counts) + number * 0


TOKENS = Job(sized(600, 40), tokens)


def loader_of(graph: Any, engine: str) -> Any:
    """Return a loader with two workers, "processes" or "threads", or with ``thread_map``."""
    from asyncloader import DataLoader2, MultiThreadingReadingService

    if engine == "processes":
        return worker_loader(graph)
    if engine == "threads":
        return DataLoader2(graph, reading_service=MultiThreadingReadingService(WORKERS))
    return DataLoader2(graph)


def graph_for(job: Job, engine: str) -> Any:
    """Return the graph of a job; with ``thread_map``, one call makes what is handed over."""
    from asyncloader.datapipes.iter import IterableWrapper

    if engine != "thread_map":
        return graph_of(job)
    make, numbers = job.calls()
    return IterableWrapper(numbers).thread_map(make, concurrency=WORKERS)


def rate(job: Job, engine: str, mode: str, take: Take) -> float:
    """Return what two workers make a second."""
    import torch  # noqa: F401

    single_threaded()
    loader = loader_of(graph_for(job, engine), engine)
    if mode == "for":
        with loader:
            return sync_rate(loader, take, EPOCHS)

    async def taken() -> float:
        async with loader:
            return await async_rate(loader, take, EPOCHS)

    return asyncio.run(taken())


class BareThreads:
    """Two threads and a queue with two results of each: no order, errors, states or limits."""

    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[Any]:
        results = SimpleQueue[Any]()
        room = threading.Semaphore(2 * WORKERS)
        threads = [
            threading.Thread(target=self._make, args=(worker, results, room))
            for worker in range(WORKERS)
        ]
        for thread in threads:
            thread.start()
        running = WORKERS
        while running:
            result = results.get()
            if result is _END:
                running -= 1
            else:
                yield result
                # Its memory is there for the next one.
                del result
                room.release()
        for thread in threads:
            thread.join()

    def _make(self, worker: int, results: SimpleQueue[Any], room: threading.Semaphore) -> None:
        items = self._job.part(worker, WORKERS)
        while room.acquire() and (item := next(items, _END)) is not _END:
            results.put(item)
            del item
        results.put(_END)


_END = object()


def bare_rate(job: Job, take: Take) -> float:
    """Return what two bare threads make a second."""
    import torch  # noqa: F401

    single_threaded()
    return sync_rate(BareThreads(job), take, EPOCHS)


def bare_images() -> float:
    w4.prepare()
    return bare_rate(w4.JOB, len)


def bare_gigabytes(job: Job) -> float:
    return bare_rate(job, nbytes_of) / 1e9


def images(engine: str, mode: str) -> float:
    w4.prepare()
    return rate(w4.JOB, engine, mode, len)


def gigabytes(job: Job, engine: str, mode: str) -> float:
    return rate(job, engine, mode, nbytes_of) / 1e9


def their_images(open_: Callable[[Job], Any]) -> float:
    w4.prepare()
    return peer_rate(open_, w4.JOB, len, EPOCHS)


def their_gigabytes(open_: Callable[[Job], Any], job: Job) -> float:
    import torch  # noqa: F401

    return peer_rate(open_, job, nbytes_of, EPOCHS) / 1e9


def memory(engine: str) -> float:
    """Return how many MiB all processes have together while images are made."""
    w4.prepare()
    single_threaded()
    loader = loader_of(graph_for(w4.JOB, engine), engine)
    most = 0.0
    with loader:
        for number, batch in enumerate(loader):
            if number % 4 == 3:
                most = max(most, proportional())
            del batch
    return most


def proportional() -> float:
    """Return the memory of this process and of those below it, shared pages divided, in MiB."""
    total = 0
    for pid in ("self", *descendants()):
        with open(f"/proc/{pid}/smaps_rollup") as file:
            line = next(line for line in file if line.startswith("Pss:"))
            total += int(line.split()[1])
    return total / 1024


PROCESS, THREAD = "asyncloader, 2 processes, for", "asyncloader, 2 threads, for"
BARE = "limit: 2 threads and a queue, for"
ENGINES = [
    (PROCESS, "processes", "for"),
    (THREAD, "threads", "for"),
    ("asyncloader, 2 threads, async for", "threads", "async for"),
    ("asyncloader, thread_map, for", "thread_map", "for"),
]


def of_tensors(size: str, nbytes: int, items: int) -> Comparison:
    job = Job(items, Ones(nbytes), nbytes=nbytes)
    return Comparison(
        f"W14: tensors of {size} from 2 workers",
        "GB/s",
        [
            *(Case(name, gigabytes, args=(job, engine, mode)) for name, engine, mode in ENGINES),
            Case(BARE, bare_gigabytes, args=(job,)),
            *cases([*PROCESSES, *THREADS], their_gigabytes, replace(job, count=items // 4)),
        ],
        against=[PROCESS, BARE, TORCH],
        targets=[Target(THREAD, 3, PROCESS)],
    )


COMPARISONS = [
    Comparison(
        "W14: JPEG images decoded to tensors, in batches of 32",
        "images/s",
        [
            *(Case(name, images, args=(engine, mode)) for name, engine, mode in ENGINES),
            Case(BARE, bare_images),
            *cases([*PROCESSES, *THREADS], their_images),
        ],
        against=[PROCESS, BARE, TORCH],
        targets=[Target(THREAD, 0.95, PROCESS)],
    ),
    Comparison(
        "W14: texts taken apart in pure Python",
        "texts/s",
        [
            *(Case(name, rate, args=(TOKENS, engine, mode, one)) for name, engine, mode in ENGINES),
            Case(BARE, bare_rate, args=(TOKENS, one)),
            *cases([*PROCESSES, *THREADS], peer_rate, TOKENS),
        ],
        against=[PROCESS, BARE, TORCH],
    ),
    of_tensors("4 MiB", 4 * MIB, sized(1_500, 60)),
    of_tensors("32 MiB", 32 * MIB, sized(150, 8)),
    Comparison(
        "W14: memory of all processes while images are decoded",
        "MiB (here less is better)",
        [Case(name, memory, args=(engine,)) for name, engine, mode in ENGINES if mode == "for"],
        against=[PROCESS],
    ),
]
