"""Row F1: the /dev/shm of a container, which is small or not there."""

from __future__ import annotations

import functools
import subprocess

import pytest

from tests.processes.scripts import run_script

UNSHARE = ["unshare", "--mount", "--map-root-user", "sh", "-ec"]

#: What Docker gives by default, and none at all.
PLACES = {
    "of 64 MiB": "mount -t tmpfs -o size=64m tmpfs /dev/shm",
    "missing": """
        mount -t tmpfs tmpfs "$1"
        for name in null zero urandom; do
            touch "$1/$name"
            mount --bind "/dev/$name" "$1/$name"
        done
        ln -s /proc/self/fd "$1/fd"
        mount --rbind "$1" /dev
    """,
}

#: What the script is to find there.
FOUND = {"of 64 MiB": 64 << 20, "missing": None}

SCRIPT = f"""
import os, sys

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

ITEMS, ELEMENTS = 125, 1 << 20  # 500 MiB of int32


def tensor(number):
    import torch

    return torch.full((ELEMENTS,), number, dtype=torch.int32)


def array(number):
    import numpy

    return numpy.full((ELEMENTS,), number, dtype=numpy.int32)


def shared_memory():
    if not os.path.isdir("/dev/shm"):
        return None
    facts = os.statvfs("/dev/shm")
    return facts.f_blocks * facts.f_frsize


if __name__ == "__main__":
    if sys.argv[1:]:
        again = [sys.executable, "-W", "error", __file__]
        mount, folder = sys.argv[1:]
        unshare = [*{UNSHARE}, mount + 'shift; exec "$@"', "sh", folder, *again]
        os.execvp(unshare[0], unshare)
    print(shared_memory())
    # Once is enough for torch, which takes long to import.
    first = tensor if shared_memory() else array
    for method, make in [(None, first), ("fork", array), ("spawn", array), ("forkserver", array)]:
        graph = IterableWrapper(range(ITEMS)).sharding_filter().map(make)
        with DataLoader2(graph, None, MultiProcessingReadingService(2, method)) as loader:
            ends = [(int(item[0]), int(item[-1])) for item in loader]
        assert ends == [(number, number) for number in range(ITEMS)], method
"""


@functools.cache
def refusal() -> str:
    """Why this system gives us no mounts of our own; empty where it does."""
    try:
        asked = [*UNSHARE, PLACES["of 64 MiB"]]
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
    except OSError as error:
        return str(error)
    return done.stderr.strip() or "no private mount" if done.returncode else ""


@pytest.mark.soak
@pytest.mark.parametrize("place", PLACES)
def test_f1_tensors_need_no_dev_shm_under_any_start_method(place, tmp_path):
    if refusal():
        pytest.skip(f"needs a mount of its own: {refusal()}")
    folder = tmp_path / "dev"
    folder.mkdir()
    done = run_script(tmp_path, SCRIPT, PLACES[place] + "\n", str(folder))
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout == f"{FOUND[place]}\n"
