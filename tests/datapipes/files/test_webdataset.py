"""Samples that lie in several files, and names of shards."""

from __future__ import annotations

from typing import Any

import pytest

from asyncloader.datapipes.iter import FileOpener, ShardExpander, WebDataset
from tests.datapipes.files.test_archives import packed_tar
from tests.datapipes.resuming import new_pass
from tests.leaks import leaves_nothing


def test_files_with_one_name_are_one_sample() -> None:
    files = [("d/1.jpg", b"j"), ("d/1.seg.png", b"p"), ("d/2.jpg", b"k"), ("e/2.jpg", b"l")]
    assert list(WebDataset(files)) == [
        {"__key__": "d/1", ".jpg": b"j", ".seg.png": b"p"},
        {"__key__": "d/2", ".jpg": b"k"},
        {"__key__": "e/2", ".jpg": b"l"},
    ]


def test_a_folder_may_have_a_dot() -> None:
    assert list(WebDataset([("a.tar/b.c/1.d", 0)])) == [{"__key__": "a.tar/b.c/1", ".d": 0}]


def test_names_without_a_dot_are_left_out() -> None:
    files = [("README", 0), ("1.a", 1), ("a.tar/README", 2), ("1.b", 3), ("README", 4)]
    assert list(WebDataset(files)) == [{"__key__": "1", ".a": 1, ".b": 3}]
    assert list(WebDataset([])) == []


def test_hidden_files_part_no_samples() -> None:
    names = ["._a.1.jpg", "a.1.jpg", "d/.DS_Store", "d/b.jpg", "d/._b.cls", "d/b.cls"]
    assert list(WebDataset([(name, number) for number, name in enumerate(names)])) == [
        {"__key__": "a", ".1.jpg": 1},
        {"__key__": "d/b", ".jpg": 3, ".cls": 5},
    ]


def test_a_file_that_would_be_lost_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"a/1\.jpg comes twice in a row"):
        list(WebDataset([("a/1.jpg", b""), ("a/1.jpg", b"")]))


def test_a_pass_knows_what_is_done_and_what_is_held() -> None:
    pipe = WebDataset([("1.a", 0), ("1.b", 0), ("2.a", 0), ("3.a", 0)])
    running = new_pass(pipe)
    seen = [running.cursor() for _ in running]
    assert seen == [
        {"taken": taken, "yielded": number} for number, taken in ((1, 2), (2, 3), (3, 4))
    ]


def test_streams_of_a_tar_stay_open_for_their_sample(tmp_path: Any) -> None:
    (tmp_path / "x.tar").write_bytes(packed_tar({"1.a": b"1a", "1.b": b"1b", "2.a": b"2a"}))
    pipe = FileOpener([tmp_path / "x.tar"], "b").load_from_tar().webdataset()
    with leaves_nothing():
        samples = [
            {key: value if key == "__key__" else value.read() for key, value in sample.items()}
            for sample in pipe
        ]
    assert samples == [
        {"__key__": f"{tmp_path}/x.tar/1", ".a": b"1a", ".b": b"1b"},
        {"__key__": f"{tmp_path}/x.tar/2", ".a": b"2a"},
    ]


# Shards ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("plain.tar", ["plain.tar"]),
        ("d-{08..11}.tar", ["d-08.tar", "d-09.tar", "d-10.tar", "d-11.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{0..3}", ["0", "1", "2", "3"]),
        ("{0..1}{0..1}", ["00", "01", "10", "11"]),
        ("{000..001}-{a..b}", ["000-{a..b}", "001-{a..b}"]),
        ("{5..5}", ["5"]),
    ],
)
def test_a_pattern_stands_for_names(pattern: str, names: list[str]) -> None:
    assert list(ShardExpander([pattern])) == names
    for skip in range(len(names) + 1):
        assert list(ShardExpander([]).parts(pattern, skip)) == names[skip:]


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("{01..999}", "01 starts with 0"),
        ("{0000..999}", "0000 must not have more digits than 999"),
        ("{999..123}", "bad range: 999 is greater than 123"),
    ],
)
def test_ranges_that_make_no_sense_are_errors(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list(ShardExpander([pattern]))


def test_names_are_made_as_they_are_asked_for() -> None:
    names = iter(ShardExpander(["{0..999999999999}"]))
    assert [next(names), next(names)] == ["0", "1"]


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(TypeError, match="reads names of shards, got int"):
        list(ShardExpander([3]))  # type: ignore[list-item]
