"""Calling a reading service, whatever style it is written in.

This file is about the services of users: methods may be async or plain, take no
``iter_reset_fn``, return None where we return a function, or return any iterable
instead of a pipe. Behind ``ServiceCalls`` all of them look the same.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import warnings
from collections.abc import AsyncIterable, Callable, Coroutine, Iterable
from typing import Any

from asyncloader.datapipes.items.sources import IterableWrapper
from asyncloader.datapipes.pipe.base import is_pipe
from asyncloader.deadline import time_left
from asyncloader.errors import LoaderError, SnapshotError, WorkerStartupError
from asyncloader.seeds import SeedGenerator
from asyncloader.services.base import Facts, IterResetFn, unchanged
from asyncloader.transport.code import dumps_code, loads_code

_A_LITTLE = 0.1
#: How late ours may be, which keep to the time that is left by themselves, on a busy machine.
_LATE_SECONDS = 2.0


async def result_of(result: Any) -> Any:
    """Return a result, awaiting it as long as there is something to await."""
    while inspect.isawaitable(result):
        result = await result
    return result


class ServiceCalls:
    """The moments of one service's life, each as a coroutine with one meaning."""

    def __init__(self, service: Any) -> None:
        self.service = service

    async def initialize(self, datapipe: Any, *, workers: int = 0) -> Any:
        """Return the adapted graph, as a pipe.

        In a loader with workers, what a user's service raises is the cause of a
        WorkerStartupError, as it is for everything else that keeps workers from starting.
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
        """Return the graph as the service adapts it from a state of its own."""
        return _as_pipe(
            self.service,
            "restore",
            await result_of(self.service.restore(datapipe, serialized_state)),
        )

    async def verify(self, facts: Facts) -> None:
        """Let the service compare what must be the same elsewhere."""
        await result_of(self.service.verify(facts))

    @functools.cached_property
    def _takes_reset(self) -> bool:
        return _takes_reset(self.service.initialize_iteration)

    @functools.cached_property
    def _is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.service.initialize_iteration)

    def checkpoint(self) -> bytes | None:
        """Return the service's own state, or None where it has none."""
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
        """Raise SnapshotError where the service cannot go on from a state."""
        if not hasattr(self.service, "restore"):
            raise SnapshotError(
                f"the state was taken with a service that checkpoints, and {self.service!r} has"
                " no restore"
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
                f"{self.service!r} cannot go on from reading_service_state: {error!r}"
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
        """Give back everything."""
        await self._in_time("finalize", self.service.finalize)

    async def _in_time(self, moment: str, call: Callable[[], Any]) -> None:
        """Await a moment; one that outlasts the close of its loader is cancelled with a warning."""
        left = time_left()
        if left == math.inf:
            await result_of(call())
            return
        try:
            # What waits for the time that is left, and says so by itself, comes first.
            late = _A_LITTLE if is_users(self.service) else _LATE_SECONDS
            async with asyncio.timeout(left + late) as bound:
                await result_of(call())
        except TimeoutError:
            if not bound.expired():
                raise
            warnings.warn(
                f"{self.service!r} was still inside {moment}() when the time to close its loader"
                " was over, so that was cancelled",
                ResourceWarning,
                stacklevel=2,
            )


def is_users(service: Any) -> bool:
    """Whether a service is none of ours."""
    return not type(service).__module__.startswith("asyncloader.")


def graph_changer(service: Any) -> str:
    """Return what may change a service's graph, its ``initialize`` among it, or nothing.

    A user's service that says itself how many items there are is believed.
    """
    kind = type(service)
    if not _all_ours(kind, "length", "share"):
        return ""
    if not _all_ours(kind, "initialize"):
        return f"{kind.__qualname__}.initialize"
    changer: str = service.graph_changer()
    return changer


def _all_ours(kind: type, *methods: str) -> bool:
    return all(getattr(kind, name).__module__.startswith("asyncloader.") for name in methods)


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
    """Return the reset to await, given what a service passes on that may be in the plain style."""
    if given is None:
        return unchanged
    return given.reset if isinstance(given, PlainReset) else _awaited(given)


class ServiceReset:
    """A reset that a service returned. It says whose it is where it cannot be pickled."""

    def __init__(self, reset: IterResetFn, service_name: str) -> None:
        self._reset = reset
        self._service_name = service_name

    async def __call__(self, datapipe: Any) -> Any:
        return await self._reset(datapipe)

    def __reduce__(self) -> Any:
        # By itself, so that one which includes it is not taken for it; what arrives is the reset.
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
    """A reset for a service written in the plain style, which calls without awaiting."""

    def __init__(self, reset: IterResetFn) -> None:
        self.reset = reset

    def __call__(self, datapipe: Any) -> Any:
        return _finished(self.reset(datapipe))


def _finished(work: Any) -> Any:
    coroutine: Coroutine[Any, Any, Any] = result_of(work)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    coroutine.close()
    raise TypeError(
        "a reset that waits cannot be composed by a plain initialize_iteration;"
        " write it as `async def initialize_iteration` and await iter_reset_fn(datapipe)"
    )
