"""What must not be cancelled over and over.

This file is about ``shielded``: asyncio cancels a task once, which our own code stands, but
a scope of anyio's cancels again at every turn of the loop for as long as the task waits.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

import anyio

#: What anyio has loaded once anybody has used it on one of asyncio's loops.
_IN_USE = "anyio._backends._asyncio"


def shielded() -> AbstractContextManager[Any]:
    """Keep the scopes of anyio that are around the block from cancelling what waits in it."""
    # Where nobody uses anyio there are no scopes, and loading it here would hold up the loop.
    return anyio.CancelScope(shield=True) if _IN_USE in sys.modules else contextlib.nullcontext()
