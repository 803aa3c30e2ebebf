"""Something is done to a module when it is imported, or at once if it was."""

from __future__ import annotations

import importlib
import sys

import pytest
import torch

from asyncloader.workers.process import setup
from asyncloader.workers.process.setup import when_imported


@pytest.fixture(autouse=True)
def _as_before(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(setup, "_actions", {})
    monkeypatch.syspath_prepend(tmp_path)
    yield
    for name in ("late_one", "late_package", "late_package.part", "late_broken"):
        sys.modules.pop(name, None)


def test_an_imported_module_is_acted_on_at_once():
    seen = []
    when_imported("sys", seen.append)
    assert seen == [sys]


def test_a_later_import_is_acted_on_after_the_module_ran(tmp_path):
    (tmp_path / "late_one.py").write_text("value = 1\n")
    when_imported("late_one", lambda module: setattr(module, "value", module.value + 1))
    import late_one

    assert late_one.value == 2
    assert late_one.__spec__.loader is late_one.__loader__
    assert type(late_one.__loader__).__name__ == "SourceFileLoader"


def test_the_latest_action_counts(tmp_path):
    (tmp_path / "late_one.py").write_text("values = []\n")
    when_imported("late_one", lambda module: module.values.append("first"))
    when_imported("late_one", lambda module: module.values.append("second"))
    import late_one

    assert late_one.values == ["second"]


def test_packages_and_their_parts_still_work(tmp_path):
    (tmp_path / "late_package").mkdir()
    (tmp_path / "late_package" / "__init__.py").write_text("from late_package import part\n")
    (tmp_path / "late_package" / "part.py").write_text("value = 3\n")
    seen = []
    when_imported("late_package", lambda module: seen.append(module.part.value))
    importlib.import_module("late_package.part")
    assert seen == [3]


def test_what_is_not_there_is_not_found():
    when_imported("late_missing", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        import late_missing  # noqa: F401


def test_a_module_that_fails_is_not_acted_on(tmp_path):
    (tmp_path / "late_broken.py").write_text("raise KeyError('broken')\n")
    seen = []
    when_imported("late_broken", seen.append)
    with pytest.raises(KeyError):
        import late_broken  # noqa: F401
    assert seen == []


def numbers_of_torch() -> list[float]:
    return torch.rand(3).tolist()


@pytest.mark.parametrize("accelerator", [None, torch.device("cuda")])
def test_torch_draws_as_after_its_own_manual_seed(accelerator, monkeypatch):
    # Where there may be an accelerator, its generators are seeded as well.
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: accelerator)
    # That would be for the tests that follow, too.
    monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
    for seed in (0, 7, 2**63, 2**64 - 1):
        setup.OwnProcess().seed([1, seed, 1])
        drawn, initial = numbers_of_torch(), torch.initial_seed()
        torch.manual_seed(seed)
        assert (drawn, initial) == (numbers_of_torch(), torch.initial_seed())
