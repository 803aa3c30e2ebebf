"""What stands beside the package says the same as pyproject.toml and the pages."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

from tests import lowest, public_api, release
from tests.test_readme import command_under

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
YAML_FILES = [
    ROOT / "CITATION.cff",
    ROOT / "packaging/conda/recipe.yaml",
    *sorted(ROOT.glob(".github/**/*.yml")),
]


def read(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", YAML_FILES, ids=lambda path: path.name)
def test_a_file_of_settings_can_be_read(path):
    assert isinstance(read(path), dict)


def test_the_citation_is_of_this_version():
    citation = read("CITATION.cff")
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]
    assert citation["abstract"] == PROJECT["description"]


def test_the_conda_package_needs_what_the_wheel_needs():
    recipe = read("packaging/conda/recipe.yaml")
    assert recipe["context"]["version"] == PROJECT["version"]
    assert recipe["context"]["python_min"] == PROJECT["requires-python"].removeprefix(">=")
    (systems,) = [each for each in recipe["requirements"]["run"] if isinstance(each, dict)]
    plain = [each for each in recipe["requirements"]["run"] if isinstance(each, str)]
    needed = {each.replace(" ", "") for each in [*plain, *systems["then"]]}
    needed -= {"__unix", "python>=${{python_min}}"}
    expected = {each.partition(";")[0] for each in PROJECT["dependencies"]}
    assert needed == {each.replace("torch>", "pytorch>") for each in expected}
    tried = recipe["tests"][0]["python"]["imports"]
    assert {*tried} | {"asyncloader.datapipes"} == {*public_api.MODULES}


def test_the_tests_run_on_each_python_and_by_the_command_of_readme():
    jobs = read(".github/workflows/tests.yml")["jobs"]
    named = {
        each.rpartition(" ")[2]
        for each in PROJECT["classifiers"]
        if each.startswith("Programming Language :: Python :: 3.")
    }
    # There is no torch 2.13 for Python 3.15.
    assert set(jobs["linux"]["strategy"]["matrix"]["python"]) == named - {"3.15"}
    command = command_under("Run the tests")
    for job in ("linux", "macos"):
        assert command in [step.get("run") for step in jobs[job]["steps"]]
    assert ".ci/run" in [step.get("run") for step in jobs["all-checks"]["steps"]]
    for path in re.findall(r"tests/[\w/.]+", str(jobs["windows"])):
        assert (ROOT / path).exists()


def test_a_release_is_built_by_its_command_and_published_without_a_token():
    jobs = read(".github/workflows/release.yml")["jobs"]
    assert "python -m tests.release --full" in [step.get("run") for step in jobs["build"]["steps"]]
    assert jobs["publish"]["permissions"]["id-token"] == "write"
    assert "secrets." not in (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")


def test_the_lowest_versions_are_those_of_the_bounds():
    found = dict(each.split("==") for each in lowest.lowest())
    bounds = "\n".join(PROJECT["dependencies"])
    assert all(re.search(rf"^{name}>={found[name]}\b", bounds, re.M) for name in ("torch", "anyio"))
    # Two bounds of one library are one, in whatever lists they stand.
    assert len(lowest.lowest()) == len(found)
    extras = PROJECT["optional-dependencies"]
    again = [each for name in ("bench", "test") for each in extras[name]]
    for name, version in found.items():
        assert {each for each in again if each.startswith(f"{name}>=")} <= {f"{name}>={version}"}


def test_what_a_workflow_uses_of_others_cannot_be_exchanged():
    for path in ROOT.glob(".github/workflows/*.yml"):
        used = re.findall(r"uses: (.*)", path.read_text(encoding="utf-8"))
        assert used
        assert [
            each for each in used if not re.fullmatch(r"\S+@[0-9a-f]{40} # v[\d.]+", each)
        ] == []


def test_what_is_given_on_names_the_licences():
    assert PROJECT["license-files"] == ["LICENSE", "NOTICE"]
    assert "TorchData" in (ROOT / "NOTICE").read_text(encoding="utf-8")


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="this copy is not of git")
def test_a_source_distribution_names_every_folder_of_the_repository():
    tops = {name.partition("/")[0] for name in release.Commit.last().files if "/" in name}
    grafted = re.findall(
        r"^graft (\S+)$", (ROOT / "MANIFEST.in").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert tops == set(grafted)
