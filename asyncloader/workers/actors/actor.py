"""A worker's process in the cluster.

This file is about ``Actor``, whose calls fill and empty a ``Mailbox`` for each channel, while the
worker's program runs in a thread of its own.
"""

from __future__ import annotations

import importlib
import os
import pickle
import platform
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from asyncloader.runtime import CallThread, start_thread
from asyncloader.transport.arena import Arena
from asyncloader.transport.codec import read_payload
from asyncloader.transport.ends import BlockingEnd, QueuedEnd, joined
from asyncloader.transport.frame import Buffer, Frame
from asyncloader.workers.actors.cluster import import_ray
from asyncloader.workers.actors.far_end import FarEnd
from asyncloader.workers.messages import FrameKind, split_items
from asyncloader.workers.process.setup import OwnProcess

#: The number of the mailbox that an actor has for its loader; others are for other actors.
LOADER = 0
#: A result takes no more frames once it has so many bytes.
_FETCH_BYTES = 8 << 20
#: What is smaller is copied into the result's pickle.
_BESIDE = 64 << 10


class Actor:
    """A process of a Ray cluster that runs a program of ours, in a thread of its own.

    ``program`` is the module whose ``work`` is called with the channel to the loader.
    """

    def __init__(self, program: str) -> None:
        self._node_id = import_ray().get_runtime_context().get_node_id()
        # Several nodes may have one address.
        self._node = f"{import_ray().util.get_node_ip_address()} ({self._node_id[:8]})"
        self._lock = threading.Lock()
        self._boxes: dict[int, Mailbox] = {}
        loader = self._box(LOADER)
        start_thread(threading.Thread(target=_run, args=(program, loader), daemon=True))

    def birth(self) -> tuple[int, str, str, dict[str, str]]:
        """Say which process this is, on which node (its name and its id), with which versions."""
        return os.getpid(), self._node, self._node_id, versions()

    def tell(self, box: int, number: int, frames: list[tuple[int, bytes]], *sent: Any) -> None:
        """Put frames into a box; calls may arrive in another order than their numbers."""
        self._box(box).put(number, frames, sent)

    def fetch(self, box: int) -> tuple[list[Frame], int | None]:
        """Wait for frames in a box and take them; at the end the program's exit code."""
        return self._box(box).fetch()

    def stacks(self) -> str:
        """Return where the threads of this process stand."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        return "\n".join(
            f"Thread {names.get(ident, ident)}:\n{''.join(traceback.format_stack(frame))}"
            for ident, frame in sys._current_frames().items()
            if ident != threading.get_ident()
        )

    def _box(self, number: int) -> Mailbox:
        # Another actor may know of a channel between the two before this one does.
        with self._lock:
            if number not in self._boxes:
                self._boxes[number] = Mailbox(f" on node {self._node}", self._box)
            return self._boxes[number]


def _run(program: str, loader: Mailbox) -> None:
    code = 0
    try:
        importlib.import_module(program).work(loader, OwnProcess())
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    except BaseException:  # noqa: BLE001  user code ran: whatever it raised ends the process
        traceback.print_exc()
        code = 1
    loader.finish(code)


def versions() -> dict[str, str]:
    """Return the versions that have to be the same in all processes."""
    return {
        "Python": ".".join(platform.python_version_tuple()[:2]),
        "torch": _version("torch"),
        "asyncloader": _version("asyncloader"),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


class Mailbox(QueuedEnd):
    """The end of a channel that is in an actor, whose calls fill and empty it.

    ``box_of`` returns the actor's other boxes by their numbers.
    """

    def __init__(self, place: str, box_of: Callable[[int], Mailbox]) -> None:
        super().__init__()
        self.place = place
        self._box_of = box_of
        self._arena: Arena | None = None
        #: Calls that came before one with a lower number, and the number that is due.
        self._early: dict[int, tuple[list[tuple[int, bytes]], Sequence[Any]]] = {}
        self._due = 0
        #: The program's frames.
        self._outgoing: deque[Frame] = deque()
        self._code: int | None = None

    # What the actor's calls do.

    def put(self, number: int, frames: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        """Add frames that were told; no frames close the box."""
        with self._changed:
            self._early[number] = frames, sent
            while self._due in self._early:
                self._add(*self._early.pop(self._due))
                self._due += 1

    def fetch(self) -> tuple[list[Frame], int | None]:
        """Wait for frames and take them; the exit code comes after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._outgoing or self._code is not None)
            frames: list[Frame] = []
            nbytes = 0
            while self._outgoing and nbytes < _FETCH_BYTES:
                frames.append(frame := self._outgoing.popleft())
                nbytes += len(frame.payload) + sum(len(memory) for _, memory in frame.fds)
            code = None if self._outgoing else self._code
        return list(map(_beside, frames)), code

    def finish(self, code: int) -> None:
        """Note that the program is over."""
        with self._changed:
            self._code = code
            self._changed.notify_all()

    # What the program does.

    def lend_from(self, arena: Arena) -> None:
        self._arena = arena

    def send(
        self,
        kind: int,
        payload: Buffer | Sequence[Buffer] = b"",
        fds: Sequence[int] = (),
        then: Sequence[tuple[int, Buffer]] = (),
    ) -> None:
        # The receiver maps no segment, so nobody needs their descriptors.
        for fd in fds:
            os.close(fd)
        data = joined(payload)
        frames = [Frame(kind, data, 0, self._memory(data) if kind == FrameKind.ITEMS else ())]
        frames += [Frame(each, bytes(data), 0) for each, data in then]
        with self._changed:
            if self._has_ended:
                raise EOFError(self.gone)
            self._outgoing.extend(frames)
            self._changed.notify_all()

    def opened(self, fd: Any) -> BlockingEnd:
        # A link's two ends: the box of a number here, or the actor where that box is.
        if isinstance(fd, int):
            return self._box_of(fd)
        actor, number = fd
        return FarEnd(actor, number, CallThread("asyncloader link"), argument=_unchanged)

    def _add(self, frames: list[tuple[int, bytes]], sent: Sequence[Any]) -> None:
        if not frames:
            self.end()
            return
        (kind, payload), *then = frames
        things = tuple(map(_as_memory, sent)) if kind == FrameKind.MESSAGE else ()
        self.arrive([(kind, payload, things), *((*each, ()) for each in then)])

    def _memory(self, items: bytes) -> tuple[tuple[int, memoryview], ...]:
        """Return the slots that a frame of items speaks of, each with its bytes."""
        if self._arena is None:
            return ()
        refs = read_payload(split_items(items).items).slots
        return tuple((ref.slot, self._arena.memory_of(ref)) for ref in refs)


def _unchanged(sent: Any) -> Any:
    return sent


def _as_memory(sent: Any) -> Any:
    return sent if isinstance(sent, int | tuple) else memoryview(sent)


def _beside(frame: Frame) -> Frame:
    """Return a frame whose large parts Ray takes from where they are."""
    payload: Any = frame.payload
    if len(payload) >= _BESIDE:
        payload = pickle.PickleBuffer(payload)
    memory = tuple((slot, pickle.PickleBuffer(each)) for slot, each in frame.fds)
    return frame._replace(payload=payload, fds=memory)
