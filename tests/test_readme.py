"""README.md keeps its word: every python block runs, and its commands are one line each."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
#: Blocks that take a package which is not among what the tests install.
NEEDING = re.findall(r"^```python needs ([\w.]+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
LIMIT_SECONDS = 60

#: Of the tests; README names some of them, also by the beginning of their names.
TEST_NAMES = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)\(", path.read_text(), re.MULTILINE)
}


def command_under(heading: str) -> str:
    """Return the command in the first block under a heading."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None, f"README.md has no command under the heading {heading!r}"
    return found[1].strip()


@pytest.mark.parametrize("block", BLOCKS, ids=range(1, 1 + len(BLOCKS)))
def test_a_python_block_runs_in_a_process_of_its_own(block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block)
    subprocess.run(
        [sys.executable, "-W", "error", "-X", "faulthandler", script],
        cwd=ROOT,
        timeout=LIMIT_SECONDS,
        check=True,
    )


@pytest.mark.parametrize(("package", "block"), NEEDING, ids=[package for package, _ in NEEDING])
def test_a_block_that_needs_a_package_runs_where_it_is_installed(package, block, tmp_path):
    if not is_installed(package):
        name = package.replace(".", "-")
        pytest.skip(f"{package} is not installed; pip install {name} to run this block")
    script = tmp_path / "block.py"
    script.write_text(block)
    subprocess.run([sys.executable, script], cwd=tmp_path, timeout=LIMIT_SECONDS, check=True)


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it is part of
        return False


def test_the_first_block_is_the_async_example_in_eight_lines():
    lines = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(lines) == 8
    assert "async for" in BLOCKS[0]


@pytest.mark.parametrize("heading", ["Run it", "Run the tests"])
def test_a_command_is_one_line_that_does_its_own_set_up(heading):
    command = command_under(heading)
    assert len(command.splitlines()) == 1
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert " torch==2.13.0 " in command
    assert " -e '.[test,progress]' " in command


def test_the_graph_is_drawn_as_it_is_shown():
    command = command_under("Looking at a graph").removeprefix(".venv/bin/python ")
    drawn = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT,
        timeout=LIMIT_SECONDS,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert f"```text\n{drawn}```\n" in README


def test_every_example_is_named():
    named = set(re.findall(r"`(\w+\.py)`", README.partition("\n## Examples\n")[2]))
    assert named >= {path.name for path in (ROOT / "examples").glob("*.py")}


def test_every_path_in_readme_exists():
    named = re.findall(r"`((?:examples|tests|asyncloader)/[\w/]+\.py)`", README)
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_test_that_readme_names_exists():
    named = re.findall(r"`(test_\w+)(\*?)`", README)
    assert named
    for name, more in named:
        assert any(test == name or (more and test.startswith(name)) for test in TEST_NAMES), name


def test_every_link_within_readme_leads_to_a_heading():
    headings = re.findall(r"^##+ (.*)$", README, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
    linked = set(re.findall(r"\]\(#([\w-]+)\)", README))
    assert linked
    assert linked - anchors == set()
