"""What is saved of a pipe, and what a saved state may contain.

This file is about ``State``, a pipe's place, and its base ``Fields``, which other parts of a state
have as well. Its annotated fields are all that is saved, and their annotations are the form that
they must have when a state is loaded. What several fields must have in common is said by
``check``, in words:

    class Filtered(State):
        errors: Count = 0

        def check(self, pipe):
            if self.errors > self.taken:
                yield "errors must be at most taken"

A form is a function that raises a SnapshotError for a value that no real state contains: a value
of another type, a number out of range, a list that is too long. ``check_cursors`` checks a state
when it is loaded, before anything is changed. A number that makes a pipe allocate, draw or repeat
has a limit, which follows from the pipe's settings (``Of``) or from the other fields. A position in
an endless source may be anything up to ``MOST``, because a long replay is allowed.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field
from itertools import chain
from types import NoneType
from typing import (
    Annotated,
    Any,
    NoReturn,
    Self,
    dataclass_transform,
    get_args,
    get_origin,
)

from asyncloader.arguments import kind_name
from asyncloader.datapipes.running.cursors import Cursor, Cursors
from asyncloader.datapipes.running.traits import has_own_state, is_of_package, setting
from asyncloader.errors import SnapshotError

#: More items than any loader yields: ten million a second for most of a year.
MOST = 2**48

#: The kinds of NumPy's arrays that hold no objects.
ARRAY_KINDS = "biufcSUMm"

#: How many numbers a cursor may describe by ranges.
MOST_HELD = 10_000_000

#: Returns the form of a pipe's cursors, given the pipe's number.
FormOf = Callable[[int], "Form"]

#: Raises SnapshotError, naming the place, for a value that no real state contains.
Form = Callable[[Any, str, FormOf], None]


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


def bytes_or_none(value: Any, where: str, form_of: FormOf) -> None:
    """Bytes of any length, or None."""
    if value is not None and type(value) is not bytes:
        refuse(where, "bytes or None", value)


def or_none(form: Form) -> Form:
    """None, or a value of the form."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if value is not None:
            form(value, where, form_of)

    return check


def list_of(form: Form, *, most: int | None = None) -> Form:
    """A list of any length, or of at most ``most`` elements."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        of_list = f"an element of {where}"
        for element in _list(value, where, most):
            form(element, of_list, form_of)

    return check


def row(*forms: Form) -> Form:
    """A list with one element of each form, in this order."""

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if len(_list(value, where)) != len(forms):
            raise SnapshotError(f"{where} must have {len(forms)} elements, got {len(value)}")
        of_row = f"an element of {where}"
        for element, form in zip(value, forms, strict=True):
            form(element, of_row, form_of)

    return check


def each_of(count: int, form: Form) -> Form:
    """A list of ``count`` elements."""
    elements = list_of(form)

    def check(value: Any, where: str, form_of: FormOf) -> None:
        if len(_list(value, where)) != count:
            raise SnapshotError(f"{where} must have {count} elements, got {len(value)}")
        elements(value, where, form_of)

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


#: The forms of annotations that are types.
_PLAIN: dict[Any, Form] = {bool: truth, int: integer, Any: anything}


def fields(
    forms: Mapping[str, Form], may_have: Mapping[str, Form] = {}, *, named: str = "{}[{!r}]"
) -> Form:
    """A dict with just these fields, and maybe those of ``may_have``; how messages name them."""

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
            form(element, named.format(where, name), form_of)

    return check


@dataclass(frozen=True)
class Of:
    """In an annotation: a form that depends on the pipe."""

    form: Callable[[Any], Form]


Count = Annotated[int, COUNT]
Seed = Annotated[int, SEED]


@dataclass_transform(eq_default=False, kw_only_default=True, field_specifiers=(field,))
class Fields:
    """What is saved of something: a pipe's place between two items, or a part of a state.

    A subclass is a dataclass. Its fields are saved, but those whose names begin with ``_``. A field
    that is None is not, if it begins so; what may be None may be missing in a state that is loaded.
    """

    def __init_subclass__(cls) -> None:
        for name in inspect.get_annotations(cls):
            default = vars(cls).get(name)
            if type(default) in _CONTAINERS or is_tensor(default) or is_array(default):
                # What can be changed is one for each object.
                setattr(cls, name, field(default_factory=functools.partial(copied, default)))
            elif name[0] != "_" and type(default) not in _UNCHANGING and not _is_field(default):
                raise TypeError(
                    f"{name!r} of {cls.__qualname__} begins with a {kind_name(default)}, which"
                    " cannot be saved: save numbers, texts, lists, tuples, dicts, tensors or"
                    " arrays, such as a list in the place of a set, or a generator's state in the"
                    " place of a generator"
                )
        dataclass(kw_only=True, eq=False)(cls)
        for each in dataclasses.fields(cls):  # type: ignore[arg-type]  # now it is one
            if hasattr(Fields, each.name):
                raise TypeError(
                    f"{cls.__qualname__} has a field {each.name!r}, which is the name of a method"
                    " of State: choose another"
                )

    @classmethod
    def loaded(cls, cursor: Cursor) -> Self:
        """Return the state that was saved as this."""
        return cls(**{name: copied(each) for name, each in cursor.items()})

    def load(self, cursor: Cursor) -> None:
        """Become the state that was saved as this; what is not saved stays."""
        loaded = vars(self.loaded(cursor)).items()
        vars(self).update({name: each for name, each in loaded if name[0] != "_"})

    @classmethod
    def read(cls, value: Any, where: str, *, named: str) -> Self:
        """Return the state that was saved as this; SnapshotError where it has another form."""
        check_form(_form_alone(cls, named), value, where)  # type: ignore[arg-type]  # it has a hash
        return cls.loaded(value)

    def first(self) -> int:
        """Return how many items of the source come before the first that is read."""
        first: int = self.taken  # type: ignore[attr-defined]  # that of most
        return first

    def position(self) -> int:
        """Return how many items the pipe had yielded, or a smaller number."""
        position: int = self.yielded  # type: ignore[attr-defined]  # that of most
        return position

    def needs(self, taken: int) -> int:
        """Return how many items of the source a resumed pass does not need any more.

        ``taken`` of them have come. A pipe that holds items, or reads some again when it resumes,
        says here which is the first. Asked in the thread that reads the source, and in that which
        asks for a state.
        """
        return taken

    def first_each(self) -> list[int]:
        """Return the same as ``first`` for each of several sources."""
        raise NotImplementedError

    def needs_each(self, taken: list[int]) -> list[int]:
        """Return the same as ``needs`` for each of several sources."""
        return taken

    def lags(self) -> bool:
        """Whether it may need items that were taken."""
        kind = type(self)
        return kind.needs is not Fields.needs or kind.needs_each is not Fields.needs_each

    def fill(self, taken: int, yielded: int) -> None:
        """Write into the fields what they do not say yet: they are saved next.

        So many items of the source were taken, and so many yielded.
        """

    def fill_each(self, taken: list[int], yielded: int) -> None:
        """Do the same where so many items of each of several sources were taken."""

    def check(self, pipe: Any) -> Iterator[str]:
        """Say what each rule is that the fields break, in words."""
        return iter(())

    @classmethod
    @functools.cache
    def _not_none_at_first(cls) -> frozenset[str]:
        """Return the fields that are something else than None where nothing was saved of them."""
        return frozenset(
            each.name
            for each in dataclasses.fields(cls)  # type: ignore[arg-type]  # each subclass is one
            if each.default is not None
            and (each.default is not MISSING or each.default_factory is not MISSING)
        )

    def _is_declared(self, name: str) -> bool:
        return name[0] == "_" or name in _annotations(type(self))  # type: ignore[arg-type]  # it has a hash

    def saved(self) -> Cursor:
        """Return the fields as plain data, which later changes of this leave as it is."""
        if undeclared := [each for each in vars(self) if not self._is_declared(each)]:
            raise TypeError(
                f"{type(self).__qualname__} has {undeclared[0]!r}, which it does not declare: a"
                f" state with it could not be loaded. Annotate it in the class, or name it"
                f" _{undeclared[0]} if it need not be saved"
            )
        return {
            name: copied(each)
            for name, each in vars(self).items()
            if name[0] != "_" and (each is not None or name in self._not_none_at_first())
        }


_CONTAINERS = frozenset({list, tuple, dict})
_UNCHANGING = frozenset({NoneType, bool, int, float, str, bytes})


def _is_field(default: Any) -> bool:
    return isinstance(default, dataclasses.Field)


def copied(value: Any) -> Any:
    """Return plain data that later changes of what is in these leave as it is."""
    kind = type(value)
    if kind in _UNCHANGING:
        return value
    if kind is list:
        # Those of many numbers are copied at once.
        kinds = set(map(type, value))
        if kinds <= _UNCHANGING:
            return [*value]
        if kinds == {list} and _UNCHANGING.issuperset(map(type, chain.from_iterable(value))):
            return list(map(list, value))
        return [copied(each) for each in value]
    if kind is tuple:
        return value if _UNCHANGING.issuperset(map(type, value)) else tuple(map(copied, value))
    if kind is dict:
        return {name: copied(each) for name, each in value.items()}
    if is_tensor(value):
        return value.detach().clone()
    return value.copy() if is_array(value) else value


def is_tensor(value: object) -> bool:
    """Whether something is a tensor of numbers; nobody has one without having imported torch."""
    torch: Any = sys.modules.get("torch")
    # Another thread may be in the middle of importing it.
    is_one = torch is not None and type(value) is getattr(torch, "Tensor", None)
    return is_one and not getattr(value, "is_quantized")  # noqa: B009 - it has one


def is_array(value: object) -> bool:
    """Whether something is an array of NumPy's that holds no objects."""
    numpy = sys.modules.get("numpy")
    is_one = numpy is not None and type(value) is getattr(numpy, "ndarray", None)
    return is_one and getattr(value, "dtype").kind in ARRAY_KINDS  # noqa: B009 - it has one


class Seeding(Fields):
    """The place of a pipe that can begin anywhere, if it knows its seed."""

    seed: Seed

    def position(self) -> int:
        return 0


class State(Fields):
    """A pipe's place between two items, as it is saved: how many it has taken and yielded.

    Both say where a run begins, and are kept for you: not at each item, but when the state is
    saved. What else has to be remembered is declared as in a dataclass, and is saved with them:
    numbers, texts, lists and dicts of those. Names that begin with ``_`` are for what a run needs
    meanwhile, and are not saved. Change a state before you yield, not after.

    Where a resumed run needs items again that were taken, ``needs`` says which is the first.

    >>> class Held(State):
    ...     held: list[int] = []  # the positions of items that are kept
    ...
    ...     def needs(self, taken):
    ...         return self.held[0] if self.held else taken
    """

    taken: Count = 0
    yielded: Count = 0
    #: How many were taken of each source, where there are several.
    taken_each: Annotated[list[int], list_of(COUNT)] | None = None

    def first_each(self) -> list[int]:
        return self.taken_each or []

    def fill(self, taken: int, yielded: int) -> None:
        self.taken, self.yielded = taken, yielded

    def fill_each(self, taken: list[int], yielded: int) -> None:
        self.taken, self.taken_each, self.yielded = sum(taken), taken, yielded


class Sieved(State):
    """The place of a pipe that yields at most one item for each of its source."""

    errors: Count = 0

    def check(self, pipe: Any) -> Iterator[str]:
        yield from at_most(self, "yielded", "taken")
        yield from at_most(self, "errors", "taken")
        if self.errors and pipe.tolerance.is_strict:
            yield "errors must be 0 where the first of them is raised"


def at_most(state: Fields, less: str, more: str) -> Iterator[str]:
    """Say that one field must not be greater than another, if it is."""
    if getattr(state, less) > getattr(state, more):
        yield f"{less} must be at most {more}"


def form_of_state(kind: type[Fields] | None, pipe: Any, *, named: str = "{}[{!r}]") -> Form:
    """Return the form of the states of a class; ``pipe`` is what its limits follow from."""
    if kind is None:
        return no_cursor
    must: dict[str, Form] = {}
    may: dict[str, Form] = {}
    for name, (hint, may_miss) in _annotations(kind).items():  # type: ignore[arg-type]  # it has a hash
        (may if may_miss else must)[name] = _form_of_hint(hint, pipe)
    of_fields = fields(must, may, named=named)
    is_ours = is_of_package(kind)
    if is_ours and kind.check is Fields.check:
        return of_fields

    def check(value: Any, where: str, form_of: FormOf) -> None:
        of_fields(value, where, form_of)
        # Ours change nothing of what they look at.
        state = kind(**value) if is_ours else kind.loaded(value)
        for words in state.check(pipe):
            raise SnapshotError(f"{where} contradicts itself: {words}")

    return check


@functools.cache
def _form_alone(kind: Any, named: str) -> Form:
    """Return the form of what follows from no pipe."""
    return form_of_state(kind, None, named=named)


@functools.cache
def _annotations(kind: Any) -> dict[str, tuple[Any, bool]]:
    """Return the hint of each field that is saved, and whether it may be missing."""
    hints: dict[str, tuple[Any, bool]] = {}
    for base in reversed(kind.__mro__):
        if is_of_package(base) or base is object:
            found = inspect.get_annotations(base, eval_str=True)
            hints |= {name: _without_none(hint) for name, hint in found.items()}
        else:
            # Python does not hold users to their annotations, so a state that was saved is taken.
            hints |= dict.fromkeys(inspect.get_annotations(base), (Any, True))
    return {name: hint for name, hint in hints.items() if name[0] != "_"}


def _without_none(hint: Any) -> tuple[Any, bool]:
    others = [each for each in get_args(hint) if each is not NoneType]
    is_optional = NoneType in get_args(hint) and get_origin(hint) is not Annotated
    return (others[0], True) if is_optional else (hint, False)


def _form_of_hint(hint: Any, pipe: Any) -> Form:
    if get_origin(hint) is Annotated:
        form = hint.__metadata__[0]
        return form.form(pipe) if isinstance(form, Of) else form
    if get_origin(hint) is list:
        return list_of(_form_of_hint(get_args(hint)[0], pipe))
    return _PLAIN[hint]


def no_cursor(value: Any, where: str, form_of: FormOf) -> None:
    """No cursor at all: the pipe's position follows from its reader's."""
    raise SnapshotError(f"{where} is of a pipe that has no cursor")


#: The cursors of a source that has ``state_dict`` and ``load_state_dict``.
OF_A_SOURCE = fields({"yielded": COUNT, "state": anything}, {"ended": just(True)})


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


def check_form(form: Form, value: Any, where: str) -> None:
    """Raise SnapshotError for a value without cursors that has another form."""
    form(value, where, lambda number: no_cursor)


def check_cursor(number: int, cursor: Any, where: str, form_of: FormOf) -> None:
    """Raise SnapshotError if a cursor does not have its pipe's form."""
    form_of(number)(cursor, f"{where}[{number}]", form_of)


def form_of_pipe(pipe: Any) -> Form:
    """Return the form of a pipe's cursors; torch's pipes have none."""
    if has_own_state(pipe):
        return OF_A_SOURCE
    kind = setting(pipe, "State", None)
    # A user's pipe may have such a name for something else.
    is_of_a_state = isinstance(kind, type) and issubclass(kind, Fields)
    return form_of_state(kind if is_of_a_state else None, pipe)


def is_ascending(numbers: Iterable[int]) -> bool:
    """Whether each number is greater than the one before it."""
    last = -1
    for number in numbers:
        if number <= last:
            return False
        last = number
    return True
