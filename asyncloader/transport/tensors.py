"""Tensors as the memory they are made of.

This file is about putting a tensor together over memory that arrived, in the order that
its dimensions had where it came from. torch is imported with the first tensor.
"""

from __future__ import annotations

import functools
import math
import pickle
import sys
from collections.abc import Callable, Sequence
from typing import Any

#: What the form of a bare tensor begins with; a pickle begins with something else.
BARE = b"T"


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


def is_plain(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is its dtype, its shape and its memory, and nothing else."""
    return bool(
        tensor.is_cpu
        and tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and not tensor.__dict__
        and tensor.dtype in dtype_names()
    )


def bare_form(item: Any) -> bytes | None:
    """Return the form of a tensor that is no more than its memory as it lies there.

    It is the same for all tensors of a dtype and a shape, and takes the place of a pickle,
    which would take as long as the copy of 64 KiB. None for whatever needs one.
    """
    torch = sys.modules.get("torch")
    # Another thread may be in the middle of importing it.
    if torch is None or type(item) is not getattr(torch, "Tensor", None):
        return None
    is_bare = is_plain(torch, item) and item.is_contiguous() and not item.requires_grad
    if not is_bare or item.is_conj() or item.is_neg():
        return None
    return _form(item.dtype, item.shape)


@functools.lru_cache(maxsize=1024)
def _form(dtype: Any, shape: Any) -> bytes:
    return BARE + pickle.dumps((dtype_names()[dtype], tuple(shape)), protocol=5)


@functools.lru_cache(maxsize=1024)
def maker_of(form: bytes) -> Callable[[Any], Any]:
    """Return what makes the tensor of a form over its memory, which it keeps alive."""
    name, shape = pickle.loads(form[len(BARE) :])
    over = functools.partial(_torch().frombuffer, dtype=_dtype(name), count=math.prod(shape))
    return over if len(shape) == 1 else lambda memory: over(memory).view(shape)


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
