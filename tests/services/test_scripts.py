"""Workers for programs as people write them: unguarded scripts, lambdas, classes of __main__."""

from __future__ import annotations

import textwrap

import pytest

from tests.needs import needs_template_with_imports
from tests.processes.scripts import run_script

METHODS = [None, "fork", "spawn", "forkserver"]

UNGUARDED = """
import asyncio, functools, sys
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper, IterDataPipe

class Point:
    def __init__(self, x):
        self.x = x

class Points(IterDataPipe):
    def __init__(self, source):
        self.source = source

    def __iter__(self):
        for number in self.source:
            yield Point(number)

def shifted(by):
    return lambda point: Point(point.x + by)

@functools.cache
def same(point):
    return point

graph = Points(IterableWrapper(range(10)).sharding_filter()).map(shifted(5)).map(same)
loader = DataLoader2(graph, None, MultiProcessingReadingService(2))
with loader:
    points = list(loader)
assert all(type(point) is Point for point in points), points
print(*[point.x for point in points])
"""


@pytest.mark.parametrize("method", [None, "fork"])
def test_an_unguarded_script_with_its_own_classes_and_lambdas(method, tmp_path):
    source = UNGUARDED.replace("Service(2)", f"Service(2, {method!r})")
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 6 7 8 9 10 11 12 13 14\n", "")


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize("method", METHODS)
def test_a_guarded_script_with_its_own_classes_and_lambdas(method, tmp_path):
    head, body = UNGUARDED.split("graph = ")
    body = textwrap.indent("graph = " + body, "    ")
    source = f'{head}if __name__ == "__main__":\n{body}'.replace(
        "Service(2)", f"Service(2, {method!r})"
    )
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 6 7 8 9 10 11 12 13 14\n", "")


SPAWNED = """
import multiprocessing
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterDataPipe
from asyncloader.datapipes.map import SharedSequence

class Point:
    def __init__(self, x):
        self.x = x

class Shifted(IterDataPipe):
    def __init__(self, source, by):
        self.source, self.by = source, by

    def __iter__(self):
        for point in self.source:
            yield Point(point.x + self.by)

def doubled(point):
    return Point(2 * point.x)

def new_loader(workers):
    points = SharedSequence([Point(x) for x in range(6)]).to_iter_datapipe()
    graph = Shifted(points, by=5).sharding_filter().map(doubled)
    return DataLoader2(graph, None, MultiProcessingReadingService(workers))

def train(results):
    with new_loader(workers=2) as loader:
        points = iter(loader)
        first = [next(points).x for _ in range(2)]
        state = loader.state_dict()
        rest = list(points)
    assert all(type(point) is Point for point in rest), rest
    results.put((first, [point.x for point in rest], state))

if __name__ == "__main__":
    spawn = multiprocessing.get_context("spawn")
    results = spawn.SimpleQueue()
    rank = spawn.Process(target=train, args=(results,))
    rank.start()
    first, rest, state = results.get()
    rank.join()
    with new_loader(workers=0) as loader:
        loader.load_state_dict(state)
        assert [point.x for point in loader] == rest
    with DataLoader2.from_state(state) as loader:
        assert [point.x for point in loader] == rest
    print(*first, *rest)
"""


def test_a_spawned_process_with_classes_and_functions_of_its_script(tmp_path):
    done = run_script(tmp_path, SPAWNED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "10 12 14 16 18 20\n", "")


FED = """
import asyncio
from asyncloader import DataLoader2, Feed, MultiProcessingReadingService

class Point:
    def __init__(self, x):
        self.x = x

def shifted(point):
    return Point(point.x + 5)

async def main():
    feed = Feed()
    loader = DataLoader2(feed.map(shifted), None, MultiProcessingReadingService(1))
    async with feed.serve(loader):
        return await asyncio.gather(*(feed.ask(Point(x)) for x in range(3)))

points = asyncio.run(main())
assert all(type(point) is Point for point in points), points
print(*[point.x for point in points])
"""


def test_requests_of_a_class_of_the_script(tmp_path):
    done = run_script(tmp_path, FED)
    assert (done.returncode, done.stdout, done.stderr) == (0, "5 6 7\n", "")


WITHOUT_STANDARD_DESCRIPTORS = """
import asyncio, os, sys
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

sys.stdin = sys.stdout = None
os.close(0)
os.close(1)

async def main():
    graph = IterableWrapper(range(4)).sharding_filter()
    async with DataLoader2(graph, None, MultiProcessingReadingService(2)) as loader:
        return [number async for number in loader]

numbers = asyncio.run(main())
with DataLoader2(IterableWrapper(range(4)).prefetch(2)) as loader:
    assert list(loader) == numbers == [0, 1, 2, 3]
"""


def test_a_program_whose_standard_descriptors_are_closed(tmp_path):
    done = run_script(tmp_path, WITHOUT_STANDARD_DESCRIPTORS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.soak
def test_modules_imported_late_by_a_worker_are_seeded_and_settled(tmp_path):
    source = """
    import logging, sys
    from asyncloader import DataLoader2, MultiProcessingReadingService
    from asyncloader.datapipes.iter import IterableWrapper

    def roll(item):
        import numpy, torch
        return torch.rand(()).item(), float(numpy.random.rand()), torch.get_num_threads(), \\
            torch.utils.data.get_worker_info().id

    def new_loader():
        graph = IterableWrapper(range(4)).sharding_filter().map(roll)
        service = MultiProcessingReadingService(2, worker_prefetch_cnt=0)
        return DataLoader2(graph, None, service)

    # Where torch is no longer in memory, its import can take longer than a wait should.
    logging.getLogger("asyncloader").setLevel(logging.ERROR)

    def epochs(*seeds):
        with new_loader() as loader:
            found = []
            for seed in seeds:
                loader.seed(seed)
                found += [list(loader), list(loader)]
            return found

    def halves(seed):
        loader, second = new_loader(), new_loader()
        loader.seed(seed)
        with loader:
            items = iter(loader)
            half = [next(items), next(items)]
            state = loader.state_dict(include_datapipe=False)
        second.load_state_dict(state)
        with second:
            return [half + list(second), list(second)]

    first, second, *others = epochs(1, 2)
    assert not {"torch", "numpy", "anyio._backends._asyncio"} & set(sys.modules)
    assert [first, second] == halves(1), first
    rolls = [roll[:2] for epoch in (first, second, *others) for roll in epoch]
    assert len({number for roll in rolls for number in roll}) == 32, rolls
    assert [roll[2:] for roll in first] == [(1, 0), (1, 1)] * 2, first
    """
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stderr) == (0, "")


def test_output_of_workers_is_the_loaders_and_interpreters_exit_codes_are_kept(tmp_path):
    source = """
    import sys
    from asyncloader import DataLoader2, MultiProcessingReadingService
    from asyncloader.datapipes.iter import IterableWrapper

    graph = IterableWrapper([1]).map(lambda item: print("made", item))
    with DataLoader2(graph, None, MultiProcessingReadingService(1)) as loader:
        assert list(loader) == [None]
    sys.exit(3)
    """
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (3, "made 1\n", "")


LEFT_OPEN = """
import torch
from asyncloader import DataLoader2
from asyncloader.datapipes.iter import IterableWrapper

loader = DataLoader2(IterableWrapper(range(3)))
items = iter(loader)
print(next(items))
"""


@pytest.mark.soak
def test_a_script_that_leaves_an_iterator_open_ends_in_silence(tmp_path):
    done = run_script(tmp_path, LEFT_OPEN)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


WITHOUT_NUMPY = """
import os, sys, warnings
missing = os.path.join(os.path.dirname(__file__), "missing")
sys.path.insert(0, missing)
os.environ["PYTHONPATH"] = os.pathsep.join([missing, os.environ["PYTHONPATH"]])
warnings.simplefilter("ignore")  # torch itself warns
import torch
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def tensors(number):
    return torch.full((2,), float(number)), torch.rand(2), torch.zeros(100, 100)

def loader():
    graph = IterableWrapper(range(20)).shuffle().sharding_filter().map(tensors).batch(2).collate()
    return DataLoader2(graph, reading_service=MultiProcessingReadingService(2))

with loader() as first:
    items = iter(first)
    next(items)
    state = first.state_dict()
    rest = list(items)
with loader() as second:
    second.load_state_dict(state)
    again = list(second)
same = all(torch.equal(one[at], other[at]) for one, other in zip(rest, again) for at in (0, 1))
try:
    import numpy
except ImportError:
    print(len(again) == len(rest), same)
"""


@pytest.mark.soak
def test_workers_load_and_resume_tensors_where_numpy_is_not_installed(tmp_path):
    missing = tmp_path / "missing"
    missing.mkdir()
    (missing / "numpy.py").write_text("raise ModuleNotFoundError('No module named numpy')")
    done = run_script(tmp_path, WITHOUT_NUMPY)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


#: With it no workers are forked from the program by default.
A_THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"

#: As the loop of a loader does that is just made, and imports what it is made of.
IN_THE_MIDDLE = """
import sys, threading, torch
thread = threading.Thread(target=__import__, args=["halfway"], name="asyncloader loop", daemon=True)
thread.start()
while not hasattr(sys.modules.get("halfway"), "here"): pass
"""

EARLY = """
import sys
{imports}
from asyncloader import DataLoader2
from asyncloader.workers.process.start import _in_spawner
from tests.leaks import descendants

loader = DataLoader2.from_dataset(range(8), batch_size=None, num_workers={workers})
# What the loader has asked for was done then.
_in_spawner(int).result(60)
print(len(descendants()))
"""


@pytest.mark.soak
@needs_template_with_imports
def test_what_workers_are_forked_from_imports_torch_as_soon_as_there_is_a_loader(tmp_path):
    imports = "import torch\n" + A_THREAD
    source = EARLY.format(imports=imports, workers=2) + textwrap.dedent(
        """
        (template,) = descendants()
        with loader:
            assert list(loader) == list(range(8))
            parents = {parent_of(worker.pid) for worker in loader.stats().workers}
        assert parents == {template}, (parents, template)
        with DataLoader2.from_dataset(range(8), batch_size=None, num_workers=1) as other:
            assert list(other) == list(range(8))
        assert set(descendants()) - {template} <= trackers, descendants()
        """
    ).replace("trackers", "{each for each, what in descendants().items() if 'python' in what}")
    source = source.replace(
        "import descendants", "import descendants\nfrom tests.eyes import parent_of"
    )
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


@pytest.mark.sweep
@pytest.mark.soak
@needs_template_with_imports
@pytest.mark.parametrize(("thread", "imports"), [(A_THREAD, 2), ("", 1)], ids=["sent", "forked"])
def test_torchvision_is_imported_once_for_all_workers_of_all_loaders(thread, imports, tmp_path):
    library = tmp_path / "torchvision"
    library.mkdir()
    # Each import of it leaves the process that made it.
    (library / "__init__.py").write_text(
        "import os\n"
        "with open(os.path.join(os.path.dirname(__file__), 'imports'), 'a') as imports:\n"
        "    print(os.getpid(), file=imports)\n"
        "class Squares:\n"
        "    def __len__(self): return 8\n"
        "    def __getitem__(self, number): return number * number\n"
    )
    source = f"""
    import os, torch, torchvision
    {thread}
    from asyncloader import DataLoader2

    for epoch in "train", "validate":
        with DataLoader2.from_dataset(torchvision.Squares(), 2, num_workers=2) as loader:
            assert torch.cat(list(loader)).tolist() == [n * n for n in range(8)]
    """
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    # The program; and the process that its workers are forked from, unless that is the program.
    assert len((library / "imports").read_text().split()) == imports


@pytest.mark.sweep
@pytest.mark.soak
@pytest.mark.parametrize(
    ("imports", "workers"),
    [(f"import torch\n{A_THREAD}", 0), (A_THREAD, 2), ("import torch", 2), (IN_THE_MIDDLE, 2)],
    ids=["no workers", "no torch", "may be forked", "will be"],
)
def test_a_loader_that_was_only_made_starts_no_process_that_is_not_needed(
    imports, workers, tmp_path
):
    halfway = "import sys, threading\nsys.here = here = open(__file__)\nthreading.Event().wait()\n"
    (tmp_path / "halfway.py").write_text(halfway)
    done = run_script(tmp_path, EARLY.format(imports=imports, workers=workers))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


@pytest.mark.soak
@needs_template_with_imports
def test_a_loader_that_is_never_used_lets_its_program_end_in_silence(tmp_path):
    source = "import torch\nfrom asyncloader import DataLoader2\n"
    source += "DataLoader2.from_dataset(range(8), num_workers=2)\n"
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


AFTER_A_BAR = """
import asyncio, threading
import tqdm
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

list(tqdm.tqdm(range(3), disable=False, file=open("/dev/null", "w")))
assert tqdm.tqdm.monitor.is_alive()
# As its monitor does now and then, and perhaps at the fork.
held = tqdm.std.TqdmDefaultWriteLock.th_lock
threading.Thread(target=held.acquire).start()

def bar(number):
    return list(tqdm.tqdm([number], file=open("/dev/null", "w")))[0]

async def main():
    await asyncio.to_thread(int)
    graph = IterableWrapper(range(6)).sharding_filter().map(bar)
    async with DataLoader2(graph, None, MultiProcessingReadingService(2, "fork")) as loader:
        print([number async for number in loader])

asyncio.run(main())
"""


def test_a_fork_is_safe_beside_the_monitor_of_a_progress_bar_and_threads_that_wait(tmp_path):
    source = AFTER_A_BAR.replace("import asyncio", "import warnings\nimport asyncio").replace(
        "import tqdm\n", "import tqdm\nwarnings.simplefilter('ignore', ResourceWarning)\n", 1
    )
    done = run_script(tmp_path, source)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[0, 1, 2, 3, 4, 5]\n", "")


CLOSING = """
import os
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def items():
    graph = IterableWrapper(range(8)).sharding_filter()
    with DataLoader2(graph, None, MultiProcessingReadingService(2, {method!r})) as loader:
        return list(loader)

assert items() == list(range(8))
os.closerange(3, 1024)
others = [os.open("/dev/null", os.O_RDONLY) for _ in range(30)]
assert items() == items() == list(range(8))
for fd in others:
    os.close(fd)
print("done")
"""


@pytest.mark.parametrize("method", [None, "fork"])
def test_workers_start_after_the_program_has_closed_all_descriptors(method, tmp_path):
    done = run_script(tmp_path, CLOSING.format(method=method))
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


DAEMON = """
import os
from asyncloader import DataLoader2, ForkedError, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

def new_loader():
    graph = IterableWrapper(range(8)).sharding_filter().prefetch(2)
    return DataLoader2(graph, None, MultiProcessingReadingService({workers}))

loader = new_loader()
items = iter(loader)
assert next(items) == 0
if os.fork():
    _, status = os.wait()
    assert list(items) == list(range(1, 8))
    loader.shutdown()
    os._exit(os.waitstatus_to_exitcode(status))
os.setsid()
os.closerange(3, 1024)
try:
    next(items)
except ForkedError as error:
    print(error)
with new_loader() as own:
    print(list(own), flush=True)
# The timer of the traceback that every script here has does not survive a fork, and Python waits
# for it.
os._exit(0)
"""


@pytest.mark.parametrize("workers", [0, 2])
def test_a_program_that_becomes_a_daemon_within_an_epoch_is_told_to_make_a_new_loader(
    workers, tmp_path
):
    done = run_script(tmp_path, DAEMON.format(workers=workers))
    assert done.returncode == 0, done.stderr
    error, items = done.stdout.splitlines()
    assert "make a new DataLoader2 in the child" in error
    assert items == str(list(range(8)))
