"""What is built is looked at: who adds or loses a file of a release is told."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from email.parser import Parser

import pytest

from tests import release

COMMITTED = frozenset({"asyncloader/__init__.py", "tests/x.py", *release.NEEDED_IN_WHEEL})
ABOUT_WHEEL = {
    f"asyncloader-1.dist-info/{name}"
    for name in ("METADATA", "RECORD", "WHEEL", "licenses/LICENSE", "licenses/NOTICE")
}
WHEEL = {"asyncloader/__init__.py", *release.NEEDED_IN_WHEEL, *ABOUT_WHEEL}
SDIST = {*COMMITTED, "PKG-INFO", "setup.cfg", "asyncloader.egg-info/SOURCES.txt"}
METADATA = """Name: asyncloader
Version: 1.2.3
Summary: A loader
License-Expression: BSD-3-Clause
Requires-Dist: torch>=2.4
Requires-Dist: uvloop>=0.19; sys_platform != "win32"
Requires-Dist: uvicorn>=0.29; extra == "watch"
Requires-Dist: moto[server]>=5.0; extra == "compat"
"""


def packed(names, time, uid):
    """Return an sdist that was packed by somebody at some time."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uid, member.mode = len(name), time, uid, 0o640
            archive.addfile(member, io.BytesIO(name.encode()))
    return gzip.compress(plain.getvalue(), mtime=time)


def test_an_sdist_is_the_same_whoever_packs_it_and_when():
    one = release.packed_alike(packed(["a/b", "a/c"], 5, 0), 1_000)
    assert one == release.packed_alike(packed(["a/c", "a/b"], 7, 1_000), 1_000)
    with tarfile.open(fileobj=io.BytesIO(one)) as archive:
        members = archive.getmembers()
        assert [(each.name, each.mtime, each.mode) for each in members] == [
            ("a/b", 1_000, 0o644),
            ("a/c", 1_000, 0o644),
        ]
        assert archive.extractfile("a/b").read() == b"a/b"


def test_what_is_built_twice_has_to_be_equal(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, text in ((one, "x"), (other, "y")):
        folder.mkdir()
        (folder / "a.whl").write_text(text)
    assert release.unlike([one / "a.whl"], [one / "a.whl"]) == []
    assert release.unlike([one / "a.whl"], [other / "a.whl"]) == [
        "a.whl is another one when it is built again"
    ]


def test_a_right_release_has_no_complaints():
    assert release.wheel_complaints(WHEEL, COMMITTED) == []
    assert release.sdist_complaints(SDIST, COMMITTED) == []


@pytest.mark.parametrize("name", sorted(WHEEL - {"asyncloader-1.dist-info/WHEEL"}))
def test_a_wheel_without_a_file_is_told(name):
    (complaint,) = release.wheel_complaints(WHEEL - {name}, COMMITTED)
    assert name.partition(".dist-info/")[2] in complaint
    assert complaint.startswith("the wheel lacks ")


def test_a_wheel_with_tests_is_told():
    assert release.wheel_complaints(WHEEL | {"tests/x.py"}, COMMITTED) == [
        "the wheel has tests/x.py"
    ]


def test_an_sdist_has_the_files_of_the_commit_and_no_others():
    assert release.sdist_complaints(SDIST - {"tests/x.py"} | {"notes.txt"}, COMMITTED) == [
        "the sdist lacks tests/x.py",
        "the sdist has notes.txt, which is not of the commit",
    ]


def test_the_bill_of_materials_has_what_users_need(tmp_path):
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"wheel")
    about = Parser().parsestr(METADATA)
    bill = release.bill_of_materials(about, wheel, wheel, 0)
    assert json.loads(json.dumps(bill)) == bill
    assert bill == release.bill_of_materials(about, wheel, wheel, 0)
    scopes = {each["name"]: each["scope"] for each in bill["components"]}
    assert scopes == {"torch": "required", "uvicorn": "optional", "uvloop": "required"}
    (needs,) = bill["dependencies"]
    assert needs["dependsOn"] == ["pkg:pypi/torch", "pkg:pypi/uvloop"]
    assert bill["metadata"]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_the_programs_of_readme_that_end_are_run():
    programs = release.programs_of(release.ROOT / "README.md")
    assert len(programs) == 4
    assert not any("to_thread" in program for program in programs)
