"""NumPy's arrays as the memory they are made of."""

from __future__ import annotations

from typing import Any

_NUMBERS = "biufc"


def is_plain_array(array: Any) -> bool:
    """Whether an array is numbers in memory one after another, which may be written to."""
    dtype, flags = array.dtype, array.flags
    is_number = dtype.isbuiltin == 1 and dtype.kind in _NUMBERS and not dtype.metadata
    return bool(is_number and flags.c_contiguous and flags.writeable)


def array_over(data: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Make an array over ``data``, which it keeps alive."""
    import numpy

    return numpy.frombuffer(data, dtype=name).reshape(shape)
