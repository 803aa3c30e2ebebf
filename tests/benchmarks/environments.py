"""Packages that only some cases see.

This file is about ``Environment``: a folder of packages before all others, for a peer
that does not go together with another one (torchdata 0.9 with torchdata 0.11).
"""

from __future__ import annotations

import compileall
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "build" / "benchmarks"


@dataclass(frozen=True)
class Environment:
    """Packages, each with its version, that come before those of this interpreter."""

    name: str
    packages: tuple[str, ...]

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def is_made(self) -> bool:
        # pip fills the folder at the end of its work, all of it or nothing.
        return self.folder.is_dir()

    def make(self) -> None:
        """Install the packages, and nothing that they ask for: this interpreter has it."""
        if not self.is_made:
            command = [sys.executable, "-m", "pip", "install", "--no-deps"]
            command += ["--target", str(self.folder), *self.packages]
            subprocess.run(command, check=True, capture_output=True, text=True)

    def missing(self, needs: tuple[str, ...]) -> list[str]:
        """Return the modules of ``needs`` that a process of this environment cannot import."""
        return [] if self.is_made else [f"its own environment ({', '.join(self.packages)})"]

    def variables(self) -> dict[str, str]:
        """Return the variables of a process that is to see the packages."""
        return {**os.environ, "PYTHONPATH": str(self.folder)}


def earlier(revision: str) -> Environment:
    """Return an environment with asyncloader as it was at a revision of this repository."""
    return Environment(f"asyncloader-{revision}", (f"git+file://{ROOT}@{revision}",))


class ThisEnvironment(Environment):
    """What the command itself runs in."""

    @property
    def is_made(self) -> bool:
        return True

    def make(self) -> None:
        """Compile this asyncloader, as pip has compiled what is installed."""
        compileall.compile_dir(ROOT / "asyncloader", quiet=1)

    def missing(self, needs: tuple[str, ...]) -> list[str]:
        return [module for module in needs if not _is_installed(module)]

    def variables(self) -> dict[str, str]:
        return dict(os.environ)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that the module would be in
        return False


class Portable(ThisEnvironment):
    """The same, where the package goes without Linux's own calls."""

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "ASYNCLOADER_PORTABLE": "1"}


HERE = ThisEnvironment("here", ())
PORTABLE = Portable("portable", ())
