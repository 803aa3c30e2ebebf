"""What pyright, as editors run it, says of typical scripts and of the examples: nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_typing import DATA_SETS, SCRIPT

pytestmark = pytest.mark.compat
pytest.importorskip("basedpyright", reason="needs pip install 'asyncloader[compat]'")

ROOT = Path(__file__).parents[2]

#: trl does not say for type checkers what it exports.
LEFT_OUT = ("trl_rollouts.py",)


def complaints(folder: Path, *files: Path) -> list[str]:
    """Return what pyright says of files, with the settings that editors have."""
    settings = folder / "pyrightconfig.json"
    environment: dict[str, Any] = {"venvPath": str(ROOT), "venv": ".venv"}
    rules = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    # Whether a loop's variable is bound where the loop may be empty is not about types.
    rules |= {"reportPossiblyUnboundVariable": "none", "reportMissingModuleSource": "none"}
    # An example of Ray is typed as far as it goes where there is none.
    rules |= {"reportMissingImports": "none"}
    settings.write_text(json.dumps({"include": [*map(str, files)], **environment, **rules}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files), done.stderr
    return [
        f"{Path(each['file']).name}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in found["generalDiagnostics"]
    ]


def test_a_typical_script_is_typed_from_the_source_to_the_loop(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    assert complaints(tmp_path, script) == []


def test_batches_are_typed_by_the_items_of_a_data_set(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(DATA_SETS)
    assert complaints(tmp_path, script) == []


def test_what_is_wrong_is_seen(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from asyncloader.datapipes.iter import IterableWrapper\n"
        "IterableWrapper([1]).btach(2)\n"
        "IterableWrapper([1]).batch('2')\n"
    )
    unknown, *wrong = complaints(tmp_path, script)
    assert unknown.startswith("script.py:2: ")
    assert "btach" in unknown
    assert wrong
    assert all(each.startswith("script.py:3: ") for each in wrong)


def test_the_examples_are_typed(tmp_path: Path) -> None:
    examples = (each for each in (ROOT / "examples").glob("*.py") if each.name not in LEFT_OUT)
    assert complaints(tmp_path, *examples) == []
