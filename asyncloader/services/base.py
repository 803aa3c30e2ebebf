"""What a reading service is, and how a loader calls one.

This file is about ``ReadingServiceInterface``: the moments of a service's life, which a
loader calls in this order:

    initialize ── (initialize_iteration ── finalize_iteration) per epoch ── finalize

and about resets, the functions that services pass on to the graph at the start of an epoch.
A user's service may be written in several styles: methods may be async or plain, take no
``iter_reset_fn``, return None instead of a function, or return any iterable instead of a
pipe. Behind ``ServiceCalls`` all of them look the same.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import warnings
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from typing import Any, ParamSpec

from asyncloader.arguments import kind_name
from asyncloader.datapipes.base import is_pipe
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import attributes, is_of_package
from asyncloader.datapipes.sources import IterableWrapper
from asyncloader.deadline import time_left
from asyncloader.errors import LoaderError, SnapshotError, WorkerStartupError
from asyncloader.runtime import finished_at_once
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.code import dumps_code, loads_code

P = ParamSpec("P")

#: A reset: a coroutine function that prepares a graph for an epoch and returns it. It acts on
#: the graph it is given, ignores pipes it does not find, and captures plain values only,
#: since it may run in another process.
IterResetFn = Callable[[Any], Awaitable[Any]]


async def unchanged(datapipe: Any) -> Any:
    """The reset that changes nothing.

    A service's ``initialize_iteration`` takes it where there is no reset yet. For type checkers,
    ``IterResetFn`` is what a reset is: a coroutine function from graph to graph.

    >>> import asyncio
    >>> from asyncloader import unchanged
    >>> asyncio.run(unchanged("a graph"))
    'a graph'
    """
    return datapipe


def sync_or_async(method: Callable[P, Awaitable[Any]]) -> Callable[P, Any]:
    """Typing only: accept a plain ``def`` that overrides this method, as a loader does."""
    return method


def any_signature(method: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    """Typing only: accept sync overrides, fewer parameters, and other types of resets too."""
    return method


class ReadingServiceInterface:
    """Says how a graph is run, with one method for each moment of a loader's life.

    Every method may also be a plain ``def``. A service must be copyable and picklable
    before ``initialize``. Besides these a loader calls, where the class has them, the plain
    methods ``length(datapipe)``, how many items an epoch has where ``initialize`` changes that,
    and ``pause()``, ``resume()`` and ``limit(num_items)``, when its own are called.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> class InPairs(ReadingServiceInterface):
    ...     async def initialize(self, datapipe):
    ...         return datapipe.batch(2)
    >>> with DataLoader2(IterableWrapper(range(4)), reading_service=InPairs()) as loader:
    ...     list(loader)
    [[0, 1], [2, 3]]
    """

    @sync_or_async
    async def initialize(self, datapipe: Any) -> Any:
        """Change the graph before the first epoch, and return what is to be iterated.

        This is called once, unless the start fails or a state is loaded after the start:
        then ``finalize`` follows, and later the next start.
        """
        return datapipe

    @any_signature
    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn = unchanged
    ) -> IterResetFn:
        """Begin an epoch.

        ``seed_generator`` is this epoch's own: later services and the loader see what is
        done to it. Return a reset that includes ``iter_reset_fn``, the reset of the services
        before this one.
        """
        return iter_reset_fn

    @sync_or_async
    async def finalize_iteration(self) -> None:
        """End an epoch, at its natural end or when it is abandoned; once for each epoch."""

    @sync_or_async
    async def finalize(self) -> None:
        """Release everything the service holds; it may be called more than once."""

    def __repr__(self) -> str:
        return stage_name(self)


class CheckpointableReadingServiceInterface(ReadingServiceInterface):
    """A reading service whose own state is part of the loader's state.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> class Longer(CheckpointableReadingServiceInterface):
    ...     def __init__(self, size):
    ...         self.size = size
    ...     async def initialize(self, datapipe):
    ...         return datapipe.header(self.size)
    ...     def checkpoint(self):
    ...         return bytes([self.size])
    ...     async def restore(self, datapipe, serialized_state):
    ...         self.size = serialized_state[0]
    ...         return await self.initialize(datapipe)
    >>> pipe = IterableWrapper(range(9))
    >>> with DataLoader2(pipe, reading_service=Longer(4)) as loader:
    ...     state = loader.state_dict()
    >>> with DataLoader2(pipe, reading_service=Longer(2)) as loader:
    ...     list(loader)
    [0, 1]
    >>> resumed = DataLoader2(pipe, reading_service=Longer(2))
    >>> resumed.load_state_dict(state)
    >>> with resumed:
    ...     list(resumed)
    [0, 1, 2, 3]
    """

    def checkpoint(self) -> bytes:
        """Return the service's state. It is called at any moment, and must not wait."""
        raise NotImplementedError(f"{type(self).__qualname__} must define checkpoint")

    @sync_or_async
    async def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Change the graph as ``initialize`` does, resuming from a checkpoint."""
        raise NotImplementedError(f"{type(self).__qualname__} must define restore")

    def check(self, serialized_state: bytes) -> None:
        """Raise an error if ``restore`` could not resume from a checkpoint; change nothing."""


#: How much longer than the time to close a user's service may take, in seconds.
_LATE_SECONDS = 0.1

#: Our own services keep to that time themselves, but may be late on a busy machine.
_OURS_LATE_SECONDS = 2.0


class ServiceCalls:
    """The moments of one service's life, each as a coroutine with one meaning."""

    def __init__(self, service: Any) -> None:
        _check_attributes(service)
        self.service = service

    async def initialize(self, datapipe: Any, *, workers: int = 0) -> Any:
        """Return the changed graph, as a pipe.

        In a loader with workers, an error of a user's service becomes the cause of a
        WorkerStartupError, like any other error that keeps workers from starting.
        """
        try:
            adapted = await result_of(self.service.initialize(datapipe))
        except LoaderError:
            raise
        except Exception as error:
            if not workers or not is_users(self.service):
                raise
            raise WorkerStartupError(
                f"the workers were not started: {self.service!r}.initialize raised {error!r}"
            ) from error
        return _as_pipe(self.service, "initialize", adapted)

    async def restore(self, datapipe: Any, serialized_state: bytes) -> Any:
        """Return the graph as the service changes it when it resumes from its state."""
        return _as_pipe(
            self.service,
            "restore",
            await result_of(self.service.restore(datapipe, serialized_state)),
        )

    @functools.cached_property
    def _takes_reset(self) -> bool:
        return _takes_reset(self.service.initialize_iteration)

    @functools.cached_property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.service.initialize_iteration)

    def checkpoint(self) -> bytes | None:
        """Return the service's own state, or None if it has none."""
        state: bytes | None = None
        if hasattr(self.service, "checkpoint"):
            state = self.service.checkpoint()
        if state is not None and not isinstance(state, bytes):
            raise SnapshotError(
                f"{type(self.service).__qualname__}.checkpoint must be a plain method that"
                f" returns bytes, got {type(state).__name__}"
            )
        return state

    def check(self, serialized_state: bytes) -> None:
        """Raise SnapshotError if the service cannot resume from a state."""
        if not hasattr(self.service, "restore"):
            raise SnapshotError(
                f"the state holds a checkpoint of its reading service, but {self.service!r} has no"
                " restore method; use the service that the state was taken with"
            )
        check = getattr(self.service, "check", None)
        if check is None:
            return
        try:
            check(serialized_state)
        except SnapshotError:
            raise
        except Exception as error:
            raise SnapshotError(
                f"{self.service!r} cannot resume from reading_service_state: {error!r}"
            ) from error

    async def initialize_iteration(
        self, seed_generator: SeedGenerator, iter_reset_fn: IterResetFn
    ) -> IterResetFn:
        """Return the reset that includes ``iter_reset_fn``."""
        begin = self.service.initialize_iteration
        if not self._takes_reset:
            own = await result_of(begin(seed_generator))
            return iter_reset_fn if own is None else self._own(_composed(iter_reset_fn, own))
        given: Callable[[Any], Any] | None = iter_reset_fn
        if not self._is_async:
            given = None if iter_reset_fn is unchanged else PlainReset(iter_reset_fn)
        returned = await result_of(begin(seed_generator, given))
        if returned is None or returned is given:
            return iter_reset_fn
        return self._own(_awaited(returned))

    def _own(self, reset: IterResetFn) -> ServiceReset:
        return ServiceReset(reset, type(self.service).__qualname__)

    async def finalize_iteration(self) -> None:
        """End the epoch."""
        await self._in_time("finalize_iteration", self.service.finalize_iteration)

    async def finalize(self) -> None:
        """Release everything."""
        await self._in_time("finalize", self.service.finalize)

    async def _in_time(self, moment: str, call: Callable[[], Any]) -> None:
        """Await a method; if it outlasts the time to close, cancel it with a warning."""
        left = time_left()
        if left == math.inf:
            await result_of(call())
            return
        cancels = _cancels()
        try:
            # A service that watches the time itself gives a better message, so it comes first.
            late = _LATE_SECONDS if is_users(self.service) else _OURS_LATE_SECONDS
            async with asyncio.timeout(left + late) as bound:
                await result_of(call())
        except (TimeoutError, asyncio.CancelledError):
            # Before Python 3.11.3 a timeout raises CancelledError in a task that was cancelled
            # earlier, as an epoch's is.
            if not bound.expired() or _cancels() > cancels:
                raise
            warnings.warn(
                f"{self.service!r} was still inside {moment}() when the time to close its loader"
                " was over, so the call was cancelled",
                ResourceWarning,
                stacklevel=2,
            )


def _cancels() -> int:
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def result_of(result: Any) -> Any:
    """Return a result, after awaiting it if it can be awaited."""
    while inspect.isawaitable(result):
        result = await result
    return result


def _as_pipe(service: Any, method: str, adapted: Any) -> Any:
    if is_pipe(adapted):
        return adapted
    if isinstance(adapted, Iterable | AsyncIterable):
        return IterableWrapper(adapted, deepcopy=False)
    raise TypeError(
        f"{type(service).__qualname__}.{method} must return a pipe or an iterable,"
        f" got {type(adapted).__name__}"
    )


def _takes_reset(begin: Callable[..., Any]) -> bool:
    parameters = inspect.signature(begin).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = sum(parameter.kind in kinds for parameter in parameters)
    return count > 1 or any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters)


def _awaited(reset: Callable[[Any], Any]) -> IterResetFn:
    async def awaited(datapipe: Any) -> Any:
        return await result_of(reset(datapipe))

    return reset if inspect.iscoroutinefunction(reset) else awaited


def _composed(first: IterResetFn, then: Callable[[Any], Any]) -> IterResetFn:
    async def composed(datapipe: Any) -> Any:
        return await result_of(then(await first(datapipe)))

    return composed


def as_reset(given: Callable[[Any], Any] | None) -> IterResetFn:
    """Return a reset to await, made of what a service passes on: async, plain or None."""
    if given is None or given is unchanged:
        return unchanged
    return given.reset if isinstance(given, PlainReset) else _awaited(given)


class ServiceReset:
    """A reset that a service returned; an error names the service if it cannot be pickled."""

    def __init__(self, reset: IterResetFn, service_name: str) -> None:
        self._reset = reset
        self._service_name = service_name

    async def __call__(self, datapipe: Any) -> Any:
        return await self._reset(datapipe)

    def __reduce__(self) -> Any:
        # Pickled by itself, so that a reset that includes this one is not blamed for it.
        try:
            return loads_code, (dumps_code(self._reset),)
        except WorkerStartupError:
            raise
        except (Exception, SystemExit) as error:
            raise WorkerStartupError(
                f"the reset of {self._service_name} cannot be sent to the workers: {error!r}; let"
                " it capture plain values only"
            ) from error


class PlainReset:
    """A reset for a service with plain methods, which calls it without awaiting."""

    def __init__(self, reset: IterResetFn) -> None:
        self.reset = reset

    def __call__(self, datapipe: Any) -> Any:
        return finished_at_once(
            result_of(self.reset(datapipe)),
            "this reset has to wait, which a plain initialize_iteration cannot do; write it as"
            " `async def initialize_iteration`, and await iter_reset_fn(datapipe) in its reset",
        )


def _check_attributes(service: Any) -> None:
    """Raise TypeError, naming it, for an attribute that hides a method which a loader calls."""
    ours = [vars(kind) for kind in type(service).__mro__ if is_of_package(kind)]
    for name, value in attributes(service):
        if not callable(value) and any(callable(methods.get(name)) for methods in ours):
            raise TypeError(
                f"{stage_name(service)} has an attribute {name!r}, {kind_name(value)}, which hides"
                f" the method {name}() of a reading service; give it another name"
            )


def is_users(service: Any) -> bool:
    """Whether a service is the user's own class."""
    return not is_of_package(type(service))
