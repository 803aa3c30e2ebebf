"""How much work a case is: all of it, or so little that one sees it run."""

from __future__ import annotations

import os

#: Set by ``--quick`` for the processes of the cases. Numbers of such a run mean nothing.
QUICK = "ASYNCLOADER_BENCHMARKS_QUICK"


def is_quick() -> bool:
    return QUICK in os.environ


def sized(full: int, quick: int) -> int:
    """Return ``full``, or ``quick`` in a run that only shows that every case runs."""
    return quick if is_quick() else full
