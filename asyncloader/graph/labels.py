"""What is written on a drawing.

This file is about words: what a pipe is called in a picture, and which label it was given.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

from asyncloader.datapipes.base import DataPipe
from asyncloader.datapipes.naming import stage_name

#: A label for each pipe, as a mapping or as pairs.
Labels = Mapping[Any, str] | Sequence[tuple[Any, str]]


def shown_name(pipe: Any) -> str:
    """Return what a pipe is called, in one line."""
    # Our own pipes may know a better name: a branch says which of which splitter it is.
    name = repr(pipe) if isinstance(pipe, DataPipe) else stage_name(pipe)
    return " ".join(name.split())


def by_id(labels: Labels) -> dict[int, str]:
    """Return the labels by the ids of their pipes."""
    pairs = labels.items() if isinstance(labels, Mapping) else labels
    return {id(pipe): label for pipe, label in pairs}


def cells(text: str) -> int:
    """Return how many places of a fixed width a text takes, at most.

    >>> cells("map"), cells("写真")
    (3, 4)
    """
    return sum(_cells_of(character) for character in text)


def shortened(text: str, limit: int) -> str:
    """Return a text that takes ``limit`` places at most, without its middle if need be.

    A function or a path tells most at its ends.

    >>> shortened("open_files('/data/of/many/years/part-0001.tar')", 31)
    "open_files('/da…part-0001.tar')"
    """
    if cells(text) <= limit:
        return text
    half = (limit - 1) // 2
    return f"{_beginning(text, half)}…{_beginning(text[::-1], half)[::-1]}"


def _beginning(text: str, limit: int) -> str:
    taken = 0
    for place, character in enumerate(text):
        taken += _cells_of(character)
        if taken > limit:
            return text[:place]
    return text


def _cells_of(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
