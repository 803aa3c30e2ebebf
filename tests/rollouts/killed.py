"""A program that asks a policy server, and is killed at any moment.

It saves the numbers that it has trained together with the loader's state, as a trainer does. Run by
hand, it is started and killed again and again, and so is the server: ``python -m
tests.rollouts.killed --lines 100``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from asyncloader import DataLoader2, MultiProcessingReadingService, Version
from asyncloader.datapipes.iter import IterableWrapper
from tests.recorded.lines import first_of, index_of, settled_in
from tests.rollouts.server import Notes, asked, notes_in

COUNT = 200
PER_STEP, ATTEMPTS = 6, 4


class Program:
    """A trainer whose loader asks the server; the same each time it is started."""

    def __init__(self, folder: Path, seed: int, port: int) -> None:
        draw = random.Random(seed)
        self._model = folder / "model"
        self._notes = Notes(folder / "notes")
        self._seed = seed
        self._port = port
        self._group = draw.choice((None, 3))
        self._order: Any = draw.choice(("source", "source", 4, "ready"))
        self._max_lag = draw.choice((None, 1, 2))
        self._in_flight = draw.choice(("wait", "keep", "abort"))
        self._keeps = draw.random() < 0.5
        self._has_workers = draw.random() < 0.4
        self._is_sync = draw.random() < 0.3
        self._version = Version()
        self._trained: list[int] = []
        self._state: dict[str, Any] | None = None
        if self._model.exists():
            self._trained, self._state, version = json.loads(self._model.read_text("ascii"))
            self._version = Version(version)

    async def generate(self, prompt: int, *, version: int, number: int, member: int) -> Any:
        """Ask the server."""
        assert prompt == number
        return await asked(self._port, {"number": number, "member": member, "version": version})

    def graph(self) -> Any:
        """Return the graph."""
        pipe: Any = IterableWrapper(range(COUNT)).shuffle().sharding_filter()
        # From here on in the loader's process, so that each prompt is its number.
        pipe = pipe.batch(1, across_workers=True).map(first_of).enumerate().map(index_of)
        lag: dict[str, Any] = {}
        if self._max_lag is not None:
            lag = {"max_lag": self._max_lag, "per_step": PER_STEP}
        pipe = pipe.rollout(
            self.generate,
            group=self._group,
            concurrency=16,
            version=self._version,
            order=self._order,
            attempts=ATTEMPTS,
            backoff=0.02,
            timeout=1.0,
            max_failures=10_000,
            keep_results=self._keeps,
            **lag,
        )
        return pipe.filter(is_good).batch(PER_STEP)

    def train(self) -> None:
        """Train from where the file says to the end, and say what was left out."""
        service = None
        if self._has_workers:
            # Another number each time.
            service = MultiProcessingReadingService(1 + len(self._trained) % 3)
        loader = DataLoader2(self.graph(), None, service, seed=self._seed, acknowledge=True)
        if self._state is not None:
            loader.load_state_dict(self._state)
        self._notes.note("begin")
        if self._is_sync:
            self._train_in_thread(loader)
        else:
            asyncio.run(self._train_on_loop(loader))

    def _train_in_thread(self, loader: Any) -> None:
        with loader:
            for batch in loader:
                self._look_at(batch)
                with loader.paused(in_flight=self._in_flight):
                    self._version.advance()
                self._save(loader)
            self._end(loader)

    async def _train_on_loop(self, loader: Any) -> None:
        async with loader:
            async for batch in loader:
                self._look_at(batch)
                async with loader.paused(in_flight=self._in_flight):
                    await asyncio.sleep(random.random() / 1000)
                    self._version.advance()
                self._save(loader)
            self._end(loader)

    def _look_at(self, batch: list[Any]) -> None:
        oldest = min(each["version"] for item in batch for each in answers_in(item))
        assert self._max_lag is None or self._version.number - oldest <= self._max_lag

    def _save(self, loader: Any) -> None:
        numbers = list(loader.numbers)
        loader.ack()
        self._notes.note("settled", numbers)
        self._trained += numbers
        state = loader.state_dict(include_datapipe=False)
        saved = json.dumps([self._trained, state, self._version.number])
        new = self._model.with_suffix(".new")
        new.write_text(saved, "ascii")
        new.replace(self._model)
        print("saved", flush=True)

    def _end(self, loader: Any) -> None:
        print(json.dumps([self._trained, loader.stats().left_out]), flush=True)


def is_good(_: Any) -> bool:
    """Say yes, most of the time."""
    return random.random() < 0.7


def answers_in(item: Any) -> list[dict[str, int]]:
    """Return the answers in an item."""
    return item if isinstance(item, list) else [item]


class Server:
    """The server's process, which is killed now and then and comes back."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._notes = folder / "notes"
        self._draw = random.Random(f"server {seed}")
        self._is_over = threading.Event()
        self._process, self.port = self._started(0)
        self._thread = threading.Thread(target=self._restart_now_and_then)

    def __enter__(self) -> Server:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()
        self._end()

    def _started(self, port: int) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, "-m", "tests.rollouts.server", "--notes", str(self._notes)]
        process = subprocess.Popen(
            [*command, "--port", str(port)], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, int(process.stdout.readline())

    def _restart_now_and_then(self) -> None:
        while not self._is_over.wait(self._draw.expovariate(0.5)):
            self._end()
            # It is away for a while.
            self._is_over.wait(self._draw.random() / 2)
            self._process, _ = self._started(self.port)

    def _end(self) -> None:
        self._process.kill()
        self._process.communicate()


def killed_line(seed: int) -> tuple[int, list[str]]:
    """Start the program until it ends, killing it meanwhile; how often, and what was wrong."""
    draw, kills, said = random.Random(f"kills {seed}"), 0, list[str]()
    command = [sys.executable, "-m", "tests.rollouts.killed", "--seed", str(seed), "--folder"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Server(folder, seed) as server:
            while True:
                settled = settled_before(folder / "model")
                before = len(notes_in(folder / "notes"))
                child = subprocess.Popen(
                    [*command, name, "--port", str(server.port)], stdout=subprocess.PIPE, text=True
                )
                last = _killed_after(child, draw.randrange(12) if kills < 5 else None, draw)
                notes = notes_in(folder / "notes")
                said += called_again(notes[before:], settled)
                if child.returncode == 0:
                    trained, left_out = json.loads(last[-1])
                    return kills, [*said, *wrong(trained, left_out, notes)]
                if child.returncode != -signal.SIGKILL:
                    return kills, [*said, f"it ended with {child.returncode}"]
                kills += 1


def _killed_after(
    child: subprocess.Popen[str], steps: int | None, draw: random.Random
) -> list[str]:
    """Kill a program after so many steps, at any moment of the next; return what it printed."""
    assert child.stdout is not None
    lines = []
    if steps is not None:
        lines = [line for _, line in zip(range(steps), child.stdout, strict=False)]
        # The first step begins only after the imports.
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(draw.random() * (0.1 if steps else 3.0))
        child.send_signal(signal.SIGKILL)
    return lines + child.communicate()[0].splitlines()


def settled_before(model: Path) -> set[int]:
    """Return the numbers that a program knows as settled when it resumes."""
    if not model.exists():
        return set()
    _, state, _ = json.loads(model.read_text("ascii"))
    return settled_in(state)


def called_again(notes: list[list[Any]], settled: set[int]) -> Iterator[str]:
    """Say for which numbers a run has called although they were settled."""
    known = set(settled)
    has_begun = False
    for what, *rest in notes:
        # Before that the server may come to calls of the run before.
        has_begun = has_begun or what == "begin"
        if what == "settled":
            known.update(rest[0])
        elif what == "call" and has_begun and rest[0] in known:
            yield f"a call for {rest[0]}, which was settled"


def wrong(trained: list[int], left_out: dict[str, int], notes: list[list[Any]]) -> Iterator[str]:
    """Say what is not as promised of all that was trained on, and left out."""
    twice = [each for each, times in Counter(trained).items() if times > 1]
    if twice:
        yield f"trained on twice: {twice}"
    if len(trained) + sum(left_out.values()) != COUNT:
        yield f"{len(trained)} trained on and {left_out} left out of {COUNT}"
    calls = Counter(rest[0] for what, *rest in notes if what == "call")
    if missing := set(trained) - set(calls):
        yield f"never called for: {missing}"


def main() -> int:
    """Be the program, or kill it."""
    parser = argparse.ArgumentParser(prog="python -m tests.rollouts.killed", description=__doc__)
    parser.add_argument("--lines", type=int, default=100, help="how many programs are killed")
    parser.add_argument("--first", type=int, help="the first one's seed; drawn, if not given")
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder is not None:
        Program(given.folder, given.seed, given.port).train()
        return 0
    first = random.SystemRandom().randrange(10**9) if given.first is None else given.first
    print(f"lines {first} to {first + given.lines - 1}", flush=True)
    seeds = range(first, first + given.lines)
    kills = failed = 0
    with ThreadPoolExecutor(2) as pool:
        for seed, (count, said) in zip(seeds, pool.map(killed_line, seeds), strict=True):
            kills, failed = kills + count, failed + bool(said)
            for each in said:
                print(f"line {seed}: {each}", flush=True)
    print(f"{given.lines} programs, killed {kills} times, {failed} wrong")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
