"""Tensors as the memory they are made of.

This file is about putting a tensor together over memory that arrived, in the order that
its dimensions had where it came from. torch is imported with the first tensor.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any


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
