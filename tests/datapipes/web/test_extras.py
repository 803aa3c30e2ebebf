"""Modules that are imported when they are needed."""

from __future__ import annotations

import asyncio
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from asyncloader.datapipes.web.readers import imported

SLOW = """
import sys

gate = sys.modules["gate_of_a_slow_module"]
gate.entered.set()
gate.open.wait(30)
value = 7
"""


async def test_nobody_gets_a_module_that_is_still_being_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = SimpleNamespace(entered=threading.Event(), open=threading.Event())
    monkeypatch.setitem(sys.modules, "gate_of_a_slow_module", gate)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "a_slow_module.py").write_text(SLOW)
    first = asyncio.create_task(imported("a_slow_module", "a test"))
    await asyncio.to_thread(gate.entered.wait, 30)
    second = asyncio.create_task(imported("a_slow_module", "a test"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not second.done()
    gate.open.set()
    assert [(await each).value for each in (first, second)] == [7, 7]


async def test_who_lacks_a_module_is_told_what_to_install() -> None:
    advice = r"x needs nothing: pip install 'asyncloader\[cloud\]'"
    with pytest.raises(ModuleNotFoundError, match=advice):
        await imported("nothing.like_it", "x")
