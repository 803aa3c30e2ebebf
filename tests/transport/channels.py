"""Both ends of a channel in one process."""

from __future__ import annotations

import socket

from asyncloader.transport.channel import Channel, LoopChannel


def channel_pair() -> tuple[LoopChannel, Channel]:
    """Return the two ends of a new channel."""
    ours, theirs = socket.socketpair()
    return LoopChannel(ours), Channel(theirs)
