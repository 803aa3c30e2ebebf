"""What a graph is made of, as plain data.

This file is about ``fingerprint``, which tells whether two graphs are the same apart from
their data: classes, edges, settings, and functions by name. Neither the data nor its length,
nor the number of workers or ranks, is part of it.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from difflib import SequenceMatcher
from enum import Enum
from itertools import chain
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

from asyncloader.datapipes.base import is_pipe
from asyncloader.datapipes.rollouts import Rollout
from asyncloader.datapipes.running.traits import (
    is_module_of_package,
    is_shuffler,
    is_switched_on,
    setting,
    vars_of,
)
from asyncloader.datapipes.thread_calls import ThreadMapper
from asyncloader.graph.walk import Graph
from asyncloader.main_script import home_of

#: One entry for each pipe, breadth-first from the last:
#: ``{"class": name, "reads": [numbers of other entries], "settings": {name: value}}``.
Fingerprint = list[dict[str, Any]]

#: Longer texts and containers are taken to be data.
_LONGEST = 256

#: The numbers of the pipes, by their ids; None for a source, whose lists are the data itself.
Numbers = dict[int, int] | None

_UNKNOWN = object()

_MANY = 1000


def fingerprint(datapipe: Any) -> Fingerprint:
    """Return the fingerprint of the graph that ends in ``datapipe``.

    It is made of lists, dicts, texts and numbers only.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> fingerprint(IterableWrapper(range(3)))[0]["class"]
    'asyncloader.IterableWrapper'
    """
    return Graph.of(datapipe).once(_entries)


def _entries(graph: Graph) -> Fingerprint:
    return [
        {
            "class": _qualified(type(pipe)),
            "reads": [graph.numbers[id(source)] for source in graph.sources(pipe)],
            "settings": _settings(pipe, graph.numbers if graph.sources(pipe) else None),
        }
        for pipe in graph.pipes
    ]


def differences(before: Any, after: Any) -> list[str]:
    """Return a sentence for each difference of two fingerprints; an empty list if they agree.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> one, other = (fingerprint(IterableWrapper(range(3)).batch(size)) for size in (2, 3))
    >>> differences(one, other)
    ['batch_size of Batcher was 2 and is 3']
    """
    if not _is_fingerprint(before) or not _is_fingerprint(after):
        return ["one of them is not a fingerprint of a graph"]
    if len(before) > len(after) + _MANY:
        # To say which ones are gone would take long.
        return [f"it had {len(before)} pipes and has {len(after)}"]
    # Sources first, as one reads a graph; entries are numbered from the end.
    classes = [[entry["class"] for entry in reversed(graph)] for graph in (before, after)]
    sentences: list[str] = []
    for tag, start, stop, begin, end in _edits(*classes):
        if tag == "equal":
            same = zip(range(start, stop), range(begin, end), strict=True)
            for one, other in same:
                sentences.extend(_changes(before[~one], after[~other]))
            continue
        sentences.extend(f"{_short(before[~i])} is gone" for i in range(start, stop))
        sentences.extend(f"{_short(after[~i])} is new" for i in range(begin, end))
    return sentences or _edge_changes(before, after)


def _settings(pipe: Any, numbers: Numbers) -> dict[str, Any]:
    """Return what a pipe was told when it was made, as far as that is plain data."""
    settings = {name: _plain(value, numbers) for name, value in _told(pipe)}
    return {name: value for name, value in settings.items() if value is not _UNKNOWN}


def _plain(value: Any, numbers: Numbers) -> Any:
    """Return a value as plain data, or ``_UNKNOWN`` where it is none."""
    if is_pipe(value):
        return _UNKNOWN  # it is among the edges
    if isinstance(value, Enum) and not isinstance(value, int):
        return f"{_qualified(type(value))}.{value.name}"
    if isinstance(value, float) and math.isnan(value):
        return "nan"  # which equals itself
    for kind in (bool, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if value is None or isinstance(value, str | bytes):
        return value if value is None or len(value) <= _LONGEST else _UNKNOWN
    if isinstance(value, list | tuple | dict):
        return _UNKNOWN if numbers is None else _container(value, numbers)
    return _function(value, numbers) if callable(value) else _UNKNOWN


def _container(value: Any, numbers: dict[int, int]) -> Any:
    if len(value) > _LONGEST:
        return _UNKNOWN
    pairs: Iterable[Any] = value.items() if isinstance(value, dict) else enumerate(value)
    plain = [[_key(key, numbers), _plain(element, numbers)] for key, element in pairs]
    if any(_UNKNOWN in pair for pair in plain):
        return _UNKNOWN
    return plain if isinstance(value, dict) else [element for _, element in plain]


def _key(key: Any, numbers: dict[int, int]) -> Any:
    return f"pipe {numbers[id(key)]}" if id(key) in numbers else _plain(key, numbers)


def _told(pipe: Any) -> Iterator[tuple[str, Any]]:
    """Yield the constructor's parameters that the pipe still holds, and whether it shuffles."""
    unsaid = [*_UNSAID, *_UNSAID_OF.get(type(pipe), [])]
    for name in _parameters(type(pipe)):
        # A parameter may have the name of one of the pipe's fluent methods.
        held = [each for each in (name, f"_{name}") if each in vars_of(pipe)]
        value = vars_of(pipe)[held[0]] if held else setting(pipe, name, _UNKNOWN)
        is_said = name in _SAID_OF.get(type(pipe), (name,))
        if value is not _UNKNOWN and is_said and (name, value) not in unsaid:
            yield name, value
    if is_shuffler(pipe):
        yield "shuffles", is_switched_on(pipe)


#: Parameters that pipes got later, with the values that they had in effect before: states from
#: before do not have them.
_UNSAID: list[tuple[str, Any]] = [("repeatable", True), ("keep_results", False)]
_UNSAID_OF: dict[type, list[tuple[str, Any]]] = {
    ThreadMapper: [
        ("timeout", None),
        ("retries", 0),
        ("retry_on", OSError),
        ("backoff", 0.1),
        ("resource", None),
    ],
}


#: Of these pipes only some parameters are told: with others, a state goes on just as well.
_SAID_OF: dict[type, tuple[str, ...]] = {Rollout: ("generate",)}


def _parameters(pipe_class: type) -> list[str]:
    if pipe_class not in _known_parameters:
        # To find them takes as long as all else in a fingerprint.
        _known_parameters[pipe_class] = list(inspect.signature(pipe_class).parameters)
    return _known_parameters[pipe_class]


_known_parameters: WeakKeyDictionary[type, list[str]] = WeakKeyDictionary()


def _function(value: Any, numbers: Numbers) -> Any:
    if isinstance(value, functools.partial):
        told = [*value.args, *(item for pair in value.keywords.items() for item in pair)]
        plain = [_plain(argument, numbers) for argument in told]
        shown = ["…" if argument is _UNKNOWN else argument for argument in plain]
        return f"partial of {_function(value.func, numbers)} with {shown!r}"
    if isinstance(value, MethodType):
        return f"{_qualified(type(value.__self__))}.{value.__name__}"
    if hasattr(value, "__qualname__"):
        return _qualified(value)
    return f"an instance of {_qualified(type(value))}"


def _qualified(named: Any) -> str:
    module = home_of(named) or ""
    # Our pipes may move to other files while users keep states of them.
    home = "asyncloader" if is_module_of_package(module) else module
    return f"{home}.{named.__qualname__}" if home else str(named.__qualname__)


# Comparing ------------------------------------------------------------------------------


def _is_fingerprint(value: Any) -> bool:
    return isinstance(value, list) and all(_is_entry(entry, len(value)) for entry in value)


def _is_entry(value: Any, pipes: int) -> bool:
    if not isinstance(value, dict) or value.keys() != {"class", "reads", "settings"}:
        return False
    name, reads, settings = value["class"], value["reads"], value["settings"]
    return (
        isinstance(name, str)
        and isinstance(reads, list)
        and all(isinstance(number, int) and 0 <= number < pipes for number in reads)
        and isinstance(settings, dict)
        and all(isinstance(setting, str) for setting in settings)
        and all(map(_is_setting, settings.values()))
    )


def _is_setting(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_setting, value))
    return value is None or isinstance(value, bool | int | float | str | bytes)


def _edits(before: list[str], after: list[str]) -> Iterable[tuple[str, int, int, int, int]]:
    return SequenceMatcher(None, before, after, autojunk=False).get_opcodes()


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    old, new = before["settings"], after["settings"]
    for name in sorted(old.keys() | new.keys()):
        if name not in old or name not in new or old[name] != new[name]:
            was, now = (_shown(told, name) for told in (old, new))
            yield f"{name} of {_short(after)} was {was} and is {now}"


def _shown(settings: dict[str, Any], name: str) -> str:
    known = {**dict(chain(_UNSAID, *_UNSAID_OF.values())), **settings}
    return repr(known[name]) if name in known else "not plain data"


def _edge_changes(before: Fingerprint, after: Fingerprint) -> list[str]:
    return [
        f"{_short(new)} read {_names(before, old)} and reads {_names(after, new)}"
        for old, new in zip(before, after, strict=True)
        if old["reads"] != new["reads"]
    ]


def _names(graph: Sequence[dict[str, Any]], entry: dict[str, Any]) -> str:
    names = [f"{_short(graph[number])} (pipe {number})" for number in entry["reads"]]
    return ", ".join(names) or "nothing"


def _short(entry: dict[str, Any]) -> str:
    return str(entry["class"].rpartition(".")[2])
