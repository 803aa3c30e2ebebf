"""One way to do one thing, measured in a process of its own.

This file is about ``Case``. The process is new, so that no case profits or suffers from
what another left behind; whatever it leaves running is ended before the next one starts.
"""

from __future__ import annotations

import base64
import contextlib
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.cost import Rate
from tests.benchmarks.environments import HERE, PORTABLE, ROOT, Environment

#: The seconds that a case may take; a peer that hangs is reported, not waited for.
LIMIT = 900
QUICK_LIMIT = 120


class CaseFailed(Exception):
    """A case that gave no number, with the last line of what it said."""


@dataclass(frozen=True)
class Case:
    """A way to do it: a name, a function that measures it, and the modules it needs.

    ``args``, which the function is called with, are pickled: values, and functions and
    classes of modules.
    """

    name: str
    function: Callable[..., float]
    needs: tuple[str, ...] = ()
    args: tuple[Any, ...] = ()
    environment: Environment = HERE

    def portable(self) -> Case:
        """Return the same without Linux's own calls."""
        return replace(self, name=f"{self.name}, portable", environment=PORTABLE)

    def missing(self) -> list[str]:
        """Return what it needs and what is not installed."""
        return self.environment.missing(self.needs)

    def is_possible(self) -> bool:
        """Whether everything it needs is installed."""
        return not self.missing()

    def measure(self, limit: float) -> float:
        """Run the function in a fresh process and return its number, a Rate if it is one.

        Raises CaseFailed if there is none after ``limit`` seconds.
        """
        with TemporaryDirectory() as folder:
            answer, output = Path(folder, "answer"), Path(folder, "output")
            # A file, since a worker that outlives the case would hold a pipe open.
            with output.open("w") as said:
                ended = self._run(str(answer), said, limit)
            if answer.exists():
                number, *cost = json.loads(answer.read_text())
                return Rate(number, *cost) if cost else float(number)
            raise CaseFailed(f"{ended}: {_last_line(output.read_text())}")

    def _run(self, answer: str, output: Any, limit: float) -> str:
        """Run the process until its end, and say how it ended."""
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.child", self._what(), answer],
            cwd=ROOT,
            env=self.environment.variables(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            return f"exit code {child.wait(limit)}"
        except subprocess.TimeoutExpired:
            return f"no end within {limit:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _what(self) -> str:
        # A workload that is the command itself is known as __main__; its spec has its name.
        spec = importlib.util.find_spec(self.function.__module__)
        assert spec is not None, "run a workload with python -m"
        what = pickle.dumps((spec.name, self.function.__name__, self.args))
        return base64.b64encode(what).decode()


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"
