"""Nothing imports torch where no tensor is, and without torch such programs run."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import public_api
from tests.processes.scripts import run_script
from tests.without_torch import python_without_torch

ROOT = Path(__file__).parent.parent

#: A server, workers with a state that resumes, and rollouts; each says whether torch was there.
PROGRAM = """
import asyncio, sys
from asyncloader import DataLoader2, Feed, MultiProcessingReadingService, Version
from asyncloader.datapipes.iter import IterableWrapper


def upper(word):
    return word.upper(), "torch" in sys.modules


def has_torch(number):
    return "torch" in sys.modules


async def answered(prompt, *, version):
    return prompt, version, "torch" in sys.modules


async def serve():
    feed = Feed()
    loader = DataLoader2(feed.map(upper), reading_service=MultiProcessingReadingService(1))
    async with feed.serve(loader):
        return await asyncio.gather(feed.ask("a"), feed.ask("b"))


def resume():
    graph = IterableWrapper(range(20)).shuffle().sharding_filter().map(has_torch).batch(4)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2), seed=1) as loader:
        items = iter(loader)
        found = [next(items)]
        state = loader.state_dict()
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        loader.load_state_dict(state)
        return [*found, *loader]


async def roll_out():
    policy = Version()
    graph = IterableWrapper("ab").rollout(answered, version=policy, max_lag=1, per_step=1)
    found = []
    async with DataLoader2(graph, acknowledge=True) as loader:
        async for answer in loader:
            found.append(answer)
            policy.advance()
            loader.ack()
    return found


if __name__ == "__main__":
    print(asyncio.run(serve()))
    print(resume())
    print(asyncio.run(roll_out()))
    print("torch" in sys.modules)
"""


def test_public_modules_and_all_their_names_import_no_torch():
    code = (
        "import importlib, sys\n"
        f"for module in {public_api.MODULES!r}:\n"
        "    found = importlib.import_module(module)\n"
        "    for name in found.__all__: getattr(found, name)\n"
        "    imported = {'torch', 'numpy'} & set(sys.modules)\n"
        "    if imported: sys.exit(f'{module} imports {imported}')"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_server_rollouts_and_workers_import_no_torch_where_no_tensor_is(tmp_path):
    done = run_script(tmp_path, PROGRAM)
    assert done.returncode == 0, done.stderr
    assert "True" not in done.stdout
    assert "('A', False), ('B', False)" in done.stdout
    assert done.stdout.count("False") == 2 + 20 + 2 + 1


def test_there_is_an_environment_without_torch(tmp_path):
    code = "import asyncloader, importlib.util; print(importlib.util.find_spec('torch'))"
    python = python_without_torch(str(tmp_path))
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "None\n", done.stderr


def test_the_page_installs_all_that_is_needed_but_torch():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {each.partition(";")[0] for each in project["dependencies"]}
    page = (ROOT / "docs" / "start.md").read_text(encoding="utf-8")
    command = re.search(r"^pip install --no-deps .*$", page, re.MULTILINE)[0]
    assert {each for each in needed if not each.startswith("torch>")} == set(
        re.findall(r"'([^']+)'", command)
    )
