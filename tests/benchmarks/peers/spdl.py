"""SPDL: iterables in processes with its pool of shared segments, and pipelines of threads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.benchmarks.job import Job, Part
from tests.benchmarks.measuring import CORES, WORKERS

#: Large things that a process may be ahead, as is SPDL's default; few stay in the cache.
AHEAD = 3
#: What an item needs in a segment beyond its own bytes.
MARGIN = 4096


@dataclass
class InTurns:
    """Iterables of equal length, one item of each in turn."""

    iterables: list[Iterable[Any]]

    def __iter__(self) -> Iterator[Any]:
        for items in zip(*self.iterables, strict=True):
            yield from items


def processes(job: Job, workers: int = WORKERS, method: str = "fork") -> Any:
    return InTurns([_process(job, worker, workers, method) for worker in range(workers)])


def _process(job: Job, worker: int, workers: int, method: str) -> Iterable[Any]:
    from spdl.pipeline import SharedMemorySegmentPool, iterate_in_subprocess

    arena = None
    if job.nbytes:
        # For what waits, what is being made and what is held.
        count = AHEAD + 2 + -(-job.held // workers)
        arena = SharedMemorySegmentPool(job.nbytes + MARGIN, count)
    make = partial(Part, job, worker, workers)
    ahead = AHEAD if job.nbytes else 64
    return iterate_in_subprocess(make, buffer_size=ahead, mp_context=method, arena=arena)


@dataclass
class Pipelines:
    """A pipeline for each epoch, as SPDL has it; its threads are cheap to start."""

    job: Job
    threads: int

    def __iter__(self) -> Iterator[Any]:
        from spdl.pipeline import PipelineBuilder

        function, values = self.job.calls()
        builder = PipelineBuilder().add_source(values)
        builder.pipe(function, concurrency=self.threads, output_order="input")
        builder.add_sink(16)
        pipeline = builder.build(num_threads=self.threads, use_thread_output_queue=True)
        with pipeline.auto_stop():
            yield from pipeline


def threads(job: Job, count: int = CORES) -> Any:
    return Pipelines(job, count)
