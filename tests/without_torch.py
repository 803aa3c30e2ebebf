"""A command that runs a module where torch cannot be imported.

    python -m tests.without_torch pytest tests/serving

This file is about an environment as it is after ``pip install --no-deps asyncloader``: one that has
all that this one has but torch, made in a temporary folder in a fraction of a second. Its
interpreter is another one, so that every process that the tests start is without torch as well,
whatever environment variables they give it.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

#: What the environment begins with. `addsitedir` reads the `.pth` files there, too, of which one
#: leads to the package.
_SITE = """
import site
import sys
from importlib.machinery import PathFinder


class WithoutTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            return None
        return super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutTorch
for folder in {folders!r}:
    site.addsitedir(folder)
"""


def main(arguments: list[str]) -> int:
    """Run a module; return its exit status."""
    if not arguments:
        raise SystemExit(f"{(__doc__ or '').strip()}\n\nName the module to run.")
    with tempfile.TemporaryDirectory(prefix="asyncloader-without-torch-") as folder:
        return subprocess.run([python_without_torch(folder), "-m", *arguments]).returncode


def python_without_torch(folder: str) -> Path:
    """Make the environment in an empty folder; return its interpreter."""
    context = venv.EnvBuilder(symlinks=True).ensure_directories(folder)
    venv.create(folder, symlinks=True)
    place = {"base": folder, "platbase": folder}
    inside = Path(sysconfig.get_path("purelib", "venv", vars=place))
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    (inside / "sitecustomize.py").write_text(_SITE.format(folders=ours), encoding="utf-8")
    return Path(context.env_exe)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
