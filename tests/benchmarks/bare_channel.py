"""The least that two processes need to hand their items over: a limit beside which W2, W3 and W7
are measured.

Each process is forked, makes its share of a job, and sends pickles of up to 64 items over a
socketpair. Large buffers are copied once, into one of eight slots of memory that both processes
have; a slot is free again when the last view of it is gone. Items are taken strictly in turn.
Nothing else is here: no errors, no states, no limits, no restarts, and no orderly end.
"""

from __future__ import annotations

import asyncio
import ctypes
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import suppress
from typing import Any

from tests.benchmarks.job import Job
from tests.benchmarks.measuring import (
    EPOCHS,
    WORKERS,
    Take,
    async_rate,
    single_threaded,
    sync_rate,
)

#: A group is sent when it has so many items, or is so old, or fills a slot.
_ITEMS, _SECONDS = 64, 0.002
_SLOTS = 8
_ALIGNED = 64
_SOCKET_BYTES = 1 << 20
#: Bytes of the pickle, number of buffers, and the slot that they are in.
_HEAD = struct.Struct("<IIB")
#: What the parent says beside the numbers of free slots.
_BEGIN = b"\xff"
_END = object()

#: The names of the cases.
BARE, BARE_ASYNC = "limit: bare channel, for", "limit: bare channel, async for"


def bare_rate(job: Job, mode: str, take: Take, epochs: int = EPOCHS) -> float:
    """Return what is taken of a bare channel per second; ``mode`` is "sync" or "async"."""
    loader = BareLoader(job)
    if mode == "sync":
        return sync_rate(loader, take, epochs)
    return asyncio.run(async_rate(loader, take, epochs))


class Share:
    """A process that makes its share of a job at each word, as the parent sees it."""

    def __init__(self, job: Job, worker: int) -> None:
        self.sock, theirs = socket.socketpair()
        for sock in (self.sock, theirs):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._slot_bytes = (job.nbytes + (64 << 10) + 4095) & ~4095
        self._memory = mmap.mmap(-1, self._slot_bytes * _SLOTS)
        if not os.fork():
            self.sock.close()
            _Maker(theirs, memoryview(self._memory), self._slot_bytes).serve(job, worker)
            os._exit(0)
        theirs.close()
        self.items: deque[Any] = deque()
        self._received = bytearray()
        self._views: dict[int, weakref.ref[Any]] = {}

    def begin(self) -> None:
        self.sock.send(_BEGIN)

    def receive(self) -> None:
        """Take in what the socket has; wait for it if the socket is a waiting one."""
        self._received += self.sock.recv(256 << 10)
        at, received = 0, memoryview(bytes(self._received))
        while len(received) - at >= _HEAD.size:
            nbytes, count, slot = _HEAD.unpack_from(received, at)
            table_at = at + _HEAD.size
            body_at = table_at + 16 * count
            if len(received) - body_at < nbytes:
                break
            places = struct.unpack_from(f"<{2 * count}Q", received, table_at)
            views = self._in_slot(slot, places) if count else ()
            group = pickle.loads(received[body_at : body_at + nbytes], buffers=views)
            self.items.extend([_END] if group is None else group)
            at = body_at + nbytes
        del self._received[:at]

    def _in_slot(self, slot: int, places: tuple[int, ...]) -> list[memoryview]:
        kind = ctypes.c_char * self._slot_bytes
        owner = kind.from_buffer(self._memory, slot * self._slot_bytes)
        self._views[slot] = weakref.ref(owner, lambda _: self.sock.send(bytes([slot])))
        whole = memoryview(owner).cast("B")
        pairs = zip(places[::2], places[1::2], strict=True)
        return [whole[start : start + nbytes] for start, nbytes in pairs]


class _Maker:
    """The other end, in the process that makes the items."""

    def __init__(self, sock: socket.socket, memory: memoryview, slot_bytes: int) -> None:
        self._sock, self._memory, self._slot_bytes = sock, memory, slot_bytes
        self._free = list(range(_SLOTS))

    def serve(self, job: Job, worker: int) -> None:
        with suppress(ConnectionError):
            while self._is_told_to_begin():
                for group in self._groups(job.part(worker, WORKERS)):
                    self._send(group)
                self._send(None)

    def _groups(self, items: Iterable[Any]) -> Iterator[list[Any]]:
        group: list[Any] = []
        began, nbytes = time.monotonic(), 0
        for item in items:
            group.append(item)
            last = getattr(item, "nbytes", 0)
            nbytes += last
            # Its memory is there for the next item once the group is sent.
            del item
            is_old = time.monotonic() - began > _SECONDS
            if len(group) == _ITEMS or nbytes + last > self._slot_bytes or is_old:
                yield group
                group.clear()
                began, nbytes = time.monotonic(), 0
        yield group

    def _send(self, group: list[Any] | None) -> None:
        buffers: list[pickle.PickleBuffer] = []
        body = io.BytesIO()
        _Pickler(body, 5, buffer_callback=buffers.append).dump(group)
        slot, table = 0, b""
        if buffers:
            slot = self._free_slot()
            places, at = [], slot * self._slot_bytes
            for buffer in buffers:
                raw = buffer.raw()
                self._memory[at : at + raw.nbytes] = raw
                places += [at - slot * self._slot_bytes, raw.nbytes]
                at += -(-raw.nbytes // _ALIGNED) * _ALIGNED
            table = struct.pack(f"<{len(places)}Q", *places)
        head = _HEAD.pack(body.tell(), len(buffers), slot)
        self._sock.sendall(b"".join((head, table, body.getbuffer())))

    def _free_slot(self) -> int:
        with suppress(BlockingIOError):
            self._free += self._sock.recv(64, socket.MSG_DONTWAIT)
        while not self._free:
            self._free += self._sock.recv(64)
        # The one that was used last is still in the cache.
        return self._free.pop()

    def _is_told_to_begin(self) -> bool:
        while word := self._sock.recv(64):
            self._free += word.replace(_BEGIN, b"")
            if _BEGIN in word:
                return True
        return False


class _Pickler(pickle.Pickler):
    def reducer_override(self, item: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and type(item) is torch.Tensor:
            buffer = pickle.PickleBuffer(item.numpy())
            return _tensor, (buffer, item.dtype, tuple(item.shape))
        return NotImplemented


def _tensor(buffer: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.frombuffer(buffer, dtype=dtype).view(shape)


class BareLoader:
    """Two shares of a job, taken in turn by ``for`` or by ``async for``, again and again."""

    def __init__(self, job: Job) -> None:
        single_threaded()
        self._shares = [Share(job, worker) for worker in range(WORKERS)]

    def __iter__(self) -> Iterator[Any]:
        shares = list(self._shares)
        for share in shares:
            share.sock.setblocking(True)
            share.begin()
        while shares:
            for share in list(shares):
                while not share.items:
                    share.receive()
                item = share.items.popleft()
                if item is _END:
                    shares.remove(share)
                else:
                    yield item
                    del item

    async def __aiter__(self) -> AsyncIterator[Any]:
        loop = asyncio.get_running_loop()
        came = asyncio.Event()

        def on_readable(share: Share) -> None:
            share.receive()
            came.set()

        shares = list(self._shares)
        for share in shares:
            share.sock.setblocking(False)
            loop.add_reader(share.sock, on_readable, share)
            share.begin()
        while shares:
            for share in list(shares):
                while not share.items:
                    came.clear()
                    await came.wait()
                item = share.items.popleft()
                if item is _END:
                    loop.remove_reader(share.sock)
                    shares.remove(share)
                else:
                    yield item
                    del item
