"""A process that may open few more files, for a while."""

from __future__ import annotations

import contextlib
import itertools
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def only_free(count: int) -> Iterator[None]:
    """Let this process have ``count`` more descriptors than it has."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_limit_that_leaves(count), limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def _limit_that_leaves(count: int) -> int:
    free = (fd for fd in itertools.count() if not _is_open(fd))
    return next(itertools.islice(free, count, None))


def _is_open(fd: int) -> bool:
    with contextlib.suppress(OSError):
        os.fstat(fd)
        return True
    return False
