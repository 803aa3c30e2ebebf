"""Finding the pipes of a graph.

This file is about every pipe that is reached by the edges of the last one, and who reads
whom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from asyncloader.arguments import kind_name
from asyncloader.datapipes.base import IterDataPipe, MapDataPipe, is_pipe
from asyncloader.datapipes.edges import all_readers, edges_of, reached
from asyncloader.datapipes.running.naming import stage_name

T = TypeVar("T")

#: A pipe of either kind.
DataPipe: TypeAlias = IterDataPipe[Any] | MapDataPipe[Any]

#: A graph in nested form: each pipe's id, with the pipe and the graph it reads from.
DataPipeGraph: TypeAlias = dict[int, tuple[Any, "DataPipeGraph"]]


def traverse_dps(datapipe: Any) -> DataPipeGraph:
    """Return the graph that ends in ``datapipe``, as ``{id: (pipe, graph it reads from)}``.

    A pipe with several readers appears under each of them. If pipes read from one another in
    a circle, the edge that closes the circle is left out.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> end = IterableWrapper(range(3)).map(str)
    >>> pipe, reads_from = traverse_dps(end)[id(end)]
    >>> pipe, len(reads_from)
    (map(str), 1)
    """
    graph = Graph(datapipe)
    below: dict[int, DataPipeGraph] = {id(pipe): {} for pipe in graph.pipes}
    for pipe, source in _forward_edges(datapipe, graph):
        below[id(pipe)][id(source)] = (source, below[id(source)])
    return {id(datapipe): (datapipe, below[id(datapipe)])}


def find_dps(graph: DataPipeGraph, dp_type: type) -> list[Any]:
    """Return the graph's pipes of a type (or of types derived from it), breadth-first.

    >>> from asyncloader.datapipes.iter import IterableWrapper, Mapper
    >>> find_dps(traverse_dps(IterableWrapper(range(3)).map(str).map(len)), Mapper)
    [map(len), map(str)]
    """
    return [pipe for pipe in list_dps(graph) if isinstance(pipe, dp_type)]


def list_dps(graph: DataPipeGraph, exclude_dps: Any = None) -> list[Any]:
    """Return every pipe of a graph once, breadth-first from its end.

    ``exclude_dps``, one pipe or several, are left out together with all pipes they read from.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(3))
    >>> list_dps(traverse_dps(source.map(str)), exclude_dps=source)
    [map(str)]
    """
    if not isinstance(graph, dict):
        raise TypeError(f"a graph is what traverse_dps returns, got {type(graph).__name__}")
    excluded = [exclude_dps] if is_pipe(exclude_dps) else list(exclude_dps or ())
    hidden = {id(pipe) for end in excluded for pipe in breadth_first(end)}
    found: dict[int, Any] = {}
    level = graph
    while level:
        fresh = {key: entry for key, entry in level.items() if key not in found}
        found.update((key, pipe) for key, (pipe, _) in fresh.items())
        level = {key: entry for _, below in fresh.values() for key, entry in below.items()}
    return [pipe for key, pipe in found.items() if key not in hidden]


def breadth_first(datapipe: Any) -> list[Any]:
    """Return every pipe of the graph that ends in ``datapipe`` once, breadth-first.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> breadth_first(IterableWrapper(range(3)).map(str))
    [map(str), IterableWrapper()]
    """
    return list(Graph.of(datapipe).pipes)


def pipes_of(value: Any) -> list[Any]:
    """Return every pipe of the graph that ends in ``value``, if that is a pipe at all."""
    return breadth_first(value) if is_pipe(value) else []


class Graph:
    """The pipes of a graph, and who reads whom, as it was when this was made.

    It is made once of what ends the graph, passed on, and asked. It does not follow later changes
    of the pipes, and what was found out about it is kept.
    """

    def __init__(self, end: Any) -> None:
        if not is_pipe(end):
            raise TypeError(f"a graph must end in a pipe, got {kind_name(end)}")
        self.end = end
        self._sources: dict[int, list[Any]] = {}
        self._found: dict[Callable[[Graph], Any], Any] = {}
        #: Every pipe once, breadth-first from the end: a pipe's place in it is its number.
        self.pipes = tuple(reached([end], self._found_sources))

    def _found_sources(self, pipe: Any) -> list[Any]:
        found = self._sources[id(pipe)] = edges_of(pipe)
        return found

    @classmethod
    def of(cls, end: Any) -> Graph:
        """Return the graph that ends in a pipe, or the graph itself where it is one already."""
        return end if isinstance(end, Graph) else Graph(end)

    def once(self, find: Callable[[Graph], T]) -> T:
        """Return what ``find`` returns for this graph; it is called once."""
        if find not in self._found:
            self._found[find] = find(self)
        found: T = self._found[find]
        return found

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each pipe, by its id."""
        return {id(pipe): number for number, pipe in enumerate(self.pipes)}

    def sources(self, pipe: Any) -> list[Any]:
        """Return the pipes that a pipe of the graph reads from."""
        return self._sources[id(pipe)]

    def readers(self, pipe: Any) -> list[Any]:
        """Return the pipes of the graph that read from a pipe, breadth-first."""
        return self._readers.get(id(pipe), [])

    def upstream(self, pipes: Iterable[Any]) -> set[int]:
        """Return the ids of some pipes and of all they read from, however far."""
        return set(map(id, reached(pipes, self.sources)))

    def downstream(self, pipe: Any) -> dict[int, Any]:
        """Return a pipe and all that read it, however far, by their ids, the nearest first."""
        return all_readers(pipe, self.readers)

    def sources_first(self) -> list[Any]:
        """Return every pipe after all that it reads from; ValueError where they form a circle."""
        unread = {id(pipe): len(self.readers(pipe)) for pipe in self.pipes}
        order: list[Any] = [self.end] if not unread[id(self.end)] else []
        for pipe in order:  # it grows while it is read
            for source in self.sources(pipe):
                unread[id(source)] -= 1
                if not unread[id(source)]:
                    order.append(source)
        if len(order) < len(self.pipes):
            names = ", ".join(stage_name(pipe) for pipe in self.pipes if unread[id(pipe)])
            raise ValueError(
                f"pipes must not read from one another in a circle: {names}; let one of them read"
                " something else"
            )
        return order[::-1]

    @cached_property
    def _readers(self) -> dict[int, list[Any]]:
        readers: dict[int, list[Any]] = {}
        for pipe in self.pipes:
            for source in self.sources(pipe):
                readers.setdefault(id(source), []).append(pipe)
        return readers


def _forward_edges(datapipe: Any, graph: Graph) -> Iterator[tuple[Any, Any]]:
    # Depth-first, with our own stack: a graph may be deeper than Python's recursion limit.
    entered, on_path = {id(datapipe)}, {id(datapipe)}
    stack = [(datapipe, iter(graph.sources(datapipe)))]
    while stack:
        pipe, sources = stack[-1]
        for source in sources:
            if id(source) in on_path:
                continue
            yield pipe, source
            if id(source) not in entered:
                entered.add(id(source))
                on_path.add(id(source))
                stack.append((source, iter(graph.sources(source))))
                break
        else:
            stack.pop()
            on_path.discard(id(pipe))
