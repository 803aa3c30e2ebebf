"""What makes a graph slow to send, and large in memory.

This file is about ``warn_of_weight``: of a graph that was pickled for workers it names the data
that each of them has to make again, or that is in memory a second time for all of them together.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.edges import pipes_in
from asyncloader.datapipes.running.naming import stage_name
from asyncloader.datapipes.running.traits import attributes
from asyncloader.graph.walk import breadth_first
from asyncloader.transport.code import parts_of
from asyncloader.transport.parcel import Parcel, mebibytes, pack_code

#: From this size on a pickle takes each worker about half a second.
HEAVY_PICKLE = 64 << 20
#: What is shared is quick to start with, but in memory beside the program's own.
HEAVY_MEMORY = 512 << 20

#: What these libraries make is weighed as one.
_WHOLE = frozenset({"numpy", "torch", "pandas", "pyarrow", "functools", "builtins"})

#: Of a container with more elements than twice as many, so many are weighed.
_WEIGHED = 100
_MOST_LEVELS = 8


def warn_of_weight(ends: Iterable[Any], parcel: Parcel, why_not_forked: str) -> None:
    """Warn of a heavy parcel with these parts of a graph in it.

    ``why_not_forked`` is why it was pickled at all, if it need not have been.
    """
    why = f"; by default they do not here, because {why_not_forked}" if why_not_forked else ""
    if parcel.pickled >= HEAVY_PICKLE:
        warnings.warn(
            f"each worker makes its own copy of {mebibytes(parcel.pickled)} of objects, most of"
            f" it {_heaviest(ends, _pickled_in)}, which makes the start slow and the workers large:"
            ' put rows into a SharedSequence, or pass multiprocessing_context="fork", with which'
            f" workers inherit all data{why}",
            stacklevel=2,
        )
    if parcel.beside >= HEAVY_MEMORY:
        warnings.warn(
            f"workers share one copy of {mebibytes(parcel.beside)} of arrays and tensors, most of"
            f" it {_heaviest(ends, _beside_in)}, which is in memory beside your own: files that"
            ' are mapped (numpy.memmap) need no copy, nor does multiprocessing_context="fork", with'
            f" which workers inherit all data{why}",
            stacklevel=2,
        )


def _pickled_in(parcel: Parcel) -> int:
    return parcel.pickled


def _beside_in(parcel: Parcel) -> int:
    return parcel.beside


def _heaviest(ends: Iterable[Any], size: Callable[[Parcel], int]) -> str:
    """Return in words where most of the data is."""
    found, most = "in the graph", 0.0
    pipes = {id(pipe): pipe for end in ends for pipe in breadth_first(end)}
    for pipe in pipes.values():
        for name, value in attributes(pipe):
            if not any(True for _ in pipes_in(value)):
                weight = _weight(value, size)
                if weight > most:
                    most = weight
                    found = f"{_narrowed(f'its {name!r}', value, size)} in {stage_name(pipe)}"
    return found


def _narrowed(words: str, value: Any, size: Callable[[Parcel], int]) -> str:
    """Return what of a value is most of it, in words."""
    for _ in range(_MOST_LEVELS):
        if isinstance(value, _CONTAINERS):
            break
        whole = _weight(value, size)
        parts = [(_weight(part, size), of_part, part) for of_part, part in parts_of(value)]
        weight, of_part, part = max(parts, key=lambda each: each[0], default=(0.0, "", None))
        if weight < whole / 2:
            break
        words, value = of_part, part
    return words


_CONTAINERS = (dict, list, tuple, set, frozenset)


def _weight(value: Any, size: Callable[[Parcel], int], levels: int = _MOST_LEVELS) -> float:
    """Return about how many bytes a value has; of many elements a few are looked at."""
    if isinstance(value, _CONTAINERS) and len(value) > 2 * _WEIGHED:
        few = list(itertools.islice(_elements(value), 0, None, len(value) // _WEIGHED))
        return _weight(few, size, levels) * len(value) / len(few)
    fields = vars(value) if hasattr(value, "__dict__") and not isinstance(value, type) else {}
    if fields and levels and type(value).__module__.partition(".")[0] not in _WHOLE:
        return sum(_weight(part, size, levels - 1) for part in fields.values())
    try:
        return size(pack_code(value))
    except Exception:  # noqa: BLE001 - code of the value's class ran; it is sent with others
        return 0.0


def _elements(value: Any) -> Iterator[Any]:
    return iter(value.items()) if isinstance(value, dict) else iter(value)
