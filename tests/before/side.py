"""One side of a comparison: what one asyncloader makes of a graph, as plain data.

This file is about ``serve``, which a child process runs: it answers tasks, each of which names a
graph by the lines that build it and a service by its expression, so that the same task can be put
to any revision. Of asyncloader it uses the public names, and one private one, in ``pin_places``.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import hashlib
import importlib
import itertools
import json
import logging
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import asyncloader
from asyncloader import DataLoader2, SequentialReadingService
from asyncloader.errors import SnapshotError
from tests import sample_files, samples
from tests.random_graphs import pieces
from tests.standing import Standing

SEED = 4
EPOCHS = 3
#: An epoch that goes on for longer never ends.
MOST_ITEMS = 20_000

#: What an epoch yielded: each item as a text, and at last the kind of its error, if it had one.
Items = list[str]
_FAILED = "raised "


# What is built ------------------------------------------------------------------------------------


def made_of(lines: str) -> tuple[Any, list[Any], list[Any]]:
    """Return what the lines build: the graph, adapters, and services to come before."""
    names = {**vars(pieces), "sample": sample, "with_adapter": with_adapter}
    names |= {"adapters": [], "services": []}
    exec(lines, names)
    *_, end = (line.split(" = ")[0] for line in lines.splitlines() if line.startswith("p"))
    return names[end.split(", ")[0]], names["adapters"], names["services"]


def sample(name: str) -> Any:
    """Return the contract tests' sample of the pipe of this name."""
    return samples.named_graph(name)


def with_adapter(graph: Any, name: str) -> Any:
    return next(make for cls, make in samples.ADAPTERS.items() if cls.__name__ == name)()(graph)


def pin_places() -> None:
    """Note places at every item: otherwise the speed of this machine says when they are noted."""
    _inner("cursor_history")._SHARE = 0
    _inner("exchange").GROUP_SECONDS = 0.0


def _inner(name: str) -> Any:
    """Return a module of those inside, which earlier revisions have one folder up."""
    try:
        return importlib.import_module(f"asyncloader.datapipes.running.{name}")
    except ModuleNotFoundError:
        return importlib.import_module(f"asyncloader.datapipes.{name}")


class Graphs:
    """Makes loaders; workers of a graph stay for the next loader of the same."""

    def __init__(self) -> None:
        self._lines = ""
        self._standing: dict[str, Standing] = {}

    def loader(self, task: dict[str, Any], state: Any = None) -> DataLoader2[Any]:
        """Return a loader at the first of the seed's epochs, or at a state."""
        if task["graph"] != self._lines:
            self.close()
            self._lines = task["graph"]
        graph, adapters, before = made_of(self._lines)
        service = self._service(task["service"])
        if before:
            service = SequentialReadingService(*before, service)
        loader = DataLoader2(graph, adapters, service)
        if state is None:
            loader.seed(SEED)
        else:
            loader.load_state_dict(state)
        return loader

    def _service(self, expression: str) -> Any:
        if "Distributed" in expression:
            _be_the_only_rank()
        names = {name: getattr(asyncloader, name) for name in asyncloader.__all__}
        return eval(expression, {**names, "Standing": self._standing_for})

    def _standing_for(self, workers: int, **settings: Any) -> Standing:
        key = f"{workers} {settings}"
        if key not in self._standing:
            self._standing[key] = Standing(workers, **settings)
        return self._standing[key]

    def close(self) -> None:
        """End the workers."""
        while self._standing:
            _, service = self._standing.popitem()
            asyncio.run(service.dismiss())


def _be_the_only_rank() -> None:
    import torch.distributed as dist

    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


# What is done with it -----------------------------------------------------------------------------


def record(graphs: Graphs, task: dict[str, Any]) -> dict[str, Any]:
    """Return some epochs, and the states along all of them but the last.

    One step after an epoch's last item its end was seen.
    """
    epochs: list[Items] = []
    states: list[tuple[int, int, Any]] = []
    random.seed(SEED)
    with graphs.loader(task) as loader:
        for number in range(EPOCHS):
            # After an error, a state is one of the epoch that ended with it.
            if number and has_failed(epochs[-1]):
                break
            takes_states = number < EPOCHS - 1
            items: Items = []
            epochs.append(items)
            if takes_states:
                states.append((number, 0, _state_of(loader)))
            for item in _told(iter(loader)):
                items.append(item)
                if takes_states and not has_failed(items):
                    states.append((number, len(items), _state_of(loader)))
            if takes_states and not has_failed(items):
                states.append((number, len(items) + 1, _state_of(loader)))
    return {"epochs": epochs, "states": states}


def rest(graphs: Graphs, task: dict[str, Any]) -> dict[str, Any]:
    """Return what a loader yields that loads a state: the rest of its epoch, and the next."""
    with graphs.loader(task, task["state"]) as loader:
        epochs: list[Items] = []
        for _ in range(2):
            if epochs and has_failed(epochs[-1]):
                break
            read = _in_async_for if task.get("form") == "async for" else _in_for
            epochs.append(read(loader))
    return {"epochs": epochs}


def after(epochs: list[Items], number: int, step: int) -> list[Items]:
    """Return what comes after a state: the rest of its epoch, and the next one, if it is known.

    One step after an epoch's last item its end was seen, and the next one follows.
    """
    if not has_failed(epochs[number]) and step > len(epochs[number]):
        number, step = number + 1, 0
    return [epochs[number][step:], *epochs[number + 1 : number + 2]]


def has_failed(items: Items) -> bool:
    return bool(items) and items[-1].startswith(_FAILED)


def _state_of(loader: DataLoader2[Any]) -> Any:
    """Return the state, or that there is none."""
    try:
        return loader.state_dict(include_datapipe=False)
    except SnapshotError as error:
        return f"{_FAILED}{type(error).__name__}"


def _in_for(loader: DataLoader2[Any]) -> Items:
    return list(_told(iter(loader)))


def _in_async_for(loader: DataLoader2[Any]) -> Items:
    async def epoch() -> Items:
        items: Items = []
        try:
            async for item in loader:
                items.append(text_of(item))
        except Exception as error:  # noqa: BLE001 - it is compared
            items.append(f"{_FAILED}{type(error).__name__}")
        return items

    return asyncio.run(epoch())


def _told(items: Iterator[Any]) -> Iterator[str]:
    try:
        yield from map(text_of, itertools.islice(items, MOST_ITEMS))
    except Exception as error:  # noqa: BLE001 - it is compared
        yield f"{_FAILED}{type(error).__name__}"


def text_of(item: Any) -> str:
    """Return a text that is equal for equal items, in every process."""
    if isinstance(item, dict):
        return f"{{{', '.join(f'{key!r}: {text_of(value)}' for key, value in item.items())}}}"
    if isinstance(item, (list, tuple)):
        ends = "[]" if isinstance(item, list) else "()"
        return f"{ends[0]}{', '.join(map(text_of, item))}{ends[1]}"
    if hasattr(item, "numpy"):
        item = item.numpy()
    if hasattr(item, "tobytes"):
        return (
            f"{item.dtype}{item.shape} {hashlib.blake2b(item.tobytes(), digest_size=8).hexdigest()}"
        )
    text = repr(item)
    return type(item).__name__ if " at 0x" in text else text.replace(str(sample_files.folder()), "")


# In the child -------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[Graphs, dict[str, Any]], dict[str, Any]]] = {
    "record": record,
    "rest": rest,
}


def serve() -> None:
    """Answer the tasks that come by stdin, each in one line."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")
    logging.disable()
    pin_places()
    with contextlib.closing(Graphs()) as graphs:
        for line in sys.stdin:
            task = json.loads(line)
            faulthandler.dump_traceback_later(task["limit"], exit=True)
            print(json.dumps(_answer(graphs, task)), file=answers, flush=True)
            faulthandler.cancel_dump_traceback_later()


def _answer(graphs: Graphs, task: dict[str, Any]) -> dict[str, Any]:
    try:
        return TASKS[task["do"]](graphs, task)
    except Exception as error:  # noqa: BLE001 - it is compared
        # Its workers may stand in the middle of an epoch.
        graphs.close()
        return {"refused": type(error).__name__, "because": str(error)}
