"""What a child takes over from its loader.

This file is about ``Heirloom``, an object that a forked child has in its memory; about
``Environment``: the folder, the variables and the settings of the interpreter that the loader has
when it asks a template for a child; and about ``Allowance``, what the loader may use of the
machine: its CPUs, nice value and limits. A child is not forked by the thread that was told of
these, and perhaps by a process that was started before any of them were changed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

from asyncloader import system

#: The objects that were left to this process by the one it was forked from.
_heirlooms: list[Any] = []


def inherit(objects: list[Any]) -> None:
    """Let ``Heirloom`` mean these objects in this process, and in those forked from it."""
    _heirlooms[:] = objects


def has_inherited() -> bool:
    """Whether this process has what it runs from the one it was forked from."""
    return bool(_heirlooms)


class Heirloom:
    """Stands in a pickle for an object that whoever loads the pickle has inherited."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (self._number,)


def _inherited(number: int) -> Any:
    return _heirlooms[number]


@dataclass(frozen=True)
class Environment:
    """A loader's environment, in values that any process can read."""

    cwd: str | None
    umask: int | None
    environ: dict[bytes, bytes]
    path: list[str]
    argv: list[str]
    recursion_limit: int
    log_level: int
    disabled_logs: int
    warning_filters: list[tuple[Any, ...]]
    allowance: Allowance

    @classmethod
    def current(cls) -> Environment:
        """Return the environment of this process."""
        return cls(
            cwd=_cwd(),
            umask=system.umask(),
            environ=dict(os.environb),
            path=import_path(),
            argv=[_plain(str(entry)) for entry in getattr(sys, "argv", [])],
            recursion_limit=sys.getrecursionlimit(),
            log_level=logging.root.level,
            disabled_logs=logging.root.manager.disable,
            warning_filters=[entry for entry in warnings.filters if _is_plain_filter(entry)],
            allowance=Allowance.current(),
        )

    def apply(self) -> None:
        """Apply it to this process."""
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
        sys.argv = list(self.argv)
        # It may be lower than where this process is now.
        with contextlib.suppress(RecursionError):
            sys.setrecursionlimit(self.recursion_limit)
        logging.root.setLevel(self.log_level)
        logging.disable(self.disabled_logs)
        warnings.resetwarnings()
        warnings.filters.extend(self.warning_filters)  # type: ignore[attr-defined]
        self.allowance.apply()


def import_path() -> list[str]:
    """Return where modules are looked for; like the interpreter, only those that are strings."""
    return [_plain(entry) for entry in sys.path if isinstance(entry, str)]


def _plain(text: str) -> str:
    """Return a plain str, whose class every process has."""
    return str.__str__(text)


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _is_plain_filter(warning_filter: tuple[Any, ...]) -> bool:
    """Whether the filter names nothing that would have to be imported."""
    _, message, category, module, _ = warning_filter
    patterns = (str, re.Pattern, type(None))
    return (
        isinstance(message, patterns)
        and isinstance(module, patterns)
        and category.__module__ == "builtins"
    )


@dataclass(frozen=True)
class Allowance:
    """How much of the machine a process may use, in values that any process can read."""

    cpus: frozenset[int]
    nice: int
    limits: system.Limits

    @classmethod
    def current(cls) -> Allowance:
        """Return that of this process, and of its main thread where threads have their own."""
        return cls(
            cpus=system.allowed_cpus(),
            nice=os.getpriority(os.PRIO_PROCESS, os.getpid()),
            limits=system.limits(),
        )

    def apply(self) -> None:
        """Apply it to this process and thread, as far as they may have so much."""
        # The CPUs may have been taken from both since.
        with contextlib.suppress(OSError):
            system.allow_cpus(self.cpus)
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, self.nice)
        system.set_limits(self.limits)

    def apply_process_limit(self) -> None:
        """Apply the limit of processes and threads to this process, as far as it may."""
        system.set_process_limit(self.limits)
