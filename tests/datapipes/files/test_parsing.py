"""CSV and JSON."""

from __future__ import annotations

import copy
import csv
import json
import pickle
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import pytest

from asyncloader import DataLoader2, MultiProcessingReadingService
from asyncloader.datapipes.iter import (
    CSVDictParser,
    CSVParser,
    FileOpener,
    IterableWrapper,
    JsonLinesParser,
    JsonParser,
)
from tests.leaks import leaves_nothing


def rows(parser: Any, content: Any, **arguments: Any) -> list[Any]:
    stream = StringIO(content, newline="") if isinstance(content, str) else BytesIO(content)
    found = list(parser([("x", stream)], **arguments))
    assert stream.closed
    return found


# CSV ------------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [b'a,"b\nc"\n1,2\n', 'a,"b\nc"\n1,2\n'])
def test_rows_are_lists_of_text(content: Any) -> None:
    assert rows(CSVParser, content) == [["a", "b\nc"], ["1", "2"]]


def test_rows_may_be_tuples_and_have_their_path() -> None:
    assert rows(CSVParser, b"a,b\n", as_tuple=True) == [("a", "b")]
    assert rows(CSVParser, b"a,b\n", return_path=True) == [("x", ["a", "b"])]
    assert rows(CSVParser, b"a,b", return_path=True, as_tuple=True) == [("x", ("a", "b"))]


def test_rows_are_made_as_csv_is_told() -> None:
    assert rows(CSVParser, b"a;b\n", delimiter=";") == [["a", "b"]]
    assert rows(CSVParser, b"'a,b'\n", quotechar="'") == [["a,b"]]
    with pytest.raises(TypeError, match="colour"):
        CSVParser([], colour="red")


def test_lines_are_left_out_of_every_table() -> None:
    files = [(name, BytesIO(b"# a comment\nk\n" + name.encode())) for name in "ab"]
    assert list(CSVDictParser(files, skip_lines=1)) == [{"k": "a"}, {"k": "b"}]


def test_rows_are_dicts_with_the_keys_of_the_first() -> None:
    assert rows(CSVDictParser, b'k,l\n1,"2\n3"\n') == [{"k": "1", "l": "2\n3"}]
    assert rows(CSVDictParser, b"1,2\n", fieldnames=["k", "l"]) == [{"k": "1", "l": "2"}]
    assert rows(CSVDictParser, b"k\n1\n", return_path=True) == [("x", {"k": "1"})]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le"])
def test_a_byte_order_mark_is_no_part_of_a_table(encoding: str) -> None:
    mark = "\ufeff" if encoding in ("utf-8", "utf-16-le") else ""
    content = f'{mark}"k, l",m\n1,\ufeff2\n'
    expected = [{"k, l": "1", "m": "\ufeff2"}]
    assert rows(CSVDictParser, content.encode(encoding), encoding=encoding) == expected
    assert rows(CSVDictParser, content) == expected
    assert rows(CSVParser, mark.encode(encoding), encoding=encoding) == []


def test_bytes_are_decoded_as_is_said() -> None:
    content = "né".encode("latin-1")
    assert rows(CSVParser, content, encoding="latin-1") == [["né"]]
    assert rows(CSVParser, content) == [["n"]]
    with pytest.raises(ValueError, match=r"^x, line 1: byte 2 is not valid utf-8"):
        rows(CSVParser, content, errors="strict")


def test_bytes_that_are_not_decoded_are_an_error_of_csv() -> None:
    with pytest.raises(csv.Error, match=r"^x, line 1: iterator should return strings"):
        rows(CSVParser, b"a", decode=False)


def test_an_error_names_the_line_of_the_file() -> None:
    content = b'skipped\n"two\nlines",1\n"secret" \n'
    with pytest.raises(csv.Error, match=r"^x, line 4: ") as caught:
        rows(CSVParser, content, skip_lines=1, strict=True)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("parser", [CSVParser, CSVDictParser])
def test_rows_that_were_read_are_passed_over(parser: Any) -> None:
    pipe = parser([])
    content = b'k,l\n"1\n2",2\n3,"4\n"\n5,6'
    whole = list(pipe.parts(("x", BytesIO(content))))
    for skip in range(len(whole) + 1):
        assert list(pipe.parts(("x", BytesIO(content)), skip)) == whole[skip:]


@pytest.mark.parametrize("parser", [CSVParser, CSVDictParser, JsonLinesParser])
def test_a_break_closes_the_file(tmp_path: Path, parser: Any) -> None:
    (tmp_path / "x").write_text("1\n2\n3\n")
    with leaves_nothing():
        for _ in parser(FileOpener([tmp_path / "x"], "b")):
            break


# JSON -----------------------------------------------------------------------------------


def test_a_document_comes_with_its_path() -> None:
    for content in (b'{"a": [1, null]}', '{"a": [1, null]}'):
        assert rows(JsonParser, content) == [("x", {"a": [1, None]})]


def test_documents_are_made_as_json_is_told() -> None:
    assert rows(JsonParser, b"[1.5]", parse_float=str) == [("x", ["1.5"])]
    assert rows(JsonLinesParser, b"1.5", parse_float=str) == ["1.5"]


@pytest.mark.parametrize("parser", [JsonParser, JsonLinesParser])
@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"colour": "red"}, "json.loads has no keyword 'colour'; it has cls, strict, object"),
        ({"object_hook": {"a": 1}}, "object_hook must be callable, got dict"),
        ({"object_pairs_hook": lambda: None}, "object_pairs_hook must take its arguments"),
        ({"parse_float": "decimal"}, "parse_float must be callable, got str"),
        ({"cls": 5}, "cls must be callable, got int"),
    ],
)
def test_what_json_cannot_be_told_is_refused_at_once(
    parser: Any, setting: dict[str, Any], message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        parser([], **setting)


def test_a_hook_is_called_for_what_is_read_only() -> None:
    numbers = {"1": "one"}
    assert rows(JsonLinesParser, b"1", parse_int=numbers.__getitem__) == ["one"]


def test_the_length_is_that_of_the_files() -> None:
    assert len(JsonParser([("x", BytesIO(b"1"))])) == 1


def test_tables_are_read_in_wide_encodings() -> None:
    content = 'k,l\r\n1,"ਊ\n3"\r\n'.encode("utf-16")
    assert rows(CSVParser, content, encoding="utf-16") == [["k", "l"], ["1", "ਊ\n3"]]
    assert rows(CSVDictParser, content, encoding="utf-16") == [{"k": "1", "l": "ਊ\n3"}]


def test_each_line_is_a_document() -> None:
    content = b'\n{"a": 1}\r\n\n  \n[2]'
    assert rows(JsonLinesParser, content) == [{"a": 1}, [2]]
    assert rows(JsonLinesParser, content, return_path=True) == [("x", {"a": 1}), ("x", [2])]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"secret": 1,\n oops}', r"^x, line 2, column 2: Expecting property name"),
        (
            b'"secret \xff"',
            r"^x, from line 1 on: byte 9 is not valid utf-8 .*; open the file with its encoding",
        ),
        (b"[" * 100_000, r"^x, from line 1 on: nested too deeply"),
        (b"", r"^x, line 1, column 1: Expecting value"),
    ],
)
def test_what_is_no_document_is_an_error_that_names_the_place(content: bytes, message: str) -> None:
    with pytest.raises(json.JSONDecodeError, match=message) as caught:
        rows(JsonParser, content)
    assert "secret" not in repr(caught.value)
    assert "secret" not in repr(vars(caught.value))
    assert not isinstance(caught.value, UnicodeDecodeError)


@pytest.mark.parametrize("parser", [JsonParser, JsonLinesParser])
def test_text_that_cannot_be_decoded_names_the_file(parser: Any, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'"secret \xff"')
    with pytest.raises(ValueError, match=rf"^{tmp_path}/x: byte 9 .*; open the file") as caught:
        list(parser(FileOpener([tmp_path / "x"], encoding="utf-8")))
    assert not isinstance(caught.value, UnicodeDecodeError)


def test_an_error_in_lines_of_json_names_the_line() -> None:
    with pytest.raises(json.JSONDecodeError, match=r"^x, line 3, column 1: Expecting value"):
        rows(JsonLinesParser, b"1\n\nsecret\n")


def test_an_error_of_json_says_where_in_attributes_too_also_from_a_worker() -> None:
    files = IterableWrapper([("x", b"1\n  oops\n")]).map(BytesIO, 1)
    for workers in (0, 1):
        service = MultiProcessingReadingService(workers)
        with (
            DataLoader2(files.parse_json_lines(), reading_service=service) as loader,
            pytest.raises(json.JSONDecodeError, match=r"^x, line 2, column 3: Exp") as caught,
        ):
            list(loader)
        error = caught.value
        for one in (error, pickle.loads(pickle.dumps(error)), copy.copy(error)):
            assert (one.msg, one.lineno, one.colno, one.doc) == ("Expecting value", 2, 3, "")
            assert str(one).startswith("x, line 2, column 3: Expecting value")


def test_an_error_of_a_users_hook_stays_itself() -> None:
    def hook(found: Any) -> Any:
        raise ValueError("on purpose")

    with pytest.raises(ValueError, match=r"^on purpose\n") as caught:
        rows(JsonParser, b"{}", object_hook=hook)
    assert caught.value.__notes__ == ["in x, from line 1 on", "raised in parse_json_files()"]


def test_documents_that_were_read_are_passed_over() -> None:
    pipe = JsonLinesParser([])
    content = b"1\n\n2\n \n3\n"
    for skip in range(4):
        assert list(pipe.parts(("x", BytesIO(content)), skip)) == [1, 2, 3][skip:]
