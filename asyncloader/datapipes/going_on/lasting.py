"""An error that lasts.

This file is about ``LastingError``: an iterator that failed raises the same error for
every later item, and the error must not grow by the frames of each time.
"""

from __future__ import annotations


class LastingError:
    """An error that is raised again and again, each time as it was when it was caught."""

    def __init__(self, error: BaseException) -> None:
        self._error = error
        self._traceback = error.__traceback__

    def again(self) -> BaseException:
        """Return the error, to be raised."""
        return self._error.with_traceback(self._traceback)
