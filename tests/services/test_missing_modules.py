"""Code of modules that workers cannot import: one is being imported, one is on no path."""

from __future__ import annotations

import importlib.util
import runpy
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

START = """
import asyncio
from dataclasses import dataclass

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper
"""

DEFINITIONS = """
@dataclass
class Item:
    number: int

    def half(self):
        return halved(self.number)


def halved(number):
    return number // 2


def doubled(number):
    return Item(2 * number)


def numbers():
    return sorted(item.half() for item in items_by(doubled))


def items_by(function):
    pipe = IterableWrapper(range(10)).map(function).sharding_filter()
    service = MultiProcessingReadingService(num_workers=2, multiprocessing_context=METHOD)
    loader = DataLoader2(pipe, reading_service=service)
    return asyncio.run(all_of(loader)) if IS_ASYNC else list_of(loader)


def list_of(loader):
    with loader:
        return list(loader)


async def all_of(loader):
    async with loader:
        return [item async for item in loader]
"""

Write = Callable[[str, str], None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a module that can be imported."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def written(file: str, text: str) -> None:
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

    yield written
    for name in set(sys.modules) - before:
        if name.startswith("started_by"):
            del sys.modules[name]


def settings(method: str | None, is_async: bool) -> str:
    return f"METHOD, IS_ASYNC = {method!r}, {is_async}\n"


def imported(name: str) -> ModuleType:
    importlib.invalidate_caches()
    return importlib.import_module(name)


@pytest.mark.sweep
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("method", [None, "fork"])
def test_a_module_may_run_a_loader_of_what_it_defines(write, method, is_async):
    last = "FIRST = items_by(doubled)\n"
    write("started_by_import.py", START + settings(method, is_async) + DEFINITIONS + last)
    module = imported("started_by_import")
    assert sorted(item.half() for item in module.FIRST) == list(range(10))
    # They are of the class that was imported, not of a copy.
    assert {type(item) for item in module.FIRST} == {module.Item}
    # Once it is imported, it may be used again, and then by its name.
    assert module.numbers() == list(range(10))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_package_may_run_a_loader_of_what_its_modules_define(write, is_async):
    write("started_by_package/parts.py", START + settings(None, is_async) + DEFINITIONS)
    last = "from started_by_package.parts import numbers\nFIRST = numbers()\n"
    write("started_by_package/__init__.py", last)
    module = imported("started_by_package")
    assert list(range(10)) == module.FIRST


def test_a_worker_does_not_import_the_module_again(write):
    # It would start the loader again, in each worker, whose workers would do so as well.
    importing = """
def importing(number):
    import started_by_itself


try:
    items_by(importing)
except Exception as raised:
    ERROR = raised
"""
    write("started_by_itself.py", START + settings(None, False) + DEFINITIONS + importing)
    error = imported("started_by_itself").ERROR
    assert isinstance(error, ModuleNotFoundError)
    assert "started_by_itself" in str(error)


def test_workers_may_import_what_another_thread_is_importing(write):
    write(
        "started_by_thread.py",
        """
import tests.services.test_missing_modules as here

here.BEGUN.set()
assert here.IS_LOADED.wait(60)
""",
    )
    BEGUN.clear()
    IS_LOADED.clear()
    thread = threading.Thread(target=imported, args=["started_by_thread"])
    thread.start()
    try:
        assert BEGUN.wait(60)
        pipe = IterableWrapper(range(10)).map(name_imported)
        service = MultiProcessingReadingService(num_workers=2)
        with DataLoader2(pipe.sharding_filter(), reading_service=service) as loader:
            assert list(loader) == ["started_by_thread"] * 10
    finally:
        IS_LOADED.set()
        thread.join()


BEGUN = threading.Event()
#: Set wherever no test has cleared it, such as in a worker.
IS_LOADED = threading.Event()
IS_LOADED.set()


def name_imported(number: int) -> str:
    return imported("started_by_thread").__name__


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize("method", [None, "fork"])
def test_a_module_from_a_file_that_is_on_no_path_sends_what_it_defines(
    method, is_cached, tmp_path, monkeypatch
):
    cached = "import functools\ndoubled = functools.cache(doubled)\n" if is_cached else ""
    path = tmp_path / "somewhere" / "on_no_path.py"
    path.parent.mkdir()
    path.write_text(START + settings(method, False) + DEFINITIONS + cached)
    spec = importlib.util.spec_from_file_location("on_no_path", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "on_no_path", module)
    spec.loader.exec_module(module)
    items = module.items_by(module.doubled)
    assert {type(item) for item in items} == {module.Item}
    assert sorted(item.half() for item in items) == list(range(10))


def test_a_module_of_the_same_name_elsewhere_is_not_taken_for_it(write, tmp_path, monkeypatch):
    # A worker would import this one.
    write("started_by_nobody.py", "def doubled(number):\n    raise ValueError('another module')\n")
    path = tmp_path / "somewhere" / "started_by_nobody.py"
    path.parent.mkdir()
    path.write_text(START + settings(None, False) + DEFINITIONS)
    spec = importlib.util.spec_from_file_location("started_by_nobody", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "started_by_nobody", module)
    spec.loader.exec_module(module)
    assert module.numbers() == list(range(10))


def test_a_file_that_runpy_runs_sends_what_it_defines(tmp_path):
    path = tmp_path / "run.py"
    last = "FIRST = [item.half() for item in items_by(doubled)]\n"
    path.write_text(START + settings(None, False) + DEFINITIONS + last)
    assert sorted(runpy.run_path(str(path))["FIRST"]) == list(range(10))
