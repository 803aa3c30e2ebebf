"""README.md and the pages of docs/ keep their word.

Every python block runs, what they name exists, and every link leads somewhere. What a type
checker says of the blocks is in tests/test_typing.py.
"""

import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import measured
from tests.processes.stage import run_script_forked

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
#: The text of README, of the pages beside it and of each page of docs/, by its path.
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
}
_OF_A_SWEEP = [pytest.mark.sweep]
#: What opens a block, and the block.
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}", marks=[] if page == "README.md" else _OF_A_SWEEP)
    for page, text in PAGES.items()
    for number, (opening, block) in enumerate(FENCE.findall(text), 1)
    if opening == "python"
]
#: Blocks that take a package which is not among what the tests install.
NEEDING = [
    pytest.param(opening.removeprefix("python needs "), block, id=f"{page}-{number}")
    for page, text in PAGES.items()
    for number, (opening, block) in enumerate(FENCE.findall(text), 1)
    if opening.startswith("python needs ")
]
#: What else may open a block. A sketch has names that only its page explains,
#: tests/test_recipe.py runs the program that never ends, and tests/test_reference.py the
#: examples of the reference beside its signatures.
OTHER_OPENINGS = {"sh", "text", "python sketch", "python never ends"}
OPENINGS_OF_REFERENCE = {"python signature", "pycon"}
#: What need not be imported anew for each block; torch takes longer than most of them.
IMPORTED = ("asyncloader", "torch")
LIMIT_SECONDS = 120
#: Such packages take long to import, and some do it in each worker again.
LIMIT_SECONDS_OF_PACKAGES = 240
LINES_OF_README = 200

#: Of the tests; the pages name some of them, also by the beginning of their names.
TEST_NAMES = {
    name
    for path in (ROOT / "tests").rglob("test_*.py")
    for name in re.findall(
        r"^(?:async )?def (test_\w+)\(", path.read_text(encoding="utf-8"), re.MULTILINE
    )
}


def command_under(heading: str, page: str = "README.md") -> str:
    """Return the command in the first block under a heading."""
    section = PAGES[page].partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found = re.search(r"^```sh\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page} has no command under the heading {heading!r}"
    return found[1].strip()


@pytest.mark.parametrize("block", BLOCKS)
def test_a_python_block_runs_in_a_process_of_its_own(block, tmp_path):
    script = tmp_path / "block.py"
    script.write_text(block)
    imported = IMPORTED if "torch" in block else IMPORTED[:1]
    done = run_script_forked(tmp_path, script, limit=LIMIT_SECONDS, imported=imported)
    assert done.returncode == 0, done.stderr


@pytest.mark.compat
@pytest.mark.sweep
@pytest.mark.parametrize(("package", "block"), NEEDING)
def test_a_block_that_needs_a_package_runs_where_it_is_installed(package, block, tmp_path):
    if not is_installed(package):
        name = package.replace(".", "-")
        pytest.skip(f"{package} is not installed; pip install {name} to run this block")
    script = tmp_path / "block.py"
    script.write_text(block)
    python = [sys.executable, "-X", "faulthandler", script]
    subprocess.run(python, cwd=tmp_path, timeout=LIMIT_SECONDS_OF_PACKAGES, check=True)


def is_installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # what it is part of
        return False


@pytest.mark.parametrize("page", PAGES)
def test_no_block_is_overlooked(page):
    openings = {opening for opening, _ in FENCE.findall(PAGES[page])}
    others = {o for o in openings if o != "python" and not o.startswith("python needs ")}
    of_reference = OPENINGS_OF_REFERENCE if page.startswith("docs/reference/") else set()
    assert others <= OTHER_OPENINGS | of_reference
    assert "```" not in FENCE.sub("", PAGES[page]), "a block begins or ends within a line"


def test_readme_is_short_enough_to_be_read():
    assert len(README.splitlines()) <= LINES_OF_README


def test_the_first_block_is_the_async_example_in_eight_lines():
    opening, first = FENCE.findall(README)[0]
    assert opening == "python"
    assert len([line for line in first.splitlines() if line.strip()]) == 8
    assert "async for" in first


@pytest.mark.parametrize("heading", ["Run it", "Run the tests"])
def test_a_command_is_one_line_that_does_its_own_set_up(heading):
    command = command_under(heading)
    assert len(command.splitlines()) == 1
    assert command.startswith("python3 -m venv .venv && .venv/bin/pip install ")
    assert " torch==2.13.0 " in command
    assert " -e '.[test,progress]' " in command


@pytest.mark.soak
def test_the_graph_is_drawn_as_it_is_shown():
    page = "docs/guides/tuning.md"
    command = command_under("Looking at a graph", page).removeprefix(".venv/bin/python ")
    drawn = subprocess.run(
        [sys.executable, *command.split()],
        cwd=ROOT,
        timeout=LIMIT_SECONDS,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    assert f"```text\n{drawn}```\n" in PAGES[page]


def test_the_picture_of_readme_is_what_its_command_draws(tmp_path):
    command = command_under("Draw the pictures", "docs/contributing.md")
    *words, picture = command.removeprefix(".venv/bin/python ").split()
    assert f"]({picture})" in README
    drawn = tmp_path / "picture.svg"
    command = [sys.executable, *words, drawn]
    subprocess.run(command, cwd=ROOT, timeout=LIMIT_SECONDS, check=True)
    assert (ROOT / picture).read_text(encoding="utf-8") == drawn.read_text(encoding="utf-8"), (
        f"run {command}"
    )


def test_the_plot_of_readme_shows_the_table_of_benchmarks():
    assert measured.numbers_in("36 / 40; 2 workers **45**") == [36.0, 40.0, 45.0]
    assert f"]({measured.PLOT.relative_to(ROOT)})" in README
    assert len(measured.rows()) == int(re.search(r"in (\d+) workloads;", README)[1])
    assert measured.PLOT.read_text(encoding="utf-8") == measured.svg(), (
        "run python -m tests.measured"
    )


def test_the_changelog_begins_with_what_is_not_released_and_the_version_there_is():
    headings = re.findall(r"^## (.*)$", PAGES["docs/changelog.md"], re.MULTILINE)
    dated = [heading.partition(" (") for heading in headings if heading != "Unreleased"]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\d\)", date) for _, _, date in dated)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert dated[0][0] == project["version"]
    assert len(set(headings)) == len(headings)


def test_every_example_is_named():
    section = PAGES["docs/contributing.md"].partition("\n## Examples\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`(\w+\.py)`", section))
    assert named == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("page", PAGES)
def test_every_path_in_a_page_exists(page):
    named = paths_named_in(PAGES[page])
    assert [path for path in named if not exists_somewhere(path)] == []


def test_paths_are_found_in_pages():
    paths = {path for text in PAGES.values() for path in paths_named_in(text)}
    assert paths >= {"examples/train.py", "tests/faults/README.md", "workers/process/", "run.py"}


def paths_named_in(text):
    """Return what stands in backticks and is a path: to a folder, or with a name's ending."""
    return re.findall(r"`([\w./-]+(?:/|\.py|\.md))`", FENCE.sub("", text))


def exists_somewhere(path):
    """Say whether a path exists, from the root or from some folder of the sources."""
    folders = [ROOT / name for name in ("asyncloader", "tests", "examples")]
    return (ROOT / path).exists() or any(any(folder.rglob(path)) for folder in folders)


def test_every_test_that_a_page_names_exists():
    named = re.findall(r"`(test_\w+)(\*?)`", "\n".join(PAGES.values()))
    assert named
    for name, more in named:
        assert any(test == name or (more and test.startswith(name)) for test in TEST_NAMES), name


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page):
    links = links_of(page)
    assert links
    broken = []
    for link in links:
        path, _, anchor = link.partition("#")
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_every_page_can_be_reached_from_readme_and_from_the_table_of_contents():
    for page in ("README.md", "docs/index.md"):
        linked = {
            ((ROOT / page).parent / link.partition("#")[0]).resolve() for link in links_of(page)
        }
        assert {ROOT / other for other in PAGES} - linked - {ROOT / page} == set()


def links_of(page):
    """Return where the links of a page lead that stay in this repository."""
    links = re.findall(r"\]\(([^()\s]+)\)", FENCE.sub("", PAGES[page]))
    return [link for link in links if "://" not in link]


def anchors_of(path):
    """Return the anchors that a repository browser makes of the headings of a file."""
    headings = re.findall(
        r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE
    )
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
