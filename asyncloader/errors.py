"""Every error raised on purpose.

This file is about what can go wrong, in words for the person who has to act on
it. All of them derive from ``LoaderError``, keep what they know in attributes,
and cross process borders with those attributes intact.
"""

from __future__ import annotations

from typing import Any


class LoaderError(Exception):
    """The base of every error that asyncloader raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The constructors below take what they need to build a message. A copy
        # is made from the message and the attributes, so that they may differ.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[LoaderError], args: tuple[Any, ...], state: dict[str, Any]) -> LoaderError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class LoaderClosed(LoaderError):
    """The loader was shut down; make a new one to iterate again."""


class IteratorInvalidated(LoaderError, RuntimeError):
    """A newer iterator of the same loader or pipe has taken the place of this one."""


class LoopMismatchError(LoaderError, RuntimeError):
    """Something that belongs to one event loop or thread was used from another."""


class ConcurrentIterationError(LoaderError, RuntimeError):
    """Two tasks or threads asked one iterator for its next item at the same time."""


class ForkedError(LoaderError, RuntimeError):
    """A loader's iterator was used in a forked child of the process that owns it."""


class SnapshotError(LoaderError, ValueError):
    """A snapshot cannot be taken or restored; the message names the field or the pipe."""


class PipelineError(LoaderError):
    """An item, or the error it raised, could not be brought across to the loader."""


class TooManyErrors(LoaderError):
    """A pipe's function failed on more items than ``max_errors``; the last is the cause."""

    def __init__(self, message: str, *, errors: int) -> None:
        super().__init__(message)
        self.errors = errors


class HttpError(LoaderError, OSError):
    """A URL could not be read; ``status`` is what the server answered, or None."""

    def __init__(self, message: str, *, url: str, status: int | None = None) -> None:
        super().__init__(message)
        self.url = url
        self.status = status


class HttpUnavailable(HttpError):
    """A URL could not be read now: its server is busy or failed, or the connection was lost."""

    def __init__(
        self,
        message: str,
        *,
        url: str,
        status: int | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, url=url, status=status)
        self.retry_after = retry_after


class TransportError(LoaderError):
    """What came over a channel was not what may come over it."""

    def __init__(self, message: str, *, worker: int | None = None) -> None:
        super().__init__(message)
        self.worker = worker


class WorkerDied(LoaderError):
    """A worker process ended before its work did; the dispatching process has no number."""

    def __init__(
        self,
        message: str,
        *,
        worker: int | None,
        pid: int | None = None,
        exitcode: int | None = None,
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, or None."""
        return -self.exitcode if self.exitcode is not None and self.exitcode < 0 else None


class WorkerTimeout(LoaderError, TimeoutError):
    """A worker that owes an item was silent for longer than ``timeout`` allows.

    ``stack`` is where its threads stood, or None if it could not tell any more.
    """

    def __init__(self, message: str, *, worker: int | None, stack: str | None = None) -> None:
        super().__init__(message)
        self.worker = worker
        self.stack = stack


class WorkerStartupError(LoaderError):
    """A worker could not be started; what its own code raised is the ``__cause__``."""


class ResourceExhausted(LoaderError):
    """There is not enough of something: the message says what is needed and what is there."""


class Overloaded(LoaderError):
    """More requests are pending than the feed accepts; try again later."""


class RankError(LoaderError):
    """Another rank failed, ended, or does something else; ``ranks`` are those it is known of."""

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankTimeout(RankError, TimeoutError):
    """A rank did not come to where the others wait within ``timeout``."""
