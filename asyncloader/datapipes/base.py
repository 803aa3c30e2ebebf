"""What every datapipe is.

This file is about ``IterDataPipe`` and ``MapDataPipe``, the bases of all pipes:
how a pipe is iterated in either colour, copied, named, and given its fluent
methods.

A pipe implements one colour. A pipe that computes implements ``__iter__`` as a
generator, or ``new_pass`` where a pass has state that is worth looking at
between two items. A pipe that waits implements ``__aiter__``. The other colour
comes from here.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from asyncloader.datapipes.crossing import from_loop, from_thread
from asyncloader.datapipes.fluent import IterFluent, MapFluent
from asyncloader.datapipes.naming import stage_name

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound=type[Any])


class Pass(Generic[T_co]):
    """One pass over a pipe, from its first item to its last.

    Where a pass stands is in its fields, never in the locals of a generator, so
    that it can be read between any two items.
    """

    def __iter__(self) -> Iterator[T_co]:
        raise NotImplementedError


class DataPipe:
    """What iter pipes and map pipes share."""

    functional_name: ClassVar[str | None] = None

    #: The pipes this one reads from, where it wants to say so itself. Otherwise
    #: they are found among its attributes.
    edges: Iterable[Any] | None = None

    def is_replicable(self) -> bool:
        """Whether each worker may run a copy; otherwise the pipe stays with the loader."""
        return True

    def lives_with_loader(self) -> bool:
        """Whether the pipe stays with the loader while its readers may run in workers."""
        return False

    def is_splitter(self) -> bool:
        """Whether the pipe is read through branches that share what it holds."""
        return False

    def waits(self) -> bool:
        """Whether this pipe itself, leaving its sources aside, takes an event loop."""
        return False

    def __getstate__(self) -> Any:
        # A copy is a pipe that nobody has iterated yet.
        state = object.__getstate__(self)
        fields, *slots = state if isinstance(state, tuple) else (state,)
        kept = {name: value for name, value in (fields or {}).items() if name != "current_pass"}
        return (kept, *slots) if slots else kept

    def __repr__(self) -> str:
        return stage_name(self)


class IterDataPipe(DataPipe, IterFluent[T_co]):
    """A stream of items: ``for`` and ``async for`` both work on it, each time afresh."""

    #: The latest pass, if the pipe has passes at all and was iterated.
    current_pass: Pass[T_co] | None = None

    def new_pass(self) -> Pass[T_co]:
        """Return a pass that begins at the first item; a pipe with state implements this."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[T_co]:
        cls = type(self)
        if cls.new_pass is not IterDataPipe.new_pass:
            self.current_pass = self.new_pass()
            return iter(self.current_pass)
        if cls.__aiter__ is not IterDataPipe.__aiter__:
            return from_loop(self)
        raise NotImplementedError(
            f"{cls.__qualname__} must define __iter__, __aiter__ or new_pass to be iterated"
        )

    def __aiter__(self) -> AsyncIterator[T_co]:
        return from_thread(self)

    def is_async(self) -> bool:
        """Whether a loop iterates this pipe by itself, without a thread."""
        return type(self).__aiter__ is not IterDataPipe.__aiter__

    def waits(self) -> bool:
        """Whether this pipe, used in a ``for``, needs an event loop to run on."""
        cls = type(self)
        computes = (
            cls.__iter__ is not IterDataPipe.__iter__ or cls.new_pass is not IterDataPipe.new_pass
        )
        return self.is_async() and not computes

    @classmethod
    def register_datapipe_as_function(cls, name: str, pipe_class: type) -> None:
        """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)``."""
        _register(IterDataPipe, name, pipe_class)


class MapDataPipe(DataPipe, MapFluent[T_co]):
    """Items that are looked up by key: ``pipe[key]`` and, for keys ``0 … n-1``, ``len(pipe)``."""

    def __getitem__(self, key: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__qualname__} must define __getitem__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__qualname__} has no length")

    def __iter__(self) -> Iterator[T_co]:
        for index in range(len(self)):
            yield self[index]

    @classmethod
    def register_datapipe_as_function(cls, name: str, pipe_class: type) -> None:
        """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)``."""
        _register(MapDataPipe, name, pipe_class)


def functional_datapipe(name: str, *, on: type[DataPipe] | None = None) -> Callable[[P], P]:
    """Register a pipe class under a fluent name: ``pipe.name(...)`` builds it over ``pipe``.

    The name is given to pipes of the class's own kind, or to those of kind ``on``.
    """
    if not name.isidentifier():
        raise ValueError(f"a functional name must be an identifier, got {name!r}")

    def register(pipe_class: P) -> P:
        if not issubclass(pipe_class, DataPipe):
            raise TypeError(f"{pipe_class.__qualname__} is no IterDataPipe and no MapDataPipe")
        kind = MapDataPipe if issubclass(pipe_class, MapDataPipe) else IterDataPipe
        _register(on or kind, name, pipe_class)
        pipe_class.functional_name = name
        return pipe_class

    return register


def _register(base: type, name: str, pipe_class: type) -> None:
    taken = getattr(base, name, None)
    builds = getattr(taken, "builds", None)
    # Running a notebook cell again replaces what it registered before.
    if taken is not None and _identity(builds) != _identity(pipe_class):
        raise ValueError(f"the functional name {name!r} is already taken by {taken!r}")

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        return pipe_class(self, *args, **kwargs)

    build.__name__ = name
    build.__qualname__ = f"{base.__name__}.{name}"
    build.__doc__ = pipe_class.__doc__
    build.__signature__ = _method_signature(pipe_class)  # type: ignore[attr-defined]
    build.builds = pipe_class  # type: ignore[attr-defined]
    setattr(base, name, build)


def _method_signature(pipe_class: type) -> inspect.Signature:
    signature = inspect.signature(pipe_class)
    source, *others = signature.parameters.values()
    # `self` is the first source. A pipe of several takes the others under its own name.
    if source.kind is source.VAR_POSITIONAL:
        others.insert(0, source)
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return signature.replace(parameters=[itself, *others])


def _identity(pipe_class: type | None) -> tuple[str, str] | None:
    return None if pipe_class is None else (pipe_class.__module__, pipe_class.__qualname__)


def is_iter_pipe(value: object) -> bool:
    """Whether ``value`` is a stream of items: one of our pipes, or of torch's."""
    return isinstance(value, (IterDataPipe, *_torch_pipes("IterDataPipe")))


def is_map_pipe(value: object) -> bool:
    """Whether ``value`` is looked up by key: one of our pipes, or of torch's."""
    return isinstance(value, (MapDataPipe, *_torch_pipes("MapDataPipe")))


def is_pipe(value: object) -> bool:
    """Whether ``value`` is a datapipe, ours or torch's."""
    return is_iter_pipe(value) or is_map_pipe(value)


def is_async_pipe(value: object) -> bool:
    """Whether a loop iterates ``value`` by itself, without a thread; torch's pipes never."""
    return isinstance(value, IterDataPipe) and value.is_async()


def waits(value: object) -> bool:
    """Whether ``value``, used in a ``for``, needs an event loop; torch's pipes never do."""
    return isinstance(value, DataPipe) and value.waits()


def _torch_pipes(name: str) -> tuple[type, ...]:
    # Nobody can hold one of torch's pipes before torch's module of pipes was imported.
    module = sys.modules.get("torch.utils.data.datapipes.datapipe")
    found = getattr(module, name, None)
    return () if found is None else (found,)
