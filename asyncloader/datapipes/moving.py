"""Moving items to a device ahead of the consumer.

This file is about ``DeviceMover``, and about ``Transfers``: which items are on their way, how long
their sources are kept, and when there is room for another.

    source ──begin──▶ in flight ──hand_over──▶ the consumer ──▶ the device begins to use it: room
                 └──▶ the copy is done: its source is free
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, TypeVar

from asyncloader.arguments import checked_count
from asyncloader.datapipes.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.call import answer_of
from asyncloader.datapipes.devices import Copy, Device, Event, open_device
from asyncloader.datapipes.one_to_one import OneToOne, OneToOnePass
from asyncloader.datapipes.running.cursors import close_items
from asyncloader.datapipes.running.naming import brief_name
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.running.run_place import ended_threads, present_waiter
from asyncloader.datapipes.sources import iterable_source
from asyncloader.runtime import start_thread
from asyncloader.waiting import ThreadWaiter

T = TypeVar("T")


@functional_datapipe("to_device")
class DeviceMover(OneToOne, IterDataPipe[T]):
    """Yield the items with their tensors on a device, to which they are copied ahead of you.

    ``device`` is what torch calls it, such as ``"cuda:1"``; None is the accelerator, and a GPU
    without a number is the one that is current in your thread. On a GPU the copies run on a stream
    of their own, from pinned memory, up to ``ahead`` items ahead of what the GPU computes, and the
    stream that is current where you take an item waits for them. So neither your program nor the
    GPU waits for a copy, and the GPU holds at most ``ahead`` items besides the one in use.

    Tuples, lists, dicts (and what is used like one) are searched for tensors; other objects with a
    ``to`` method are moved by it. This is the last pipe of a loader's graph, and stays in the
    loader's process. Do not put ``pin_memory`` before it: batches from workers are copied straight
    from their shared memory, which is page-locked once.

    >>> import torch
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper([1, 2]).map(lambda number: {"x": torch.tensor([number])})
    >>> [batch["x"].device.type for batch in pipe.to_device("cpu")]
    ['cpu', 'cpu']
    """

    hands_over = True

    def __init__(
        self, source_datapipe: IterDataPipe[T], device: Any = None, ahead: int = 2
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.device = device
        self.ahead = checked_count("ahead", ahead, at_least=1)

    def is_replicable(self) -> bool:
        return False

    def __len__(self) -> int:
        return len(self.source)

    def waits(self) -> bool:
        # So that a loader runs it in a thread beside its consumer.
        return True

    def picks(self) -> bool:
        return False

    def new_pass(self, edge: Edge[Any]) -> DevicePass:
        return DevicePass(edge)

    def open_device(self, current: int | None) -> Device:
        """Return the device; ``current`` is the index of the GPU that is the consumer's."""
        return open_device(self.device, current)


class DevicePass(OneToOnePass):
    """One pass over a DeviceMover, which yields items in flight where its edge hands them over."""

    _transfers: Transfers | None = None

    def __iter__(self) -> Iterator[Any]:
        device = self.pipe.open_device(self.edge.current_device)
        if self.edge.current_device is None:
            return self._moved(device)
        return self._in_flight(device)

    def fullness(self) -> tuple[int, int]:
        held = 0 if self._transfers is None else len(self._transfers)
        return held, self.pipe.ahead

    def _moved(self, device: Device) -> Iterator[Any]:
        """Yield items of which nothing is left to do, in the thread that uses them."""
        items = self.source.begin()
        try:
            for item in items:
                copy = answer_of(self.pipe, device.copy, item)
                if not copy.event.query():
                    device.wait(copy.event)
                device.hand_over(copy)
                item = copy.item
                # Keep no source while the item is used, and no item while the next one is made.
                del copy
                yield item
                del item
        finally:
            close_items(items)

    def _in_flight(self, device: Device) -> Iterator[Transfer]:
        items = self.source.begin()
        waiter, name = present_waiter(), brief_name(self.pipe)
        self._transfers = transfers = Transfers(device, waiter, name)
        try:
            for item in items:
                transfer = transfers.begin(answer_of(self.pipe, device.copy, item))
                del item
                yield transfer
                del transfer
        finally:
            try:
                close_items(items)
            finally:
                transfers.close()


class Transfers:
    """The items of one pass that are on their way to a device.

    ``begin`` is called in the thread that copies, and ``waiter`` is that of this thread;
    ``hand_over`` in the consumer's. An item counts until the consumer has it and the device has
    done all that was begun before, as it holds the items before it until then.
    """

    def __init__(self, device: Device, waiter: ThreadWaiter, name: str) -> None:
        self._device = device
        self._waiter = waiter
        self._begun = 0
        # The numbers of the items that count. Threads add and take out in one step.
        self._counted: set[int] = set()
        # A copy is done long before the device comes to its use: so there are two of these.
        self._copies = Afterwards(device, f"asyncloader {name} copies")
        self._uses = Afterwards(device, f"asyncloader {name} uses")

    def __len__(self) -> int:
        return len(self._counted)

    def begin(self, copy: Copy) -> Transfer:
        """Note a copy that has begun, and keep its sources until it is done."""
        self._begun += 1
        self._counted.add(self._begun)
        self._copies.call(copy.sources.clear, copy.event)
        return Transfer(self, self._begun, copy)

    def hand_over(self, number: int, copy: Copy) -> Any:
        """Return an item to the thread that uses it."""
        reached = self._device.hand_over(copy)
        self._uses.call(lambda: self._forget(number), reached)
        return copy.item

    def close(self) -> None:
        """Wait until all copies are done, for a bounded time: no source may change before."""
        self._uses.end()
        ended_threads(self._copies.end())

    def _forget(self, number: int) -> None:
        self._counted.discard(number)
        self._waiter.wake()


@dataclass
class Transfer:
    """One item in flight."""

    transfers: Transfers
    number: int
    copy: Copy

    def hand_over(self) -> Any:
        """Return the item, in the thread that uses it; calling this again is harmless."""
        return self.transfers.hand_over(self.number, self.copy)


class Afterwards:
    """Calls functions when a device has come to events, in a thread if it has not yet."""

    def __init__(self, device: Device, name: str) -> None:
        self._device = device
        self._name = name
        self._waiting: SimpleQueue[tuple[Callable[[], object], Event] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._has_ended = False

    def call(self, function: Callable[[], object], event: Event) -> None:
        """Call it after the event; call this in one thread at a time."""
        if event.query():
            function()
        elif not self._has_ended:
            try:
                self._have_thread()
            except BaseException:
                # Nobody else could do it.
                self._device.wait(event)
                function()
                raise
            self._waiting.put((function, event))

    def end(self) -> list[threading.Thread]:
        """Let the thread end after what it has been given; return it, if there is one."""
        self._has_ended = True
        self._waiting.put(None)
        return [] if self._thread is None else [self._thread]

    def _have_thread(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            start_thread(thread)
            self._thread = thread

    def _run(self) -> None:
        while (given := self._waiting.get()) is not None:
            function, event = given
            # After an error of the device, the thread that copies raises it again.
            with suppress(Exception):
                self._device.wait(event)
            function()
            del given, function, event
