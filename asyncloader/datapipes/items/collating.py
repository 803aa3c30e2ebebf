"""A batch made into tensors.

This file is about ``Collation``, the default of ``collate``: what torch makes of a batch,
with stacked tensors in memory that they can be sent from, where there is such.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

#: Gives memory of so many bytes to be filled, or None where it has none to give.
Allocate = Callable[[int], memoryview | None]


def own_memory(nbytes: int) -> None:
    """Have what is made allocate its memory itself."""


class Collation:
    """Collates as torch's ``default_collate`` does; torch is imported with the first batch.

    Where torch's stacks tensors of a worker into shared memory of its own, this one takes
    what ``allocate`` gives, or none at all.
    """

    def __init__(self) -> None:
        self.allocate: Allocate = own_memory

    def __call__(self, batch: Any) -> Any:
        import torch
        from torch.utils.data._utils import collate

        kinds = collate.default_collate_fn_map
        if kinds.get(torch.Tensor) is not collate.collate_tensor_fn:
            # Somebody has a way of their own to collate tensors.
            return torch.utils.data.default_collate(batch)
        kinds = {**kinds, torch.Tensor: self._stacked}
        return collate.collate(batch, collate_fn_map=kinds)

    def _stacked(self, batch: Sequence[Any], *, collate_fn_map: Any = None) -> Any:
        import torch

        memory = self.allocate(sum(each.nbytes for each in batch)) if _is_plain(batch) else None
        if memory is None:
            return torch.stack(list(batch))
        shape = (len(batch), *batch[0].shape)
        out = torch.frombuffer(memory, dtype=batch[0].dtype).view(shape)
        return torch.stack(list(batch), out=out)


def is_torchs_own(function: Any) -> bool:
    """Whether a function is torch's ``default_collate``, which torch is not imported for."""
    data = sys.modules.get("torch.utils.data")
    return data is not None and function is getattr(data, "default_collate", None)


def _is_plain(batch: Sequence[Any]) -> bool:
    """Whether stacking a batch is no more than copying its memory."""
    import torch

    first = batch[0]
    is_memory = first.layout is torch.strided and first.is_cpu and not first.is_quantized
    return is_memory and first.nbytes > 0 and all(_is_like(each, first) for each in batch)


def _is_like(tensor: Any, first: Any) -> bool:
    is_same = type(tensor) is type(first) and tensor.dtype is first.dtype
    return is_same and tensor.shape == first.shape and not tensor.requires_grad
