"""What every datapipe is.

This file is about ``IterDataPipe`` and ``MapDataPipe``, the bases of all pipes:
how a pipe is iterated by ``for`` and ``async for``, copied, named, and given its
fluent methods.

A pipe that computes implements ``__iter__`` as a generator; a pipe that waits for I/O implements
``__aiter__`` as an async generator. The base class adds the other form. Built-in pipes that can
resume between two items implement ``new_pass`` instead.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, NoReturn, TypeVar

from asyncloader.datapipes.running.bridge import from_loop
from asyncloader.datapipes.running.cursor_forms import MOST, Fields, Of, whole
from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.run import Edge, Pass, RunTree, Stride, tree_of
from asyncloader.datapipes.running.traits import (
    is_of_package,
    is_ours,
    torch_methods,
    torch_pipes,
)
from asyncloader.datapipes.torchdata_names import RENAMED, advice_for
from asyncloader.main_script import MAIN, home_of

T_co = TypeVar("T_co", covariant=True)
P = TypeVar("P", bound=Callable[..., Any])

#: Returns memory for so many bytes, or None if there is none.
Allocate = Callable[[int], memoryview | None]


def check_sync_and_async(cls: type) -> None:
    """Raise TypeError for a class whose ``__iter__`` is async, or whose ``__aiter__`` is not."""
    iterate, aiterate = vars(cls).get("__iter__"), vars(cls).get("__aiter__")
    if inspect.isasyncgenfunction(iterate) or inspect.iscoroutinefunction(iterate):
        raise TypeError(
            f"{cls.__qualname__}.__iter__ is async; name it __aiter__: the base class adds"
            " __iter__ by itself"
        )
    if inspect.isgeneratorfunction(aiterate) or inspect.iscoroutinefunction(aiterate):
        raise TypeError(
            f"{cls.__qualname__}.__aiter__ is no async generator: write `async def` and yield the"
            " items; if it awaits nothing, write __iter__ instead"
        )


#: The modules that define the pipe of each fluent method: those registered here, and those
#: that so far only another process has registered.
_homes: dict[str, set[str]] = {}
_elsewhere: dict[str, set[str]] = {}


def register(base: type, name: str, pipe_class: Callable[..., Any]) -> None:
    """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)`` for the pipes of class ``base``."""
    taken = getattr(base, name, None)
    builds = getattr(taken, "builds", None)
    # Running a notebook cell again replaces what it registered before.
    if taken is not None and _identity(builds) != _identity(pipe_class):
        by = taken if builds is None else f"{builds.__module__}.{builds.__qualname__}"
        raise ValueError(f"the functional name {name!r} is already taken by {by}; choose another")

    def build(self: Any, *args: Any, **kwargs: Any) -> Any:
        return pipe_class(self, *args, **kwargs)

    build.__name__ = name
    build.__qualname__ = f"{base.__name__}.{name}"
    build.__doc__ = pipe_class.__doc__
    # Its annotations are evaluated in the pipe's own module.
    build.__module__ = pipe_class.__module__
    build.__signature__ = _method_signature(pipe_class)  # type: ignore[attr-defined]
    build.builds = pipe_class  # type: ignore[attr-defined]
    setattr(base, name, build)
    if not is_of_package(pipe_class):
        # Names of ours would be in the way of torchdata, which registers the same ones.
        torch_methods(base.__name__).setdefault(name, pipe_class)
    _homes.setdefault(name, set()).add(home_of(pipe_class) or MAIN)


def homes_of_methods() -> dict[str, set[str]]:
    """Return the modules that define the pipes of fluent methods, by method name."""
    names = _homes.keys() | _elsewhere.keys()
    return {name: _homes.get(name, set()) | _elsewhere.get(name, set()) for name in names}


def expect_methods(homes: Mapping[str, set[str]]) -> None:
    """Import these methods' modules when a pipe's method of that name is called."""
    _elsewhere.update({name: set(modules) for name, modules in homes.items()})


def bring(name: str) -> bool:
    """Import the modules that register a method; False if none is known."""
    modules = _elsewhere.get(name, set())
    missing = modules - {MAIN}
    modules -= missing
    for module in missing:
        importlib.import_module(module)
    return bool(missing)


def is_of_script(name: str) -> bool:
    """Whether another process's main script registered the method; it is not imported here."""
    return MAIN in _elsewhere.get(name, ())


def _method_signature(pipe_class: Callable[..., Any]) -> inspect.Signature:
    signature = inspect.signature(pipe_class)
    others = list(signature.parameters.values())
    # `self` is the first source; a pipe of several sources takes the others as *datapipes.
    if others and others[0].kind is not inspect.Parameter.VAR_POSITIONAL:
        del others[0]
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    # What makes several pipes says so; the constructors of others say None, of __init__.
    makes_itself = signature.return_annotation in (None, "None", inspect.Signature.empty)
    returned = pipe_class.__name__ if makes_itself else signature.return_annotation
    return signature.replace(parameters=[itself, *others], return_annotation=returned)


def _identity(pipe_class: Callable[..., Any] | None) -> tuple[str, str] | None:
    return None if pipe_class is None else (pipe_class.__module__, pipe_class.__qualname__)


#: What to call on a pipe of the other kind, by the name of the kind that has the method.
_WAYS = {
    "IterDataPipe": "pipes that are iterated have it: call .to_iter_datapipe() first",
    "MapDataPipe": "pipes that are looked up by key have it: call .to_map_datapipe() first",
}

_OF_SCRIPT = (
    "the main script registers it, which a worker does not import: call the class itself, or"
    " define it in a module"
)


class UnknownName(AttributeError):
    """A pipe has no attribute of this name; the message suggests a similar one."""

    def __reduce__(self) -> Any:
        return UnknownName, (str(self),)


class _MissingName:
    """The message for a name that a class of pipes does not have.

    It is built only when shown: ``hasattr`` on pipes is frequent and discards the error.
    ``others`` is the base of the pipes of the other kind.
    """

    def __init__(self, cls: type, name: str, others: type) -> None:
        self._of = cls, name, others

    def __str__(self) -> str:
        cls, name, _ = self._of
        return f"{cls.__qualname__} has no attribute {name!r}{_hint(*self._of)}"

    def __repr__(self) -> str:
        return repr(str(self))


def _hint(cls: type, name: str, others: type) -> str:
    if is_of_script(name):
        return f"; {_OF_SCRIPT}"
    if advice := advice_for(name):
        return f"; {advice}"
    if hasattr(others, name):
        return f"; {_WAYS[others.__name__]}"
    names = [each for each in dir(cls) if not each.startswith("_")]
    names += torch_methods(_kind_of(cls).__name__)
    near = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {near[0]}?" if near else ""


if TYPE_CHECKING:
    from asyncloader.datapipes.fluent import IterFluent, MapFluent
else:
    # At run time pipes have the methods that ``functional_datapipe`` registers.
    IterFluent = MapFluent = Generic


class DataPipe:
    """What iter pipes and map pipes share."""

    functional_name: ClassVar[str | None] = None

    #: Whether resuming may make items again that were made before: those that a pass holds,
    #: has read ahead, or must replay.
    makes_again: ClassVar[bool] = True

    #: The tree that runs this pipe, if it is a built-in one; see ``RunTree``.
    _tree: RunTree | None = None

    #: Its name in messages, if it is a part of another pipe, or replaces one and keeps its name.
    known_as: str = ""

    #: Whether this pipe replaces pipes that run in another process.
    is_stand_in: ClassVar[bool] = False

    #: Whose time is spent in a pipe that only keeps books: its "source"'s or its "reader"'s.
    times_with: ClassVar[str] = ""

    #: Whether the source is read in a thread of the pipe's own, further than its reader asked.
    reads_ahead: ClassVar[bool] = False

    #: Whether its items are in flight to a device until the consumer takes them. Then it is the
    #: last pipe of a loader's graph.
    hands_over: ClassVar[bool] = False

    #: Whether the sources are read one after another, so that the same pipe may occur twice.
    reads_in_turn: ClassVar[bool] = False

    #: What is saved of its place; None where its position says it all, or it has no place.
    State: type[Fields] | None = None

    #: The pipes this one reads from. If it is not set, they are found among the attributes.
    edges: Iterable[Any] | None = None

    #: Whether the pipe itself gives each worker different items, because it asks
    #: ``get_worker_info``. Then no sharding pipe may follow.
    shards_itself: bool = False

    #: Whether its function gives the same result when it is called again with the same item.
    repeatable: bool = True

    #: Whether a state has the results of its function that are not settled.
    keep_results: bool = False

    def is_replicable(self) -> bool:
        """Whether each worker may run a copy; otherwise the pipe stays with the loader."""
        # Results are kept where states are taken.
        return not self.keep_results

    def lives_with_loader(self) -> bool:
        """Whether the pipe stays with the loader while its readers may run in workers."""
        return False

    def rewired(self, graph: Any) -> Any:
        """Return the graph to run instead; called on a pipe that lives with the loader."""
        return graph

    def carry(self, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> bool:
        """Let envelopes pass, by calling ``wrap(function)`` where ``function`` was called.

        Return False if the pipe has no such function, or is not one-to-one.
        """
        return False

    def in_section(self) -> Any:
        """Return what takes the pipe's place where items are numbered; see ``recording.py``.

        That may be the pipe itself, changed. None if the numbers of its items cannot be told.
        """
        return None

    def goes_by_clock(self) -> bool:
        """Whether the pipe's items depend on the time, so that no snapshot can restore them."""
        return False

    def is_splitter(self) -> bool:
        """Whether the pipe is read through branches that share what it holds."""
        return False

    def waits(self) -> bool:
        """Whether this pipe itself, without its sources, needs an event loop."""
        return False

    def make_in(self, allocate: Allocate) -> None:
        """Make items in memory from ``allocate``, if that saves a copy.

        Called only on the last pipe: its items are sent from that memory, so no other pipe
        may change or keep them.
        """

    def has_no_order(self) -> bool:
        """Whether the pipe yields items as they are ready, so that their order may differ."""
        return False

    def most_items(self) -> int:
        """Return a bound of how many items the pipe yields, if plain data say one; else MOST."""
        return MOST

    def begin_at(self, state: Any) -> None:
        """Note the state from which the current pass resumes, if later passes follow from it."""

    def yielded_at(self, state: Any) -> int:
        """Return how many items the pipe had yielded at a state of its, or a smaller number."""
        return int(state.position())

    def __repr__(self) -> str:
        return stage_name(self)

    def _repr_html_(self) -> str | None:
        try:
            return _picture_of(self)
        except (TypeError, ValueError):
            # What it reads is no graph: a notebook shows its name.
            return None

    if not TYPE_CHECKING:  # a type checker would accept any attribute name

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):
                # A property of the pipe raised AttributeError: show that error.
                return object.__getattribute__(self, name)
            if bring(name):
                return getattr(self, name)
            kind = _kind_of(type(self))
            if torchs := torch_methods(kind.__name__).get(name):
                return functools.partial(torchs, self)
            if name in RENAMED:
                return getattr(self, RENAMED[name])
            others = MapDataPipe if kind is IterDataPipe else IterDataPipe
            raise UnknownName(_MissingName(type(self), name, others))


def show_in_notebooks(picture_of: Callable[[Any], str]) -> None:
    """Let notebooks show every pipe as the HTML that this function returns for it."""
    global _picture_of
    _picture_of = picture_of


#: What draws graphs knows pipes, and not the other way round.
_picture_of: Callable[[Any], str] = repr


#: torch's DataLoader takes whatever is no IterableDataset of torch's for something that has a
#: length and keys, and asks for both.
_FOR_TORCH = (
    "for torch's DataLoader wrap it: as_torch_dataset(pipe), of asyncloader.datapipes.torch_dataset"
)


class IterDataPipe(DataPipe, IterFluent[T_co]):
    """A stream of items: ``for`` and ``async for`` both work on it, each time from the start.

    >>> class Countdown(IterDataPipe):
    ...     def __init__(self, start):
    ...         self.start = start
    ...     def __iter__(self):
    ...         yield from range(self.start, 0, -1)
    >>> list(Countdown(3).map(str))
    ['3', '2', '1']
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        check_sync_and_async(cls)

    def __add__(self, other: Iterable[Any]) -> IterDataPipe[Any]:
        """Return the items of this pipe, then those of the other: ``concat``."""
        return self.concat(other) if is_iter_pipe(other) else NotImplemented

    def __getitem__(self, key: Any) -> NoReturn:
        raise TypeError(f"{self!r} is iterated, not looked up by key; {_FOR_TORCH}")

    def __len__(self) -> int:
        # ``list`` asks for the length too, so this has to be quick.
        raise TypeError(
            f"{type(self).__qualname__} has no length: how many items it yields is known at its"
            f" end; {_FOR_TORCH}"
        )

    def __bool__(self) -> bool:
        """Whether there may be items: without a length there may be."""
        try:
            return len(self) > 0
        except TypeError:
            return True

    def new_pass(self, edge: Edge[Any]) -> Pass[Any]:
        """Return a pass that begins at the first item; built-in pipes that resume define this."""
        raise NotImplementedError

    def has_passes(self) -> bool:
        """Whether ``new_pass`` runs the pipe; a subclass that overrides iteration has none."""
        cls = type(self)
        iterates = cls.__iter__ is not IterDataPipe.__iter__
        aiterates = cls.__aiter__ is not IterDataPipe.__aiter__
        return cls.new_pass is not IterDataPipe.new_pass and not iterates and not aiterates

    def __iter__(self) -> Iterator[T_co]:
        edge: Edge[T_co] = Edge(self, tree_of(self))
        makes_passes = type(self).new_pass is not IterDataPipe.new_pass
        if makes_passes and not (self.is_async() and self.waits()):
            return edge.iterated()
        if self.is_async():
            return from_loop(edge)
        raise NotImplementedError(
            f"{type(self).__qualname__} must define __iter__ or __aiter__ to be iterated"
        )

    def __aiter__(self) -> AsyncIterator[T_co]:
        edge: Edge[T_co] = Edge(self, tree_of(self))
        if type(self).new_pass is not IterDataPipe.new_pass and self.is_async():
            return aiter(edge.new_pass())
        return aiter(edge.abegin())

    def picks(self) -> bool:
        """Whether the pipe can make single items by position without making all before them."""
        return False

    def iter_at(self, positions: list[int]) -> Iterator[T_co]:
        """Iterate the items at these ascending positions, of a pipe without passes."""
        raise NotImplementedError

    def can_share(self) -> bool:
        """Whether ``iter_share`` makes the items of one share, and none of the others."""
        return False

    def iter_share(self, edge: Edge[Any], share: Stride, cursors: Cursors) -> Iterator[T_co]:
        """Iterate one share of the items, given earlier cursors; begins at once."""
        raise NotImplementedError

    def is_async(self) -> bool:
        """Whether an event loop iterates this pipe without a thread."""
        return type(self).__aiter__ is not IterDataPipe.__aiter__

    def waits(self) -> bool:
        """Whether this pipe, used in a ``for``, needs an event loop to run on."""
        return self.is_async() and type(self).__iter__ is IterDataPipe.__iter__

    @classmethod
    def register_datapipe_as_function(cls, name: str, pipe_class: type) -> None:
        """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)``."""
        register(IterDataPipe, name, pipe_class)


class MapDataPipe(DataPipe, MapFluent[T_co]):
    """Items that are looked up by key: ``pipe[key]`` and, for keys ``0 … n-1``, ``len(pipe)``.

    >>> class Squares(MapDataPipe):
    ...     def __len__(self):
    ...         return 4
    ...     def __getitem__(self, key):
    ...         return key * key
    >>> Squares().map(str)[3], list(Squares())
    ('9', [0, 1, 4, 9])
    """

    makes_again = False

    def __getitem__(self, key: Any) -> T_co:
        raise NotImplementedError(f"{type(self).__qualname__} must define __getitem__")

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__qualname__} has no length")

    def __iter__(self) -> Iterator[T_co]:
        for index in range(len(self)):
            yield self[index]

    def __add__(self, other: MapDataPipe[Any]) -> MapDataPipe[Any]:
        """Return what has the items of this pipe, then those of the other: ``concat``."""
        return self.concat(other) if is_map_pipe(other) else NotImplemented

    @classmethod
    def register_datapipe_as_function(cls, name: str, pipe_class: type) -> None:
        """Make ``pipe.name(...)`` build ``pipe_class(pipe, ...)``."""
        register(MapDataPipe, name, pipe_class)


def functional_datapipe(name: str, *, on: type[DataPipe] | None = None) -> Callable[[P], P]:
    """Register a pipe class under a fluent name: ``pipe.name(...)`` builds it over ``pipe``.

    The name is given to pipes of the class's own kind, or to those of kind ``on``. With ``on`` a
    function may be registered as well, such as one that returns several pipes.

    >>> @functional_datapipe("every_other")
    ... class EveryOther(IterDataPipe):
    ...     def __init__(self, source):
    ...         self.source = source
    ...     def __iter__(self):
    ...         for number, item in enumerate(self.source):
    ...             if number % 2 == 0:
    ...                 yield item
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper("abcde").every_other())
    ['a', 'c', 'e']
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a functional name must be an identifier, got {name!r}")

    def registered(pipe_class: P) -> P:
        if isinstance(pipe_class, type):
            if not issubclass(pipe_class, DataPipe):
                raise TypeError(
                    f"{pipe_class.__qualname__} must derive from IterDataPipe or MapDataPipe"
                )
            kind = on or _kind_of(pipe_class)
        elif on is None:
            raise TypeError(
                f"{pipe_class.__qualname__} is no class, so pass on=IterDataPipe or"
                " on=MapDataPipe: the pipes that get the method"
            )
        else:
            kind = on
        register(kind, name, pipe_class)
        pipe_class.functional_name = name  # type: ignore[attr-defined]
        return pipe_class

    return registered


def is_iter_pipe(value: object) -> bool:
    """Whether ``value`` is a stream of items: one of our pipes, or of torch's."""
    return isinstance(value, (IterDataPipe, *torch_pipes("IterDataPipe")))


def is_map_pipe(value: object) -> bool:
    """Whether ``value`` is looked up by key: one of our pipes, or of torch's."""
    return isinstance(value, (MapDataPipe, *torch_pipes("MapDataPipe")))


def is_pipe(value: object) -> bool:
    """Whether ``value`` is a datapipe, ours or torch's."""
    if isinstance(value, IterDataPipe | MapDataPipe):
        return True
    return isinstance(value, (*torch_pipes("IterDataPipe"), *torch_pipes("MapDataPipe")))


#: How often each item may come: once from each worker, where nothing shards them.
COPIES: ContextVar[int] = ContextVar("asyncloader_copies", default=1)


def most_items(pipe: Any) -> int:
    """Return a bound of how many items a pipe yields, where one is known; otherwise MOST."""
    return min(COPIES.get() * pipe.most_items(), MOST) if is_ours(pipe) else MOST


#: In a State: a number of items of the source.
OfSource = Annotated[int, Of(lambda pipe: whole(most=most_items(pipe.source)))]


def most_of(data: Any) -> int:
    """Return how many items plain data have; MOST for anything else."""
    return len(data) if isinstance(data, list | tuple | range | dict | set | str | bytes) else MOST


def _kind_of(cls: type) -> type[DataPipe]:
    return IterDataPipe if issubclass(cls, IterDataPipe) else MapDataPipe
