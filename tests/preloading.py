"""What template processes import for the workers of tests.

This file is about ``preload``: a worker imports the module of the functions it is sent,
and with a test's module comes pytest, which takes longer than all the rest of its start.
A template imports that once, for all of its workers.
"""

from __future__ import annotations

from functools import partial

from asyncloader.workers import pool
from asyncloader.workers.process.process import ProcessPlan


def preload(*modules: str) -> None:
    """Let the templates that loaders of this process start from now on import these."""
    pool.ProcessPlan = partial(_plan_with, modules)  # type: ignore[misc,assignment]


def _plan_with(
    modules: tuple[str, ...], name: str, main: str, preload: tuple[str, ...]
) -> ProcessPlan:
    return ProcessPlan(name, main, preload=(*preload, *modules))
