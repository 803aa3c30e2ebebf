"""How often workers that die are replaced.

This file is about ``Patience``: a worker that delivered something since it was started is
replaced at once; those that die without having delivered anything are, after a pause that
grows, and only so often in a row.
"""

from __future__ import annotations

import asyncio

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 10.0


class Patience:
    """Counts the deaths in a row before which nothing was delivered."""

    def __init__(self, most: int | None) -> None:
        self._most = most
        self._in_vain = 0

    def allows(self, *, has_delivered: bool) -> bool:
        """Count a death; whether who died may be replaced once more."""
        if self._most is None:
            return False
        self._in_vain = 0 if has_delivered else self._in_vain + 1
        return self._in_vain <= self._most

    async def wait(self) -> None:
        """Pause, the longer the more deaths there were in a row."""
        if self._in_vain:
            pause = _FIRST_PAUSE * 2 ** min(self._in_vain - 1, 10)
            await asyncio.sleep(min(pause, _LONGEST_PAUSE))
