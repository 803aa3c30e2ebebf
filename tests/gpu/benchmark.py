"""From workers to the GPU, beside a training step: ``python -m tests.gpu.benchmark``.

Workers put batches of 4, 32 and 128 MiB together, out of 32 samples each, which are there
already. A step takes 2 ms on the GPU, or nothing. Printed are, for each loader:

    batch      from one batch to the next
    GPU waits  the share of the time in which the GPU computes no step
    GB/s       host to device; the first line says what a loop of copies from pinned memory reaches
    CPU        seconds of all processes for a batch
    loop gap   the longest time in which the event loop ran nothing else, for `async for`

Every program is at most two steps ahead of the GPU, as one that looks at a loss now and then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import importlib.util
import math
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.cost import cpu_seconds
from tests.gpu.batches import ENDLESS, SAMPLES, Samples, samples

MIB = 1 << 20

#: So many batches at least, and so many seconds, come before what is measured: the memory of the
#: workers grows meanwhile, and is page-locked.
WARM_UP, WARM_UP_SECONDS = 10, 1.2


# Loaders --------------------------------------------------------------------------------

Batches = Iterator[torch.Tensor]


def our_loader(nbytes: int, workers: int, end: Callable[[Any], Any]) -> DataLoader2[Any]:
    made = IterableWrapper(range(ENDLESS)).sharding_filter().map(partial(samples, nbytes))
    # Enough that no batch has to be copied out of shared memory.
    room = max(256 * MIB, workers * 8 * nbytes)
    service = MultiProcessingReadingService(workers, prefetch_bytes=room)
    return DataLoader2(end(made.collate()), reading_service=service)


def to_device(pipe: Any) -> Any:
    return pipe.to_device("cuda")


@contextlib.contextmanager
def ours(nbytes: int, workers: int) -> Iterator[Batches]:
    with our_loader(nbytes, workers, to_device) as loader:
        yield iter(loader)


@contextlib.contextmanager
def ours_pinned(nbytes: int, workers: int) -> Iterator[Batches]:
    with our_loader(nbytes, workers, lambda pipe: pipe.pin_memory()) as loader:
        yield (batch.to("cuda", non_blocking=True) for batch in loader)


def torchs_loader(nbytes: int, workers: int, *, pin_memory: bool) -> Any:
    return torch.utils.data.DataLoader(
        Samples(nbytes),
        batch_size=SAMPLES,
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=True,
    )


@contextlib.contextmanager
def torchs(nbytes: int, workers: int) -> Iterator[Batches]:
    loader = torchs_loader(nbytes, workers, pin_memory=True)
    yield (batch.to("cuda", non_blocking=True) for batch in loader)


@contextlib.contextmanager
def side_stream(nbytes: int, workers: int) -> Iterator[Batches]:
    """As in NVIDIA's examples: the next batch is copied while this one is used."""
    yield _on_side_stream(iter(torchs_loader(nbytes, workers, pin_memory=True)))


def _on_side_stream(batches: Batches) -> Batches:
    stream = torch.cuda.Stream()

    def copied() -> torch.Tensor:
        source = next(batches)
        with torch.cuda.stream(stream):
            return source.to("cuda", non_blocking=True)

    following = copied()
    while True:
        torch.cuda.current_stream().wait_stream(stream)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        following = copied()
        yield batch
        del batch


@contextlib.contextmanager
def spdl(nbytes: int, workers: int) -> Iterator[Batches]:
    import spdl.io
    from spdl.pipeline import PipelineBuilder

    transfer = getattr(spdl.io, "transfer_tensor_h2d", None) or spdl.io.transfer_tensor
    with ThreadPoolExecutor(1) as one_thread:
        pipeline = (
            PipelineBuilder()
            .add_source(torchs_loader(nbytes, workers, pin_memory=False))
            .pipe(transfer, executor=one_thread)
            .add_sink(2)
            .build(num_threads=1)
        )
        with pipeline.auto_stop():
            yield iter(pipeline.get_iterator())


LOADERS = {
    "asyncloader, to_device": ours,
    "asyncloader, pin_memory": ours_pinned,
    "DataLoader, pin_memory": torchs,
    "DataLoader, side stream": side_stream,
    "SPDL, transfer_tensor": spdl,
}
ASYNC = "asyncloader, async for"


# Measuring ------------------------------------------------------------------------------


@dataclass
class Steps:
    """Training steps on the current stream, and when each began and ended there."""

    cycles: int
    marks: deque[tuple[Any, Any]] = field(default_factory=deque)
    taken: int = 0

    def __post_init__(self) -> None:
        self._result = torch.zeros(1, device="cuda")

    def step(self, batch: torch.Tensor) -> None:
        """Begin a step that needs the batch."""
        assert batch.is_cuda
        begun, ended = (torch.cuda.Event(enable_timing=True, blocking=True) for _ in range(2))
        begun.record()
        self._result += batch.view(-1)[0]
        if self.cycles:
            torch.cuda._sleep(self.cycles)
        ended.record()
        self.marks.append((begun, ended))
        self.taken += 1

    def due(self) -> Any:
        """Return the end of the step before the last two, if there is one: wait for it."""
        return self.marks[-3][1] if len(self.marks) > 2 else None

    def restart(self) -> None:
        torch.cuda.synchronize()
        self.marks.clear()
        self.taken = 0

    def waited(self) -> float:
        """Return the share of the time in which no step ran."""
        torch.cuda.synchronize()
        total = self.marks[0][0].elapsed_time(self.marks[-1][1])
        return 1 - sum(begun.elapsed_time(ended) for begun, ended in self.marks) / total


@dataclass(frozen=True)
class Row:
    """What was measured of one loader."""

    seconds: float
    waits: float
    rate: float
    cpu: float
    gap: float = 0.0

    def cells(self) -> list[str]:
        gap = f"{self.gap * 1e3:.1f} ms" if self.gap else ""
        return [
            f"{self.seconds * 1e3:.2f} ms",
            f"{self.waits:.0%}",
            f"{self.rate / 1e9:.1f}",
            f"{self.cpu * 1e3:.2f} ms",
            gap,
        ]


class Clock:
    """Says when a loader has been measured for long enough."""

    def __init__(self, steps: Steps, nbytes: int, seconds: float) -> None:
        self._steps, self._nbytes, self._seconds = steps, nbytes, seconds
        self._warm_at = time.perf_counter() + WARM_UP_SECONDS
        self._begun = math.inf

    def starts(self) -> bool:
        """Start if the loader is warm by now; return whether it did."""
        is_warm = self._steps.taken >= WARM_UP and time.perf_counter() > self._warm_at
        if not is_warm or self._begun < math.inf:
            return False
        self._steps.restart()
        self._cpu, self._begun = cpu_seconds(), time.perf_counter()
        return True

    def is_over(self) -> bool:
        return time.perf_counter() - self._begun > self._seconds

    def row(self, gap: float = 0.0) -> Row:
        waits = self._steps.waited()
        seconds, cpu = time.perf_counter() - self._begun, cpu_seconds() - self._cpu
        count = self._steps.taken
        return Row(seconds / count, waits, count * self._nbytes / seconds, cpu / count, gap)


def measured(
    loader: Callable[[int, int], Any], nbytes: int, cycles: int, options: argparse.Namespace
) -> Row:
    steps = Steps(cycles)
    clock = Clock(steps, nbytes, options.seconds)
    with loader(nbytes, options.workers) as batches:
        for batch in batches:
            clock.starts()
            steps.step(batch)
            del batch
            if (due := steps.due()) is not None:
                due.synchronize()
            if clock.is_over():
                break
        row = clock.row()
        # A generator over a loader holds it.
        del batches
    return row


async def measured_async(nbytes: int, cycles: int, options: argparse.Namespace) -> Row:
    steps = Steps(cycles)
    clock = Clock(steps, nbytes, options.seconds)
    loader = our_loader(nbytes, options.workers, to_device)
    async with loader, watched_loop() as gaps:
        async for batch in loader:
            if clock.starts():
                gaps.clear()
            steps.step(batch)
            del batch
            if (due := steps.due()) is not None:
                # The program itself must not keep the loop waiting.
                await asyncio.to_thread(due.synchronize)
            if clock.is_over():
                break
        longest = max(gaps, default=0.0)
        return clock.row(longest)


@contextlib.asynccontextmanager
async def watched_loop() -> AsyncIterator[list[float]]:
    """Note by how much a timer of a millisecond is late, again and again."""
    gaps: list[float] = []

    async def watch() -> None:
        while True:
            begun = time.perf_counter()
            await asyncio.sleep(0.001)
            gaps.append(time.perf_counter() - begun - 0.001)

    task = asyncio.ensure_future(watch())
    try:
        yield gaps
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def pinned_rate(nbytes: int, seconds: float = 0.3) -> float:
    """Return how many bytes a second a loop of copies from pinned memory reaches."""
    source = torch.ones(nbytes // 4).pin_memory()
    target = torch.empty_like(source, device="cuda")
    target.copy_(source)
    torch.cuda.synchronize()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < seconds:
        for _ in range(8):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        count += 8
    return count * nbytes / (time.perf_counter() - begun)


def cycles_of(milliseconds: float) -> int:
    """Return for how many cycles the GPU sleeps in so many milliseconds."""
    if not milliseconds:
        return 0
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(1_000_000)
    begun.record()
    torch.cuda._sleep(20_000_000)
    ended.record()
    ended.synchronize()
    return int(20_000_000 * milliseconds / begun.elapsed_time(ended))


# The table ------------------------------------------------------------------------------

HEAD = ["MiB", "step", "loader", "batch", "GPU waits", "GB/s", "CPU", "loop gap"]


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    for size in options.sizes:
        nbytes = size * MIB
        limit = pinned_rate(nbytes)
        yield [str(size), "", "limit: pinned copies", "", "", f"{limit / 1e9:.1f}", "", ""]
        for step in options.steps:
            cycles = cycles_of(step)
            for name in (*LOADERS, ASYNC):
                if options.only in name:
                    cells = _cells(name, nbytes, cycles, options)
                    yield [str(size), f"{step:g} ms", name, *cells]


def _cells(name: str, nbytes: int, cycles: int, options: argparse.Namespace) -> list[str]:
    if name.startswith("SPDL") and importlib.util.find_spec("spdl") is None:
        return ["not installed", *[""] * 4]
    try:
        if name == ASYNC:
            return asyncio.run(measured_async(nbytes, cycles, options)).cells()
        return measured(LOADERS[name], nbytes, cycles, options).cells()
    except Exception as error:  # noqa: BLE001 - the others are to be measured all the same
        return [f"{type(error).__name__}: {error}"[:60], *[""] * 4]
    finally:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.benchmark", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--sizes", type=int, nargs="+", default=[4, 32, 128], help="MiB a batch")
    parser.add_argument("--steps", type=float, nargs="+", default=[2, 0], help="milliseconds")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=0.9, help="for each loader")
    parser.add_argument("--only", default="", help="only loaders with this in their name")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("torch finds no GPU here")
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    print(" | ".join(HEAD))
    for cells in rows(options):
        print(" | ".join(cells), flush=True)


if __name__ == "__main__":
    main()
