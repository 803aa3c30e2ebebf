"""The forms that the cursors of a state must have.

A form is a function that raises a SnapshotError for a value that no real state contains: a value
of another type, a number out of range, a list that is too long. Every pipe that makes cursors
defines their form, and ``check_cursors`` checks a state when it is loaded, before anything is
changed:

    def cursor_form(self):
        return fields({"taken": COUNT, "yielded": COUNT}, at_most("yielded", "taken"))

A number that makes a pipe allocate, draw or repeat has a limit, which follows from the pipe's
settings or from the other fields. A position in an endless source may be anything up to ``MOST``,
because a long replay is allowed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.traits import can, has_own_state
from asyncloader.errors import SnapshotError

#: More items than any loader yields: ten million a second for most of a year.
MOST = 2**48

#: How many numbers a cursor may describe by ranges.
MOST_HELD = 10_000_000

#: Returns the form of a pipe's cursors, given the pipe's number.
FormOf = Callable[[int], "Form"]

#: Raises SnapshotError, naming the place, for a value that no real state contains.
Form = Callable[[Any, str, FormOf], None]

#: A condition on several fields, in words and as a function.
Rule = tuple[str, Callable[[Cursor], bool]]


def refuse(where: str, wanted: str, value: Any) -> NoReturn:
    """Raise the SnapshotError for a wrong value."""
    shown = repr(value) if type(value) in (bool, float, type(None)) else _brief(value)
    raise SnapshotError(f"{where} must be {wanted}, got {shown}")


def _brief(value: Any) -> str:
    if type(value) is int:
        return str(value) if abs(value) < 2**70 else "a number of more than 70 bits"
    return f"something of type {type(value).__qualname__}"


def whole(least: int = 0, most: int = MOST) -> Form:
    """A whole number within bounds."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if type(value) is not int or not least <= value <= most:
            refuse(where, f"a number from {least} to {most}", value)

    return check


COUNT = whole()

#: The seed of a pass.
SEED = whole(most=2**64 - 1)


def integer(value: Any, where: str, form_of: FormOf) -> None:
    """Any whole number."""
    if type(value) is not int:
        refuse(where, "a whole number", value)


def quantity(value: Any, where: str, form_of: FormOf) -> None:
    """A finite number of at least 0."""
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        refuse(where, "a number of at least 0", value)


def truth(value: Any, where: str, form_of: FormOf) -> None:
    """True or False."""
    if type(value) is not bool:
        refuse(where, "True or False", value)


def anything(value: Any, where: str, form_of: FormOf) -> None:
    """Any plain data; other code checks it."""


def just(expected: Any) -> Form:
    """One value."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if type(value) is not type(expected) or value != expected:
            refuse(where, repr(expected), value)

    return check


def just_bytes(count: int) -> Form:
    """Bytes of this length."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if type(value) is not bytes or len(value) != count:
            refuse(where, f"{count} bytes", value)

    return check


def or_none(form: Form) -> Form:
    """None, or a value of the form."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if value is not None:
            form(value, where, form_of)

    return check


def list_of(form: Form, *, most: int | None = None) -> Form:
    """A list of any length, or of at most ``most`` elements."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        for element in _list(value, where, most):
            form(element, f"an element of {where}", form_of)

    return check


def row(*forms: Form) -> Form:
    """A list with one element of each form, in this order."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if len(_list(value, where)) != len(forms):
            raise SnapshotError(f"{where} must have {len(forms)} elements, got {len(value)}")
        for element, form in zip(value, forms, strict=True):
            form(element, f"an element of {where}", form_of)

    return check


def each_of(count: int, form: Form) -> Form:
    """A list of ``count`` elements."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if len(_list(value, where)) != count:
            raise SnapshotError(f"{where} must have {count} elements, got {len(value)}")
        list_of(form)(value, where, form_of)

    return check


def ascending(*, below: int = MOST, most: int | None = None) -> Form:
    """A list of numbers, each greater than the one before it."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        last = -1
        for number in _list(value, where, most):
            if type(number) is not int or not last < number < below:
                refuse(f"an element of {where}", f"a number from {last + 1} to {below - 1}", number)
            last = number

    return check


def _list(value: Any, where: str, most: int | None = None) -> list[Any]:
    if type(value) is not list:
        refuse(where, "a list", value)
    if most is not None and len(value) > most:
        raise SnapshotError(f"{where} must have at most {most} elements, got {len(value)}")
    return value


def fields(forms: Mapping[str, Form], *rules: Rule, may_have: Mapping[str, Form] = {}) -> Form:
    """A dict with just these fields, and maybe those of ``may_have``, that keeps the rules."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if type(value) is not dict:
            refuse(where, "a dict", value)
        for name in forms:
            if name not in value:
                raise SnapshotError(f"{where} has no {name!r}")
        for name, element in value.items():
            form = forms.get(name) or may_have.get(name)
            if form is None:
                raise SnapshotError(f"{where} has an unknown field {name!r}")
            form(element, f"{where}[{name!r}]", form_of)
        for words, holds in rules:
            if not holds(value):
                raise SnapshotError(f"{where} contradicts itself: {words}")

    return check


def counts(*names: str) -> dict[str, Form]:
    """Fields that are all numbers of at least 0."""
    return dict.fromkeys(names, COUNT)


def at_most(less: str, more: str) -> Rule:
    """The rule that one field is not greater than another."""
    return f"{less} must be at most {more}", lambda cursor: bool(cursor[less] <= cursor[more])


def no_cursor(value: Any, where: str, form_of: FormOf) -> None:
    """No cursor at all: the pipe's position follows from its reader's."""
    raise SnapshotError(f"{where} is of a pipe that has no cursor")


def of_a_pass(value: Any, where: str, form_of: FormOf) -> None:
    """The cursor of a pass that defines no form."""
    if type(value) is not dict:
        refuse(where, "a dict", value)
    for name in ("splitter", "above"):
        if name in value:
            raise SnapshotError(f"{where} has a field {name!r}, which only branches have")
    if "yielded" in value:
        COUNT(value["yielded"], f"{where}['yielded']", form_of)


def sieve(*, tolerates: bool) -> Form:
    """The cursor of a pass that yields at most one item for each of its source."""
    own = counts("taken", "yielded") | {"errors": COUNT if tolerates else just(0)}
    return fields(own, at_most("yielded", "taken"), at_most("errors", "taken"))


#: The cursors of a source that has ``state_dict`` and ``load_state_dict``.
OF_A_SOURCE = fields({"yielded": COUNT, "state": anything}, may_have={"ended": just(True)})


def cursors(value: Any, where: str, form_of: FormOf) -> None:
    """A list of pairs: the number of a pipe, and a cursor of it."""
    seen = set()
    for pair in _list(value, where):
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int:
            refuse(f"an element of {where}", "a pipe's number and a cursor", pair)
        number, cursor = pair
        if number in seen:
            raise SnapshotError(f"{where} has two cursors of pipe {number}")
        seen.add(number)
        check_cursor(number, cursor, where, form_of)


def instead(form: Form, number: int, of_pipe: Form) -> Form:
    """A form in which the cursors of one pipe must have the form ``of_pipe``."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        form(value, where, lambda other: of_pipe if other == number else form_of(other))

    return check


def check_cursors(found: Cursors, where: str, form_of: FormOf) -> None:
    """Raise SnapshotError if one of a graph's cursors does not have its pipe's form."""
    for number, cursor in found.items():
        check_cursor(number, cursor, where, form_of)


def check_cursor(number: int, cursor: Any, where: str, form_of: FormOf) -> None:
    """Raise SnapshotError if a cursor does not have its pipe's form."""
    form_of(number)(cursor, f"{where}[{number}]", form_of)


def form_of_pipe(pipe: Any) -> Form:
    """Return the form of a pipe's cursors; torch's pipes have none."""
    if has_own_state(pipe):
        return OF_A_SOURCE
    form: Form = pipe.cursor_form() if can(pipe, "cursor_form") else no_cursor
    return form


def is_ascending(numbers: Iterable[int]) -> bool:
    """Whether each number is greater than the one before it."""
    last = -1
    for number in numbers:
        if number <= last:
            return False
        last = number
    return True
