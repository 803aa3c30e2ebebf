"""Every error raised on purpose.

This file is about what can go wrong, in words for the person who has to act on it. All
errors derive from ``LoaderError``, keep what they know in attributes, and can be sent to
another process with those attributes.
"""

from __future__ import annotations

from typing import Any


class LoaderError(Exception):
    """The base of every error that asyncloader raises on purpose.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> loader = DataLoader2(IterableWrapper([1]))
    >>> loader.shutdown()
    >>> try:
    ...     list(loader)
    ... except LoaderError as error:
    ...     print(type(error).__name__)
    LoaderClosed
    """

    def __reduce__(self) -> tuple[Any, ...]:
        # Constructors below have parameters of their own. A copy is made of the message and
        # the attributes instead.
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[LoaderError], args: tuple[Any, ...], state: dict[str, Any]) -> LoaderError:
    error = kind.__new__(kind)
    error.args = args
    error.__dict__.update(state)
    return error


class LoaderClosed(LoaderError):
    """The loader was shut down; make a new one to iterate again.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper([1])) as loader:
    ...     list(loader)
    [1]
    >>> try:
    ...     list(loader)
    ... except LoaderClosed as error:
    ...     print(error)
    the loader was shut down; make a new DataLoader2 to iterate again
    """


class IteratorInvalidated(LoaderError, RuntimeError):
    """A newer iterator of the same loader or pipe has replaced this one.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> with DataLoader2(IterableWrapper("ab")) as loader:
    ...     older, newer = iter(loader), iter(loader)
    ...     try:
    ...         next(older)
    ...     except IteratorInvalidated:
    ...         print("only the newer one gives", next(newer))
    only the newer one gives a
    """


class LoopMismatchError(LoaderError, RuntimeError):
    """Something that belongs to one event loop or thread was used from another.

    >>> import asyncio
    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def first(items):
    ...     return await anext(items)
    >>> with DataLoader2(IterableWrapper("ab")) as loader:
    ...     items = aiter(loader)
    ...     print(asyncio.run(first(items)))
    ...     try:
    ...         asyncio.run(first(items))
    ...     except LoopMismatchError:
    ...         print("asyncio.run is another loop each time")
    a
    asyncio.run is another loop each time
    """


class ConcurrentIterationError(LoaderError, RuntimeError):
    """Two tasks or threads asked one iterator for its next item at the same time.

    >>> import asyncio
    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> async def main():
    ...     async with DataLoader2(IterableWrapper("ab")) as loader:
    ...         items = aiter(loader)
    ...         both = (anext(items), anext(items))
    ...         return await asyncio.gather(*both, return_exceptions=True)
    >>> item, error = asyncio.run(main())
    >>> item, type(error).__name__
    ('a', 'ConcurrentIterationError')
    """


class ForkedError(LoaderError, RuntimeError):
    """A loader that had started, or its iterator, was used in a forked child process.

    Make a new loader in the child instead.

    >>> import os
    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def use_in_child(items):
    ...     child = os.fork()
    ...     if child == 0:
    ...         try:
    ...             next(items)
    ...         except ForkedError:
    ...             os._exit(7)
    ...         os._exit(0)
    ...     return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    >>> with DataLoader2(IterableWrapper("ab")) as loader:
    ...     items = iter(loader)
    ...     next(items), use_in_child(items)
    ('a', 7)
    """


class SnapshotError(LoaderError, ValueError):
    """A state cannot be taken or loaded; the message names the field or the pipe.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> state = DataLoader2(IterableWrapper(range(9)).batch(2)).state_dict()
    >>> try:
    ...     DataLoader2(IterableWrapper(range(9)).batch(3)).load_state_dict(state)
    ... except SnapshotError as error:
    ...     print("batch_size of Batcher was 2 and is 3" in str(error))
    True
    """


class PipelineError(LoaderError):
    """An item, or the error it raised, could not be sent to the loader's process.

    >>> import threading
    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> locks = IterableWrapper(range(2)).sharding_filter().map(lambda number: threading.Lock())
    >>> with DataLoader2(locks, None, MultiProcessingReadingService(1)) as loader:
    ...     try:
    ...         list(loader)
    ...     except PipelineError as error:
    ...         print("lock" in str(error))
    True
    """


class TooManyErrors(LoaderError):
    """A pipe's function failed on more items than ``max_errors``; the last is the cause.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> words = IterableWrapper(["1", "x", "y"]).map(int, on_error="skip", max_errors=1)
    >>> try:
    ...     list(words)
    ... except TooManyErrors as error:
    ...     print(error.errors, repr(error.__cause__))
    2 ValueError("invalid literal for int() with base 10: 'y'")
    """

    def __init__(self, message: str, *, errors: int) -> None:
        super().__init__(message)
        self.errors = errors


class HttpError(LoaderError, OSError):
    """A URL could not be read; ``status`` is the server's HTTP status, or None.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> try:
    ...     list(IterableWrapper(["http://127.0.0.1:1/image.png"]).read_from_http(retries=0))
    ... except HttpError as error:
    ...     print(error.url, error.status)
    http://127.0.0.1:1/image.png None
    """

    def __init__(self, message: str, *, url: str, status: int | None = None) -> None:
        super().__init__(message)
        self.url = url
        self.status = status


class HttpUnavailable(HttpError):
    """A URL could not be read now: its server is busy or failed, or the connection was lost.

    ``retry_after`` is how many seconds the server asked to wait before a retry, or None.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> try:
    ...     list(IterableWrapper(["http://127.0.0.1:1/image.png"]).read_from_http(retries=0))
    ... except HttpUnavailable as error:
    ...     print("nobody listens there;", error.retry_after)
    nobody listens there; None
    """

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
    """A worker channel carried malformed data.

    >>> raise TransportError("a frame of 9 bytes is shorter than its header", worker=0)
    Traceback (most recent call last):
    ...
    asyncloader.errors.TransportError: a frame of 9 bytes is shorter than its header
    """

    def __init__(self, message: str, *, worker: int | None = None) -> None:
        super().__init__(message)
        self.worker = worker


class WorkerDied(LoaderError):
    """A worker process ended before its work was done.

    ``worker`` is its number, None for the dispatching process.

    >>> import os, signal
    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def die(number):
    ...     os.kill(os.getpid(), signal.SIGKILL)
    >>> pipe = IterableWrapper(range(2)).sharding_filter().map(die)
    >>> with DataLoader2(pipe, None, MultiProcessingReadingService(1)) as loader:
    ...     try:
    ...         list(loader)
    ...     except WorkerDied as error:
    ...         print(error.worker, error.signal == signal.SIGKILL)
    0 True
    """

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
    """A worker that owes an item was silent for longer than ``timeout`` seconds.

    ``stack`` shows where its threads were, or is None if the worker could not tell any more.

    >>> import threading
    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def never(number):
    ...     threading.Event().wait()
    >>> pipe = IterableWrapper(range(2)).sharding_filter().map(never)
    >>> service = MultiProcessingReadingService(1, timeout=0.1)
    >>> with DataLoader2(pipe, None, service) as loader:
    ...     try:
    ...         list(loader)
    ...     except WorkerTimeout as error:
    ...         print(error.worker)
    0
    """

    def __init__(self, message: str, *, worker: int | None, stack: str | None = None) -> None:
        super().__init__(message)
        self.worker = worker
        self.stack = stack


class WorkerStartupError(LoaderError):
    """A worker, or an epoch in it, could not be started; the cause is the user code's error.

    >>> from asyncloader import DataLoader2, MultiProcessingReadingService
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> def init(pipe, info):
    ...     raise FileNotFoundError("no vocabulary")
    >>> pipe = IterableWrapper(range(2)).sharding_filter()
    >>> service = MultiProcessingReadingService(1, worker_init_fn=init)
    >>> try:
    ...     list(DataLoader2(pipe, None, service))
    ... except WorkerStartupError as error:
    ...     print(repr(error.__cause__))
    FileNotFoundError('no vocabulary')
    """


class ResourceExhausted(LoaderError):
    """Memory, file descriptors or threads ran out: the message says what is needed.

    >>> from asyncloader.memory import Segment
    >>> try:
    ...     Segment.create(1 << 60)
    ... except ResourceExhausted:
    ...     print("there is not so much memory")
    there is not so much memory
    """


class Overloaded(LoaderError):
    """More requests are pending than the feed accepts; try again later.

    >>> import asyncio
    >>> from asyncloader import DataLoader2, Feed
    >>> async def main():
    ...     feed = Feed(max_pending=1)
    ...     async with feed.serve(DataLoader2(feed.map(str))):
    ...         asked = (feed.ask(1), feed.ask(2))
    ...         return await asyncio.gather(*asked, return_exceptions=True)
    >>> answer, error = asyncio.run(main())
    >>> answer, type(error).__name__
    ('1', 'Overloaded')
    """


class RankError(LoaderError):
    """Another rank failed, ended, or does something else; ``ranks`` says which, if known.

    >>> try:
    ...     raise RankError("rank 1 ended", ranks=(1,))
    ... except RankError as error:
    ...     print(error.ranks)
    (1,)
    """

    def __init__(self, message: str, *, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class RankTimeout(RankError, TimeoutError):
    """A rank did not arrive where the others wait within ``timeout`` seconds.

    >>> try:
    ...     raise RankTimeout("rank 1 did not come within 60 seconds", ranks=(1,))
    ... except TimeoutError as error:
    ...     print(error.ranks)
    (1,)
    """
