"""The names of pipes in messages.

This file is about ``stage_name``: ``map(decode)``, ``batch(64)``,
``IterableWrapper(1000 items)``. It shows functions by name and plain settings
by value, and never a user's data.
"""

from __future__ import annotations

import enum
import inspect
from typing import Any

from asyncloader.arguments import function_name
from asyncloader.datapipes.running.traits import class_name, known_as, setting


def stage_name(pipe: object) -> str:
    """Return a pipe's name in messages: its functional name and its settings.

    A pipe that replaces another may use the other's name.
    """
    return known_as(pipe) or f"{class_name(pipe)}({', '.join(_settings(pipe))})"


def brief_name(pipe: object) -> str:
    """Return the name of a thread that iterates a pipe or another object: ``map(decode)``."""
    name = class_name(pipe)
    function = setting(pipe, "fn", None) if name != type(pipe).__name__ else None
    return f"{name}({function_name(function)})" if callable(function) else name


def _settings(pipe: object) -> list[str]:
    parameters = list(inspect.signature(type(pipe)).parameters.values())
    shown = []
    for position, parameter in enumerate(parameters):
        value = _value_of(pipe, parameter)
        # None and False are mostly defaults and say nothing.
        is_chosen = parameter.default is None and value is False
        text = None if is_chosen else _brief(value)
        if text is not None and text != _brief(parameter.default):
            leads = position <= 1 and parameter.kind is not parameter.KEYWORD_ONLY
            says_enough = leads and not isinstance(value, bool)
            shown.append(text if says_enough else f"{parameter.name}={text}")
    return shown


def _value_of(pipe: object, parameter: inspect.Parameter) -> Any:
    try:
        value = setting(pipe, parameter.name, parameter.default)
    except Exception:  # noqa: BLE001 - a user's property ran; the message must not fail
        return parameter.default
    # The attribute may be a fluent method with the same name as the parameter.
    return parameter.default if hasattr(value, "builds") else value


def _brief(value: Any) -> str | None:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 40 else value[:37] + "...")
    if callable(value):
        return function_name(value)
    return None
