"""Pickling of items, with large buffers outside of the pickle.

This file is about how tensors, arrays and bytes are pickled: which memory is left out of the
pickle, and how they are put together again. torch and NumPy are imported only for items that
need them.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from asyncloader.main_script import may_name_main
from asyncloader.system import in_forked_child
from asyncloader.transport.raw_arrays import (
    IN_BAND_BELOW,
    RAW,
    array_over,
    dtype_names,
    inverse,
    is_plain_array,
    is_plain_tensor,
    maker_of,
    permuted,
    raw_array,
    storage_of,
    storage_order,
    tensor_over,
)

LARGE = 1 << 20


class Source(NamedTuple):
    """Memory that leaves a pickle: its address, or its bytes, and what keeps it alive."""

    nbytes: int
    address: int
    owner: Any


class Pickled(NamedTuple):
    """A pickle and the buffers outside of it; the form of a raw tensor or array is in its place."""

    data: bytes
    sources: list[Source]


class Pickler:
    """Pickles items, one after another.

    ``fallback`` makes a pickler that includes code, for items that pickle refuses; with
    ``main_by_value`` also for items of classes of the main script.
    """

    def __init__(self, fallback: Callable[[Dump], Any], *, main_by_value: bool = False) -> None:
        self._fallback = fallback
        self._main_by_value = main_by_value
        self._dumped = Dump()
        self._plain = _PlainPickler(self._dumped)

    def dump(self, item: Any) -> Pickled:
        """Return the item's pickle, or raise what pickling it raised."""
        found = raw_array(item)
        if found is not None:
            form, nbytes, address = found
            return Pickled(form, [Source(nbytes, address, item)])
        try:
            pickled = self._dump(self._plain, _with_bytes_beside(item))
        except Exception:  # noqa: BLE001 - pickle refuses in many ways; cloudpickle has the last word
            return self._dump_by_value(item)
        if self._main_by_value and may_name_main(pickled.data):
            return self._dump_by_value(item)
        return pickled

    def _dump_by_value(self, item: Any) -> Pickled:
        return self._dump(self._fallback(self._dumped), _with_bytes_beside(item))

    def _dump(self, pickler: Any, item: Any) -> Pickled:
        dump = self._dumped
        try:
            dump.fill(pickler, item)
            return Pickled(dump.data, dump.sources)
        finally:
            # Drop the item, so that the next one can use its memory.
            pickler.clear_memo()
            dump.reset()


class Dump:
    """What one dump collects, and the file that pickle writes to.

    ``write`` is a Python function on purpose: pickle calls it every 64 KiB, so that other
    threads get the GIL while a large item is pickled.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.chunks: list[bytes] = []
        self.sources: list[Source] = []
        self.tensor: Any = None

    def fill(self, pickler: Any, item: Any) -> None:
        """Let a pickler write an item to this, even a deeply nested one."""
        try:
            pickler.dump(item)
        except RecursionError:
            pickler.clear_memo()
            self.reset()
            with _deep_recursion():
                pickler.dump(item)

    def write(self, chunk: Any) -> None:
        self.chunks.append(bytes(chunk))

    @property
    def data(self) -> bytes:
        return self.chunks[0] if len(self.chunks) == 1 else b"".join(self.chunks)

    def on_buffer(self, buffer: pickle.PickleBuffer) -> bool:
        """Take a buffer out of the pickle, or return True to leave it there."""
        if self.tensor is not None:
            tensor, self.tensor = self.tensor, None
            self.sources.append(Source(tensor.nbytes, tensor.data_ptr(), tensor))
            return False
        raw = buffer.raw()
        if raw.nbytes < IN_BAND_BELOW:
            return True
        self.sources.append(Source(raw.nbytes, _address(raw), raw))
        return False

    def reduce(self, item: Any) -> Any:
        """Return how to pickle an object; NotImplemented leaves it to pickle."""
        kind = type(item)
        torch = sys.modules.get("torch")
        # Another thread may still be importing torch.
        if torch is not None and kind is getattr(torch, "Tensor", None):
            return self._reduce_tensor(torch, item)
        if kind is _Beside:
            return copied_into, (item.kind, pickle.PickleBuffer(item.data))
        if kind is memoryview:
            return _reduce_memoryview(item)
        if torch is not None and kind is getattr(torch, "UntypedStorage", None):
            return reduce_storage(item)
        numpy = sys.modules.get("numpy")
        if numpy is not None and kind is getattr(numpy, "ndarray", None):
            return _reduce_array(numpy, item)
        return NotImplemented

    def _reduce_tensor(self, torch: Any, tensor: Any) -> Any:
        if not is_plain_tensor(torch, tensor):
            return NotImplemented
        name, shape, grad = dtype_names()[tensor.dtype], tuple(tensor.shape), tensor.requires_grad
        whole = tensor.detach() if grad else tensor
        if whole.is_conj() or whole.is_neg():
            whole = whole.resolve_conj().resolve_neg()
        if not whole.is_contiguous():
            order = storage_order(whole)
            stored = whole.permute(order)
            if stored.is_contiguous():
                return permuted, (stored, inverse(order), grad)
            whole = whole.contiguous()
        nbytes = whole.nbytes
        if nbytes < IN_BAND_BELOW:
            data = bytearray(ctypes.string_at(whole.data_ptr(), nbytes) if nbytes else b"")
            return tensor_over, (data, name, shape, grad)
        # The next buffer that pickle reports represents this tensor's memory.
        self.tensor = whole
        return tensor_over, (pickle.PickleBuffer(_STAND_IN), name, shape, grad)


_STAND_IN = bytearray()

#: How deep pickling may recurse: about 2,000 nested lists. That takes two of the eight megabytes
#: of a thread's usual stack.
_DEPTH = 4000


@contextlib.contextmanager
def _deep_recursion() -> Iterator[None]:
    """Raise the recursion limit, which all threads share."""
    with _deepening:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _DEPTH))
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


_deepening = threading.RLock()


@in_forked_child
def _forget_threads() -> None:
    # A thread that holds the lock does not survive a fork.
    global _deepening
    _deepening = threading.RLock()


class _PlainPickler(pickle.Pickler):
    def __init__(self, dump: Dump) -> None:
        super().__init__(dump, protocol=5, buffer_callback=dump.on_buffer)
        self.reducer_override = dump.reduce  # type: ignore[method-assign]


class _Beside:
    """Bytes that travel beside the pickle and are copied into a ``kind`` on arrival."""

    __slots__ = ("data", "kind")

    def __init__(self, data: Any) -> None:
        self.data = data
        self.kind = type(data)


def _with_bytes_beside(item: Any) -> Any:
    """Return the item with large bytes marked, at the top and one level down."""
    kind = type(item)
    if kind is list or kind is tuple:
        if _BYTES.isdisjoint(map(type, item)):
            return item
        return kind([_marked(value) for value in item])
    if kind is dict:
        if _BYTES.isdisjoint(map(type, item.values())):
            return item
        return {key: _marked(value) for key, value in item.items()}
    return _marked(item)


_BYTES = frozenset({bytes, bytearray})


def _marked(value: Any) -> Any:
    return _Beside(value) if type(value) in _BYTES and len(value) >= IN_BAND_BELOW else value


def copied_into(kind: type[Any], memory: Any) -> Any:
    """Copy memory into bytes or a bytearray; where it is much, other threads can run meanwhile."""
    view = memoryview(memory)
    if len(view) < LARGE:
        return kind(view)
    if kind is bytes and not view.readonly:
        # Nobody else has it yet, and ctypes releases the GIL.
        made = bytes(len(view))
        source = ctypes.addressof(ctypes.c_char.from_buffer(view))
        ctypes.memmove(made, source, len(view))  # type: ignore[arg-type]  # it takes bytes, too
        return made
    grown = bytearray()
    for start in range(0, len(view), LARGE):
        grown += view[start : start + LARGE]
    return grown if kind is bytearray else kind(grown)


def copies(pickled: bytes) -> bool:
    """Whether what is unpickled copies memory that travels beside it."""
    return any(each.__name__.encode() in pickled for each in (copied_into, _memoryview))


#: What a view of bytes can be cast to.
_CASTS = frozenset("?cbBhHiIlLqQnNfdP")


def _reduce_memoryview(view: memoryview) -> Any:
    is_flat = view.format == "B" and view.ndim == 1
    if not is_flat and (view.format not in _CASTS or not view.nbytes):
        return _view_of, (_as_array(view), view.readonly)
    data = bytes(view) if view.readonly else bytearray(view)
    return _memoryview, (type(data), pickle.PickleBuffer(data), view.format, view.shape)


def _memoryview(kind: type[Any], data: Any, form: str, shape: tuple[int, ...]) -> memoryview:
    flat = memoryview(copied_into(kind, data))
    return flat if form == "B" and len(shape) == 1 else flat.cast(form, shape)  # type: ignore[call-overload]


def _as_array(view: memoryview) -> Any:
    # memoryview.cast supports neither other formats nor empty views; arrays do.
    import numpy

    return numpy.asarray(view)


def _view_of(array: Any, readonly: bool) -> memoryview:
    return memoryview(array).toreadonly() if readonly else memoryview(array)


def _reduce_array(numpy: Any, array: Any) -> Any:
    if is_plain_array(array) and array.nbytes >= IN_BAND_BELOW:
        # NumPy's own way takes several times longer.
        return array_over, (pickle.PickleBuffer(array), array.dtype.str, array.shape)
    flags = array.flags
    if array.dtype.hasobject or flags.c_contiguous or flags.f_contiguous:
        return NotImplemented
    return numpy.ascontiguousarray(array).__reduce_ex__(5)


def reduce_storage(storage: Any) -> Any:
    """Return how to pickle a torch storage; torch's own pickle of it cannot be read here."""
    torch = sys.modules.get("torch")
    is_storage = torch is not None and type(storage) is getattr(torch, "UntypedStorage", None)
    if torch is None or not is_storage or storage.device.type != "cpu":
        return NotImplemented
    return storage_of, (torch.empty(0, dtype=torch.uint8).set_(storage),)


def _address(raw: memoryview) -> int:
    """The address of a buffer, or 0 if only its bytes are available."""
    return 0 if raw.readonly else ctypes.addressof(ctypes.c_char.from_buffer(raw))


def load(data: memoryview | bytes, buffers: Iterable[Any] = ()) -> Any:
    """Unpickle an item; for a large one other threads can run meanwhile."""
    if data[:1] == RAW:
        (memory,) = buffers
        return maker_of(bytes(data))(memory)
    if len(data) < LARGE:
        return pickle.loads(data, buffers=buffers)
    return pickle.Unpickler(_Reader(data), buffers=buffers).load()


class _Reader:
    """A file of Python functions, so that other threads get the GIL between reads."""

    def __init__(self, data: memoryview | bytes) -> None:
        self._file = io.BytesIO(data)

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)

    def readline(self, size: int = -1) -> bytes:
        return self._file.readline(size)
