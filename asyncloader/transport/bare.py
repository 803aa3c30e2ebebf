"""Items that are no more than their memory.

This file is about ``Bare``: of a tensor or an array as it lies in memory only its form is said,
in the place of a pickle, which would take as long as the copy of 64 KiB. The form is the same
for all of a dtype and a shape. Neither torch nor NumPy is imported here to look at an item.
"""

from __future__ import annotations

import ctypes
import functools
import math
import pickle
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from asyncloader.transport.arrays import is_plain_array
from asyncloader.transport.tensors import dtype_names, is_plain_tensor

#: What a form begins with; a pickle begins with something else.
BARE = b"B"

#: What is smaller travels in a pickle.
IN_BAND_BELOW = 4096


class Bare(NamedTuple):
    """What is said of a tensor or an array, and where its memory is."""

    form: bytes
    nbytes: int
    address: int


def bare(item: Any) -> Bare | None:
    """Return what is to be said of a bare tensor or array; None of anything else."""
    kind = type(item)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    # Another thread may be in the middle of importing it.
    if torch is not None and kind is getattr(torch, "Tensor", None):
        is_bare = _is_bare_tensor(torch, item) and item.nbytes >= IN_BAND_BELOW
        return _bare_tensor(item) if is_bare else None
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        is_bare = is_plain_array(item) and item.nbytes >= IN_BAND_BELOW
        return _bare_array(item) if is_bare else None
    return None


def _is_bare_tensor(torch: Any, tensor: Any) -> bool:
    is_bare = is_plain_tensor(torch, tensor) and tensor.is_contiguous() and not tensor.requires_grad
    return is_bare and not tensor.is_conj() and not tensor.is_neg()


def _bare_tensor(tensor: Any) -> Bare:
    return Bare(_tensor_form(tensor.dtype, tensor.shape), tensor.nbytes, tensor.data_ptr())


def _bare_array(array: Any) -> Bare:
    address = ctypes.addressof(ctypes.c_char.from_buffer(array))
    return Bare(_array_form(array.dtype, array.shape), array.nbytes, address)


@functools.lru_cache(maxsize=1024)
def _tensor_form(dtype: Any, shape: Any) -> bytes:
    return _written("tensor", dtype_names()[dtype], tuple(shape))


@functools.lru_cache(maxsize=1024)
def _array_form(dtype: Any, shape: tuple[int, ...]) -> bytes:
    return _written("array", dtype.str, shape)


def _written(kind: str, name: str, shape: tuple[int, ...]) -> bytes:
    return BARE + pickle.dumps((kind, name, shape), protocol=5)


def is_bare_tensor(form: memoryview) -> bool:
    """Whether what stands in the place of a pickle is the form of a tensor."""
    return form[: len(BARE)] == BARE and _FORMS_KIND in bytes(form)


_FORMS_KIND = b"tensor"


@functools.lru_cache(maxsize=1024)
def maker_of(form: bytes) -> Callable[[Any], Any]:
    """Return what makes the item of a form over its memory, which it keeps alive."""
    kind, name, shape = pickle.loads(form[len(BARE) :])
    return _MAKERS[kind](name, shape)


def _tensor_maker(name: str, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    import torch

    over = functools.partial(torch.frombuffer, dtype=getattr(torch, name), count=math.prod(shape))
    return over if len(shape) == 1 else lambda memory: over(memory).view(shape)


def _array_maker(name: str, shape: tuple[int, ...]) -> Callable[[Any], Any]:
    import numpy

    over = functools.partial(numpy.frombuffer, dtype=numpy.dtype(name), count=math.prod(shape))
    return over if len(shape) == 1 else lambda memory: over(memory).reshape(shape)


_MAKERS = {"tensor": _tensor_maker, "array": _array_maker}
