"""Programs that gevent or eventlet has patched: a loader says what it needs, and never hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.processes.scripts import run_script

pytestmark = pytest.mark.compat

SCRIPT = """
import warnings
warnings.simplefilter("ignore")
{patch}
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

graph = IterableWrapper(range(4)).sharding_filter().prefetch(2)
for service in (None, MultiProcessingReadingService(1)):
    loader = DataLoader2(graph, reading_service=service)
    try:
        print(list(loader))
    except RuntimeError as error:
        print(error)
    loader.shutdown()
"""

PATCHES = {
    "gevent": (
        "from gevent import monkey; monkey.patch_all({})",
        "thread=False, queue=False, select=False, os=False, subprocess=False",
    ),
    "eventlet": ("import eventlet; eventlet.monkey_patch({})", "thread=False, select=False"),
}


@pytest.mark.parametrize("name", PATCHES)
def test_patched_threads_are_refused_with_what_to_leave_out_and_that_works(
    name: str, tmp_path: Path
) -> None:
    pytest.importorskip(name)
    patch, remedy = PATCHES[name]
    refused = run_script(tmp_path, SCRIPT.format(patch=patch.format("")))
    assert refused.returncode == 0, refused.stderr
    assert refused.stdout.count("has replaced the threads that a loader needs") == 2
    assert refused.stdout.count(f"({remedy})") == 2
    loaded = run_script(tmp_path, SCRIPT.format(patch=patch.format(remedy)))
    assert loaded.stdout == "[0, 1, 2, 3]\n" * 2, loaded.stderr
