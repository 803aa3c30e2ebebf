"""Protection from repeated cancellation.

This file is about ``shielded``: asyncio cancels a task once, which our code handles, but a
cancel scope of anyio cancels again at every turn of the loop while the task waits.
"""

from __future__ import annotations

import contextlib
import sys
from contextlib import AbstractContextManager
from typing import Any

import anyio

#: The module that anyio loads when it is first used on an asyncio loop.
_IN_USE = "anyio._backends._asyncio"


def shielded() -> AbstractContextManager[Any]:
    """Protect the waits in the block from anyio's cancel scopes around it."""
    # If nobody uses anyio there are no scopes, and importing it here would block the loop.
    return anyio.CancelScope(shield=True) if _IN_USE in sys.modules else contextlib.nullcontext()
