"""A module that owns a folder, which its process is to remove at its end."""

from __future__ import annotations

import os
import socket
import tempfile
import weakref

FOLDER = tempfile.TemporaryDirectory()


def show(sock: socket.socket) -> None:
    """Send where the folder is, and whether it is there; then end when told to."""
    # What a process makes itself is removed at its own end.
    own = tempfile.mkdtemp()
    weakref.finalize(show, os.rmdir, own)
    sock.sendall(f"{FOLDER.name} {os.path.isdir(FOLDER.name)} {own}\n".encode())
    sock.recv(1)
