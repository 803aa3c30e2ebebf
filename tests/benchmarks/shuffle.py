"""What a shuffle's buffer costs when it is resumed, and when a state is taken.

This file is about a command: ``python -m tests.benchmarks.shuffle``. A shuffle over a source that
has to be read again is stopped after five buffers of twelve, for buffers of 10^4, 10^5 and 10^6.
CPU times: of an item, of a state there, and of the first item after a resume; the last should be
the same for each place of the buffer. Each size runs in a process of its own, with NumPy in it (as
where torch is) or without.
"""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys
from collections import deque
from itertools import islice
from time import process_time
from typing import Any

from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper
from tests.benchmarks.sizes import sized

SIZES = sized(3, 1)
ROUNDS = sized(3, 1)
BUFFERS, TAKEN = 12, 5


def loader_of(size: int) -> DataLoader2[Any]:
    numbers = IterableWrapper(range(BUFFERS * size)).filter(is_number)
    return DataLoader2(numbers.shuffle(buffer_size=size))


def is_number(item: Any) -> bool:
    return isinstance(item, int)


def measure(size: int) -> dict[str, float]:
    """Return seconds of CPU time, and the size of a state."""
    with loader_of(size) as loader:
        items = iter(loader)
        begun = process_time()
        deque(islice(items, TAKEN * size), maxlen=0)
        item = (process_time() - begun) / (TAKEN * size)
        begun = process_time()
        state = loader.state_dict()
        taking = process_time() - begun
        expected = next(items)
    with loader_of(size) as loader:
        loader.load_state_dict(state)
        begun = process_time()
        first = next(iter(loader))
        resuming = process_time() - begun
        assert first == expected
    return {"item": item, "state": taking, "bytes": len(pickle.dumps(state)), "resume": resuming}


def best_of(size: int, module: str) -> dict[str, float]:
    command = [sys.executable, "-m", __spec__.name, str(size), module]
    rounds = [json.loads(subprocess.check_output(command)) for _ in range(ROUNDS)]
    return {key: min(each[key] for each in rounds) for key in rounds[0]}


def main() -> None:
    if len(sys.argv) > 1:
        if sys.argv[2]:
            importlib.import_module(sys.argv[2])
        print(json.dumps(measure(int(sys.argv[1]))))
        return
    print(f"{'buffer':>9} {'':6} {'ns an item':>10} {'state, ms':>10} {'bytes':>6}", end="")
    print(f" {'resume, s':>10} {'µs a place':>10}")
    for module in ("", "numpy"):
        for size in [10**4, 10**5, 10**6][:SIZES]:
            found = best_of(size, module)
            print(f"{size:9,} {module:6} {1e9 * found['item']:10.0f}", end="")
            print(f" {1e3 * found['state']:10.2f} {found['bytes']:6}", end="")
            print(f" {found['resume']:10.3f} {1e6 * found['resume'] / size:10.2f}", flush=True)


if __name__ == "__main__":
    main()
