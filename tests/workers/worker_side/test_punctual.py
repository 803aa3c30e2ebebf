"""A thread that sends what has waited long enough, whoever else is there."""

from __future__ import annotations

import threading

from asyncloader.workers.worker_side.punctual import Punctual

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
    punctual = Punctual()
    gone = OpenFrame(EOFError)
    punctual.watch(gone)
    assert gone.sent.wait(SOON)
    other = OpenFrame()
    punctual.watch(other)
    assert other.sent.wait(SOON)
    punctual.close()


def test_once_closed_it_sends_nothing_and_its_thread_has_ended():
    before = set(threading.enumerate())
    punctual = Punctual()
    (thread,) = set(threading.enumerate()) - before
    punctual.close()
    assert not thread.is_alive()
    frame = OpenFrame()
    punctual.watch(frame)
    assert not frame.sent.is_set()
    punctual.close()
