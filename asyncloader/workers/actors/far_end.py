"""The end of an actor's channel that is in another process.

This file is about ``FarEnd``, through which a loader talks to an actor, and about
``ArrivedMemory``, which has the items that arrived.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from asyncloader.errors import ResourceExhausted, TransportError
from asyncloader.runtime import CallThread
from asyncloader.transport.arena import Arena, News, SlotRef, unwritten
from asyncloader.transport.codec import Decoder
from asyncloader.transport.ends import QueuedEnd, joined
from asyncloader.transport.frame import Buffer
from asyncloader.waiting import do_nothing

#: How many calls wait for a worker's frames at once: while one result travels, the next is made.
_FETCHES = 2
_COPY_BYTES = 1 << 20


class FarEnd(QueuedEnd):
    """The end of an actor's channel that is in another process: it fetches frames and tells some.

    A loop takes what has come, by ``attach``, or a thread, by ``receive``. ``calls`` is the thread
    that makes the calls; there ``argument`` makes of what is sent with a frame an argument for
    Ray, and ``on_end`` is called once, with the program's exit code or with what kept a call from
    being answered. Ray keeps what it is to call as long as a call waits, and a loader that is
    dropped is to be collected: so that does not keep the end alive.
    """

    gone = "the actor is gone"

    def __init__(
        self,
        actor: Any,
        box: int,
        calls: CallThread,
        argument: Callable[[Any], Any],
        on_end: Callable[[int | BaseException], None] = do_nothing,
    ) -> None:
        super().__init__()
        self.memory = ArrivedMemory()
        self._box = box
        self._fetch = actor.fetch.options(concurrency_group=f"fetch{box}")
        self._tell = actor.tell.options(concurrency_group="tell", num_returns=0)
        self._calls = calls
        # These belong to the calls' thread.
        self._argument = argument
        self._on_end = on_end
        self._asked: deque[Any] = deque()
        self._told = 0
        self._is_over = False
        for _ in range(_FETCHES):
            calls.submit(self._ask)

    # What the reader does, on its loop or in its thread.

    def open_items(self) -> Decoder:
        return Decoder(self.memory)

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[Any] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        if not self._has_ended:
            frames = [(kind, joined(payload)), *((each, bytes(data)) for each, data in then)]
            self._calls.submit(partial(self._send_now, frames, fds))

    def close(self) -> None:
        if not self._has_ended:
            # No frames close the other end.
            self._calls.submit(partial(self._send_now, [], ()))
        super().close()

    # What the calls' thread does.

    def stop(self) -> None:
        """Fetch and tell no more; in the calls' thread."""
        self._is_over = True
        self._asked.clear()

    def _send_now(self, frames: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        if self._is_over:
            return
        try:
            self._tell.remote(self._box, self._told, frames, *map(self._argument, sent))
        except Exception as error:  # noqa: BLE001  Ray may be gone; whoever waits is told
            self._over(error)
        self._told += 1

    def _ask(self) -> None:
        if self._is_over:
            return
        try:
            answer = self._fetch.remote(self._box).future()
        except Exception as error:  # noqa: BLE001  Ray may be gone; whoever waits is told
            self._over(error)
            return
        self._asked.append(answer)
        answer.add_done_callback(partial(_submit, self._calls, weakref.WeakMethod(self._look)))

    def _look(self) -> None:
        """Take what was fetched, in the order in which it was asked for."""
        while self._asked and self._asked[0].done():
            answer = self._asked.popleft()
            if answer.exception() is not None:
                self._over(answer.exception())
                return
            frames, code = answer.result()
            for frame in frames:
                for slot, memory in frame.fds:
                    self.memory.add(slot, memory)
            self.arrive([(frame.kind, bytes(frame.payload), ()) for frame in frames])
            del answer, frames
            if code is not None:
                self._over(code)
                return
            self._ask()

    def _over(self, how: int | BaseException) -> None:
        if not self._is_over:
            self.stop()
            self.end()
            self._on_end(how)


def _submit(calls: CallThread, method: weakref.WeakMethod[Callable[[], None]], _: object) -> None:
    call = method()
    if call is not None:
        calls.submit(call)


class ArrivedMemory:
    """What the items of frames that have arrived are in: private copies of a worker's slots.

    Ray's own memory cannot be written to, and is free again at once. A slot is given back when
    its items are opened, so that what has arrived and was not opened is within the budget.
    """

    def __init__(self) -> None:
        self.wake: Callable[[], None] = do_nothing
        self._arrived: dict[int, memoryview] = {}
        self._released: deque[int] = deque()
        #: Memory that is used again, since new pages take longer than what is copied into them.
        self._arena = Arena(0)
        self._lock = threading.Lock()

    def keep(self, nbytes: int) -> None:
        """Use so many bytes again and again; what is beyond them is new memory each time."""
        self._arena.budget = nbytes

    def add(self, slot: int, buffer: Any) -> None:
        """Copy a slot's bytes, which arrived; in the calls' thread."""
        source = memoryview(buffer).cast("B")
        copy = self._memory(len(source))
        # In steps, between which other threads get the GIL.
        for at in range(0, len(source), _COPY_BYTES):
            copy[at : at + _COPY_BYTES] = source[at : at + _COPY_BYTES]
        self._arrived[slot] = copy

    def update(self, news: News) -> None:
        """Do nothing: no segment is mapped here."""

    def lease(self, ref: SlotRef) -> memoryview:
        memory = self._arrived.pop(ref.slot, None)
        if memory is None or len(memory) < ref.nbytes:
            raise TransportError(f"{ref} speaks of memory that did not arrive")
        self._return(ref.slot)
        return memory[: ref.nbytes]

    def give_back(self, ref: SlotRef) -> None:
        self._arrived.pop(ref.slot, None)
        self._return(ref.slot)

    def take_released(self) -> list[int]:
        released = []
        while self._released:
            released.append(self._released.popleft())
        return released

    def holds_much(self) -> bool:
        # What is opened is no longer within the budget.
        return False

    def would_copy(self, nbytes: int) -> bool:
        # It was copied when it arrived.
        return False

    def close(self) -> None:
        self._arrived.clear()

    def free(self) -> None:
        """Keep no memory from now on; in the calls' thread, since unmapping takes its time."""
        with self._lock:
            self._arena.budget = 0
            self._arena.close()

    def _memory(self, nbytes: int) -> memoryview:
        with self._lock, contextlib.suppress(ResourceExhausted):
            memory = self._arena.allocate(nbytes)
            # No other process maps it.
            for fd in self._arena.take_news().fds:
                os.close(fd)
            if memory is not None:
                return memory
        return memoryview(unwritten(nbytes))

    def _return(self, slot: int) -> None:
        self._released.append(slot)
        self.wake()
