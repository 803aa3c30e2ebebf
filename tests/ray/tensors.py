"""Tensors that actors of these tests make.

This file is about functions that need torch, and nothing else that takes long to import.
"""

from __future__ import annotations

import torch

MIB = 1 << 20


def tensor(number: int) -> torch.Tensor:
    """Return 4 MiB."""
    return torch.full((MIB,), float(number))


def large(number: int) -> torch.Tensor:
    """Return 32 MiB."""
    return torch.full((8 * MIB,), float(number))
