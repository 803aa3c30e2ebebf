"""Use a loader where an event loop is already running, as in Jupyter.

Start:  python examples/notebook.py
Expect: the same batches by `await`, by `async for` and by `for`, which warns that the loop waits.

Each function below stands for a notebook cell. In a notebook their bodies are written without
the `async def`: a cell may `await` and `async for` as it is.
"""

import asyncio
import warnings
from collections.abc import AsyncIterator

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

loader = DataLoader2(IterableWrapper(range(12)).shuffle().batch(3))
loader.seed(7)


async def cell_1_looks_at_the_first_batch() -> AsyncIterator[list[int]]:
    batches = aiter(loader)
    print("first:", await anext(batches))
    return batches


async def cell_2_goes_on_where_the_first_stopped(batches: AsyncIterator[list[int]]) -> None:
    print("rest:", [batch async for batch in batches])


async def cell_3_runs_a_whole_epoch_each_time_it_is_run() -> None:
    loader.seed(7)
    print("epoch:", [batch async for batch in loader])


async def cell_4_uses_a_plain_for() -> None:
    # It works, and says once that it holds up the notebook's loop meanwhile.
    loader.seed(7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        print("by for:", list(loader))
    print("warned:", *(warning.category.__name__ for warning in caught))


async def notebook() -> None:
    batches = await cell_1_looks_at_the_first_batch()
    await cell_2_goes_on_where_the_first_stopped(batches)
    await cell_3_runs_a_whole_epoch_each_time_it_is_run()
    await cell_3_runs_a_whole_epoch_each_time_it_is_run()
    await cell_4_uses_a_plain_for()
    await loader.aclose()


if __name__ == "__main__":
    asyncio.run(notebook())
