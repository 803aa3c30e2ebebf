"""What is written on a drawing.

This file is about words: what a pipe is called in a picture, and which label it was given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from asyncloader.datapipes.naming import stage_name
from asyncloader.datapipes.pipe.base import DataPipe

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
