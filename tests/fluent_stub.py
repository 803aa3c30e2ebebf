"""Write the types of the fluent methods down: ``python -m tests.fluent_stub``.

This file is about ``asyncloader/datapipes/fluent.pyi``, by which editors complete
``pipe.map(fn).batch(64)`` and type checkers check it. At run time the methods are those that
``functional_datapipe`` registers; the stub is made of the constructors that they call:

- A method has the constructor's parameters but the first, which is the pipe itself.
- A constructor that takes ``Iterable[T]`` takes what any pipe yields, ``T_co``. One that takes
  something special, say ``Iterable[tuple[str, T]]``, has it as the type of ``self``.
- A method returns an ``IterDataPipe`` or a ``MapDataPipe`` of what the class yields, or what the
  function says that returns several.

``SPECIAL`` has what the constructors do not say.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncloader.datapipes.iter
import asyncloader.datapipes.map
from asyncloader import IterDataPipe, MapDataPipe

STUB = Path(asyncloader.__file__).parent / "datapipes" / "fluent.pyi"

#: Signatures that say more than the constructors, each method's overloads in their order.
#:
#: A parameter without a type has that of the constructor, and ``...`` is the constructor's default.
#: ``*rest`` stands for all that are not named. Without it the keyword-only ones follow.
SPECIAL = {
    "IterFluent": {
        "async_map": (
            "(fn: Callable[..., Awaitable[U]]) -> IterDataPipe[U]",
            "(fn, input_col: Any, output_col=...) -> IterDataPipe[Any]",
        ),
        "async_map_batches": (
            "(async_fn: Callable[..., Awaitable[U]], batch_size, input_col: None = None,"
            " output_col: None = None, max_concurrency=..., flatten: Literal[True] = True)"
            " -> IterDataPipe[U]",
            "(*rest) -> IterDataPipe[Any]",
        ),
        "batch": (
            "(batch_size, drop_last=...) -> IterDataPipe[list[T_co]]",
            "(batch_size, drop_last=..., wrapper_class: Callable[[list[T_co]], U] = ...)"
            " -> IterDataPipe[U]",
        ),
        "check_hash": ("(self: IterFluent[tuple[str, U]], *rest) -> IterDataPipe[tuple[str, U]]",),
        "collate": (
            "(conversion: Callable[[T_co], Any] | None = ...,"
            " collate_fn: Callable[[T_co], Any] | None = ...) -> IterDataPipe[Any]",
        ),
        "concat": ("(*datapipes: Iterable[U]) -> IterDataPipe[T_co | U]",),
        "end_caching": ("(*rest) -> IterDataPipe[str]",),
        "flatmap": (
            "(fn: Callable[[T_co], AsyncIterable[U]]) -> IterDataPipe[U]",
            "(fn: Callable[[T_co], Coroutine[Any, Any, Iterable[U]]]) -> IterDataPipe[U]",
            "(fn: Callable[[T_co], Iterable[U]]) -> IterDataPipe[U]",
            "(self: IterFluent[Iterable[U]]) -> IterDataPipe[U]",
            "(fn: Callable[..., Any] | None, input_col: Any) -> IterDataPipe[Any]",
        ),
        "lines_to_paragraphs": (
            "(self: IterFluent[tuple[str, U]], *rest) -> IterDataPipe[tuple[str, Any]]",
        ),
        "list_files": ("(self: IterFluent[PathName], *rest) -> IterDataPipe[str]",),
        "list_files_by_fsspec": ("(self: IterFluent[PathName], *rest) -> IterDataPipe[str]",),
        "map": (
            "(fn: Callable[[T_co], Coroutine[Any, Any, U]]) -> IterDataPipe[U]",
            "(fn: Callable[[T_co], U]) -> IterDataPipe[U]",
            "(fn, input_col: Any, output_col=...) -> IterDataPipe[Any]",
        ),
        "mux": ("(*datapipes: Iterable[U]) -> IterDataPipe[T_co | U]",),
        "mux_longest": ("(*datapipes: Iterable[U]) -> IterDataPipe[T_co | U]",),
        "on_disk_cache": (
            "(filepath_fn: Callable[[T_co], Any] | None = ..., *rest) -> IterDataPipe[T_co]",
        ),
        "open_files": ("(*rest) -> IterDataPipe[tuple[str, Any]]",),
        "pin_memory": (
            "(device=..., pin_memory_fn: Callable[[T_co, Any], T_co] | None = ...)"
            " -> IterDataPipe[T_co]",
        ),
        "random_split": (
            "(weights, seed, total_length=...) -> list[Share[T_co]]",
            "(weights, seed, total_length=..., *, target: Hashable) -> Share[T_co]",
            "(weights, seed, total_length: int | None, target: Hashable) -> Share[T_co]",
        ),
        "read_from_http": ("(self, *rest) -> IterDataPipe[tuple[str, Any]]",),
        "read_from_object_store": ("(self, *rest) -> IterDataPipe[tuple[str, Any]]",),
        "rollout": (
            "(generate: Callable[..., Awaitable[U]], *, group: int) -> IterDataPipe[list[U]]",
            "(generate: Callable[..., Awaitable[U]], *, group: None = None) -> IterDataPipe[U]",
            "(*rest) -> IterDataPipe[Any]",
        ),
        "save_by_fsspec": (
            "(self: IterFluent[tuple[U, Any]], mode=...,"
            " filepath_fn: Callable[[U], Any] | None = ..., *rest) -> IterDataPipe[str]",
        ),
        "save_to_disk": (
            "(self: IterFluent[tuple[U, Any]], mode=...,"
            " filepath_fn: Callable[[U], Any] | None = ...) -> IterDataPipe[str]",
        ),
        "set_length": ("(*rest) -> LengthSetter[T_co]",),
        "sharding_filter": ("(*rest) -> ShardingFilter[T_co]",),
        "sharding_round_robin_dispatch": ("(*rest) -> ShardingRoundRobinDispatcher[T_co]",),
        "shuffle": ("(*rest) -> Shuffler[T_co]",),
        "shuffled_flatmap": (
            "(fn: Callable[[T_co], AsyncIterable[U]], *, buffer_size=...) -> ShuffledFlatMapper[U]",
            "(fn: Callable[[T_co], Coroutine[Any, Any, Iterable[U]]], *, buffer_size=...)"
            " -> ShuffledFlatMapper[U]",
            "(fn: Callable[[T_co], Iterable[U]], *, buffer_size=...) -> ShuffledFlatMapper[U]",
            "(self: IterFluent[Iterable[U]], *, buffer_size=...) -> ShuffledFlatMapper[U]",
            "(fn: Callable[..., Any] | None, input_col: Any, buffer_size=...)"
            " -> ShuffledFlatMapper[Any]",
        ),
        "in_batch_shuffle": ("(*rest) -> InBatchShuffler[U]",),
        "thread_map": (
            "(fn: Callable[[T_co], U]) -> IterDataPipe[U]",
            "(fn, input_col: Any, output_col=...) -> IterDataPipe[Any]",
        ),
        "threadpool_map": (
            # First, since what is named input_col would else be one of the other keywords.
            "(fn, input_col: Any, *rest) -> IterDataPipe[Any]",
            "(fn: Callable[[T_co], U], *, scheduled_tasks=..., max_workers=...) -> IterDataPipe[U]",
        ),
        "to_map_datapipe": (
            "(self: IterFluent[tuple[K, U]]) -> IterToMapConverter[U]",
            "(key_value_fn: Callable[[T_co], tuple[Any, U]]) -> IterToMapConverter[U]",
            "(key_value_fn: Callable[[T_co], Any] | None = ...) -> IterToMapConverter[Any]",
        ),
        "unbatch": (
            "(self: IterFluent[list[U]]) -> IterDataPipe[U]",
            "(*rest) -> IterDataPipe[Any]",
        ),
        "zip": (
            "(other: Iterable[A], /) -> IterDataPipe[tuple[T_co, A]]",
            "(other: Iterable[A], another: Iterable[B], /) -> IterDataPipe[tuple[T_co, A, B]]",
            "(*datapipes: Iterable[Any]) -> IterDataPipe[tuple[Any, ...]]",
        ),
        "zip_longest": ("(*datapipes: Iterable[Any]) -> ZipperLongest",),
        "zip_with_iter": (
            "(ref_datapipe: Iterable[U], key_fn: Callable[..., Any],"
            " ref_key_fn: Callable[..., Any] | None = ..., *, buffer_size=...)"
            " -> IterDataPipe[tuple[T_co, U]]",
            "(ref_datapipe, key_fn: Callable[..., Any],"
            " ref_key_fn: Callable[..., Any] | None = ..., keep_key=..., buffer_size=...,"
            " merge_fn: Callable[..., Any] | None = ...) -> IterDataPipe[Any]",
        ),
        "zip_with_map": (
            "(map_datapipe: MapDataPipe[U], key_fn: Callable[..., Any])"
            " -> IterDataPipe[tuple[T_co, U]]",
            "(map_datapipe, key_fn: Callable[..., Any],"
            " merge_fn: Callable[..., Any] | None = ..., *rest) -> IterDataPipe[Any]",
        ),
    },
    "MapFluent": {
        "batch": (
            "(batch_size, drop_last=...) -> MapDataPipe[list[T_co]]",
            "(batch_size, drop_last=..., wrapper_class: Callable[[list[T_co]], U] = ...)"
            " -> MapDataPipe[U]",
        ),
        "concat": ("(*datapipes: MapDataPipe[U]) -> MapDataPipe[T_co | U]",),
        "map": (
            "(fn: Callable[[T_co], Coroutine[Any, Any, U]]) -> MapDataPipe[U]",
            "(fn: Callable[[T_co], U]) -> MapDataPipe[U]",
        ),
        "shuffle": ("(*rest) -> MapShuffler[T_co]",),
        "to_iter_datapipe": ("(*rest) -> MapToIterConverter[T_co]",),
        "zip": (
            "(other: MapDataPipe[A], /) -> MapDataPipe[tuple[T_co, A]]",
            "(*datapipes: MapDataPipe[Any]) -> MapDataPipe[tuple[Any, ...]]",
        ),
    },
}

_BASES = {"IterFluent": IterDataPipe, "MapFluent": MapDataPipe}

_HEAD = '''"""The fluent methods, as editors and type checkers see them.

``python -m tests.fluent_stub`` made this file from the constructors of the pipes; change those.
"""
'''


def main() -> None:
    """Write the stub."""
    STUB.write_text(stub())


def stub() -> str:
    """Return what the stub has to be."""
    imported: dict[str, str] = {}
    classes = [_class(name, base, imported) for name, base in _BASES.items()]
    variables = [f'{name} = TypeVar("{name}")' for name in _VARIABLES]
    source = [
        _HEAD,
        *(f"from {home} import {name}" for name, home in imported.items()),
        "from typing import Generic, TypeVar, overload",
        'T_co = TypeVar("T_co", covariant=True)',
        *variables,
        *classes,
    ]
    in_order = _ruff("\n".join(source), "check", "--select", "I", "--fix-only", "--quiet")
    return _ruff(in_order, "format")


def _ruff(source: str, *command: str) -> str:
    ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", STUB, "-"]
    return subprocess.run(ruff, input=source, capture_output=True, text=True, check=True).stdout


def fluent_classes(base: type) -> dict[str, Any]:
    """Return what a base's fluent methods call, of the package, by the names of the methods.

    These are classes, and functions that return several pipes.
    """
    methods = {name: getattr(getattr(base, name), "builds", None) for name in dir(base)}
    return {name: builds for name, builds in methods.items() if _is_ours(builds)}


def _is_ours(pipe_class: Any) -> bool:
    """Whether a pipe is one of the package's modules, and not of an example in a docstring."""
    module = getattr(pipe_class, "__module__", "")
    return module.startswith("asyncloader.") and hasattr(sys.modules[module], pipe_class.__name__)


def _class(name: str, base: type, imported: dict[str, str]) -> str:
    """Return the text of a class of methods, and add where the names in it come from."""
    lines = [f"class {name}(Generic[T_co]):", f'    """The methods of ``{base.__name__}``."""']
    for method, pipe_class in fluent_classes(base).items():
        constructor = Constructor(pipe_class, name)
        specials = SPECIAL[name].get(method, (f"(*rest) -> {constructor.result()}",))
        for special in specials:
            declaration = f"def {method}{constructor.signature(special)}: ..."
            lines += ["    @overload"] if len(specials) > 1 else []
            lines += [f"    {declaration}"]
            for each in ast.walk(ast.parse(declaration)):
                if isinstance(each, ast.Name) and each.id not in _KNOWN:
                    imported[each.id] = _home(each.id, constructor.module)
    return "\n".join(lines)


#: The type variables of single methods, and what needs no import.
_VARIABLES = ("A", "B", "K", "U")
_KNOWN = {*dir(builtins), *_BASES, "T_co", *_VARIABLES}


def _home(name: str, module: str) -> str:
    """Return the module to import a name from that stands in a constructor of ``module``."""
    classes = [each for base in _BASES.values() for each in fluent_classes(base).values()]
    # What only a special signature names may be imported elsewhere.
    for each in (module, *sorted({each.__module__ for each in classes})):
        if name in _names(each):
            return _names(each)[name]
    return next(each for each in _PYTHONS if name in importlib.import_module(each).__all__)


#: Modules of Python whose names need not stand in any constructor's file.
_PYTHONS = ("collections.abc", "typing")


@functools.cache
def _names(module: str) -> dict[str, str]:
    """Return the names that a module imports or defines, with the modules that define them."""
    names = {}
    for node in ast.walk(ast.parse(inspect.getsource(sys.modules[module]))):
        match node:
            case ast.ImportFrom(module=str(home)):
                names |= {each.asname or each.name: home for each in node.names}
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                names.setdefault(name, module)
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names.setdefault(name, module)
    return names


class Constructor:
    """What the source of a pipe's class says of what it takes and yields, as a method of it.

    A function that returns several pipes says it itself.
    """

    def __init__(self, pipe_class: Any, fluent: str) -> None:
        is_class = isinstance(pipe_class, type)
        function = pipe_class.__init__ if is_class else pipe_class
        definition = _definition(function)
        assert isinstance(definition, ast.FunctionDef)
        self.module = function.__module__
        self._class = pipe_class
        self._returned = definition.returns
        self._arguments = own = definition.args
        if is_class:
            # The new pipe.
            del own.args[0]
        # The first is the source, which becomes ``self``. A constructor of several sources takes
        # the others under its own name.
        source = own.args.pop(0) if own.args else own.vararg
        item = _argument_of(source.annotation if source else None)
        #: The constructor's type variable: it stands for what any pipe yields, or for a part of it.
        self._variable = "T_co" if item == "T" else "U"
        is_special = item not in ("T", "Any", "") and own.vararg is None
        self._self = self._text(f"self: {fluent}[{item}]") if is_special else "self"
        self._types = {each.arg: each.annotation for each in [*own.args, *own.kwonlyargs]}
        self._defaults = _defaults_of(own)

    def result(self) -> str:
        """Return the type of the pipe that is made, or of those that are."""
        if not isinstance(self._class, type):
            assert self._returned is not None
            return self._text(ast.unparse(self._returned))
        base = MapDataPipe if issubclass(self._class, MapDataPipe) else IterDataPipe
        item = self._text(_item_of(self._class, base))
        # What depends on nothing that is given is not known.
        taken = f"{self._self}{ast.unparse(self._arguments)}"
        is_known = item != "U" or re.search(r"\b[TU]\b", taken)
        return f"{base.__name__}[{item if is_known else 'Any'}]"

    def signature(self, special: str) -> str:
        """Return the whole of a signature that is written like those of ``SPECIAL``."""
        wanted = ast.parse(f"def _{special}: ...").body[0]
        assert isinstance(wanted, ast.FunctionDef)
        assert wanted.returns is not None
        named, own = wanted.args, self._arguments
        names = {each.arg for each in [*named.args, *named.kwonlyargs]}
        takes_rest = named.vararg is not None and named.vararg.arg == "rest"
        rest = [each for each in own.args if takes_rest and each.arg not in names]
        several = named.vararg if named.vararg is not None and not takes_rest else own.vararg
        keywords = [each for each in own.kwonlyargs if each.arg not in names]
        given = _defaults_of(named)
        parts = [] if "self" in names else [self._self]
        parts += [*self._texts(named.posonlyargs, given), "/"] if named.posonlyargs else []
        parts += [*self._texts(named.args, given), *self._texts(rest)]
        if several is not None and not named.posonlyargs:
            parts += [f"*{each}" for each in self._texts([several])]
        elif named.kwonlyargs or keywords:
            parts += ["*"]
        parts += [*self._texts(named.kwonlyargs, given), *self._texts(keywords)]
        parts += [f"**{each}" for each in self._texts([own.kwarg] if own.kwarg else [])]
        return f"({', '.join(parts)}) -> {ast.unparse(wanted.returns)}"

    def _texts(
        self, parameters: list[ast.arg], defaults: dict[str, ast.expr] | None = None
    ) -> Iterator[str]:
        """Yield parameters with their types, and the constructor's defaults or special ones."""
        for each in parameters:
            annotation = each.annotation or self._types.get(each.arg)
            default = (self._defaults if defaults is None else defaults).get(each.arg)
            if isinstance(default, ast.Constant) and default.value is ...:
                default = self._defaults[each.arg]
            text = self._text(f"{each.arg}: {ast.unparse(annotation)}") if annotation else each.arg
            # A type checker would not believe that a function fits every type of items.
            is_function = isinstance(default, ast.Name) and default.id.islower()
            value = "..." if is_function else default and ast.unparse(default)
            yield text if value is None else f"{text} = {value}"

    def _text(self, annotation: str) -> str:
        return re.sub(r"\bT\b", self._variable, annotation)


def _defaults_of(arguments: ast.arguments) -> dict[str, ast.expr]:
    # The last have the defaults; of a source, which is left out, there may be one more.
    positional = zip(reversed(arguments.args), reversed(arguments.defaults), strict=False)
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    found = [*positional, *keywords]
    return {each.arg: default for each, default in found if default is not None}


def _item_of(pipe_class: type, base: type) -> str:
    """Return the type of a class's items, in terms of its own type variable."""
    definition = _definition(pipe_class)
    assert isinstance(definition, ast.ClassDef)
    written = {ast.unparse(each).partition("[")[0]: _argument_of(each) for each in definition.bases}
    parent = next(each for each in pipe_class.__bases__ if issubclass(each, base))
    item = written[parent.__name__] or "Any"
    return item if parent is base else re.sub(r"\bT(_co)?\b", item, _item_of(parent, base))


def _argument_of(annotation: ast.expr | None) -> str:
    """Return what stands in the brackets of a type, or an empty string."""
    if not isinstance(annotation, ast.Subscript):
        return ""
    inside = annotation.slice
    # A type that is defined further down is quoted.
    return str(inside.value) if isinstance(inside, ast.Constant) else ast.unparse(inside)


def _definition(what: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(what))).body[0]


if __name__ == "__main__":
    main()
