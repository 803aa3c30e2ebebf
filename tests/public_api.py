"""What the package offers, written down: ``python -m tests.public_api``.

This file is about ``tests/public_api.txt``, which has each public name with what it is, its
parameters, their order, types and defaults, and the fields and methods that users may call. Public
is what stands in ``__all__`` of a public module, and what the reference says of it
(``docs/versions.md``). The command writes the file anew. ``tests/test_public_api.py`` says in words
what no longer matches, so that nobody changes what programs rely on without noticing.
"""

from __future__ import annotations

import enum
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncloader import LoaderError
from tests import reference

FILE = Path(__file__).parent / "public_api.txt"

#: What users import from. Names that several of them have are described where they come first.
MODULES = (*reference.MODULES, "asyncloader.datapipes", "asyncloader.serving")

#: A property without underscore that is for other parts of the package.
NOT_PUBLIC = {"SeedGenerator.key"}

_WAYS = {
    inspect.Parameter.POSITIONAL_ONLY: "by position",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "by position or name",
    inspect.Parameter.VAR_POSITIONAL: "any number by position",
    inspect.Parameter.KEYWORD_ONLY: "by name",
    inspect.Parameter.VAR_KEYWORD: "any others by name",
}

_HEADING = "# Made by python -m tests.public_api. docs/versions.md says what it is for.\n"


def main() -> None:
    """Write the file anew."""
    lines = [f"{name}: {what}\n" for name, what in offered().items()]
    FILE.write_text(_HEADING + "".join(lines), encoding="utf-8")


def written() -> dict[str, str]:
    """Return what the file says: what each name is, by the name."""
    lines = FILE.read_text(encoding="utf-8").removeprefix(_HEADING).splitlines()
    return {name: what for name, _, what in (line.partition(": ") for line in lines)}


def offered() -> dict[str, str]:
    """Return what the package offers now, in the same form."""
    homes: dict[int, str] = {}
    found: dict[str, str] = {}
    for module in MODULES:
        for name in importlib.import_module(module).__all__:
            value, full = getattr(importlib.import_module(module), name), f"{module}.{name}"
            if (home := homes.setdefault(id(value), full)) != full:
                found[full] = f"the same as {home}"
            else:
                found.update(_lines_of(full, name, value))
    return found


def differences(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return in words what one description has and the other has not."""
    found = [f"{name} is gone; it was {what}" for name, what in before.items() if name not in after]
    found += [
        f"{name} was {what} and is {after[name]}"
        for name, what in before.items()
        if name in after and what != after[name]
    ]
    return found + [f"{name} is new: {what}" for name, what in after.items() if name not in before]


def _lines_of(full: str, name: str, value: Any) -> Iterator[tuple[str, str]]:
    if inspect.isclass(value):
        yield from _lines_of_class(full, name, value)
    elif inspect.isroutine(value):
        yield from _lines_of_function(full, "function", value)
    else:
        yield full, "a module" if inspect.ismodule(value) else "a value"


def _lines_of_class(full: str, name: str, value: type) -> Iterator[tuple[str, str]]:
    fluent = reference.fluent_name(value)
    yield full, f"class, as a method .{fluent}()" if fluent else "class" + _bases_of(value)
    if issubclass(value, enum.Enum):
        yield from ((f"{full}.{each.name}", "member") for each in value)
        return
    if name not in reference.GIVEN and not issubclass(value, LoaderError):
        yield from _parameters_of(full, value)
    for field in _fields_of(name, value):
        yield f"{full}.{field}", "field"
    for method in dict.fromkeys(reference.METHODS.get(name, ())):
        if method in dir(value):
            found = inspect.getattr_static(value, method)
            if isinstance(found, property):
                yield f"{full}.{method}", "field"
            else:
                yield from _lines_of_function(f"{full}.{method}", "method", getattr(value, method))


def _bases_of(value: type) -> str:
    """Return which errors an error is, as ``except`` asks."""
    if not issubclass(value, BaseException):
        return ""
    bases = (each.__name__ for each in value.__mro__[1:] if each is not object)
    return f", an error: {', '.join(bases)}"


def _fields_of(name: str, value: type) -> list[str]:
    """Return what can be read of an object: fields that are described, properties, attributes."""
    if issubclass(value, LoaderError):
        own = inspect.signature(value.__init__) if "__init__" in _defined_by_us(value) else None
        names = [each.name for each in own.parameters.values()][2:] if own else []
    elif name in reference.GIVEN:
        names = list(reference.fields_of(value))
    else:
        names = []
    if not hasattr(value, "functional_name"):
        properties = inspect.getmembers_static(value, lambda each: isinstance(each, property))
        names += [each for each, _ in properties if each[0] != "_"]
    methods = reference.METHODS.get(name, ())
    return [
        each
        for each in dict.fromkeys(names)
        if each not in methods and f"{name}.{each}" not in NOT_PUBLIC
    ]


def _defined_by_us(value: type) -> set[str]:
    ours = (each for each in value.__mro__ if each.__module__.startswith("asyncloader"))
    return {name for each in ours for name in vars(each)}


def _lines_of_function(full: str, kind: str, value: Any) -> Iterator[tuple[str, str]]:
    returned = inspect.signature(value).return_annotation
    start = "async " if inspect.iscoroutinefunction(value) else ""
    yield full, f"{start}{kind}, returns {reference.type_text(returned)}"
    yield from _parameters_of(full, value)


def _parameters_of(full: str, value: Any) -> Iterator[tuple[str, str]]:
    place = 0
    for each in inspect.signature(value).parameters.values():
        if each.name == "self":
            continue
        what = [_WAYS[each.kind]]
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            place += 1
            what = [f"parameter {place}", *what]
        if each.annotation is not each.empty:
            what.append(reference.type_text(each.annotation))
        if each.default is not each.empty:
            what.append(f"default {reference.default_text(each.default)}")
        yield f"{full}({each.name})", ", ".join(what)


if __name__ == "__main__":
    main()
