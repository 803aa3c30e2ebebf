"""Every error raised on purpose.

This file is about what can go wrong, in words for the person who has to act on it. All
errors derive from ``LoaderError``, keep what they know in attributes, and can be sent to
another process with those attributes.
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "ConcurrentIterationError",
    "ForkedError",
    "HttpError",
    "HttpUnavailable",
    "IteratorInvalidated",
    "LoaderClosed",
    "LoaderError",
    "LoopMismatchError",
    "Overloaded",
    "PipelineError",
    "RankError",
    "RankTimeout",
    "ResourceExhausted",
    "SnapshotError",
    "StarvedError",
    "TooManyErrors",
    "TransportError",
    "WorkerDied",
    "WorkerStartupError",
    "WorkerTimeout",
]


def __dir__() -> list[str]:
    return __all__


class LoaderError(Exception):
    """The base of every error that asyncloader raises on purpose.

    Catch it to catch all of them. It says what went wrong in its message, and its subclasses
    keep what they know in attributes. They can be pickled.

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

    Cause: the loader was shut down, by leaving its ``with`` or by ``shutdown()`` or
    ``aclose()``, and was asked for an item or started after that. A feed raises it for
    requests that come too late.

    What to do: iterate inside the ``with``, and make a new ``DataLoader2`` to go through
    the data again. A server answers such a request with 503.

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


class StarvedError(LoaderError):
    """A rollout may begin no more prompts, and those that are begun wait for more of them.

    Cause: a pipe behind a ``rollout`` with ``max_lag``, such as a batch of many tokens, holds all
    the prompts that may be begun before one of them is trained.

    What to do: let that pipe hold fewer, or raise ``per_step`` or ``max_lag``. A batch that cannot
    be filled in any case is refused before the first item.

    >>> issubclass(StarvedError, LoaderError)
    True
    """


class IteratorInvalidated(LoaderError, RuntimeError):
    """A newer iterator of the same loader or pipe, or a loaded state, has replaced this one.

    Cause: ``iter(loader)``, ``aiter(loader)`` or a second ``for`` began a new epoch while the
    older iterator was still in use, or ``load_state_dict`` set the loader to another place. Each
    loader has one live iterator. The same holds for the shares of one ``random_split``.

    What to do: keep using the newest iterator, take a new one after ``load_state_dict``, or make
    one loader for each reader. Two readers of one pipe can share it by ``fork``.

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

    Cause: an epoch belongs to the event loop or to the thread that began it. Often there were
    two calls of ``asyncio.run``, each of which has a loop of its own, or an async iterator
    was given to another thread.

    What to do: begin and read an epoch in one loop. A new ``aiter(loader)`` begins an epoch
    on the loop that is running.

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

    Cause: the second of two calls came before the first had its item: ``anext`` in two tasks,
    or ``next`` in two threads.

    What to do: let one task read the loader and put the items into an ``asyncio.Queue`` for
    the others. To have more items in progress, use ``prefetch`` or worker processes.

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

    Cause: ``os.fork()``, or a ``multiprocessing.Process`` started by fork, copied a loader that
    had started. Its workers and its threads belong to the parent.

    What to do: make a new loader in the child. The parent's loader is unharmed.

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

    Cause: the state is damaged, was made by another version or for another graph, or would
    need another number of workers or ranks than its graph allows; or the graph has a pipe
    whose place cannot be told. A state that is refused leaves the loader as it was.

    What to do: build the same graph as the one that was saved, or take the state between two
    epochs; where a pipe is named, ``docs/guides/resume.md`` says what it may be used with. A
    pipe that two others read needs a ``fork``.

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

    Cause: what the graph made cannot be pickled (a lock, an open file, a connection), or the
    error that a function raised cannot be pickled.

    What to do: yield plain data from workers: a path instead of an open file, an array instead
    of a handle. The message names the pipe and the type.

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

    Cause: ``on_error`` left out or replaced more than ``max_errors`` items in one pass.
    ``errors`` is how many there were, and the last one is the cause.

    What to do: look at the last error. If so many bad items are normal, raise ``max_errors``.

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

    Cause: the server said no (404, 403), the URL is wrong, or what came is not what HTTP
    allows; all retries are over.

    What to do: open ``url`` by hand. Leave such URLs out with ``on_error="skip"``, or give
    ``headers`` or ``auth`` if the server wants them.

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

    Cause: a status of 5xx or 429, a refused or lost connection, or a body that was cut short,
    more often than ``retries`` allow.

    What to do: raise ``retries`` or ``backoff``, or ask less at a time (``concurrency``).

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

    Cause: an item could not be unpickled where it arrived; or something else wrote to the
    worker's channel, such as a library that closes descriptors which are not its own. Then
    the worker is killed and not replaced. ``worker`` is its number.

    What to do: if the message names an item, see that its class can be imported and unpickled
    in the loader's process. Otherwise look at the native code that runs in the worker.

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

    Cause: a crash in native code (SIGSEGV), the kernel's out-of-memory killer (SIGKILL), or
    code that called ``os._exit``. The message has the signal or the exit code; ``pid``,
    ``exitcode`` and ``signal`` have them as attributes. ``items`` is how many items of this
    worker had arrived in the epoch; None where it died before an epoch. ``making`` is the range of
    the numbers, from 0, of the items of this worker of which it was making one: a single one, or of
    tiny items those up to its next note. It is None where it was making none, or is no process of
    this machine. ``pipe`` is the pipe in which it was seen meanwhile, by a look that is taken a few
    times a second; "" where it was not seen then. A worker process that crashes in native code
    prints to stderr which function called that, and in which line.

    What to do: after a SIGKILL look at the memory of the machine and use fewer workers or
    a smaller ``prefetch_bytes``. ``on_worker_death="restart"`` replaces workers that die. If
    the worker has printed a traceback that ends in asyncloader, please report it.

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
        items: int | None = None,
        making: range | None = None,
        pipe: str = "",
    ) -> None:
        super().__init__(message)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode
        self.items = items
        self.making = making
        self.pipe = pipe

    @property
    def signal(self) -> int | None:
        """The signal that ended the process, or None."""
        return -self.exitcode if self.exitcode is not None and self.exitcode < 0 else None


class WorkerTimeout(LoaderError, TimeoutError):
    """A worker that owes an item was silent for longer than ``timeout`` seconds.

    ``stack`` shows where its threads were, or is None if the worker could not tell any more.

    Cause: a function hangs or is slower than ``timeout``; with ``on_worker_death="restart"``
    also the workers that replaced it.

    What to do: read ``stack`` (it is in the error's notes, too). Give network calls a timeout
    of their own, or raise the ``timeout`` of the reading service.

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

    Cause: your ``worker_init_fn``, ``worker_reset_fn`` or service raised an error; the graph
    cannot be unpickled in the worker; or a process could not be started.

    What to do: read the cause, which is the error itself. The start may be tried again.

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

    Cause: shared memory, file descriptors, processes or threads ran out, or hostile data would
    have exceeded a limit: an archive's ``max_bytes``, a line's ``max_line_bytes``.

    What to do: do what the message says: usually a larger limit of the system (``ulimit``,
    a container's memory), fewer workers, or the limit that is named, if the data is trusted.

    >>> from asyncloader.memory import Segment
    >>> try:
    ...     Segment.create(1 << 60)
    ... except ResourceExhausted:
    ...     print("there is not so much memory")
    there is not so much memory
    """


class Overloaded(LoaderError):
    """More requests are pending than the feed accepts; try again later.

    Cause: ``max_pending`` requests wait for an answer already, so this one is refused at once.

    What to do: answer the client with 503 and let it try later; raise ``max_pending`` if
    longer waits are fine, or add workers.

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

    Cause: an error on another rank, a process that ended, or ranks whose graphs, seeds or
    numbers of workers differ.

    What to do: look at the log of the rank that is named: the first error is there. Build
    the same graph on all ranks, and seed all of them the same or rank 0 alone.

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

    Cause: a rank is stuck or much slower than the others, or does not read as many epochs.

    What to do: find out what the rank that is named was doing; if it was only slow, raise the
    ``timeout`` of ``DistributedReadingService``.

    >>> try:
    ...     raise RankTimeout("rank 1 did not come within 60 seconds", ranks=(1,))
    ... except TimeoutError as error:
    ...     print(error.ranks)
    (1,)
    """
