"""What all tests share: settings, no fixtures."""

import compileall
import contextlib
import gc
import hashlib
import importlib.util
import os
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings
from tqdm import tqdm

from tests.own_thread import refuse_other_threads
from tests.preloading import preload

HERE = Path(__file__).parent

# How long an example takes says more about the machine than about the code. A run is of the
# same examples each time; `--hypothesis-profile explore` looks for others.
settings.register_profile("asyncloader", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("explore", deadline=None)
settings.load_profile("asyncloader")

refuse_other_threads()

# tqdm's monitor is a thread that outlives every bar, and tests count threads.
tqdm.monitor_interval = 0

# A shell's background jobs ignore Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# What an example prints into a pipe has to come without this, which few machines set.
os.environ.pop("PYTHONUNBUFFERED", None)

# The servers of the tests are on this machine, and a proxy of its user knows nothing of them.
for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
    del os.environ[name]

#: Where few tests take long. A run begins with them: at its end, one of these files would
#: keep one core busy and let the others wait.
LONG = (
    "benchmarks/",
    "compat/test_torchrun.py",
    "datapipes/test_hugging_face_streams.py",
    "datapipes/test_mixing.py",
    "faults/",
    "graph/test_random_graphs.py",
    "house/",
    "loader/page/",
    "loader/test_without_order.py",
    "processes/",
    "random_graphs/",
    "services/",
    "serving/",
    "test_examples.py",
    "test_readme.py",
    "test_recipe.py",
    "test_typing.py",
    "tools/",
    "transport/test_processes.py",
    "workers/process/",
)

#: Asked for by `-p`, and then of use to workers too.
EAGERLY = [name for name in ("tests.eagerly",) if name in sys.modules]

# The modules of most tests whose functions are sent to workers import one or the other.
preload("pytest", "hypothesis", "numpy", "tests.samples", *EAGERLY)


def pytest_configure(config: pytest.Config) -> None:
    """Compile the sources for the hundreds of processes that the tests start."""
    if hasattr(config, "workerinput"):
        # The rest was done before xdist started this process.
        if config.args_source is pytest.Config.ArgsSource.TESTPATHS:
            number = int(config.workerinput["workerid"].removeprefix("gw"))
            _rewrite(sorted(HERE.rglob("test_*.py"))[number :: config.workerinput["workercount"]])
        return
    # Where PYTHONDONTWRITEBYTECODE is set, each of them would compile them by itself.
    for folder in (HERE, HERE.parent / "asyncloader"):
        compileall.compile_dir(folder, quiet=2)
    # xdist hands out files in the order of the tests, not those of most tests first.
    config.option.loadscopereorder = False


def _rewrite(files: list[Path]) -> None:
    """Let pytest rewrite the assertions of these and keep them for all processes.

    Each process collects all files: all of them would rewrite the same one at the same time.
    """
    for file in files:
        # Without __import__ a module ends at its first import, once its code is kept.
        unused = importlib.util.module_from_spec(
            importlib.util.spec_from_file_location(file.stem, file, loader=__loader__)
        )
        unused.__builtins__ = {}
        with contextlib.suppress(ImportError):
            __loader__.exec_module(unused)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage: all that is made stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--more`` and ``--whole``."""
    more = "run the soaks, and other cases of the sweeps, one in forty-eight"
    parser.addoption("--more", action="store_true", help=more)
    whole = "run the soaks, and the sweeps with all of their cases"
    parser.addoption("--whole", action="store_true", help=whole)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file for its sweeps and soaks that has none."""
    asked_for = config.option.markexpr.startswith("(sweep or soak)")
    if asked_for and collection_path.match("test_*.py") and not _may_have_marks(collection_path):
        return True
    return None


MARKS = ("sweep", "soak")


def _may_have_marks(file: Path) -> bool:
    """Say whether a file has one of the marks' names in it, as each has to that uses them."""
    text = file.read_text()
    return any(mark in text for mark in MARKS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out soaks and cases of sweeps; put the files that take long first."""
    # Whoever names a test means it.
    if not config.option.whole and not any("::" in argument for argument in config.args):
        left = _left_out(items, config.option.more)
        items[:] = [item for item in items if item not in left]
        config.hook.pytest_deselected(items=list(left))
    if hasattr(config, "workerinput"):
        # Several processes share the tests.
        counts = Counter(item.path for item in items)
        items.sort(key=lambda item: (not _takes_long(item.path), -counts[item.path], item.path))


#: Of the cases of a sweep, one in so many is run as a rule, and another one by ``--more``.
ONE_IN = 48


def _left_out(items: list[pytest.Item], more: bool) -> dict[pytest.Item, None]:
    """Return the cases of sweeps that are not run now; and the soaks, without ``more``."""
    soaks = [item for item in items if item.get_closest_marker("soak")]
    for file in {item.path for item in items if any(map(item.get_closest_marker, MARKS))}:
        assert _may_have_marks(file), f"{file} has a sweep or a soak, and neither word"
    left = dict.fromkeys([] if more else soaks)
    sweeps = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sweep"):
            # Of what is a soak, too, none is run as a rule.
            is_soak = item.get_closest_marker("soak") is not None
            sweeps[item.nodeid.partition("[")[0], is_soak].append(item)
    for (_, is_soak), cases in sweeps.items():
        # Every forty-eighth would always have the same value of a parameter that has two or three,
        # and those of the least checksums end alike.
        cases.sort(key=lambda item: hashlib.sha256(item.name.encode()).digest())
        count = -(-len(cases) // ONE_IN)
        first = 0 if is_soak else count
        run = slice(first, first + count) if more else slice(first)
        del cases[run]
        left |= dict.fromkeys(cases)
    return left


def _takes_long(file: Path) -> bool:
    return file.relative_to(HERE).as_posix().startswith(LONG)


#: So many tests of a file begin before what is there is passed over again.
PASSED_OVER_EVERY = 20


def pytest_runtest_setup(item: pytest.Item) -> None:
    """As a file begins, and now and then, leave what is there out of the garbage of tests."""
    # Modules and what pytest notes of each test live as long as the process, and tests
    # collect thousands of times: at the end of a run each of those would take 0.05 s.
    if _begun[item.path] % PASSED_OVER_EVERY == 0:
        gc.collect()
        gc.freeze()
    _begun[item.path] += 1


#: How many tests of each file have begun.
_begun: Counter[Path] = Counter()
