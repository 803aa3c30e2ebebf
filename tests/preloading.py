"""What template processes import for the workers of tests.

This file is about ``preload``, and ``preloading`` for a block: a worker imports the module of the
functions it is sent, and with a test's module comes pytest, which takes longer than all the rest of
its start. A template imports that once, for all of its workers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from asyncloader.workers import pool
from asyncloader.workers.process.process import ProcessPlan


def preload(*modules: str) -> None:
    """Let the templates that loaders of this process start from now on import these."""
    pool.ProcessPlan = partial(_plan_with, modules)  # type: ignore[assignment,attr-defined]


@contextlib.contextmanager
def preloading(*modules: str) -> Iterator[None]:
    """Let the workers of a block come from a template that has imported these as well."""
    before: Any = pool.ProcessPlan  # type: ignore[attr-defined]

    def plan(name: str, main: str, preload: tuple[str, ...]) -> ProcessPlan:
        planned: ProcessPlan = before(name, main, preload=(*preload, *modules))
        return planned

    pool.ProcessPlan = plan  # type: ignore[assignment,attr-defined]
    try:
        yield
    finally:
        pool.ProcessPlan = before  # type: ignore[attr-defined]


def _plan_with(
    modules: tuple[str, ...], name: str, main: str, preload: tuple[str, ...]
) -> ProcessPlan:
    return ProcessPlan(name, main, preload=(*preload, *modules))
