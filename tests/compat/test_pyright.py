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


#: Scripts by their names; of the last one every line but the first is wrong.
SCRIPTS = {
    "typical_script.py": SCRIPT,
    "script_of_data_sets.py": DATA_SETS,
    "wrong_script.py": (
        "from asyncloader.datapipes.iter import IterableWrapper\n"
        "IterableWrapper([1]).btach(2)\n"
        "IterableWrapper([1]).batch('2')\n"
    ),
}
EXAMPLES = [each for each in (ROOT / "examples").glob("*.py") if each.name not in LEFT_OUT]


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What pyright says of each file, with the settings that editors have.

    It is asked once, as what it does with torch takes most of its time.
    """
    folder = tmp_path_factory.mktemp("scripts")
    for name, text in SCRIPTS.items():
        (folder / name).write_text(text)
    files = [*(folder / name for name in SCRIPTS), *EXAMPLES]
    settings = folder / "pyrightconfig.json"
    environment: dict[str, Any] = {"venvPath": str(ROOT), "venv": ".venv"}
    rules = {"typeCheckingMode": "standard", "pythonVersion": "3.11", "extraPaths": [str(ROOT)]}
    # Whether a loop's variable is bound where the loop may be empty is not about types.
    rules |= {"reportPossiblyUnboundVariable": "none", "reportMissingModuleSource": "none"}
    # An example of Ray is typed as far as it goes where there is none.
    rules |= {"reportMissingImports": "none"}
    settings.write_text(json.dumps({"include": [*map(str, files)], **environment, **rules}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "-p", str(settings)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=290, cwd=folder)
    found = json.loads(done.stdout)
    assert found["summary"]["filesAnalyzed"] == len(files), done.stderr
    said: dict[str, list[str]] = {file.name: [] for file in files}
    for each in found["generalDiagnostics"]:
        line = each["range"]["start"]["line"] + 1
        said[Path(each["file"]).name].append(f"{line}: {each['message']}")
    return said


def test_a_typical_script_is_typed_from_the_source_to_the_loop(
    complaints: dict[str, list[str]],
) -> None:
    assert complaints["typical_script.py"] == []


def test_batches_are_typed_by_the_items_of_a_data_set(complaints: dict[str, list[str]]) -> None:
    assert complaints["script_of_data_sets.py"] == []


def test_what_is_wrong_is_seen(complaints: dict[str, list[str]]) -> None:
    unknown, *wrong = complaints["wrong_script.py"]
    assert unknown.startswith("2: ")
    assert "btach" in unknown
    assert wrong
    assert all(each.startswith("3: ") for each in wrong)


def test_the_examples_are_typed(complaints: dict[str, list[str]]) -> None:
    assert {file.name: complaints[file.name] for file in EXAMPLES if complaints[file.name]} == {}
