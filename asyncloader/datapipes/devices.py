"""Copying items to a device.

This file is about ``Device``: it begins to copy an item's tensors, and lets the consumer's stream
wait for the copies. ``CudaDevice`` copies on a stream of its own, straight from the shared memory
of workers where that can be page-locked; on a ``PlainDevice`` a copy is done when it has begun.
``with_parts_changed`` is the walk through an item's containers, for pinning too.
"""

from __future__ import annotations

import copy
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from asyncloader.memory import Mapping, mapping_at

logger = logging.getLogger("asyncloader")

#: A copy of so many bytes from memory that is not pinned is staged by the driver, and nobody waits.
_SMALL_BYTES = 64 << 10


def with_parts_changed(item: Any, method: str, change: Callable[[Any], Any]) -> Any:
    """Return ``item`` with ``change(part)`` in the place of every part that has the method.

    The parts are searched in tuples, lists, dicts and what is used like one; texts have none.
    """
    if isinstance(item, str | bytes):
        return item
    if hasattr(item, method):
        return change(item)
    if isinstance(item, MutableMapping):
        changed = copy.copy(item)
        # ``update`` may mean something else here: a Counter would add.
        for key, value in item.items():
            changed[key] = with_parts_changed(value, method, change)
        return changed
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*(with_parts_changed(value, method, change) for value in item))
    if isinstance(item, list | tuple):
        return type(item)(with_parts_changed(value, method, change) for value in item)
    return item


def pinned_part(part: Any) -> Any:
    """Return a part in pinned memory, by its own method."""
    try:
        return part.pin_memory()
    except RuntimeError:
        # torch pins no tensor whose elements share memory, as those of ``expand`` do.
        torch = sys.modules.get("torch")
        if torch is None or not isinstance(part, torch.Tensor) or part.is_contiguous():
            raise
        return part.contiguous().pin_memory()


class Event(Protocol):
    """A moment in the work of a device."""

    def query(self) -> bool:
        """Whether the device has come to it."""
        ...


class Passed:
    """The event of what is done already."""

    def query(self) -> bool:
        return True


@dataclass
class Copy:
    """The copies of one item's tensors, which have begun."""

    #: The item, with its tensors on the device.
    item: Any
    #: The device comes to it when the copies are done.
    event: Event = field(default_factory=Passed)
    #: What is copied from, which must not change or go away before that.
    sources: list[Any] = field(default_factory=list)
    #: The tensors on the device that were made for the item.
    tensors: list[Any] = field(default_factory=list)


class Device(Protocol):
    """The little that is asked of a device, so that tests need none."""

    def copy(self, item: Any) -> Copy:
        """Begin to copy an item's tensors."""
        ...

    def hand_over(self, copy: Copy) -> Event:
        """Let what the present thread begins on the device wait for the copies.

        Returns an event to which the device comes when all that this thread had begun before is
        done: so it is done with the items before this one.
        """
        ...

    def wait(self, event: Event) -> None:
        """Wait until the device comes to the event."""
        ...


def open_device(device: Any, current: int | None) -> Device:
    """Return the device that torch calls ``device``; None is the accelerator.

    ``current`` is the index of the GPU to use if ``device`` names none; None is the one that is
    current in this thread. Raise RuntimeError if there is no such device here.
    """
    import torch

    try:
        found = _found(torch, device, current)
        # This fails where there is none.
        torch.empty(0, device=found)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        asked = "" if device is None else repr(str(device))
        reason = str(error).partition("\n")[0].rstrip(".")
        raise RuntimeError(
            f"to_device({asked}) found no such device here ({reason}); choose one that this machine"
            " has, such as to_device('cpu'), or leave the pipe out"
        ) from error
    return CudaDevice(torch, found) if found.type == "cuda" else PlainDevice(found)


def _found(torch: Any, device: Any, current: int | None) -> Any:
    if device is None or isinstance(device, int):
        kind = _accelerator(torch)
        found = torch.device(kind) if device is None else torch.device(kind, device)
    else:
        found = torch.device(device)
    if found.type != "cuda" or found.index is not None:
        return found
    return torch.device("cuda", torch.cuda.current_device() if current is None else current)


def _accelerator(torch: Any) -> str:
    # Older versions of torch know only CUDA.
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:
        return "cuda"
    if not accelerator.is_available():
        raise RuntimeError("torch finds no accelerator")
    return str(accelerator.current_accelerator().type)


class PlainDevice:
    """A device to which a copy is done when it has begun, such as the CPU."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def copy(self, item: Any) -> Copy:
        """Copy an item's tensors."""
        return Copy(with_parts_changed(item, "to", self._moved))

    def hand_over(self, copy: Copy) -> Event:
        """Nothing has to wait."""
        return copy.event

    def wait(self, event: Event) -> None:
        """Nothing has to wait."""

    def _moved(self, part: Any) -> Any:
        # Blocking: the source's memory is given back, and may be written to, right afterwards.
        return part.to(self._device)


class CudaDevice:
    """A GPU, to which a stream of its own copies beside the consumer's."""

    def __init__(self, torch: Any, device: Any) -> None:
        self._torch = torch
        self._device = device
        self._stream = _copying_stream(torch, device)

    def copy(self, item: Any) -> Copy:
        """Begin to copy an item's tensors; an error comes after the copies that have begun."""
        torch, begun = self._torch, Copy(None)
        move = functools.partial(self._moved, begun)
        # The device first: to go back from a stream opens the device that was current before.
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            try:
                begun.item = with_parts_changed(item, "to", move)
            except BaseException:
                self._stream.synchronize()
                raise
            if begun.sources:
                begun.event = self._stream.record_event(torch.cuda.Event(blocking=True))
        return begun

    def hand_over(self, copy: Copy) -> Event:
        """Let the current stream wait for the copies, and its allocator know who uses them."""
        torch = self._torch
        if not copy.tensors:
            return Passed()
        stream = torch.cuda.current_stream(self._device)
        reached: Event = stream.record_event(torch.cuda.Event(blocking=True))
        stream.wait_event(copy.event)
        for tensor in copy.tensors:
            # The memory is the copying stream's: without this it would be used again for the
            # next copy while kernels of this stream still read it.
            tensor.record_stream(stream)
        return reached

    def wait(self, event: Any) -> None:
        """Wait until the device comes to the event."""
        # Otherwise a thread opens the first device, even where another one is used.
        with self._torch.cuda.device(self._device):
            event.synchronize()

    def _moved(self, begun: Copy, part: Any) -> Any:
        """Return a part on the device; note in ``begun`` what is copied."""
        if not isinstance(part, self._torch.Tensor):
            return self._moved_object(begun, part)
        if part.device == self._device:
            return part
        source = self._pinned(part)
        # Noted first: the copy may have begun when an interrupt comes.
        begun.sources.append(source)
        moved = source.to(self._device, non_blocking=True)
        begun.tensors += _memories(self._torch, moved)
        return moved

    def _moved_object(self, begun: Copy, part: Any) -> Any:
        # Its tensors may be anywhere in it, so what torch does meanwhile is noted.
        with _seen_by(self._torch)() as seen:
            source = part.pin_memory() if hasattr(part, "pin_memory") else part
            moved = source.to(self._device, non_blocking=True)
        begun.sources += [source, *seen.tensors]
        for tensor in seen.tensors:
            if tensor.device == self._device:
                begun.tensors += _memories(self._torch, tensor)
        return moved

    def _pinned(self, tensor: Any) -> Any:
        """Return the tensor, or a copy, in memory from which a copy runs by itself."""
        is_odd = tensor.layout is not self._torch.strided or hasattr(tensor, "__tensor_flatten__")
        if is_odd or tensor.device.type != "cpu" or tensor.nbytes <= _SMALL_BYTES:
            return tensor
        if tensor.is_pinned() or is_page_locked(self._torch, tensor):
            return tensor
        return pinned_part(tensor)


@functools.cache
def _copying_stream(torch: Any, device: Any) -> Any:
    """Return the stream that copies to a GPU: one, since each has its own memory to reuse."""
    return torch.cuda.Stream(device)


def _memories(torch: Any, tensor: Any) -> list[Any]:
    """Return the plain tensors that a tensor consists of."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return [part for name in names for part in _memories(torch, getattr(tensor, name))]
    if tensor.layout is torch.strided:
        return [tensor]
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]


@functools.cache
def _seen_by(torch: Any) -> Any:
    """Return a class whose ``with`` notes the tensors that torch's functions take and return."""
    from torch.overrides import TorchFunctionMode

    class Seen(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.tensors: list[Any] = []

        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = function(*args, **(kwargs or {}))
            self.tensors += [each for each in (*args, result) if isinstance(each, torch.Tensor)]
            return result

    return Seen


# Page-locking ---------------------------------------------------------------------------

_locking = threading.Lock()
#: Why no more memory is page-locked in this process, or "".
_refusal = ""


def is_page_locked(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is in a worker's shared memory and its pages are locked, now if not before.

    The memory is locked as a whole, on the present device, until it is unmapped.
    """
    storage = tensor.untyped_storage()
    mapping = mapping_at(storage.data_ptr(), storage.nbytes())
    if mapping is None:
        return False
    with _locking:
        if mapping.is_locked is None:
            mapping.is_locked = not _refusal and _lock(torch, mapping)
        return mapping.is_locked


def _lock(torch: Any, mapping: Mapping) -> bool:
    """Page-lock a whole mapping until it is unmapped; False if the system refuses."""
    global _refusal
    cudart, address = torch.cuda.cudart(), mapping.address
    code = cudart.cudaHostRegister(address, len(mapping), 0)
    if code != cudart.cudaError.success:
        _refusal = str(cudart.cudaGetErrorString(code))
        logger.warning(
            "to_device copies the workers' batches to pinned memory first, because their shared"
            " memory cannot be page-locked: %s",
            _refusal,
        )
        with suppress(RuntimeError):
            # The next kernel of this thread would raise the error.
            torch.zeros(1, device="cuda")
        return False
    index, pid = torch.cuda.current_device(), os.getpid()
    mapping.before_unmapping = functools.partial(_unlock, torch, address, index, pid)
    return True


def _unlock(torch: Any, address: int, index: int, pid: int) -> None:
    # A forked child has the mapping too, but not the device.
    if os.getpid() == pid and not sys.is_finalizing():
        with torch.cuda.device(index):
            torch.cuda.cudart().cudaHostUnregister(address)
