"""Files for the samples of pipes that read some.

This file is about a folder that is made when the first sample asks for it, and is gone
when the tests end.
"""

from __future__ import annotations

import atexit
import bz2
import csv
import functools
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: How many files there are of each kind.
COUNT = 5

#: In each file there are so many lines, rows or members.
PARTS = 3


@functools.cache
def folder() -> Path:
    """Return the folder of this test run, or the one that ``SAMPLE_FILES`` names."""
    if given := os.environ.get("SAMPLE_FILES"):
        return Path(given)
    made = Path(tempfile.mkdtemp(prefix="asyncloader-samples-"))
    atexit.register(shutil.rmtree, made, ignore_errors=True)
    return made


def made(name: str, content: bytes) -> str:
    """Return the path of a file in the folder, which is written if it is not there."""
    path = folder() / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(path)


def numbered(kind: str, make: Callable[[int], bytes]) -> str:
    """Return a pattern of the paths of files that ``make`` fills by their number."""
    for number in range(COUNT):
        made(f"{kind}/{number:02d}.{kind}", make(number))
    return str(folder() / kind / ("{:02d}." + kind))


def text(number: int) -> bytes:
    return "".join(f"line {number} {part}\n" for part in range(PARTS)).encode()


def paragraphs(number: int) -> bytes:
    return "".join(f"line {number} {part}\n\n" for part in range(PARTS)).encode()


def table(number: int) -> bytes:
    rows = io.StringIO()
    writer = csv.writer(rows)
    writer.writerow(["name", "size"])
    writer.writerows([f"name\n{number} {part}", part] for part in range(PARTS))
    return rows.getvalue().encode()


def document(number: int) -> bytes:
    return json.dumps({"number": number}).encode()


def documents(number: int) -> bytes:
    return b"\n\n".join(json.dumps([number, part]).encode() for part in range(PARTS))


def tar(number: int) -> bytes:
    """Return a tar of samples of two files each."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for part in range(PARTS):
            for ending in ("cls", "txt"):
                content = f"{ending} {number} {part}".encode()
                info = tarfile.TarInfo(f"{part}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def zipped(number: int) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for part in range(PARTS):
            archive.writestr(f"{part}.txt", f"{number} {part}")
    return packed.getvalue()


def gz(number: int) -> bytes:
    return gzip.compress(text(number))


def xz(number: int) -> bytes:
    return lzma.compress(text(number))


def bz(number: int) -> bytes:
    return bz2.compress(text(number))


def parquet(number: int) -> bytes:
    """Return a table of row groups of one row each."""
    import pyarrow
    import pyarrow.parquet

    packed = io.BytesIO()
    rows = pyarrow.table({"number": [number] * PARTS, "part": range(PARTS)})
    pyarrow.parquet.write_table(rows, packed, row_group_size=1)
    return packed.getvalue()


def sha256(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def read(item: Any) -> Any:
    """Return what a pair of a path and a stream has, without the folder's name."""
    path, stream = item
    return Path(path).name, stream.read()


def read_all(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample of a WebDataset with the content of its streams."""
    return {key: value if key == "__key__" else value.read() for key, value in sample.items()}
