"""Build what is released, and look at it: ``python -m tests.release``.

This file is about the two files that users install, the sdist and the wheel. Both are built twice,
of the last commit and nothing else, and have to be equal byte for byte: whoever builds them from
the tag gets the files of the release. Then their content is compared with the files of the
commit, each is installed into an empty environment and tried, and beside them are written their
hashes and what they need, as CycloneDX.

    python -m tests.release [--full] [--out dist]

``--full`` installs all requirements with torch and runs the programs of README and
``examples/train.py``; without it there is only what a program without tensors needs.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from email.parser import Parser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = "asyncloader/"

#: Their versions are part of what is built.
BUILDERS = ("build==1.6.1", "setuptools==84.2.1")
TORCH = "torch==2.13.0"

#: What a build adds to the files of the commit.
ADDED_TO_SDIST = ("PKG-INFO", "setup.cfg", "asyncloader.egg-info/")

#: Whatever else changes, a wheel without these does not work, or may not be passed on.
NEEDED_IN_WHEEL = (
    "asyncloader/py.typed",
    "asyncloader/datapipes/fluent.pyi",
    "asyncloader/graph/style.css",
    "asyncloader/loader/page/page.css",
    "asyncloader/loader/page/page.html",
    "asyncloader/loader/page/page.js",
)

#: Extras of which nothing is needed to use the package.
FOR_DEVELOPERS = ("bench", "compat", "docs", "test")

TRY_WITHOUT_TENSORS = """
import importlib.util, sys
import asyncloader, asyncloader.adapters, asyncloader.datapipes.map, asyncloader.errors
import asyncloader.graph, asyncloader.serving, asyncloader.testing
from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import IterableWrapper

if __name__ == "__main__":
    graph = IterableWrapper(range(10)).sharding_filter().map(str).batch(5)
    with DataLoader2(graph, reading_service=MultiProcessingReadingService(2)) as loader:
        assert sum(map(len, loader)) == 10
    assert "site-packages" in asyncloader.__file__, asyncloader.__file__
    assert importlib.util.find_spec("torch") is None
"""


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    parser.add_argument("--full", action="store_true", help="with torch, and README's programs")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the files go")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="asyncloader-release-") as name:
        folder = Path(name)
        commit = Commit.last()
        builder = environment(folder / "builder", *BUILDERS)
        built = [build(commit, builder, folder / zone, zone) for zone in ("UTC", "Asia/Kathmandu")]
        complaints = unlike(*built)
        sdist, wheel = built[0]
        complaints += sdist_complaints(names_in_sdist(sdist), commit.files)
        complaints += wheel_complaints(names_in_wheel(wheel), commit.files)
        if complaints:
            raise SystemExit("\n".join(complaints))
        say(f"{sdist.name} and {wheel.name} were built twice, equal, with what they should have")
        for each in (sdist, wheel):
            try_without_tensors(each, folder / f"empty-{each.suffix[1:]}")
            say(f"{each.name} works in an empty environment, without torch")
            if options.full:
                try_with_torch(each, folder / f"full-{each.suffix[1:]}", sdist)
                say(f"{each.name} runs the programs of README and examples/train.py")
        options.out.mkdir(parents=True, exist_ok=True)
        for each in (sdist, wheel):
            shutil.copy(each, options.out)
        (options.out / "SHA256SUMS").write_text(sums([sdist, wheel]), encoding="utf-8")
        about = metadata_of(wheel)
        needs = f"{about['Name']}-{about['Version']}.cdx.json"
        bill = json.dumps(bill_of_materials(about, wheel, sdist, commit.time), indent=2)
        (options.out / needs).write_text(f"{bill}\n", encoding="utf-8")
        say(f"{options.out} has them, SHA256SUMS and {needs}")


def say(what: str) -> None:
    print(what, flush=True)


# Building -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Commit:
    """What is released."""

    name: str
    #: In seconds, which is when all files are said to have been changed.
    time: int
    files: frozenset[str]

    @classmethod
    def last(cls) -> Commit:
        name, time = git("log", "-1", "--format=%H %ct").split()
        files = git("ls-tree", "-r", "--name-only", "-z", name).split("\0")
        return cls(name, int(time), frozenset(filter(None, files)))


def git(*arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def build(commit: Commit, python: Path, folder: Path, zone: str) -> tuple[Path, Path]:
    """Build an sdist of a commit, and a wheel of that, as in a time zone; return their paths."""
    environ = os.environ | {"SOURCE_DATE_EPOCH": str(commit.time), "TZ": zone}
    source, out = folder / "source", folder / "out"
    source.mkdir(parents=True)
    packed = subprocess.run(
        ["git", "archive", commit.name], cwd=ROOT, check=True, capture_output=True
    ).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(source, filter="data")
    _build(python, source, out, "--sdist", environ)
    (made,) = out.glob("*.tar.gz")
    made.write_bytes(packed_alike(made.read_bytes(), commit.time))
    with tarfile.open(made) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    _build(python, unpacked, out, "--wheel", environ)
    (wheel,) = out.glob("*.whl")
    return made, wheel


def _build(python: Path, source: Path, out: Path, kind: str, environ: dict[str, str]) -> None:
    how = ("--no-isolation", kind, "--outdir", str(out))
    run([python, "-m", "build", *how, source], environ=environ)


def packed_alike(packed: bytes, time: int) -> bytes:
    """Pack an sdist anew: in the order of names, at one time, owned by nobody."""
    plain = io.BytesIO()
    with (
        tarfile.open(fileobj=io.BytesIO(packed)) as before,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as after,
    ):
        for member in sorted(before.getmembers(), key=lambda each: each.name):
            alike = tarfile.TarInfo(member.name)
            alike.type, alike.size, alike.mtime = member.type, member.size, time
            alike.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            after.addfile(alike, before.extractfile(member) if member.isfile() else None)
    return gzip.compress(plain.getvalue(), mtime=time)


def unlike(first: Iterable[Path], second: Iterable[Path]) -> list[str]:
    """Say which of the files were not built equal."""
    return [
        f"{one.name} is another one when it is built again"
        for one, other in zip(first, second, strict=True)
        if one.name != other.name or one.read_bytes() != other.read_bytes()
    ]


# Content --------------------------------------------------------------------------------


def names_in_sdist(sdist: Path) -> set[str]:
    """Return the files of an sdist, without its folder."""
    with tarfile.open(sdist) as archive:
        return {each.name.partition("/")[2] for each in archive if each.isfile()}


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def sdist_complaints(names: set[str], committed: frozenset[str]) -> list[str]:
    """Say what an sdist has that it should not have, or has not."""
    others = {name for name in names - committed if not name.startswith(ADDED_TO_SDIST)}
    return [f"the sdist lacks {name}" for name in sorted(committed - names)] + [
        f"the sdist has {name}, which is not of the commit" for name in sorted(others)
    ]


def wheel_complaints(names: set[str], committed: frozenset[str]) -> list[str]:
    """Say what a wheel has that it should not have, or has not."""
    ours = {name for name in committed if name.startswith(PACKAGE)} | {*NEEDED_IN_WHEEL}
    about = {name for name in names if ".dist-info/" in name}
    complaints = [f"the wheel lacks {name}" for name in sorted(ours - names)]
    complaints += [f"the wheel has {name}" for name in sorted(names - about - ours)]
    for file in ("METADATA", "RECORD", "licenses/LICENSE", "licenses/NOTICE"):
        if not any(name.endswith(f".dist-info/{file}") for name in about):
            complaints.append(f"the wheel lacks {file} of its .dist-info")
    return complaints


def metadata_of(wheel: Path) -> Message:
    """Return the metadata of a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (each for each in archive.namelist() if each.endswith(".dist-info/METADATA"))
        return Parser().parsestr(archive.read(name).decode("utf-8"))


# Trying ---------------------------------------------------------------------------------


def environment(folder: Path, *packages: str | Path) -> Path:
    """Make an environment with these packages; return its interpreter."""
    run([sys.executable, "-m", "venv", folder])
    python = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    if packages:
        run([python, "-m", "pip", "install", "-q", *packages])
    return python


def try_without_tensors(built: Path, folder: Path) -> None:
    python = environment(folder, "anyio", "cloudpickle")
    run([python, "-m", "pip", "install", "-q", "--no-deps", built])
    program = folder / "program.py"
    program.write_text(TRY_WITHOUT_TENSORS, encoding="utf-8")
    run([python, program], cwd=folder)


def try_with_torch(built: Path, folder: Path, sdist: Path) -> None:
    python = environment(folder, TORCH, f"{built}[progress]")
    run([python, "-m", "pip", "check"])
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    (unpacked,) = (folder / "unpacked").iterdir()
    # Beside the package's own sources they would be imported in place of what is installed.
    for number, program in enumerate(programs_of(unpacked / "README.md")):
        path = folder / f"readme_{number}.py"
        path.write_text(program, encoding="utf-8")
        run([python, path], cwd=folder)
    run([python, shutil.copy(unpacked / "examples" / "train.py", folder)], cwd=folder)


def programs_of(page: Path) -> list[str]:
    """Return the Python programs of a page that end."""
    blocks = page.read_text(encoding="utf-8").split("\n```python\n")[1:]
    return [block.partition("\n```")[0] for block in blocks]


def run(
    command: Sequence[str | Path], *, cwd: Path | None = None, environ: dict[str, str] | None = None
) -> None:
    """Run a command; end this one with what it said if it fails."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env=environ,
        umask=0o022,  # the modes of files are in a wheel
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} failed:\n{done.stdout}")


# What is said of the files --------------------------------------------------------------


def sums(paths: Iterable[Path]) -> str:
    """Return the hashes of files, as ``sha256sum --check`` reads them."""
    return "".join(f"{sha256(path)}  {path.name}\n" for path in paths)


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def bill_of_materials(about: Message, wheel: Path, sdist: Path, time: int) -> dict[str, Any]:
    """Return what a release is and needs, in the form of CycloneDX 1.5.

    What it needs has no version: that is chosen where it is installed. The bounds are properties.
    """
    name, version = about["Name"], about["Version"]
    own = f"pkg:pypi/{name}@{version}"
    needed = [
        requirement_of(text)
        for text in about.get_all("Requires-Dist") or ()
        if not any(f'extra == "{extra}"' in text for extra in FOR_DEVELOPERS)
    ]
    components = {each["bom-ref"]: each for each in sorted(needed, key=_is_optional, reverse=True)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        # The same files have the same number.
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, own + sha256(wheel))}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time, UTC).isoformat(),
            "component": {
                "type": "library",
                "bom-ref": own,
                "name": name,
                "version": version,
                "description": about["Summary"],
                "licenses": [{"license": {"id": about["License-Expression"]}}],
                "purl": own,
                "properties": [
                    {"name": f"asyncloader:sha256:{each.name}", "value": sha256(each)}
                    for each in (wheel, sdist)
                ],
            },
        },
        "components": sorted(components.values(), key=lambda each: each["bom-ref"]),
        "dependencies": [
            {
                "ref": own,
                "dependsOn": sorted(
                    ref for ref, each in components.items() if each["scope"] == "required"
                ),
            }
        ],
    }


def requirement_of(text: str) -> dict[str, Any]:
    """Return a requirement, such as ``torch>=2.4``, as a component."""
    requirement, _, marker = (part.strip() for part in text.partition(";"))
    end = next((at for at, sign in enumerate(requirement) if sign in "<>=!~ [("), len(requirement))
    name = requirement[:end].lower().replace("_", "-")
    properties = [{"name": "asyncloader:requirement", "value": requirement}]
    if marker:
        properties.append({"name": "asyncloader:marker", "value": marker})
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "scope": "optional" if "extra" in marker else "required",
        "purl": f"pkg:pypi/{name}",
        "properties": properties,
    }


def _is_optional(component: dict[str, Any]) -> bool:
    return bool(component["scope"] == "optional")


if __name__ == "__main__":
    main(sys.argv[1:])
