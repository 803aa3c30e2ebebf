"""Run a core of the tests with the lowest versions that are admitted: ``python -m tests.lowest``.

This file is about the lower bounds in ``pyproject.toml``. The command makes of them a file of
constraints, installs exactly these versions into an environment of its own, and runs the tests that
touch each of the libraries. What fails says that a bound is too low.

    python3.11 -m tests.lowest [--borrow-torch] [--keep FOLDER] [tests to run instead]

The lowest Python is the one to run it with. The wheels of torch that are this old bring CUDA along:
it takes some 3 GiB of downloads and 6 GiB of disk until it ends. With ``--borrow-torch`` the torch
of the interpreter that runs the command is used, and of all other libraries the lowest version:
that takes two minutes.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from importlib.metadata import distribution
from pathlib import Path

ROOT = Path(__file__).parent.parent

#: What users install. Ray and the progress bar of notebooks are tried with recent versions only.
EXTRAS = ("arrow", "cloud", "progress", "watch")

#: What runs the tests, in any version; and numpy, which users bring, in the lowest.
TOOLS = ("hypothesis", "pillow", "pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist")
BROUGHT = "numpy"

#: The first Python for which some of the lowest versions have no wheels.
TOO_NEW = (3, 13)

#: Every sample in every way, and a test of what each library is used for.
TESTS = (
    "tests/test_contracts.py",
    "tests/test_public_api.py",
    "tests/datapipes/files/test_parquet.py",
    "tests/datapipes/test_collating.py",
    "tests/datapipes/web",
    "tests/loader/page",
    "tests/loader/test_from_dataset.py",
    "tests/loader/test_samplers.py",
    "tests/loader/test_tqdm.py",
    "tests/services/test_distributed.py",
    "tests/transport/test_codec.py",
)


#: What earlier torch warns of in its own calls, and the tests would take for an error. In the ranks
#: of one test, which are processes of their own, it is one.
LEFT_OUT = (
    "-W",
    "ignore:You are using `torch.load`:FutureWarning",
    "-k",
    "not test_a_checkpoint_of_some_ranks_is_gone_on_with_on_others",
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.lowest")
    parser.add_argument("--borrow-torch", action="store_true", help="use the torch that is here")
    parser.add_argument("--keep", type=Path, help="a folder for the environment, which stays there")
    parser.add_argument("tests", nargs="*", default=TESTS)
    options = parser.parse_args(arguments)
    if options.borrow_torch and sys.version_info >= TOO_NEW:
        sys.stdout.write(f"left out: Python {sys.version.split()[0]} has no wheels this old\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="asyncloader-lowest-") as name:
        folder = options.keep or Path(name)
        python = folder / "bin" / "python"
        constraints = Path(name) / "constraints.txt"
        pinned = [each for each in lowest() if not (options.borrow_torch and "torch" in each)]
        constraints.write_text("".join(f"{each}\n" for each in pinned), encoding="utf-8")
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
            if options.borrow_torch:
                _borrow("torch", python)
        packages = (*TOOLS, BROUGHT, "-e", f"{ROOT}[{','.join(EXTRAS)}]")
        # The pip that is here, since another one takes longer to install than most of the packages.
        pip = [sys.executable, "-m", "pip", "--python", python]
        # Most modules are never imported, so that compiling them all is in vain.
        install = ["install", "-q", "--no-compile", "-c", constraints, *packages]
        subprocess.run([*pip, *install], check=True)
        subprocess.run([*pip, "check"], check=True)
        how = ["-q", "-n", "2", "--dist", "loadfile", *LEFT_OUT]
        done = subprocess.run([python, "-m", "pytest", *how, *options.tests], cwd=ROOT)
        return done.returncode


def _borrow(package: str, python: Path) -> None:
    """Let an environment have a package that is installed here, as if it were installed there."""
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    inside = subprocess.run([python, "-c", asked], check=True, capture_output=True, text=True)
    found = distribution(package)
    folders = {file.parts[0] for file in found.files or () if len(file.parts) > 1} - {".."}
    for folder in folders:
        Path(inside.stdout.strip(), folder).symlink_to(Path(str(found.locate_file(folder))))


def lowest() -> list[str]:
    """Return the lowest versions that are admitted of what users install, as constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    optional = project["optional-dependencies"]
    asked = [*project["dependencies"], *(each for extra in EXTRAS for each in optional[extra])]
    asked += [each for each in optional["test"] if each.startswith(BROUGHT)]
    return sorted(set(_pinned(asked)))


def _pinned(requirements: Iterable[str]) -> Iterable[str]:
    for each in requirements:
        found = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:;.*)?", each)
        if found is None:
            raise ValueError(f"{each} has no lower bound that this command understands")
        yield "{}=={}".format(*found.groups())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
