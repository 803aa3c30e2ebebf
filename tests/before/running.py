"""The two sides, each a process with its own asyncloader.

This file is about ``Side``, which puts tasks to such a process, and is none that can hang.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Self

ROOT = Path(__file__).parent.parent.parent
#: So long one task may take; most take less than a second.
TASK_SECONDS = 60.0

# An earlier asyncloader in an environment of its own comes before the one beside these tests.
_BEGIN = """
import os, sys
sys.path[:0] = filter(None, [os.environ.get("PYTHONPATH"), {root!r}])
import asyncloader
assert asyncloader.__file__.startswith({package!r}), asyncloader.__file__
from tests.before.side import serve
serve()
"""


class Side:
    """A process that answers one task after another, and is replaced when it dies."""

    def __init__(self, name: str, package: Path = ROOT, *, files: Path) -> None:
        #: In messages.
        self.name = name
        self._package = package
        #: The folder of the samples' files, whose names are in states.
        self._files = files
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._end()

    def ask(self, task: Mapping[str, Any], limit: float = TASK_SECONDS) -> dict[str, Any]:
        """Return the answer to a task; one that says how the process died, if it did."""
        process = self._alive()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({**task, "limit": limit}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"died": self._last_words()}
        return answer

    def _alive(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
            begin = _BEGIN.format(root=str(ROOT), package=str(self._package))
            environment = {"PYTHONPATH": str(self._package), "SAMPLE_FILES": str(self._files)}
            self._process = subprocess.Popen(
                [sys.executable, "-c", begin],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                env={**os.environ, **environment},
                text=True,
            )
        return self._process

    def _last_words(self) -> str:
        assert self._process is not None
        assert self._log is not None
        code = self._process.wait()
        self._log.seek(0)
        said = self._log.read()[-3000:]
        self._end()
        return f"exit code {code}\n{said}"

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, self._log):
                if pipe is not None:
                    pipe.close()
