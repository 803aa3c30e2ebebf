"""Row N16: what passes here passes on a machine that is not ours."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.eyes import PROC
from tests.faults.child import METHODS, loader_of, numbers, play_each

ROOT = Path(__file__).parents[2]

#: A command that shows what it gets, and makes an environment where the other steps pass.
README = """
## Run the tests

```sh
env && ls -A "$HOME" && mkdir -p .venv/bin && ln -s "$(type -P true)" .venv/bin/python
```
"""
CONTRIBUTING = """
## Build the site

```sh
.venv/bin/python -m sphinx
```

## Run the sweeps and soaks

```sh
.venv/bin/python -m pytest --whole
```

## Run the tests without Linux's own calls

```sh
.venv/bin/python -m tests.without_linux pytest
```

## Run the tests without torch

```sh
.venv/bin/python -m tests.without_torch pytest
```

### Run a part with the lowest versions but of torch

```sh
.venv/bin/python -m tests.without_torch pytest
```

## Run the tests with other libraries

```sh
.venv/bin/python -m pytest -m compat
```

## Run the tests on a Ray cluster

```sh
.venv/bin/python -m pytest -m ray
```
"""


def test_n16_the_checks_see_of_their_user_only_where_pip_finds_packages(tmp_path):
    user = tmp_path / "user"
    (user / ".config/pip").mkdir(parents=True)
    (user / ".config/pip/pip.conf").touch()
    (user / ".netrc").touch()
    pip = {"PIP_TIMEOUT": "77", "SSL_CERT_FILE": "/of a user", "https_proxy": "http://proxy:1"}
    others = {"PYTHONUNBUFFERED": "1", "ASYNCLOADER_DEBUG": "1", "TZ": "Asia/Kathmandu"}

    done = run_checks(tmp_path, **pip, **others, HOME=str(user))

    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    seen = dict(re.findall(r"^(\w+)=(.*)$", done.stdout, re.MULTILINE))
    assert {name: seen[name] for name in pip} == pip
    assert not seen.keys() & others.keys()
    assert "\n.config\n\n== lint" in done.stdout
    assert seen["HOME"] != str(user)
    assert not os.path.exists(seen["HOME"])


def test_n16_the_checks_say_how_long_each_of_them_took(tmp_path):
    done = run_checks(tmp_path)
    steps = (
        r"tests, as README.md says: \d+ s\nlint: \d+ s\nformat: \d+ s\ntypes: \d+ s\n"
        r"site, as docs/contributing.md says: \d+ s\n"
        r"sweeps and soaks, as docs/contributing.md says: \d+ s\n"
        r"without Linux's own calls, as docs/contributing.md says: \d+ s\n"
        r"without torch, as docs/contributing.md says: \d+ s\n"
        r"lowest versions, as docs/contributing.md says: \d+ s\n"
        r"other libraries, as docs/contributing.md says: \d+ s\n"
        r"Ray, as docs/contributing.md says: \d+ s\n"
    )
    assert re.search(rf"\n{steps}all passed\n$", done.stdout)


def work_in_a_process_with_an_unreadable_name(method: str | None) -> None:
    # As the kernel names a script that is run by its first line and called "…é.py".
    Path(f"{PROC}/self/comm").write_bytes(b"cut within one\xc3")
    with loader_of(numbers(3), 1, method) as loader:
        assert list(loader) == [0, 1, 2]


def test_n16_workers_start_whatever_the_process_is_called(tmp_path):
    play_each(
        tmp_path, work_in_a_process_with_an_unreadable_name, [(method,) for method in METHODS]
    )


def run_checks(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run what checks a change, in a project whose tests are a command of ours."""
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci/run", folder / ".ci/run")
    (folder / "README.md").write_text(README)
    (folder / "docs").mkdir()
    (folder / "docs/contributing.md").write_text(CONTRIBUTING)
    return subprocess.run(
        [folder / ".ci/run"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
