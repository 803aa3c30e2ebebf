"""Lines of text.

This file is about readlines, and lines_to_paragraphs, which puts lines together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from asyncloader.datapipes.files.decoding import (
    OPENING,
    decoded,
    keeps_line_breaks,
    lines_decoded,
    undecodable,
    without_mark,
)
from asyncloader.datapipes.files.streams import close_stream, pair_in, path_and_stream
from asyncloader.datapipes.going_on.forms import Form
from asyncloader.datapipes.patterns.expanding import TolerantExpander
from asyncloader.datapipes.patterns.lagging_pass import LAGGING, LaggingPass
from asyncloader.datapipes.patterns.reading import begin
from asyncloader.datapipes.pipe.answers import answer_of
from asyncloader.datapipes.pipe.arguments import (
    checked_count,
    checked_encoding,
    checked_errors,
    checked_function,
    iterable_source,
)
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import calling, is_async
from asyncloader.datapipes.pipe.tolerance import OnError


class TextReader(TolerantExpander[Any]):
    """A pipe that reads streams of text, or of bytes that it decodes, and closes them."""

    def __init__(
        self,
        datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int,
        decode: bool,
        encoding: str,
        errors: str,
        return_path: bool,
        on_error: OnError,
        max_errors: int | None,
    ) -> None:
        super().__init__(datapipe, on_error=on_error, max_errors=max_errors)
        self.skip_lines = checked_count("skip_lines", skip_lines, at_least=0)
        self.decode = decode
        self.encoding = checked_encoding(encoding)
        self.errors = checked_errors(errors)
        self.return_path = return_path
        # Streams of bytes end their lines at that byte, which may be part of something else.
        self._cuts_characters = decode and not keeps_line_breaks(self.encoding)

    def lines(self, stream: Any, path: str, skip: int = 0) -> Iterator[Any]:
        """Return a stream's lines without the first ``skip_lines``, and then ``skip``."""
        unwanted, lines = self.skip_lines + skip, lines_of(stream, path)
        if self._cuts_characters:
            lines = after(lines_decoded(lines, self.encoding, self.errors, path), unwanted)
        else:
            lines = after(lines, unwanted)
            if self.decode:
                lines = decoded(lines, self.encoding, self.errors, path, unwanted + 1)
        return without_mark(lines) if self.decode and not unwanted else lines


@functional_datapipe("readlines")
class LineReader(TextReader):
    r"""Yield ``(path, line)`` for each line of each stream, and close the streams.

    The first ``skip_lines`` of every file are left out, and so are, unless
    ``strip_newline=False``, the ends of lines. With ``decode`` bytes become text, as
    ``encoding`` and ``errors`` say, without a byte order mark. Without ``return_path`` only
    the lines are yielded. ``on_error`` and ``max_errors`` are those of ``flatmap``, for whole
    streams.

    >>> from io import StringIO
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("poem", StringIO("one\ntwo\n"))]).readlines())
    [('poem', 'one'), ('poem', 'two')]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        *,
        skip_lines: int = 0,
        strip_newline: bool = True,
        decode: bool = False,
        encoding: str = "utf-8",
        errors: str = "ignore",
        return_path: bool = True,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(
            source_datapipe,
            skip_lines=skip_lines,
            decode=decode,
            encoding=encoding,
            errors=errors,
            return_path=return_path,
            on_error=on_error,
            max_errors=max_errors,
        )
        self.strip_newline = strip_newline

    def parts(self, item: Any, skip: int = 0) -> Generator[Any, None, None]:
        path, stream = path_and_stream(item, self)
        try:
            lines = self.lines(stream, path, skip)
            if self.strip_newline:
                lines = map(_stripped, lines)
            for line in lines:
                yield (path, line) if self.return_path else line
        finally:
            close_stream(stream)


def lines_of(stream: Any, path: str) -> Iterator[Any]:
    """Yield a stream's lines; text that cannot be decoded is a ValueError that names the file."""
    try:
        yield from stream
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {undecodable(error, OPENING)}") from None


def after(lines: Iterable[Any], count: int) -> Iterator[Any]:
    """Return an iterator of lines that has left out the first ``count``."""
    rest = iter(lines)
    next(islice(rest, count, count), None)
    return rest


def _stripped(line: Any) -> Any:
    return line.rstrip("\r\n" if isinstance(line, str) else b"\r\n")


def joined_lines(lines: list[str]) -> str:
    """Return lines of text with a line break between them."""
    return "\n".join(lines)


@functional_datapipe("lines_to_paragraphs")
class ParagraphAggregator(IterDataPipe[tuple[str, Any]]):
    """Yield ``(path, paragraph)`` from pairs ``(path, line)``.

    A paragraph ends before an empty line and before a line of another file. Its lines
    are put together by ``joiner``; the default puts a line break between them.

    >>> lines = [("poem", "one"), ("poem", "two"), ("poem", ""), ("poem", "three")]
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(lines).lines_to_paragraphs(joiner=" ".join))
    [('poem', 'one two'), ('poem', 'three')]
    """

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        joiner: Callable[[list[Any]], Any] = joined_lines,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.joiner = checked_function("joiner", joiner, takes=1)

    def waits(self) -> bool:
        return is_async(self.joiner)

    def new_pass(self) -> ParagraphPass:
        return ParagraphPass(self)

    def cursor_form(self) -> Form:
        return LAGGING


@dataclass
class ParagraphPass(LaggingPass[tuple[str, Any]]):
    """One pass over a ParagraphAggregator, which holds the lines of one paragraph."""

    pipe: ParagraphAggregator
    path: str = ""
    lines: list[Any] = field(default_factory=list, repr=False)

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        with calling(self.pipe.joiner) as join:
            for item in begin(self.source):
                path, line = pair_in(item, "(path, line)", self.pipe)
                if self.lines and (path != self.path or not line):
                    yield self._paragraph(join)
                self.path = path
                if line:
                    self.lines.append(line)
                else:
                    self.taken += 1
                self.above.passed(self.taken + len(self.lines))
            if self.lines:
                yield self._paragraph(join)

    def _paragraph(self, join: Callable[[list[Any]], Any]) -> tuple[str, Any]:
        paragraph = answer_of(self.pipe, join, self.lines)
        self.taken += len(self.lines)
        self.yielded += 1
        self.lines = []
        return self.path, paragraph
