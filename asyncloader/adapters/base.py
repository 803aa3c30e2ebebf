"""Changing a graph before it runs.

This file is about ``Adapter``: it takes a graph and returns one, which may be the same graph,
changed. Any callable that does so is an adapter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

from asyncloader.arguments import kind_name
from asyncloader.datapipes.base import IterDataPipe, is_iter_pipe, is_pipe
from asyncloader.datapipes.running.traits import hands_over
from asyncloader.graph.edit import replaced

#: What is accepted as an adapter: a function from graph to graph.
AdapterFn = Callable[[Any], Any]


class Adapter(ABC):
    """Changes a graph; a subclass says how in ``__call__``.

    >>> from asyncloader import DataLoader2
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> class Head(Adapter):
    ...     def __init__(self, count):
    ...         self.count = count
    ...     def __call__(self, datapipe):
    ...         return datapipe.header(self.count)
    >>> with DataLoader2(IterableWrapper(range(1000)), Head(3)) as loader:
    ...     list(loader)
    [0, 1, 2]
    """

    @abstractmethod
    def __call__(self, datapipe: Any) -> Any:
        """Return the graph to use instead of the one that ends in ``datapipe``.

        The graph may be changed in place.
        """

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in vars(self).items())
        return f"{type(self).__name__}({told})"


def adapted(datapipe: Any, adapters: AdapterFn | Iterable[AdapterFn] | None) -> Any:
    """Return the graph after one adapter, or several in turn.

    TypeError for an adapter that is not callable or does not return a pipe.

    >>> from asyncloader.adapters import Shuffle
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(4)).shuffle()
    >>> list(adapted(pipe, [Shuffle(False), lambda pipe: pipe.batch(2)]))
    [[0, 1], [2, 3]]
    """
    for adapter in _each(adapters):
        _check_adapter(adapter)
        datapipe = adapter(datapipe)
        if not is_pipe(datapipe):
            raise TypeError(
                f"an adapter must return a pipe, but {adapter!r} returned {type(datapipe).__name__}"
            )
    return datapipe


def appended(datapipe: Any, name: str, *args: Any) -> Any:
    """Return the pipe that the fluent method ``name`` makes over ``datapipe``, ours or torch's.

    A ``to_device`` stays the last pipe: the new one comes before it.
    """
    method = getattr(IterDataPipe, name, None)
    if method is None:
        raise LookupError(
            f"no pipe is registered as {name!r}; import the module that defines it first"
        )
    if not is_iter_pipe(datapipe):
        raise TypeError(
            f"{name} can only follow an IterDataPipe, but the graph ends in the MapDataPipe"
            f" {datapipe!r}; put .to_iter_datapipe() at its end"
        )
    end = end_on_host(datapipe)
    added = method(end, *args)
    return added if end is datapipe else replaced(datapipe, end, added)


def end_on_host(datapipe: Any) -> Any:
    """Return the last pipe that another one may follow: nothing follows ``to_device``."""
    return datapipe.source if hands_over(datapipe) else datapipe


def _check_adapter(adapter: object) -> None:
    if not callable(adapter):
        raise TypeError(f"an adapter must be callable, got {type(adapter).__name__}")
    if isinstance(adapter, type) and issubclass(adapter, Adapter):
        # The class itself, called with a graph, would take the graph for its first setting.
        raise TypeError(
            f"an adapter must be an object, got {kind_name(adapter)}: pass {adapter.__name__}(...)"
        )


def _each(adapters: AdapterFn | Iterable[AdapterFn] | None) -> Iterable[AdapterFn]:
    if adapters is None:
        return ()
    return adapters if isinstance(adapters, Iterable) else (adapters,)
