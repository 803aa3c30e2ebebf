"""Bytes made text.

This file is about decoding the lines of a stream, and about what is said of bytes that
cannot be decoded, which shows none of them.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any

from asyncloader.datapipes.files.limits import line_too_long

_MARK = "\ufeff"

_ADVICE = 'say what it is with encoding=…, or errors="replace" or "ignore"'

#: What to do about streams that decode what they read themselves, or should.
OPENING = "open the file with its encoding, as in open_files(encoding=…)"


def undecodable(error: UnicodeDecodeError, advice: str = _ADVICE) -> str:
    """Say what cannot be decoded, and what to do, without showing any of it."""
    return f"byte {error.start + 1} is no {error.encoding} ({error.reason}); {advice}"


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
        raise ValueError(f"{path}, line {number}: no {encoding} ({reason}); {_ADVICE}") from None
    if last := "".join(begun):
        yield last


def without_mark(lines: Iterator[str]) -> Iterator[str]:
    """Return the lines of a file without a byte order mark, which some programs begin it with."""
    # As UTF-8 it is the first character, which may be the only one.
    marked = [line for line in islice(lines, 1) if line != _MARK]
    return chain((line.removeprefix(_MARK) for line in marked), lines)
