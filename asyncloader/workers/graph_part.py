"""A part of the graph that a process runs, from epoch to epoch.

This file is about ``GraphPart``, which is seeded and reset for each epoch; about pickling the
resets for other processes; and about checking what a user's function has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from asyncloader.arguments import function_name
from asyncloader.datapipes.base import is_iter_pipe
from asyncloader.datapipes.patterns import Applier
from asyncloader.datapipes.recording import Numbering
from asyncloader.datapipes.replaying import keeps_positions, needs_replay
from asyncloader.datapipes.running.cursors import number_of
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, RunTree
from asyncloader.datapipes.running.traits import (
    is_ours,
    is_repeatable,
    is_without_order,
    makes_again,
    stands_in,
)
from asyncloader.datapipes.splitting import Branch
from asyncloader.errors import LoaderError, SnapshotError
from asyncloader.graph.recorded import numbering_of
from asyncloader.graph.settings import PartSeeds, seed_newcomers, tell_epoch
from asyncloader.graph.walk import Graph, pipes_of
from asyncloader.seeds import SeedGenerator
from asyncloader.transport.code import dumps_code, loads_code
from asyncloader.workers.dispatch_source import FromDispatcher, FromLoader

#: The branches of splitters, by the splitters' numbers.
Branches = dict[int | None, set[int]]


class PartPipes(list[Any]):
    """The pipes of a part, the last one first, and what its marks have to know of them."""

    def __init__(self, pipes: Iterable[Any] = ()) -> None:
        super().__init__(pipes)
        #: Whether one of them makes items again that were made before, to resume.
        self.makes_again = any(map(_makes_again, self))
        #: Whether the loader feeds them. Such items cannot be made again.
        self.is_fed = any(isinstance(pipe, FromLoader) for pipe in self)
        #: The one that numbers items, so that the loader is told what becomes of each, or None.
        self.numbering: Any = None
        #: Whether there is one, although something was added behind it.
        self.tells = any(map(_tells, self))
        #: The name of a pipe without order of which nothing is recorded, or "".
        self.unrecorded = ""
        if self.tells:
            self._find_numbering()
        else:
            self.unrecorded = next(map(stage_name, filter(is_without_order, self)), "")
        #: The pipes of dealt items, as ``_readings`` finds them.
        self.dealt = list(_readings(self))

    def _find_numbering(self) -> None:
        try:
            self.numbering = numbering_of(self[0])
        except LoaderError:
            if not all(map(is_repeatable, self)):
                raise
            self.unrecorded = stage_name(self[0])


def _tells(pipe: Any) -> bool:
    return isinstance(pipe, Numbering) and pipe.tells


def _makes_again(pipe: Any) -> bool:
    return makes_again(pipe) or (is_iter_pipe(pipe) and needs_replay(pipe))


def _readings(pipes: Sequence[Any]) -> Iterator[tuple[FromDispatcher, Branches, bool]]:
    """Yield each pipe of dealt items, the branches that read it, and whether it is replayed."""
    for inlet in pipes:
        if type(inlet) is FromDispatcher:
            _, *readers = Graph(pipes[0]).downstream(inlet).values()
            branches: Branches = {}
            for pipe in readers:
                if isinstance(pipe, Branch):
                    branches.setdefault(number_of(pipe.source), set()).add(pipe.index)
            yield inlet, branches, any(map(needs_replay, readers))


class PreparedPart(NamedTuple):
    """What an epoch iterates: a part's last pipe, or what a reset returned instead."""

    edge: Edge[Any]
    #: All pipes of the graph that ends there; none if a reset returned no pipe.
    pipes: PartPipes

    @property
    def end(self) -> Any:
        """The last pipe."""
        return self.edge.pipe


#: An empty part.
NOTHING = PreparedPart(Edge((), RunTree()), PartPipes())


class GraphPart:
    """The pipes that end in ``end``; ``seeds`` knows which pipe takes which seed."""

    def __init__(self, end: Any, seeds: PartSeeds) -> None:
        self.end = end
        self._seeds = seeds
        self._pipes = PartPipes()

    def seed(self, shared_seeds: Sequence[int], generator: SeedGenerator) -> None:
        """Give the pipes their seeds for an epoch."""
        # Only a reset, or a pipe of the user's, changes the graph.
        if not (self._pipes and all(map(is_ours, self._pipes))):
            pipes = pipes_of(self.end)
            if list(map(id, pipes)) != list(map(id, self._pipes)):
                self._pipes = PartPipes(pipes)
                self._seeds.find(self.end)
        self._seeds.give(shared_seeds, generator)
        tell_epoch(self._pipes, generator.epoch)

    def prepared(self, tree: RunTree) -> PreparedPart:
        """Return what is iterated if there is nothing to reset; seed it first."""
        return _begun_anew(tree, self.end, self._pipes)

    def reset(
        self, tree: RunTree, reset: Callable[[Any], Any], generator: SeedGenerator
    ) -> PreparedPart:
        """Reset the graph, seed new pipes in it, and return what is iterated."""
        known, self._pipes = self._pipes, PartPipes()
        end = reset(self.end)
        pipes = pipes_of(end)
        if pipes:
            seed_newcomers(end, known, generator)
        return _begun_anew(tree, end, PartPipes(pipes))


def _begun_anew(tree: RunTree, end: Any, pipes: PartPipes) -> PreparedPart:
    tree.add(pipes)
    return PreparedPart(Edge(end, tree), pipes)


#: The pickle for no resets.
NO_RESETS = b""

#: A reset of the graph, and the function that is called with a worker's graph, its
#: WorkerInfo and its SeedGenerator.
Resets = tuple[Callable[[Any], Any], Callable[[Any, Any, Any], Any]]


def dump_resets(
    reset: Callable[[Any], Any], worker_reset_fn: Callable[[Any, Any, Any], Any] | None
) -> bytes:
    """Pickle the resets for ``load_resets``, with their code if necessary."""
    return dumps_code((reset, worker_reset_fn or _kept))


def load_resets(data: bytes) -> Resets:
    """Return the resets, which may be async, or None."""
    resets: Resets = loads_code(data)
    return resets


def resets_name(worker_reset_fn: Callable[[Any, Any, Any], Any] | None) -> str:
    """Return the name of the resets in messages, given the worker's own reset function."""
    if worker_reset_fn is None or worker_reset_fn is _kept:
        return "the reset of a reading service"
    return f"worker_reset_fn={function_name(worker_reset_fn)}, or the reset of a reading service,"


def _kept(pipe: Any, *_: Any) -> Any:
    return pipe


def is_as_long(end: Any, pipes: Sequence[Any]) -> bool:
    """Whether a graph has as many items as these pipes, whose end was ``pipes[0]``.

    True if it is the same pipes, followed only by one-to-one pipes.
    """
    while end is not pipes[0] and isinstance(end, Applier) and not end.tolerance.leaves_out:
        end = end.source
    return list(map(id, pipes_of(end))) == list(map(id, pipes))


def check_alike(given: Sequence[Any], returned: Any, giver: str) -> None:
    """Raise SnapshotError, naming ``giver``, unless it returned a one-to-one graph of the given.

    ``given`` are the pipes of the graph before. A copy does not count: it has other seeds.
    """
    pipes = pipes_of(returned)
    before, now = set(map(id, given)), set(map(id, pipes))
    for pipe in given:
        if id(pipe) not in now:
            raise _refusal(giver, f"takes {stage_name(pipe)} out of it, so that it")
    _check_kept(pipes, before, giver)


def check_added(given: Sequence[Any], returned: Any) -> None:
    """Raise SnapshotError if anything was added to the given pipes that is not one to one.

    Pipes that replace those of another process do not count.
    """
    pipes = [pipe for pipe in pipes_of(returned) if not stands_in(pipe)]
    _check_kept(pipes, set(map(id, given)), "a reading service")


def _check_kept(pipes: Iterable[Any], before: set[int], giver: str) -> None:
    for pipe in pipes:
        if id(pipe) not in before and not keeps_positions(pipe):
            raise _refusal(giver, f"puts {stage_name(pipe)} into it, which")


def _refusal(giver: str, what: str) -> SnapshotError:
    return SnapshotError(
        "the state was taken in the middle of an epoch with another number of workers or ranks:"
        f" {giver} changes the graph that is run and {what} gives other items with"
        " another number of them. Change the graph itself, before the loader is made, or use as"
        " many workers and ranks as before, or take the state between epochs"
    )
