"""What was handed out without order, told piece by piece.

This file is about ``Teller``, which says what some pipes have handed out since it was last
asked, and about ``followed``, which adds that to cursors from before. So a cursor that went to
another process goes on to have what follows it, and nothing is said twice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from asyncloader.datapipes.going_on.course import Course
from asyncloader.datapipes.going_on.cursors import Cursor, Cursors, number_of
from asyncloader.datapipes.going_on.forms import COUNT, FormOf, anything, just, row
from asyncloader.datapipes.going_on.handing_out import (
    FIRST_ENTRY,
    cursor_to_begin_with,
    entries_form,
)
from asyncloader.datapipes.naming import stage_name
from asyncloader.errors import SnapshotError

#: A pipe's number, how many entries its course had before these, and these. Of a pipe that has
#: no number there is its name instead.
Piece = list[Any]


def piece(value: Any, where: str, form_of: FormOf) -> None:
    """The form of a piece."""
    has_name = type(value) is list and len(value) > 0 and value[0] is None
    of_name, of_pipe = (just(None), COUNT, row(anything)), (COUNT, FIRST_ENTRY, entries_form)
    row(*(of_name if has_name else of_pipe))(value, where, form_of)
    if not has_name:
        # What is told of a pipe is added to its cursor.
        form_of(value[0])(cursor_to_begin_with([], 0), where, form_of)


class Teller:
    """Tells what pipes without order hand out from now on."""

    def __init__(self, pipes: Iterable[Any], course_of: Callable[[Any], Course]) -> None:
        pipes = list(pipes)
        numbered = [pipe for pipe in pipes if number_of(pipe) is not None]
        self._since = [(number_of(pipe), course_of(pipe).since_now()) for pipe in numbered]
        self._unnumbered = [
            [None, 0, [stage_name(pipe)]] for pipe in pipes if number_of(pipe) is None
        ]

    def pieces(self) -> list[Piece]:
        """Return what was handed out since the last call, by any thread."""
        told = ([number, *since.told()] for number, since in self._since)
        return [*self._unnumbered, *(piece for piece in told if piece[-1])]


def unnumbered_in(pieces: Iterable[Piece]) -> str:
    """Return the name of a pipe of which nothing can be told, or nothing."""
    return next((entries[0] for number, _, entries in pieces if number is None), "")


def followed(cursors: Cursors, pieces: Iterable[Piece]) -> Cursors:
    """Return cursors to which that belongs, too, which was told later.

    What they have already, of what was told, is left out.
    """
    found = copy.deepcopy(cursors)
    for number, start, entries in pieces:
        if number is None:
            continue
        # The beginning of a stream has no cursors.
        for cursor in list(_at(number, found)) or [_begun(number, found)]:
            if "later" not in cursor:
                raise SnapshotError(f"the state says what pipe {number} handed out without order")
            known = cursor["at"] + len(cursor["later"]) - start
            cursor["later"] += entries[max(known, 0) :]
    return found


def _at(number: int, cursors: Cursors) -> Iterator[Cursor]:
    """Yield the cursors of a pipe, also those that other cursors hold."""
    for own, cursor in cursors.items():
        if own == number:
            yield cursor
        yield from _at(number, dict(cursor.get("above", ())))


def _begun(number: int, cursors: Cursors) -> Cursor:
    cursors[number] = cursor = cursor_to_begin_with([], 0)
    return cursor
