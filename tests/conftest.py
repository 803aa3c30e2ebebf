"""What all tests share: settings, no fixtures."""

import asyncio.constants
import compileall
import gc
import signal
from pathlib import Path

import pytest
from hypothesis import settings
from tqdm import tqdm

from tests.preloading import preload

# How long an example takes says more about the machine than about the code.
settings.register_profile("asyncloader", deadline=None)
settings.load_profile("asyncloader")

# A loop in debug mode remembers where each of its calls was made: the last frames will do,
# and each frame less is a call of stat() less, for every call of the loop.
asyncio.constants.DEBUG_STACK_DEPTH = 2

# tqdm's monitor is a thread that outlives every bar, and fork refuses foreign threads.
tqdm.monitor_interval = 0

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# The modules of most tests whose functions are sent to workers import one or the other.
preload("pytest", "hypothesis", "numpy", "tests.samples")


def pytest_configure(config: pytest.Config) -> None:
    """Compile the sources for the hundreds of processes that the tests start."""
    if hasattr(config, "workerinput"):
        return  # that was done before xdist started this process
    # Where PYTHONDONTWRITEBYTECODE is set, each of them would compile them by itself.
    here = Path(__file__).parent
    for folder in (here, here.parent / "asyncloader"):
        compileall.compile_dir(folder, quiet=2)


def pytest_collection_finish() -> None:
    """Leave what the tests have imported out of the garbage that they collect."""
    # Modules live as long as the process, and tests collect thousands of times.
    gc.collect()
    gc.freeze()
