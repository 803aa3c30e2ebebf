"""A thread that sends what has waited long enough, whoever else is there."""

from __future__ import annotations

import threading

from asyncloader.workers.stream import FlushTimer

SOON = 10.0


class OpenFrame:
    """A frame that is due; ``send`` is what sending it does."""

    def __init__(self, error: type[Exception] | None = None) -> None:
        self.sent = threading.Event()
        self._error = error

    def send_if_late(self) -> bool:
        self.sent.set()
        if self._error is not None:
            raise self._error
        return False


def test_that_one_receiver_is_gone_keeps_nobody_elses_items():
    flush_timer = FlushTimer()
    gone = OpenFrame(EOFError)
    flush_timer.watch(gone)
    assert gone.sent.wait(SOON)
    other = OpenFrame()
    flush_timer.watch(other)
    assert other.sent.wait(SOON)
    flush_timer.close()


def test_once_closed_it_sends_nothing_and_its_thread_has_ended():
    before = set(threading.enumerate())
    flush_timer = FlushTimer()
    (thread,) = set(threading.enumerate()) - before
    flush_timer.close()
    assert not thread.is_alive()
    frame = OpenFrame()
    flush_timer.watch(frame)
    assert not frame.sent.is_set()
    flush_timer.close()
