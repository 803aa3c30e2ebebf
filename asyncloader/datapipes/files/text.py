"""Lines of text.

This file is about readlines, about lines_to_paragraphs, which puts lines together, and about how
bytes become text. What cannot be decoded is an error that names the file and the line, and shows
nothing of what is there.
"""

from __future__ import annotations

import codecs
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from asyncloader.arguments import checked_count, checked_encoding, checked_errors, checked_function
from asyncloader.datapipes.base import functional_datapipe
from asyncloader.datapipes.call import answer_of, calling, is_async
from asyncloader.datapipes.files.streams import (
    PIECE_BYTES,
    byte_stream,
    close_stream,
    pair_in,
    path_and_stream,
)
from asyncloader.datapipes.files.unpacking import checked_limit
from asyncloader.datapipes.patterns import Expander, Finished, Pipe, after
from asyncloader.datapipes.running.run import Edge
from asyncloader.datapipes.sources import iterable_source
from asyncloader.datapipes.tolerance import OnError
from asyncloader.errors import ResourceExhausted

#: A line of text is read at once.
MAX_LINE_BYTES = 2**28

_MARK = "\ufeff"

_ADVICE = 'pass its encoding as encoding=…, or errors="replace" or "ignore"'

#: What to do about streams that decode what they read themselves, or should.
OPENING = "open the file with its encoding, as in open_files(encoding=…)"


class TextReader(Expander[Any]):
    """A pipe that reads streams of text, or of bytes that it decodes, and closes them."""

    def set_reading(
        self,
        skip_lines: int,
        decode: bool,
        encoding: str,
        errors: str,
        return_path: bool,
        max_line_bytes: float | None,
    ) -> None:
        """Say how streams become lines, and what is yielded; a constructor does."""
        self.max_line_bytes = checked_line_limit(max_line_bytes)
        self.skip_lines = checked_count("skip_lines", skip_lines, at_least=0)
        self.decode = decode
        self.encoding = checked_encoding(encoding)
        self.errors = checked_errors(errors)
        self.return_path = return_path
        # Streams of bytes end their lines at that byte, which may be part of something else.
        self._cuts_characters = decode and not keeps_line_breaks(self.encoding)

    def lines(self, stream: Any, path: str, skip: int = 0) -> Iterator[Any]:
        """Return a stream's lines without the first ``skip_lines``, and then ``skip``."""
        unwanted, most = self.skip_lines + skip, self.max_line_bytes
        if self._cuts_characters and not is_text(stream):
            pieces = pieces_of(stream, path)
            whole = lines_decoded(pieces, self.encoding, self.errors, path, most)
            lines: Iterator[Any] = after(whole, unwanted)
        else:
            lines = after(lines_of(stream, path, most), unwanted)
            if self.decode:
                lines = decoded(lines, self.encoding, self.errors, path, unwanted + 1)
        return without_mark(lines) if self.decode and not unwanted else lines


@functional_datapipe("readlines")
class LineReader(TextReader):
    r"""Yield ``(path, line)`` for each line of each stream, and close the streams.

    The first ``skip_lines`` of every file are left out, and so are, unless
    ``strip_newline=False``, the ends of lines. With ``decode`` bytes become text, as
    ``encoding`` and ``errors`` say, without a byte order mark. Without ``return_path`` only
    the lines are yielded. A line of more than ``max_line_bytes`` (256 MiB; None for no limit),
    or characters of text, is a ``ResourceExhausted``. ``on_error`` and ``max_errors`` are those
    of ``flatmap``, for whole streams.

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
        max_line_bytes: float | None = MAX_LINE_BYTES,
        on_error: OnError = "raise",
        max_errors: int | None = None,
    ) -> None:
        super().__init__(source_datapipe, on_error=on_error, max_errors=max_errors)
        self.set_reading(skip_lines, decode, encoding, errors, return_path, max_line_bytes)
        self.strip_newline = strip_newline

    def parts(self, item: Any, skip: int = 0) -> Iterator[Any]:
        path, stream = path_and_stream(item, self)
        try:
            lines = self.lines(stream, path, skip)
            if self.strip_newline:
                lines = map(_stripped, lines)
            returns_path = self.return_path
            for line in lines:
                yield (path, line) if returns_path else line
        finally:
            close_stream(stream)


def lines_of(stream: Any, path: str, most: float) -> Iterator[Any]:
    """Yield a stream's lines; text that cannot be decoded is a ValueError that names the file.

    A line of more than ``most`` bytes is a ResourceExhausted, and no more of it is read.
    """
    try:
        for number, line in enumerate(_read_lines(stream, path, most), 1):
            if len(line) > most:
                raise line_too_long(path, number, most)
            yield line
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: {undecodable(error, OPENING)}") from None


def _read_lines(stream: Any, path: str, most: float) -> Iterator[Any]:
    """Return a stream's lines, each read no further than shows that it is too long."""
    # What stands around a stream, such as torch's, lends its methods.
    owner = getattr(getattr(stream, "readline", None), "__self__", None)
    if most > sys.maxsize - 1 or not isinstance(owner, io.IOBase):
        # How such streams find their lines is not known.
        return iter(stream)
    size = int(most) + 1
    if is_text(owner):
        return iter(partial(stream.readline, size), "")
    if not isinstance(owner, io.BufferedIOBase):
        # fsspec's read a line of any length; bare ones byte by byte.
        stream = byte_stream(path, stream)
    return iter(partial(stream.readline, size), b"")


def is_text(stream: Any) -> bool:
    """Whether a stream of Python's kind is one of text."""
    if isinstance(stream, io.TextIOBase | io.BufferedIOBase):
        return isinstance(stream, io.TextIOBase)
    return isinstance(stream, io.IOBase) and isinstance(stream.read(0), str)


def pieces_of(stream: Any, path: str) -> Iterator[Any]:
    """Return pieces of a stream of bytes, cut anywhere."""
    if not isinstance(stream, io.IOBase):
        return iter(stream)
    if not isinstance(stream, io.BufferedIOBase):
        # Others may give a byte at a time.
        stream = byte_stream(path, stream)
    return iter(partial(stream.read, PIECE_BYTES), b"")


def _stripped(line: Any) -> Any:
    return line.rstrip("\r\n" if isinstance(line, str) else b"\r\n")


def checked_line_limit(max_line_bytes: float | None) -> float:
    """Return how long a line may be: without a limit for None."""
    if max_line_bytes is None:
        return float("inf")
    return checked_limit("max_line_bytes", max_line_bytes)


def line_too_long(path: str, line: int, max_line_bytes: float, what: str = "") -> ResourceExhausted:
    """Return the error for a line, or what begins with it, that is longer than it may be."""
    return ResourceExhausted(
        f"{path}, line {line}: {what or 'the line'} is longer than max_line_bytes={max_line_bytes}"
        " bytes (or characters, of text); pass a larger max_line_bytes, or None for no limit"
    )


def undecodable(error: UnicodeDecodeError, advice: str = _ADVICE) -> str:
    """Say what cannot be decoded, and what to do, without showing any of it."""
    return f"byte {error.start + 1} is not valid {error.encoding} ({error.reason}); {advice}"


def keeps_line_breaks(encoding: str) -> bool:
    """Whether a line break is the same byte in an encoding as in ASCII, and nothing else is."""
    return "\n".encode(encoding) == b"\n"


def decoded(
    lines: Iterable[Any], encoding: str, errors: str, path: str, first: int
) -> Iterator[str]:
    """Yield lines of bytes as text, and text as it is; ``first`` is the first's number.

    What cannot be decoded is a ValueError that names the file and the line.
    """
    for number, line in enumerate(lines, first):
        if isinstance(line, str):
            yield line
            continue
        try:
            text = line.decode(encoding, errors)
        except UnicodeDecodeError as error:
            # The original error holds the line itself.
            raise ValueError(f"{path}, line {number}: {undecodable(error)}") from None
        yield text


def lines_decoded(
    pieces: Iterable[Any], encoding: str, errors: str, path: str, most: float
) -> Iterator[str]:
    """Yield the lines of bytes that were cut anywhere, as text, and text as it is.

    What cannot be decoded is a ValueError that names the file and the line, and a line of more
    than ``most`` characters is a ResourceExhausted.
    """
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    number, begun, size = 1, [""], 0
    try:
        for piece in pieces:
            if isinstance(piece, str):
                yield piece
                continue
            *ended, rest = decoder.decode(piece).split("\n")
            for end in ended:
                if size + len(end) >= most:
                    raise line_too_long(path, number, most)
                yield "".join([*begun, end, "\n"])
                number, begun, size = number + 1, [], 0
            begun.append(rest)
            size += len(rest)
            if size > most:
                raise line_too_long(path, number, most)
        begun.append(decoder.decode(b"", final=True))
    except UnicodeError as error:
        # Where a byte order mark is missing, some Pythons give no reason apart.
        reason = getattr(error, "reason", error)
        raise ValueError(
            f"{path}, line {number}: not valid {encoding} ({reason}); {_ADVICE}"
        ) from None
    if last := "".join(begun):
        yield last


def without_mark(lines: Iterator[str]) -> Iterator[str]:
    """Return the lines of a file without a byte order mark, which some programs begin it with."""
    # As UTF-8 it is the first character, which may be the only one.
    marked = [line for line in islice(lines, 1) if line != _MARK]
    return chain((line.removeprefix(_MARK) for line in marked), lines)


def joined_lines(lines: list[str]) -> str:
    """Return lines of text with a line break between them."""
    return "\n".join(lines)


@functional_datapipe("lines_to_paragraphs")
class ParagraphAggregator(Pipe[tuple[str, Any]]):
    """Yield ``(path, paragraph)`` from pairs ``(path, line)``.

    A paragraph ends before an empty line and before a line of another file. Its lines
    are put together by ``joiner``; the default puts a line break between them.

    >>> lines = [("poem", "one"), ("poem", "two"), ("poem", ""), ("poem", "three")]
    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(lines).lines_to_paragraphs(joiner=" ".join))
    [('poem', 'one two'), ('poem', 'three')]
    """

    State = Finished

    def __init__(
        self,
        source_datapipe: Iterable[tuple[str, Any]],
        joiner: Callable[[list[Any]], Any] = joined_lines,
    ) -> None:
        self.source = iterable_source(source_datapipe)
        self.joiner = checked_function("joiner", joiner, takes=1)

    def waits(self) -> bool:
        return is_async(self.joiner)

    def run(self, source: Edge[Any], state: Finished) -> Iterator[tuple[str, Any]]:
        of_path = ""
        lines: list[Any] = []
        with calling(self.joiner) as join:
            for item in source:
                path, line = pair_in(item, "(path, line)", self)
                if lines and (path != of_path or not line):
                    yield self._paragraph(join, of_path, lines, state)
                    lines = []
                of_path = path
                if line:
                    lines.append(line)
                else:
                    state.taken += 1
            if lines:
                yield self._paragraph(join, of_path, lines, state)

    def _paragraph(
        self, join: Callable[[list[Any]], Any], path: str, lines: list[Any], state: Finished
    ) -> tuple[str, Any]:
        paragraph = answer_of(self, join, lines)
        state.taken += len(lines)
        state.yielded += 1
        return path, paragraph
