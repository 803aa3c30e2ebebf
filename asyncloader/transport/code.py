"""Code as bytes: graphs and functions for a process that does not have them.

This file is about ``dumps_code``, which includes the code that the other process cannot import.
Only this file uses cloudpickle.
"""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import linecache
import os
import pickle
import sys
import threading
from abc import ABCMeta
from collections.abc import Callable, Iterator, Sequence
from types import (
    CellType,
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any, NamedTuple, Protocol

from asyncloader.main_script import MAIN, SPAWNED_MAIN
from asyncloader.transport.pickling import Dump, load, reduce_storage


def dumps_code(code: Any) -> bytes:
    """Pickle a graph or a function, with the code that the other process may lack."""
    dump = Dump()
    with sent_by_value(modules_being_imported()):
        dump.fill(code_pickler()(dump), code)
    return dump.data


def include_code_of(module: ModuleType) -> None:
    """Include a module's functions and classes from now on, like those of the main script."""
    _cloudpickle().register_pickle_by_value(module)


def loads_code(data: bytes | memoryview) -> Any:
    """Return what ``dumps_code`` was given."""
    return load(data)


#: How many elements of a container are tried.
_MOST_ELEMENTS = 1000


def unsendable_in(value: Any, name: str) -> str:
    """Return in words what of a value cannot be sent, "" if all of it can; ``name`` is its own."""
    return _unsendable(name, value, set())


def _unsendable(words: str, value: Any, seen: set[int]) -> str:
    if id(value) in seen or _is_sendable(value):
        return ""
    seen.add(id(value))
    found = (_unsendable(of_part, part, seen) for of_part, part in parts_of(value))
    return next(filter(None, found), words)


def _is_sendable(value: Any) -> bool:
    try:
        dumps_code(value)
    except (Exception, SystemExit):  # noqa: BLE001 - code of the value's class ran
        return False
    return True


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield what is pickled with a value, each with how it is called in messages."""
    name = getattr(value, "__qualname__", type(value).__qualname__)
    if isinstance(value, FunctionType):
        for each in _names_in(value.__code__):
            if each in value.__globals__:
                yield f"the global variable {each!r} of {name}", value.__globals__[each]
        for each, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            if cell != CellType():
                yield f"the variable {each!r} of {name}", cell.cell_contents
        for default in (*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()):
            yield f"a default of {name}", default
    elif isinstance(value, MethodType):
        yield f"the object of {name}", value.__self__
    elif isinstance(value, functools.partial):
        for each in (value.func, *value.args, *value.keywords.values()):
            yield f"an argument of {getattr(value.func, '__qualname__', 'a partial')}", each
    elif isinstance(value, dict | list | tuple | set):
        elements = (*value.keys(), *value.values()) if isinstance(value, dict) else value
        for each in itertools.islice(elements, _MOST_ELEMENTS):
            yield f"an element of type {type(each).__qualname__}", each
    else:
        for attribute, each in getattr(value, "__dict__", {}).items():
            yield f"the attribute {attribute!r} of {name}", each


def _names_in(code: CodeType) -> list[str]:
    """Return the names that code and the functions in it use."""
    inner = [_names_in(each) for each in code.co_consts if isinstance(each, CodeType)]
    return list(dict.fromkeys(itertools.chain(code.co_names, *inner)))


def modules_being_imported() -> list[ModuleType]:
    """Return the modules whose code is running at this moment, in any thread.

    One of them may have started the loader that now sends its code. Then another process that
    imported the module would start that loader as well. Nor can a thread here import it to look
    for what it defines: it would wait for the thread of the module, which waits for the loader.
    """
    return [
        module
        for module in list(sys.modules.values())
        if getattr(getattr(module, "__spec__", None), "_initializing", False)
    ]


def number_classes_of(modules: Sequence[ModuleType]) -> None:
    """Let cloudpickle know the classes of these modules again when they come back by value."""
    for module in modules:
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                # It gives a number to what it pickles. What it refuses cannot come back either.
                with contextlib.suppress(Exception), sent_by_value([module]):
                    dumps_code(value)


@contextlib.contextmanager
def sent_by_value(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Let cloudpickle include what these modules define."""
    if not modules:
        yield
        return
    cloudpickle = _cloudpickle()
    # Nobody takes out of the registry what somebody else put there, nor too early.
    with _registering:
        before = cloudpickle.list_registry_pickle_by_value()
        registered = [module for module in modules if module.__name__ not in before]
        for module in registered:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in registered:
                cloudpickle.unregister_pickle_by_value(module)


_registering = threading.RLock()


@functools.cache
def code_pickler() -> Any:
    class CodePickler(_cloudpickle().Pickler):  # type: ignore[misc]
        """Includes the code that the other process may lack; ``reduce`` is asked first."""

        def __init__(
            self,
            dump: Dump,
            reduce: Callable[[Any], Any] = reduce_storage,
            on_buffer: Callable[[pickle.PickleBuffer], bool] | None = None,
        ) -> None:
            super().__init__(dump, protocol=5, buffer_callback=on_buffer)
            self._reduce = reduce
            #: The modules of the functions and classes that were pickled.
            self.homes: set[str] = set()
            #: Sources that are in no file, by the names that their code has for a file.
            self._sources: dict[str, str] = {}

        def dump(self, code: Any) -> None:
            # cloudpickle's own method hides a RecursionError behind another error.
            pickle.Pickler.dump(self, code)

        def reducer_override(self, item: Any) -> Any:
            reduced = self._reduce(item)
            if reduced is not NotImplemented:
                return reduced
            if isinstance(item, CodeType):
                return self._with_source(item)
            if isinstance(item, type | FunctionType | _CACHED):
                home = str(item.__module__)
                self.homes.add(home)
                _include_if_missing_elsewhere(home)
            # Of these cloudpickle would send a name that the other process does not have, or locks
            # and weak references.
            if isinstance(item, _CACHED) and _is_only_here(item):
                return _with_cache, (item.__wrapped__, item.cache_parameters())
            if type(item) is functools.cached_property:
                return _cached_property, (item.func, item.attrname)
            if type(item) is functools.singledispatchmethod:
                return _single_dispatch_method, (item.func, item.dispatcher)
            if _is_single_dispatch(item) and _is_only_here(item):
                return _single_dispatch, (list(item.registry.items()),)
            reduced = super().reducer_override(item)
            return _with_slots(item, reduced) if isinstance(item, type) else reduced

        def _with_source(self, code: CodeType) -> Any:
            """Keep the name of the code's file, which cloudpickle leaves out for tracebacks."""
            make, values = self.dispatch_table[CodeType](code)
            values = (*values[:_FILENAME], code.co_filename, *values[_FILENAME + 1 :])
            source = self._sources.get(code.co_filename)
            if source is None:
                source = self._sources[code.co_filename] = _source_in_no_file(code.co_filename)
            return (_code_with_source, (source, *values)) if source else (make, values)

    return CodePickler


#: Which argument of the constructor of code is the name of its file.
_FILENAME = 10


def _source_in_no_file(filename: str) -> str:
    """Return a source that only this process knows, such as a notebook's cell; or nothing."""
    return "" if os.path.exists(filename) else "".join(linecache.getlines(filename))


def _code_with_source(source: str, *values: Any) -> CodeType:
    code = CodeType(*values)
    # Without a time of change, Python does not look for the file.
    entry = len(source), None, source.splitlines(keepends=True), code.co_filename
    linecache.cache[code.co_filename] = entry
    return code


def _include_if_missing_elsewhere(name: str) -> None:
    """Include from now on what a module defines, if another process could not import it.

    Such modules are made by ``runpy.run_path`` or from a file that is on no path.
    """
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if (
        module is not None
        and name != MAIN
        and not _can_be_imported(name, getattr(spec, "origin", None))
    ):
        include_code_of(module)


@functools.lru_cache(maxsize=4096)
def _can_be_imported(name: str, origin: str | None) -> bool:
    """Whether an import would find this module, and not another of its name."""
    package = name.rpartition(".")[0]
    if name.partition(".")[0] in sys.stdlib_module_names:
        return True
    try:
        path = sys.modules[package].__path__ if package else None
        specs = (finder.find_spec(name, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
    except Exception:  # noqa: BLE001 - others' finders ran
        return True
    return spec is not None and (origin is None or spec.origin in (None, origin))


_CACHED = type(functools.lru_cache(len))


def _is_only_here(function: Any) -> bool:
    """Whether another process cannot import a cached function."""
    home = getattr(function, "__module__", "__main__")
    if home in {"__main__", *_cloudpickle().list_registry_pickle_by_value()}:
        return True
    found: Any = sys.modules.get(home)
    for name in getattr(function, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is not function


def _with_cache(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _cached_property(function: Callable[[Any], Any], name: str | None) -> Any:
    made = functools.cached_property(function)
    if name is not None:
        made.__set_name__(object, name)
    return made


def _is_single_dispatch(item: Any) -> bool:
    return (
        isinstance(item, FunctionType) and hasattr(item, "registry") and hasattr(item, "dispatch")
    )


def _single_dispatch(functions: list[tuple[type, Callable[..., Any]]]) -> Any:
    kinds = dict(functions)
    made = functools.singledispatch(kinds.pop(object))
    for kind, function in kinds.items():
        made.register(kind, function)
    return made


def _single_dispatch_method(function: Any, dispatcher: Any) -> Any:
    # Made anew: in Python 3.13 it has a cache that cannot be pickled.
    made = functools.singledispatchmethod(function)
    made.dispatcher = dispatcher
    return made


def _with_slots(kind: type, reduced: Any) -> Any:
    """Keep the slots of a class that is sent by value; cloudpickle leaves them out."""
    if isinstance(reduced, tuple) and _says_its_slots(kind):
        make, arguments, *rest = reduced
        *before, body, tracker, extra = arguments
        slots = [name for name, value in vars(kind).items() if _is_slot(kind, name, value)]
        return make, (*before, {**body, "__slots__": slots}, tracker, extra), *rest
    return reduced


def _says_its_slots(kind: type) -> bool:
    # The metaclass gives named tuples and similar classes their slots.
    is_named_tuple = NamedTuple in vars(kind).get("__orig_bases__", ())
    is_plain = type(kind) in (type, ABCMeta, type(Protocol))
    return "__slots__" in vars(kind) and is_plain and not is_named_tuple


def _is_slot(kind: type, name: str, value: Any) -> bool:
    if name == "__weakref__":
        # Before Python 3.11.3 a dataclass with slots has this name without having the slot.
        return bool(kind.__weakrefoffset__)
    return isinstance(value, MemberDescriptorType) or name == "__dict__"


def pickler_by_value(dump: Dump) -> Any:
    """Return a pickler of items that includes code; imported late, as few items need it."""
    return code_pickler()(dump, functools.partial(_reduced, dump), dump.on_buffer)


def _reduced(dump: Dump, item: Any) -> Any:
    if type(item) in _FILES:
        _check_is_known(item)
    return dump.reduce(item)


_FILES = (io.TextIOWrapper, io.BufferedReader, io.BufferedWriter, io.BufferedRandom, io.FileIO)


def _check_is_known(file: Any) -> None:
    """Refuse an open file: cloudpickle would silently send a copy of its text."""
    # stdout and stderr are pickled by name.
    if file is not sys.stdout and file is not sys.stderr:
        name = getattr(file, "name", None)
        raise TypeError(
            f"the open file {name!r} cannot be sent to another process; send its path, or what"
            " was read from it"
        )


def _cloudpickle() -> Any:
    import cloudpickle  # type: ignore[import-untyped]

    script = sys.modules.get(SPAWNED_MAIN)
    if script is not None and script.__name__ == SPAWNED_MAIN:
        # cloudpickle includes __main__'s code by itself, but not under this name.
        cloudpickle.register_pickle_by_value(script)
    return cloudpickle
