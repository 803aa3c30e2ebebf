"""W12: 20,000 rows of a Hugging Face Dataset, shuffled, in batches of 64, by README's recipe.

Both loaders ask the data set once a batch, by ``__getitems__``, and both collate by torch's
``default_collate``. An item is a batch, and its rows are counted.
"""

from __future__ import annotations

from typing import Any

from tests.benchmarks.cases import Case
from tests.benchmarks.comparison import Comparison, Target
from tests.benchmarks.measuring import WORKERS, ours, single_threaded, sync_rate, torch_loader
from tests.benchmarks.sizes import sized

ROWS = sized(20_000, 640)
BATCH_SIZE = 64
NEEDS = ("datasets",)


def rows() -> Any:
    from datasets import Dataset

    return Dataset.from_dict(
        {
            "text": [f"the text of row {number}" for number in range(ROWS)],
            "label": list(range(ROWS)),
        }
    )


def row_count(batch: Any) -> int:
    return len(batch["label"])


def our_rows(mode: str, workers: int) -> float:
    from asyncloader.datapipes.map import SequenceWrapper

    single_threaded()
    data = SequenceWrapper(rows(), deepcopy=False)
    graph = data.shuffle().batch(BATCH_SIZE).sharding_filter().collate()
    return ours(graph, row_count, mode, workers=workers)


def torch_rows(workers: int) -> float:
    single_threaded()
    settings = {"num_workers": workers, "persistent_workers": workers > 0}
    return sync_rate(
        torch_loader(rows(), batch_size=BATCH_SIZE, shuffle=True, **settings), row_count
    )


def comparison(place: str, workers: int, bound: float) -> Comparison:
    ours_for, torch = "asyncloader, for", "torch DataLoader"
    cases = [
        Case(ours_for, our_rows, NEEDS, ("sync", workers)),
        Case("asyncloader, async for", our_rows, NEEDS, ("async", workers)),
        Case(torch, torch_rows, NEEDS, (workers,)),
    ]
    title = f"W12: rows of a Hugging Face Dataset, shuffled, batch(64), {place}"
    targets = [Target(ours_for, bound, torch)]
    return Comparison(title, "rows/s", cases, against=[torch], targets=targets)


COMPARISONS = [
    comparison("in one process", 0, 0.95),
    comparison(f"from {WORKERS} workers", WORKERS, 2),
]
