"""Lines and paragraphs."""

from __future__ import annotations

import asyncio
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from asyncloader.datapipes.iter import FileOpener, IterableWrapper, LineReader, ParagraphAggregator
from tests.leaks import leaves_nothing


def lines(content: Any, **arguments: Any) -> list[Any]:
    stream = StringIO(content, newline="") if isinstance(content, str) else BytesIO(content)
    found = list(LineReader([("x", stream)], **arguments))
    assert stream.closed
    return found


def test_lines_come_with_their_path() -> None:
    assert lines("one\ntwo\r\n\nthree") == [("x", "one"), ("x", "two"), ("x", ""), ("x", "three")]


def test_lines_come_alone() -> None:
    assert lines(b"one\ntwo", return_path=False) == [b"one", b"two"]


def test_ends_of_lines_may_stay() -> None:
    assert lines("one\r\ntwo", strip_newline=False, return_path=False) == ["one\r\n", "two"]


def test_spaces_stay() -> None:
    assert lines("  one\t \n", return_path=False) == ["  one\t "]


def test_only_ends_of_lines_are_stripped() -> None:
    assert lines(b"\rone\r\n", return_path=False) == [b"\rone"]


@pytest.mark.parametrize(("skip", "rest"), [(0, ["1", "2"]), (1, ["2"]), (2, []), (9, [])])
def test_lines_are_left_out_of_every_file(skip: int, rest: list[str]) -> None:
    files = [(name, StringIO("1\n2")) for name in "ab"]
    reader = LineReader(files, skip_lines=skip, return_path=False)
    assert list(reader) == rest * 2


def test_bytes_become_text_where_it_is_asked_for() -> None:
    content = "né\n".encode("latin-1")
    assert lines(content, return_path=False) == [content.strip()]
    arguments = {"decode": True, "return_path": False}
    assert lines(content, encoding="latin-1", **arguments) == ["né"]
    assert lines(content, **arguments) == ["n"]
    assert lines(content, errors="replace", **arguments) == ["n\ufffd"]


def test_text_has_no_byte_order_mark() -> None:
    content, arguments = b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", {"return_path": False}
    assert lines(content, decode=True, **arguments) == ["one", "\ufefftwo"]
    assert lines(content, **arguments) == content.splitlines()
    assert lines(b"\xff", decode=True, **arguments) == [""]


def test_what_is_no_text_is_an_error_that_names_the_line() -> None:
    content = b"skipped\nfine\nsecret \xff\n"
    with pytest.raises(
        ValueError, match=r"^x, line 3: byte 8 is not valid utf-8 \(invalid"
    ) as caught:
        lines(content, decode=True, errors="strict", skip_lines=1)
    assert "secret" not in repr(caught.value)
    assert caught.value.__cause__ is None


# ਊ and Ȋ have the byte of a line break in UTF-16, as the first of two or the second.
WIDE = "ਊne\r\n\nȊwo\nthree"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp500"])
@pytest.mark.parametrize("skip", [0, 1, 3, 9])
def test_lines_end_where_the_encoding_ends_them(encoding: str, skip: int) -> None:
    text = WIDE if encoding.startswith("utf") else "one\r\n\ntwo\nthree"
    arguments: Any = {"decode": True, "encoding": encoding, "return_path": False}
    whole = text.split("\n")
    whole[0] = whole[0].strip("\r")
    assert lines(text.encode(encoding), skip_lines=skip, **arguments) == whole[skip:]
    assert lines(text, skip_lines=skip, **arguments) == whole[skip:]


def test_what_ends_within_a_character_is_an_error_that_names_the_line() -> None:
    content = "fine\nsecret".encode("utf-16")[:-1]
    with pytest.raises(
        ValueError, match=r"^x, line 2: not valid utf-16 \(truncated data\)"
    ) as caught:
        lines(content, decode=True, encoding="utf-16", errors="strict")
    assert "secret" not in repr(caught.value)


def test_what_begins_with_no_mark_of_its_byte_order_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"^x, line 1: not valid utf-16 \(.*BOM\); pass its encoding"
    ):
        lines("fine".encode("utf-16-le"), decode=True, encoding="utf-16")


def test_text_that_cannot_be_decoded_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff")
    with pytest.raises(ValueError, match=rf"^{tmp_path}/x: byte 1 is not valid utf-8"):
        list(FileOpener([tmp_path / "x"], encoding="utf-8").readlines())


@pytest.mark.parametrize("decode", [False, True])
def test_lines_that_were_read_are_passed_over(decode: bool) -> None:
    reader = LineReader([], skip_lines=1, decode=decode)
    whole = list(reader.parts(("x", BytesIO(b"0\n1\n2\n3"))))
    assert len(whole) == 3
    for skip in range(4):
        assert list(reader.parts(("x", BytesIO(b"0\n1\n2\n3")), skip)) == whole[skip:]


def test_a_break_closes_the_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1\n2\n3\n")
    with leaves_nothing():
        for _ in FileOpener([tmp_path / "x"]).readlines():
            break


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"skip_lines": -1}, ValueError, "skip_lines must be at least 0, got -1"),
        ({"encoding": "utf-99"}, LookupError, "utf-99"),
        ({"errors": "hide"}, LookupError, "hide"),
    ],
)
def test_settings_are_looked_at_when_the_pipe_is_made(
    arguments: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        LineReader([], **arguments)


# Paragraphs -----------------------------------------------------------------------------

LINES = [("a", "1"), ("a", "2"), ("a", ""), ("a", ""), ("a", "3"), ("b", "4")]
LINES += [("c", ""), ("c", "5")]


def test_paragraphs_end_at_empty_lines_and_other_files() -> None:
    assert list(ParagraphAggregator(LINES)) == [("a", "1\n2"), ("a", "3"), ("b", "4"), ("c", "5")]


def test_nothing_makes_no_paragraph() -> None:
    assert list(ParagraphAggregator([])) == []
    assert list(ParagraphAggregator([("a", ""), ("b", "")])) == []


def test_a_joiner_may_do_anything_with_the_lines() -> None:
    pipe = ParagraphAggregator([("a", b"1"), ("a", b"2")], b"+".join)
    assert list(pipe) == [("a", b"1+2")]


async def test_a_joiner_may_wait() -> None:
    async def joined(lines: list[str]) -> str:
        await asyncio.sleep(0)
        return "+".join(lines)

    pipe = IterableWrapper(LINES).lines_to_paragraphs(joined)
    assert [paragraph async for _, paragraph in pipe] == ["1+2", "3", "4", "5"]


def test_an_error_of_a_joiner_names_the_pipe() -> None:
    def fails(lines: list[str]) -> str:
        raise KeyError("on purpose")

    with pytest.raises(KeyError) as caught:
        list(ParagraphAggregator(LINES, fails))
    assert caught.value.__notes__ == ["raised in lines_to_paragraphs(fails)"]
