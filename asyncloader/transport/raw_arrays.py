"""Tensors and arrays sent as raw memory.

This file is about ``raw_array``: of a tensor or an array that is an item by itself only the form is
sent, in the place of a pickle, which would take as long as the copy of 64 KiB; and about putting
tensors and arrays together over memory that arrived. Neither torch nor NumPy is imported here to
look at an item. torch is imported with the first tensor that arrives: by ``import_torch`` in a
thread, as a loop would stand still meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import math
import pickle
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from asyncloader.system import open_library

#: What a form begins with; a pickle begins with something else.
RAW = b"B"

#: What is smaller travels in a pickle.
IN_BAND_BELOW = 4096


#: The form of a tensor or an array, how many bytes it has, and the address of its memory.
_Raw = tuple[bytes, int, int]


def raw_array(item: Any) -> _Raw | None:
    """Return form, size and address of a tensor or an array; None for anything else."""
    kind = type(item)
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    # Another thread may still be importing torch.
    if torch is not None and kind is getattr(torch, "Tensor", None):
        is_raw = _is_raw_tensor(torch, item) and item.nbytes >= IN_BAND_BELOW
        return _raw_tensor(item) if is_raw else None
    if numpy is not None and kind is getattr(numpy, "ndarray", None):
        is_raw = is_plain_array(item) and item.nbytes >= IN_BAND_BELOW
        return _raw_array_of(item) if is_raw else None
    return None


def _is_raw_tensor(torch: Any, tensor: Any) -> bool:
    is_raw = is_plain_tensor(torch, tensor) and tensor.is_contiguous() and not tensor.requires_grad
    return is_raw and not tensor.is_conj() and not tensor.is_neg()


def _raw_tensor(tensor: Any) -> _Raw:
    return _tensor_form(tensor.dtype, tensor.shape), tensor.nbytes, tensor.data_ptr()


def _raw_array_of(array: Any) -> _Raw:
    address = ctypes.addressof(ctypes.c_char.from_buffer(array))
    return _array_form(array.dtype, array.shape), array.nbytes, address


@functools.lru_cache(maxsize=1024)
def _tensor_form(dtype: Any, shape: Any) -> bytes:
    return _written("tensor", dtype_names()[dtype], tuple(shape))


@functools.lru_cache(maxsize=1024)
def _array_form(dtype: Any, shape: tuple[int, ...]) -> bytes:
    return _written("array", dtype.str, shape)


def _written(kind: str, name: str, shape: tuple[int, ...]) -> bytes:
    return RAW + pickle.dumps((kind, name, shape), protocol=5)


@functools.lru_cache(maxsize=1024)
def maker_of(form: bytes) -> Callable[[Any], Any]:
    """Return a function that makes the item of a form over its memory and keeps that alive."""
    kind, name, shape = pickle.loads(form[len(RAW) :])
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


# Arrays ---------------------------------------------------------------------------------

_NUMBERS = "biufc"


def is_plain_array(array: Any) -> bool:
    """Whether an array is contiguous, writable and of plain numbers."""
    dtype, flags = array.dtype, array.flags
    is_number = dtype.isbuiltin == 1 and dtype.kind in _NUMBERS and not dtype.metadata
    return bool(is_number and flags.c_contiguous and flags.writeable)


def array_over(data: Any, name: str, shape: tuple[int, ...]) -> Any:
    """Make an array over ``data``, which it keeps alive."""
    import numpy

    return numpy.frombuffer(data, dtype=name).reshape(shape)


# Tensors --------------------------------------------------------------------------------


def has_torch() -> bool:
    """Whether torch is completely imported."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def speaks_of_torch(pickles: Iterable[bytes]) -> bool:
    """Whether reading one of these pickles, or forms, imports torch."""
    for data in pickles:
        if b"tensor" in data if data.startswith(RAW) else _TORCHS.search(data):
            return True
    return False


#: The names, as pickle writes them, of torch's modules and of our functions that make tensors.
_TORCHS = re.compile(rb"\x8c.(?:torch|(?:tensor_over|permuted|storage_of)\x94)", re.DOTALL)


def import_torch() -> None:
    """Import torch; in a thread, so that a loop can run meanwhile."""
    found = importlib.util.find_spec("torch")
    if not has_torch() and found is not None and found.origin is not None:
        _open_libraries(Path(found.origin).parent / "lib")
    importlib.import_module("torch")


def _open_libraries(folder: Path) -> None:
    """Open torch's largest libraries without the GIL, which an import would hold."""
    for name in ("libtorch", "libtorch_cpu", "libtorch_python"):
        open_library(folder / name)


@functools.cache
def dtype_names() -> dict[Any, str]:
    """Return the names of torch's dtypes."""
    kind = _torch().dtype
    return {value: name for name, value in vars(_torch()).items() if type(value) is kind}


@functools.cache
def _torch() -> Any:
    import torch

    return torch


@functools.cache
def _dtype(name: str) -> Any:
    return getattr(_torch(), name)


def tensor_over(data: Any, name: str, shape: tuple[int, ...], requires_grad: bool) -> Any:
    """Make a tensor over ``data``, which it keeps alive."""
    torch = _torch()
    dtype = _dtype(name)
    if not len(data):
        tensor = torch.empty(shape, dtype=dtype)
    else:
        tensor = torch.frombuffer(data, dtype=dtype)
        if tensor.shape != shape:
            tensor = tensor.view(shape)
    return tensor.requires_grad_() if requires_grad else tensor


def is_plain_tensor(torch: Any, tensor: Any) -> bool:
    """Whether a tensor consists of only a dtype, a shape and memory."""
    return bool(
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.__dict__
        and tensor.dtype in dtype_names()
    )


def storage_order(tensor: Any) -> list[int]:
    """Return the dimensions from the outermost in memory to the innermost."""
    strides = tensor.stride()
    return sorted(range(len(strides)), key=strides.__getitem__, reverse=True)


def inverse(order: Sequence[int]) -> list[int]:
    """Return the permutation that undoes ``order``."""
    return sorted(range(len(order)), key=order.__getitem__)


def permuted(stored: Any, order: list[int], requires_grad: bool) -> Any:
    """Make a tensor of ``stored`` with its dimensions in the original order."""
    tensor = stored.permute(order)
    return tensor.requires_grad_() if requires_grad else tensor


def storage_of(tensor: Any) -> Any:
    """Return the memory of a tensor."""
    return tensor.untyped_storage()
