"""W6: seconds from a loader to its first item, with two workers.

Libraries are imported before the clock starts. torch is one of them where it is the subject,
or where a peer imports it; a graph of ours that needs no torch does not import it at all.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.environments import HERE, Environment
from tests.benchmarks.job import Job
from tests.benchmarks.measuring import WORKERS, graph_of, worker_loader
from tests.benchmarks.peers import catalogue, dataloader2, grain, spdl
from tests.benchmarks.sizes import sized

JOB = Job(sized(100, 20))

Opener = Callable[[str], Any]


def first(method: str | None) -> float:
    return asyncio.run(first_item(method))


def second(method: str | None) -> float:
    """Return the time of a second loader in a process."""
    asyncio.run(first_item(method))
    return asyncio.run(first_item(method))


def second_with_torch(method: str | None) -> float:
    import torch  # noqa: F401  - workers are to have it as well

    return second(method)


async def first_item(method: str | None) -> float:
    # Before the clock starts, as a script does; the modules are imported with these names.
    from asyncloader import DataLoader2, MultiProcessingReadingService  # noqa: F401
    from asyncloader.datapipes.iter import IterableWrapper  # noqa: F401

    began = time.perf_counter()
    async with worker_loader(graph_of(JOB), method=method) as loader:
        await anext(aiter(loader))
        return time.perf_counter() - began


def peer_first(open_: Opener, module: str, method: str) -> float:
    import_module(module)
    return _peer_first(open_, method)


def peer_second(open_: Opener, module: str, method: str) -> float:
    import_module(module)
    _peer_first(open_, method)
    return _peer_first(open_, method)


def _peer_first(open_: Opener, method: str) -> float:
    began = time.perf_counter()
    items = iter(open_(method))
    next(items)
    spent = time.perf_counter() - began
    for _ in items:  # so that it ends in good order
        pass
    return spent


def open_torch(method: str) -> Any:
    from torch.utils.data import DataLoader

    return DataLoader(**_range(method))


def open_stateful(method: str) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(**_range(method))


def _range(method: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"num_workers": WORKERS, "multiprocessing_context": method}
    return {"dataset": range(JOB.count), "batch_size": None, **settings}


def open_nodes(method: str) -> Any:
    from torchdata.nodes import IterableWrapper, Loader, ParallelMapper

    numbers = IterableWrapper(range(JOB.count))
    settings: dict[str, Any] = {"method": "process", "multiprocessing_context": method}
    return Loader(ParallelMapper(numbers, JOB.function, WORKERS, **settings))


def open_spdl(method: str) -> Any:
    return spdl.processes(JOB, WORKERS, method)


def open_grain(_: str) -> Any:
    # It knows spawn only. The rest of an endless stream is not waited for.
    return iter([next(iter(grain.processes(JOB)))])


def open_dataloader2(method: str) -> Any:
    return dataloader2.processes(JOB, method)


def peers(
    name: str,
    open_: Opener,
    module: str,
    methods: str = "fork forkserver spawn",
    environment: Environment = HERE,
) -> list[Case]:
    """Return a case for each start method; a server is there already for a second loader."""
    needs = () if environment is not HERE else (module,)
    found = []
    for method in methods.split():
        measure = peer_second if method == "forkserver" else peer_first
        which = ", second loader" if method == "forkserver" else ""
        args = (open_, module, method)
        found.append(Case(f"{name}, {method}{which}", measure, needs, args, environment))
    return found


FORKSERVER, SPAWN = "torch DataLoader, forkserver, second loader", "torch DataLoader, spawn"
SECOND, FIRST = "asyncloader, template, second loader", "asyncloader, template, first loader"
CASES = [
    Case(FIRST, first, args=(None,)),
    Case(SECOND, second, args=(None,)),
    Case("asyncloader, template, second, torch imported", second_with_torch, args=(None,)),
    Case("asyncloader, fork", first, args=("fork",)),
    Case("asyncloader, forkserver, second loader", second, args=("forkserver",)),
    Case("asyncloader, spawn", first, args=("spawn",)),
    *peers(catalogue.TORCH, open_torch, "torch.utils.data"),
    *peers(catalogue.STATEFUL, open_stateful, "torchdata.stateful_dataloader"),
    *peers("torchdata nodes", open_nodes, "torchdata.nodes"),
    *peers("SPDL", open_spdl, "spdl.pipeline"),
    *peers("grain", open_grain, "grain", "spawn"),
    *peers(
        "torchdata 0.9 DataLoader2",
        open_dataloader2,
        "torchdata.dataloader2",
        "fork spawn",
        dataloader2.ENVIRONMENT,
    ),
]
TARGETS = [
    Target(SECOND, 0.05, at_most=True),
    Target(SECOND, 0.05, FORKSERVER, at_most=True),
    Target(FIRST, 0.25, SPAWN, at_most=True),
    Target("asyncloader, fork", 1, "torch DataLoader, fork", at_most=True),
]
COMPARISONS = [
    Comparison(
        "W6: from a loader to its first item, with 2 workers",
        "s",
        CASES,
        against=[FORKSERVER, SPAWN, "torch DataLoader, fork"],
        targets=TARGETS,
        less_is_better=True,
    )
]
