"""What a child takes over from its loader.

This file is about ``Circumstances``: the folder, the environment, the allotment and the
settings of the interpreter that the loader has when it asks a template for a child.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import re
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

from asyncloader.workers.processes.allotment import Allotment


@dataclass(frozen=True)
class Circumstances:
    """A loader's circumstances, in values that any process can read."""

    cwd: str | None
    umask: int | None
    environ: dict[bytes, bytes]
    path: list[str]
    argv: list[str]
    recursion_limit: int
    log_level: int
    disabled_logs: int
    warning_filters: list[tuple[Any, ...]]
    allotment: Allotment

    @classmethod
    def present(cls) -> Circumstances:
        """Return those of this process."""
        return cls(
            cwd=_cwd(),
            umask=_umask(),
            environ=dict(os.environb),
            path=import_path(),
            argv=[_plain(str(entry)) for entry in getattr(sys, "argv", [])],
            recursion_limit=sys.getrecursionlimit(),
            log_level=logging.root.level,
            disabled_logs=logging.root.manager.disable,
            warning_filters=[entry for entry in warnings.filters if _is_plain_filter(entry)],
            allotment=Allotment.present(),
        )

    def take_on(self) -> None:
        """Make them those of this process."""
        if self.cwd is not None:
            # A folder that was removed since leaves the child where the template is.
            with contextlib.suppress(OSError):
                os.chdir(self.cwd)
        if self.umask is not None:
            os.umask(self.umask)
        os.environb.clear()
        os.environb.update(self.environ)
        # The C library has looked at TZ before.
        time.tzset()
        sys.path[:] = self.path
        importlib.invalidate_caches()
        sys.argv = list(self.argv)
        # It may be lower than where this process is now.
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(self.recursion_limit)
        logging.root.setLevel(self.log_level)
        logging.disable(self.disabled_logs)
        warnings.resetwarnings()
        warnings.filters.extend(self.warning_filters)  # type: ignore[attr-defined]
        self.allotment.take_on()


def import_path() -> list[str]:
    """Return where modules are looked for; like the interpreter, without what is no text there."""
    return [_plain(entry) for entry in sys.path if isinstance(entry, str)]


def _plain(text: str) -> str:
    """Return a text whose class every process has."""
    return str.__str__(text)


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _umask() -> int | None:
    # os.umask would change it for a moment, and for all threads. Bytes, since the kernel cuts
    # the name of the process, which is in there too, in the middle of a character.
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return None


def _is_plain_filter(warning_filter: tuple[Any, ...]) -> bool:
    """Whether the filter speaks of nothing that would have to be imported."""
    _, message, category, module, _ = warning_filter
    patterns = (str, re.Pattern, type(None))
    return (
        isinstance(message, patterns)
        and isinstance(module, patterns)
        and category.__module__ == "builtins"
    )
