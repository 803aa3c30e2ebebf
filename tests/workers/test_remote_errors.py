"""Errors that cross to another process come out as themselves, or say why they do not."""

from __future__ import annotations

import asyncio

import pytest

import asyncloader.errors
from asyncloader.errors import LoaderError, PipelineError, TransportError
from asyncloader.safe_error_text import note, notes_of
from asyncloader.workers.remote_errors import pack_error, unpack_error

WHERE = "in worker 1 of 2, after 3 items"


def crossed(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001 - whatever it is
        return unpack_error(pack_error(raised, WHERE))


class Plain(ValueError):
    pass


class Odd(ValueError):
    def __init__(self, path: str, line: int) -> None:
        super().__init__(f"{path}:{line}")


class Unpicklable(ValueError):
    def __reduce__(self) -> str:
        raise TypeError("never")


def test_type_args_attributes_and_notes_are_kept():
    error = Plain("a", 1)
    error.hint = {"line": 3}
    error.add_note("raised in map(f)")
    back = crossed(error)
    assert (type(back), back.args, back.hint) == (Plain, ("a", 1), {"line": 3})
    first, last = back.__notes__
    assert first == "raised in map(f)"
    assert last.startswith(f"{WHERE}:\nTraceback")
    assert "in crossed" in last


def test_causes_come_along_as_far_as_they_can():
    error = Plain("first")
    error.__cause__ = Plain("second")
    error.__cause__.__cause__ = Unpicklable("third")
    back = crossed(error)
    assert type(back.__cause__) is Plain
    assert back.__cause__.args == ("second",)
    assert back.__cause__.__cause__ is None
    assert "third" in back.__notes__[-1]


class WithoutNotes(Exception):
    __notes__ = None


class WithOddNotes(Exception):
    def __init__(self) -> None:
        self.__notes__ = [1, "a note"]


class Frozen(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(name)


class Hollow(Exception):
    def __getattr__(self, name: str) -> object:
        raise RuntimeError(name)


class Undecided(Exception):
    def __bool__(self) -> bool:
        raise RuntimeError("neither")


STRANGE = [WithoutNotes, WithOddNotes, Frozen, Hollow, Undecided]


@pytest.mark.parametrize("kind", STRANGE)
def test_errors_of_strange_classes_cross_with_their_notes_and_causes(kind):
    error = kind()
    note(error, "raised in map(f)")
    BaseException.__setattr__(error, "__cause__", Plain("first"))
    back = crossed(error)
    if kind is Frozen:
        # Its own class keeps it from being what it was, which is said.
        assert type(back) is PipelineError
        assert "test_remote_errors.Frozen" in str(back)
        assert "raised in map(f)" in str(back)
    else:
        assert type(back) is kind
        assert notes_of(back)[-2] == "raised in map(f)"
        assert type(back.__cause__) is Plain
    assert notes_of(back)[-1].startswith(WHERE)


def test_an_error_that_has_no_args_to_be_seen_is_named():
    class Argless(Exception):
        args = property(lambda self: 1 / 0)  # type: ignore[assignment]

    back = crossed(Argless())
    assert type(back) is PipelineError
    assert "Argless" in str(back)


def test_errors_that_cause_each_other_come_to_an_end():
    error = Plain("first")
    error.__cause__ = Plain("second")
    error.__cause__.__cause__ = error
    assert crossed(error).args == ("first",)


@pytest.mark.parametrize("error", [Odd("a", 1), Unpicklable("a"), Plain(i for i in range(1))])
def test_one_that_cannot_travel_is_named(error):
    error.add_note("raised in map(f)")
    back = crossed(error)
    assert type(back) is PipelineError
    for part in (type(error).__qualname__, "raised in map(f)", WHERE, "could not be pickled"):
        assert part in str(back)


@pytest.mark.parametrize(
    "kind", [KeyboardInterrupt, GeneratorExit, SystemExit, asyncio.CancelledError]
)
def test_what_ends_a_process_or_a_generator_becomes_a_runtime_error(kind):
    back = crossed(kind("user"))
    assert type(back) is RuntimeError
    assert type(back.__cause__) is kind
    assert kind.__name__ in str(back)


def test_groups_come_along():
    back = crossed(ExceptionGroup("two", [Plain(1), Plain(2)]))
    assert [each.args for each in back.exceptions] == [(1,), (2,)]


def test_our_own_errors_come_along_with_their_attributes():
    values = {"worker": 3, "url": "http://here", "errors": 4, "ranks": (1, 2)}
    for kind in vars(asyncloader.errors).values():
        if isinstance(kind, type) and issubclass(kind, LoaderError):
            code = getattr(kind.__init__, "__code__", None)
            named = [name for name in values if code and name in code.co_varnames]
            extra = {name: values[name] for name in named}
            back = crossed(kind("why", **extra))
            assert (type(back), back.args) == (kind, ("why",))
            assert {name: getattr(back, name) for name in named} == extra


def test_noise_is_a_transport_error():
    with pytest.raises(TransportError, match="could not be read"):
        unpack_error(b"noise")
