"""Many Ctrl-Cs, each at a random moment of a program.

This file is about programs that use a loader and are interrupted as a terminal does it:
their whole process group gets SIGINT, once, twice or three times. Each has to end with one
KeyboardInterrupt, or with nothing where it was at its end already; nothing else may be
printed but what the interpreter prints of any program, and nobody may be left 2 s later.
Where Ctrl-C comes again, it may also tear what the standard library is doing, which raises
what it likes then, or leaves a task of the program's pending.

    python -m tests.faults.interrupts --count 300 [--seed 7] [--jobs 2]
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from asyncloader.system import may_use_uvloop
from tests.eyes import PROC

ROOT = Path(__file__).parents[2]

#: How the program runs, what its graph does, and in which part of it the interrupt comes.
RUNS = ("asyncio", *(["uvloop"] if may_use_uvloop() else []), "for", "threads")
GRAPHS = {
    "in-process": "IterableWrapper(range(10**9)).map(work)",
    "ahead": "IterableWrapper(range(10**9)).map(work).prefetch(4)",
    "thread_map": "IterableWrapper(range(10**9)).thread_map(work, concurrency=3)",
    "workers": "IterableWrapper(range(10**9)).sharding_filter().map(work)",
    "dealt": (
        "IterableWrapper(range(10**9)).map(work)"
        ".sharding_round_robin_dispatch(SHARDING_PRIORITIES.MULTIPROCESSING)"
    ),
}
PHASES = ("start", "load", "close", "exit")

#: Up to how many seconds after the beginning of a phase the first interrupt comes.
_SOON = {"start": 0.5, "load": 0.3, "close": 0.15, "exit": 0.15}
#: A program that is interrupted closes in 3 s; a busy machine adds to that.
END_SECONDS = 20.0
LEFT_SECONDS = 2.0

PROGRAM = """
import asyncio, faulthandler, os, sys, threading, time
faulthandler.dump_traceback_later(120, exit=True)
from asyncloader import DataLoader2, LoaderClosed, MultiProcessingReadingService
from asyncloader.datapipes.iter import SHARDING_PRIORITIES, IterableWrapper

RUN, LEAVES_OPEN = {run!r}, {leaves_open}

def work(number):
    time.sleep(0.002 if number < 40 else {slow})
    return number

def say(phase):
    # By one call, that no interrupt can cut in two.
    os.write(1, (phase + "\\n").encode())

graph = {graph}
service = MultiProcessingReadingService(2) if {workers} else None
loader = DataLoader2(graph, None, service)

async def main():
    say("start")
    async with loader:
        items = aiter(loader)
        await anext(items)
        say("load")
        while not {ends}:
            await anext(items)
        for _ in range(10):
            await anext(items)
        say("close")
    say("exit")

async def main_left_open():
    say("start")
    items = aiter(loader)
    await anext(items)
    say("load")
    say("close")
    say("exit")

def main_sync():
    say("start")
    with loader:
        items = iter(loader)
        next(items)
        say("load")
        while not {ends}:
            next(items)
        for _ in range(10):
            next(items)
        say("close")
    say("exit")

def main_sync_left_open():
    say("start")
    items = iter(loader)
    next(items)
    say("load")
    say("close")
    say("exit")

def read(items, seen):
    try:
        next(items)
        say("load")
        while not {ends}:
            next(items)
        for _ in range(10):
            next(items)
    except LoaderClosed:
        pass
    seen.set()

def main_threads():
    say("start")
    seen = threading.Event()
    with loader:
        thread = threading.Thread(target=read, args=(iter(loader), seen), daemon=True)
        thread.start()
        seen.wait()
        say("close")
    say("exit")

if RUN == "asyncio":
    asyncio.run(main_left_open() if LEAVES_OPEN else main())
elif RUN == "uvloop":
    import uvloop
    uvloop.run(main_left_open() if LEAVES_OPEN else main())
elif RUN == "for":
    main_sync_left_open() if LEAVES_OPEN else main_sync()
else:
    main_threads()
"""


@dataclass(frozen=True)
class Case:
    """A program, and when it is interrupted: so long after a phase began, and then again."""

    run: str
    graph: str
    phase: str
    slow: float
    leaves_open: bool
    delays: tuple[float, ...]

    @classmethod
    def drawn(cls, luck: random.Random) -> Case:
        """Draw any case."""
        phase = luck.choice(PHASES)
        gap = luck.choice((0.01, 0.1, 1.0))
        again = [luck.uniform(0, gap) for _ in range(luck.randrange(3))]
        run = luck.choice(RUNS)
        return cls(
            run=run,
            graph=luck.choice(list(GRAPHS)),
            phase=phase,
            slow=luck.choice((0.002, 0.2, 30.0)),
            leaves_open=phase == "exit" and run != "threads" and luck.random() < 0.5,
            delays=(luck.uniform(0, _SOON[phase]), *again),
        )

    def source(self) -> str:
        """Return the program."""
        return PROGRAM.format(
            run=self.run,
            leaves_open=self.leaves_open,
            slow=self.slow,
            graph=GRAPHS[self.graph],
            workers=self.graph in ("workers", "dealt"),
            ends=self.phase in ("close", "exit"),
        )

    def faults(self) -> list[str]:
        """Run the program and interrupt it; return what was wrong."""
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "program.py"
            script.write_text(self.source())
            process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                start_new_session=True,
            )
            with process:
                try:
                    return self._interrupted(process)
                finally:
                    kill_group(process.pid)

    def _interrupted(self, process: subprocess.Popen[str]) -> list[str]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.strip() == self.phase:
                break
        for delay in self.delays:
            pause(delay)
            # As a terminal does it: to the whole group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
        begun = time.monotonic()
        try:
            process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGABRT)
            return [f"still there after {END_SECONDS} s", process.communicate()[1]]
        took = time.monotonic() - begun
        left = left_in_group(process.pid, LEFT_SECONDS)
        kill_group(process.pid)
        stderr = process.communicate(timeout=END_SECONDS)[1]
        return [
            *([] if took < 3.0 + 4.0 else [f"ended after {took:.1f} s only"]),
            *[f"left behind after {LEFT_SECONDS} s: {what}" for what in left],
            *self._faults_of_end(process.returncode, stderr),
        ]

    def _faults_of_end(self, code: int, stderr: str) -> list[str]:
        again = len(self.delays) > 1
        rest = without_the_interpreters(stderr, again=again)
        # It had come to its end.
        if rest == "" and self.phase in ("close", "exit") and code in (0, -signal.SIGINT):
            return []
        # Another error than KeyboardInterrupt may have been the last.
        codes = (-signal.SIGINT, 1) if again or rest != stderr else (-signal.SIGINT,)
        tracebacks = _NEVER_RETRIEVED.split(rest) if again else [rest]
        if code in codes and all(
            is_one_keyboard_interrupt(each, again=again) for each in tracebacks
        ):
            return []
        return [f"exit code {code}", stderr]


#: How a traceback is linked to that of the error from which it was raised.
_LINK = re.compile(
    r"\n(?:During handling of the above exception, another exception occurred"
    r"|The above exception was the direct cause of the following exception):\n\n"
)
_BEGUN = re.compile(r"Traceback \(most recent call last\):\n((?:  .*\n|\n)*)")
_TRACEBACK = re.compile(_BEGUN.pattern + r"(\S.*)\n")
_INTERRUPTS = {"KeyboardInterrupt", "asyncio.exceptions.CancelledError", "GeneratorExit"}

#: What the interpreter prints, of any program, instead of the rest of a traceback in the midst of
#: which Ctrl-C comes again.
_CUT_OFF = re.compile(
    r"object address  : .*\nobject refcount : .*\nobject type     : .*\n"
    r"object type name: KeyboardInterrupt\nobject repr     : KeyboardInterrupt\(\)\n"
    r"lost sys\.stderr\n\Z"
)

#: What it prints, of any program, where Ctrl-C comes in the midst of code of its own that nobody
#: waits for: a callback of a weak reference, or the end of the module ``threading``.
_IGNORED = re.compile(
    r"Exception ignored (?!in atexit callback).*\n"
    r"Traceback \(most recent call last\):\n((?:  .*\n|\n)*)KeyboardInterrupt: ?\n"
)

#: The last of what it prints, of any program, where Ctrl-C comes as uvloop begins to run, for then
#: a loop of uvloop takes itself for one that runs.
_NOT_CLOSED = re.compile(
    r"(?<=\nKeyboardInterrupt\n)\nDuring handling of the above exception, another exception"
    r" occurred:\n\nTraceback \(most recent call last\):\n((?:  .*\n|\n)*?)"
    r'(?:  File ".*asyncio/runners\.py", line .*\n(?:    .*\n)+)+'
    r'(?:  File "uvloop/loop\.pyx", line .*\n)+'
    r"RuntimeError: Cannot close a running event loop\n\Z"
)

#: And where Ctrl-C comes again as a loop cancels its tasks before it is closed.
_LEFT_PENDING = re.compile(r"Task was destroyed but it is pending!\ntask: (.*)\n")

#: What it prints then of a task that had heard of the first Ctrl-C; another traceback follows.
_NEVER_RETRIEVED = re.compile(
    r"Task exception was never retrieved\nfuture: <Task .* exception=KeyboardInterrupt\(\)>\n"
)


def without_the_interpreters(stderr: str, *, again: bool = False) -> str:
    """Return what a program has printed but for what the interpreter prints of any program."""
    for found in (_NOT_CLOSED, _IGNORED, *([_LEFT_PENDING] if again else [])):
        stderr = found.sub(_if_ours, stderr)
    return stderr


def _if_ours(found: re.Match[str]) -> str:
    """Return what was found if code of the package has a part in it."""
    return found[0] if f"{ROOT}/asyncloader/" in found[1] else ""


def is_one_keyboard_interrupt(stderr: str, *, again: bool = False) -> bool:
    """Whether a program has printed the traceback of one KeyboardInterrupt and nothing else.

    Where Ctrl-C came ``again``, code outside of the package may have raised another error.
    """
    whole, cut_off = _CUT_OFF.subn("", stderr)
    tracebacks = _LINK.split(whole)
    if cut_off and tracebacks[-1] and not _BEGUN.match(tracebacks[-1]):
        return False
    complete = [_TRACEBACK.fullmatch(each) for each in tracebacks[: -1 if cut_off else None]]
    if not all(
        each and (each[2] in _INTERRUPTS or (again and _is_outside(each[1]))) for each in complete
    ):
        return False
    errors = [each[2] for each in complete if each]
    return bool(cut_off) or "KeyboardInterrupt" in (errors if again else errors[-1:])


def _is_outside(frames: str) -> bool:
    """Whether the last frame of a traceback is not one of the package."""
    files = re.findall('^  File "(.*)", line', frames, re.MULTILINE)
    return bool(files) and not files[-1].startswith(f"{ROOT}/asyncloader/")


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def members(group: int) -> Iterator[tuple[int, str]]:
    """Yield the processes of a session, which nobody else has joined."""
    for name in filter(str.isdigit, os.listdir(PROC)):
        with contextlib.suppress(OSError):
            head, _, tail = _stat(name).rpartition(")")
            state, _, _, session = tail.split()[:4]
            if int(session) == group and state != "Z":
                yield int(name), head.partition("(")[2]


def _stat(name: str) -> str:
    # A process may have any bytes for its name.
    return Path(f"{PROC}/{name}/stat").read_text(errors="replace")


def left_in_group(group: int, seconds: float) -> list[str]:
    end = time.monotonic() + seconds
    while (left := [what for _, what in members(group)]) and time.monotonic() < end:
        pause(0.02)
    return left


def kill_group(group: int) -> None:
    for pid, _ in members(group):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def run(count: int, seed: int, jobs: int) -> int:
    """Interrupt so many programs; print what was wrong, and return how many had a fault."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell lets what runs in the background ignore it, and the programs would, too.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    luck = random.Random(seed)
    cases = [Case.drawn(luck) for _ in range(count)]
    begun, failed, seen = time.monotonic(), 0, Counter[str]()
    with ThreadPoolExecutor(jobs) as threads:
        for case, faults in zip(cases, threads.map(Case.faults, cases), strict=True):
            seen.update([case.run, case.phase, f"{len(case.delays)} times"])
            if faults:
                failed += 1
                print(case, *faults, sep="\n", flush=True)
    kinds = ", ".join(f"{kind}: {times}" for kind, times in sorted(seen.items()))
    took = time.monotonic() - begun
    print(f"seed {seed}: {failed} of {count} programs with a fault, in {took:.0f} s ({kinds})")
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    sys.exit(bool(run(arguments.count, arguments.seed, arguments.jobs)))


if __name__ == "__main__":
    main()
