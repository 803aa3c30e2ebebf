"""What a test needs that not every system has, as marks that skip it and say why."""

from __future__ import annotations

import asyncio
import os

import pytest
import uvloop

from asyncloader import system

needs_sealed_memory = pytest.mark.skipif(
    not system.can_seal(), reason="this system has no memory that can be sealed"
)
#: Whether a process that hangs can still say where its threads stand.
HAS_LAST_WORDS = not system.PORTABLE
needs_last_words = pytest.mark.skipif(
    not HAS_LAST_WORDS, reason="here a process that hangs cannot say where it stands"
)
needs_prctl = pytest.mark.skipif(system.PORTABLE, reason="prctl is for Linux, and may be refused")
needs_deaths_told = pytest.mark.skipif(
    not system.TELLS_DEATHS, reason="here only the parent of a process knows that it is dead"
)
needs_template_with_imports = pytest.mark.skipif(
    not system.MAY_FORK_AFTER_IMPORTS, reason="here a process that forks imports no libraries"
)
needs_file_mappings = pytest.mark.skipif(
    not system.file_mappings(), reason="this system does not say which files are mapped"
)
needs_uvloop = pytest.mark.skipif(
    not system.may_use_uvloop(), reason="uvloop needs eventfd on Linux, which is refused here"
)
needs_dev_shm = pytest.mark.skipif(
    not os.access(system.SHARED_MEMORY, os.W_OK), reason="POSIX shared memory is no folder here"
)

#: How a loop is made, by asyncio and by uvloop.
LOOPS = [asyncio.new_event_loop, pytest.param(uvloop.new_event_loop, marks=needs_uvloop)]
