"""Tensors as the memory they are made of.

This file is about putting a tensor together over memory that arrived, in the order that
its dimensions had where it came from. torch is imported with the first tensor: by
``import_torch`` in a thread, where a loop would stand still meanwhile.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def has_torch() -> bool:
    """Whether torch is imported, all of it."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


def speaks_of_torch(pickled: memoryview) -> bool:
    """Whether a pickle of ours holds a tensor, or something else of torch's."""
    return _TORCHS.search(pickled) is not None


#: The beginning of the name of one of torch's modules, or of this one, as pickle writes it.
_TORCHS = re.compile(rb"\x8c.(?:torch|asyncloader\.transport\.tensors)", re.DOTALL)


def import_torch() -> None:
    """Import torch; in a thread, so that a loop can run meanwhile."""
    found = importlib.util.find_spec("torch")
    if not has_torch() and found is not None and found.origin is not None:
        _open_libraries(Path(found.origin).parent / "lib")
    importlib.import_module("torch")


def _open_libraries(folder: Path) -> None:
    """Open torch's largest libraries, which an import does with the GIL held all the time."""
    # A function of C that is called by ctypes runs without the GIL.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int]
    for name in ("libtorch.so", "libtorch_cpu.so", "libtorch_python.so"):
        if (folder / name).exists():
            dlopen(bytes(folder / name), os.RTLD_NOW | os.RTLD_LOCAL)


@functools.cache
def dtype_names() -> dict[Any, str]:
    """Return what torch calls its dtypes."""
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
    """Whether a tensor is its dtype, its shape and its memory, and nothing else."""
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
    """Make a tensor whose dimensions lie in memory as ``stored`` has them."""
    tensor = stored.permute(order)
    return tensor.requires_grad_() if requires_grad else tensor


def storage_of(tensor: Any) -> Any:
    """Return the memory of a tensor."""
    return tensor.untyped_storage()
