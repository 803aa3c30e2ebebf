"""A loader's state between two items, as plain data.

This file is about ``Snapshot``: what must be remembered to go on with the next item, as a value,
and its form as the dict that ``state_dict`` returns; and about plain data as a text, JSON in which
bytes, tuples and tensors have marked forms. A text is one leaf wherever states are stored,
whatever it holds.
"""

from __future__ import annotations

import base64
import ctypes
import functools
import json
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Annotated, Any

from asyncloader.datapipes.running.cursor_forms import (
    ARRAY_KINDS,
    COUNT,
    SEED,
    Count,
    Fields,
    anything,
    bytes_or_none,
    check_form,
    is_array,
    is_tensor,
    list_of,
    or_none,
    refuse,
    row,
    whole,
)
from asyncloader.datapipes.running.cursors import Cursors
from asyncloader.errors import SnapshotError
from asyncloader.places.checksums import checksum, checksum_in
from asyncloader.places.versions import VERSION, as_present, this_release

_GRAPH = "serialized_datapipe"
_FIELDS = (
    "version",
    "release",
    _GRAPH,
    "reading_service_state",
    "randomness_state",
    "position",
    "fingerprint",
    "checksums",
)
_CHECKED = _FIELDS[1:-1]
# More workers, and ranks, than any run has.
_MOST_PROCESSES = 2**20
_MOST_DIGITS = 9

SeedOrNone = Annotated[int | None, or_none(SEED)]
Processes = Annotated[int, whole(most=_MOST_PROCESSES)]


class Randomness(Fields):
    """Where a loader is in its sequence of epochs; see ``Snapshot``."""

    seed: SeedOrNone
    epoch: Count
    epoch_seed: SeedOrNone
    drawn: SeedOrNone


class Position(Fields):
    """Where a loader is in its epoch; see ``Snapshot``."""

    items: Count
    workers: Processes
    in_order: bool
    rank: Processes
    ranks: Annotated[int, whole(1, _MOST_PROCESSES)]
    ahead: Count
    #: Texts, which ``from_text`` reads.
    cursors: Any
    lengths: Any
    #: Only states with padded shares have it.
    padding: Count | None = None

    def check_bounds(self) -> None:
        """Raise SnapshotError for what is larger than another field allows."""
        bounds = ("rank", self.ranks - 1), ("ahead", self.items), ("padding", self.items)
        for name, most in bounds:
            if (value := getattr(self, name)) is not None and value > most:
                refuse(f"position.{name}", f"a number from 0 to {most}", value)


@dataclass(frozen=True)
class Snapshot:
    """What a loader remembers: the seeds, and how far it is in which epoch."""

    #: Of the sequence of epochs to come: its seed, or None, and the next epoch's number.
    seed: int | None
    epoch: int
    #: The seed of the epoch that was under way; None between epochs.
    epoch_seed: int | None
    #: The seed of the first epoch, if it was drawn; that of the later ones follows from it.
    drawn: int | None = None
    #: How many items of that epoch were handed out, and where the pipes stood then or before.
    items: int = 0
    #: With how many workers the cursors were taken.
    workers: int = 0
    #: Whether their items were taken in turn.
    in_order: bool = True
    #: On which rank of how many.
    rank: int = 0
    ranks: int = 1
    #: How many of the items were handed out more than on the rank with the fewest.
    ahead: int = 0
    #: How many of the items were padding, the last ones; None where shares are not padded.
    padding: int | None = None
    cursors: Cursors = field(default_factory=dict)
    #: How many items the sources had, by their numbers, where the order depends on that.
    lengths: dict[int, int] = field(default_factory=dict)
    fingerprint: list[dict[str, Any]] = field(default_factory=list)
    service_state: bytes | None = None
    #: The pickled graph, if it is to travel along.
    graph: bytes | None = None


class SnapshotEncoder:
    """Writes the snapshots of one graph; what is as in the one before is not made anew."""

    def __init__(self, fingerprint: list[dict[str, Any]]) -> None:
        self._fingerprint = to_text(fingerprint, "fingerprint")
        # Each is replaced as a whole: several threads may take states at a time.
        self._sums: dict[str, tuple[Any, str]] = {}
        self._cursors: tuple[Cursors, str] = ({}, to_text({}, "the state of a pipe"))

    def encode(self, snapshot: Snapshot) -> dict[str, Any]:
        """Return a snapshot as plain data; SnapshotError if a pipe's state is not plain."""
        checked = {
            "release": this_release(),
            _GRAPH: snapshot.graph,
            "fingerprint": self._fingerprint,
            "reading_service_state": snapshot.service_state,
            "randomness_state": vars(
                Randomness(
                    seed=snapshot.seed,
                    epoch=snapshot.epoch,
                    epoch_seed=snapshot.epoch_seed,
                    drawn=snapshot.drawn,
                )
            ),
            "position": Position(
                items=snapshot.items,
                workers=snapshot.workers,
                in_order=snapshot.in_order,
                rank=snapshot.rank,
                ranks=snapshot.ranks,
                ahead=snapshot.ahead,
                cursors=self._cursors_text(snapshot.cursors),
                # Most graphs have none, and a state may be taken at every step.
                lengths=json.dumps(sorted(snapshot.lengths.items())) if snapshot.lengths else "[]",
                padding=snapshot.padding,
            ).saved(),
        }
        sums = {name: self._sum(name, value) for name, value in checked.items()}
        return {"version": VERSION, **checked, "checksums": sums}

    def _sum(self, name: str, value: Any) -> str:
        known = self._sums.get(name)
        if known is None or known[0] != value:
            # What is returned belongs to the user, who may change it.
            own = dict(value) if isinstance(value, dict) else value
            self._sums[name] = known = (own, checksum(value))
        return known[1]

    def _cursors_text(self, cursors: Cursors) -> str:
        """Return the cursors as a text, also where the latest are still those of before."""
        known, text = self._cursors
        are_same = all(map(is_, known.values(), cursors.values()))
        if known.keys() != cursors.keys() or not are_same:
            by_name = {str(number): cursor for number, cursor in sorted(cursors.items())}
            text = _cursors_as_text(by_name)
            self._cursors = cursors, text
        return text


def _cursors_as_text(by_name: dict[str, Any]) -> str:
    try:
        return to_text(by_name, "the state of a pipe")
    except SnapshotError:
        # Which field is it?
        for cursor in by_name.values():
            for name, value in cursor.items():
                check_plain(value, f"{name!r}, in the state of a pipe,")
        raise


def without_graph(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state that is the same but for the graph, which is left out."""
    sums = {**state["checksums"], _GRAPH: checksum(None)}
    return {**state, _GRAPH: None, "checksums": sums}


def decode(state: Any) -> Snapshot:
    """Return the snapshot in a state; SnapshotError, naming the field, for anything wrong."""
    return decode_each([state])[0]


def decode_each(states: Iterable[Any]) -> list[Snapshot]:
    """Return the snapshots in several states; those of ranks share much, which is read once."""
    once = Once()
    return [_decoded(state, once) for state in states]


class Once:
    """Does what is the same for the states of many ranks once."""

    def __init__(self) -> None:
        self.read = functools.lru_cache(maxsize=len(_FORMS))(_read_checked)
        self._checksum = functools.lru_cache(maxsize=len(_CHECKED))(checksum)

    def checksum_in(self, state: dict[str, Any], name: str) -> str:
        """Return the checksum of a field that may hold anything; SnapshotError names it."""
        value = state[name]
        # Only these are equal to nothing else that has another checksum.
        is_simple = value is None or type(value) in (str, bytes)
        return self._checksum(value) if is_simple else checksum_in(state, name)


def _decoded(state: Any, once: Once) -> Snapshot:
    if not isinstance(state, dict):
        raise SnapshotError(f"a state is a dict, as state_dict() returns it, not {_kind(state)}")
    if not state:
        raise SnapshotError("the state is empty; load none to begin at the beginning")
    if "version" not in state:
        raise SnapshotError("the state has no 'version'; was it made by DataLoader2?")
    state = as_present(state)
    for name in _FIELDS:
        if name not in state:
            raise SnapshotError(f"the state has no {name!r}; was it made by DataLoader2?")
    if not isinstance(state["release"], str | None):
        raise SnapshotError(f"release must be a string or None, not {_kind(state['release'])}")
    for name in (_GRAPH, "reading_service_state"):
        check_form(bytes_or_none, state[name], name)
    randomness = Randomness.read(state["randomness_state"], "randomness_state", named=_DOTTED)
    position = Position.read(state["position"], "position", named=_DOTTED)
    _check_sums(state, once)
    position.check_bounds()
    fingerprint = once.read(_text(state["fingerprint"], "fingerprint"), "fingerprint")
    lengths = once.read(_text(position.lengths, "position.lengths"), "position.lengths")
    cursors = _cursors(from_text(position.cursors, "position.cursors"))
    return Snapshot(
        **vars(randomness),
        **{**vars(position), "cursors": cursors, "lengths": dict(lengths)},
        fingerprint=fingerprint,
        service_state=state["reading_service_state"],
        graph=state[_GRAPH],
    )


_DOTTED = "{}.{}"

#: The forms of the texts that are the same on all ranks of a run.
_FORMS = {"fingerprint": list_of(anything), "position.lengths": list_of(row(COUNT, COUNT))}


def _read_checked(text: str, name: str) -> Any:
    value = from_text(text, name)
    check_form(_FORMS[name], value, name)
    return value


def _check_sums(state: dict[str, Any], once: Once) -> None:
    sums = state["checksums"]
    if not isinstance(sums, dict):
        raise SnapshotError(f"checksums must be a dict, not {_kind(sums)}")
    for name in _CHECKED:
        if sums.get(name) != once.checksum_in(state, name):
            raise SnapshotError(f"{name} was damaged or changed: its checksum does not match")


def _cursors(value: Any) -> Cursors:
    name = "position.cursors"
    if not isinstance(value, dict):
        raise SnapshotError(f"{name} must be a dict, not {_kind(value)}")
    for number, cursor in value.items():
        if not isinstance(number, str) or not number.isdecimal() or len(number) > _MOST_DIGITS:
            raise SnapshotError(f"{name} has a key {number!r} that is not the number of a pipe")
        if not isinstance(cursor, dict):
            raise SnapshotError(f"{name}[{number!r}] must be a dict, not {_kind(cursor)}")
    return {int(number): cursor for number, cursor in value.items()}


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__qualname__}"


# Plain data as a text --------------------------------------------------------------------

_MARK = "__plain__"

#: What stands in JSON as it is.
_SIMPLE = frozenset({type(None), bool, int, float, str})


def is_table(value: Any) -> bool:
    """Whether this is a list of lists of what stands in JSON as it is.

    States hold long ones, which are looked at as a whole: that takes a tenth of the time.
    """
    is_of_lists = type(value) is list and set(map(type, value)) == {list}
    return is_of_lists and _SIMPLE.issuperset(map(type, chain.from_iterable(value)))


def to_text(value: Any, name: str) -> str:
    """Return plain data as a text; SnapshotError, naming it, for anything else."""
    check_plain(value, name)
    return json.dumps(_written(value), separators=(",", ":"), sort_keys=True)


def from_text(text: Any, name: str) -> Any:
    """Return the data in a text; SnapshotError, naming it, where there is none."""
    text = _text(text, name)
    try:
        value = json.loads(text)
        # An escape may be a part of the mark.
        is_marked = _MARK in text or "\\" in text
        value = _read(value) if is_marked else value
    except (ValueError, TypeError, KeyError, RecursionError, RuntimeError) as error:
        raise SnapshotError(f"{name} cannot be read: {error}") from error
    if is_marked or len(text) > MAX_ELEMENTS or _is_too_deep(value):
        check_plain(value, name)
    return value


def _text(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise SnapshotError(f"{name} must be a string, not of type {type(value).__qualname__}")
    return value


def _is_too_deep(value: Any) -> bool:
    """Whether JSON without marks is nested too deep; nothing else in it may be wrong.

    To look at each level as a whole takes a quarter of the time of ``check_plain``.
    """
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [each for each in level if type(each) in (list, dict)]
        if not level:
            return False
        level = [
            element for each in level for element in (each.values() if type(each) is dict else each)
        ]
    return True


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_MARK: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {_MARK: "tuple", "data": [_written(element) for element in value]}
    if isinstance(value, list):
        return value if is_table(value) else [_written(element) for element in value]
    if isinstance(value, dict):
        return _written_dict(value)
    if is_tensor(value):
        return {
            _MARK: "tensor",
            "dtype": str(value.dtype).rpartition(".")[2],
            "shape": list(value.shape),
            "data": base64.b64encode(_tensor_bytes(value)).decode(),
        }
    if is_array(value):
        return {
            _MARK: "array",
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "data": base64.b64encode(value.tobytes()).decode(),
        }
    return value


def _written_dict(value: dict[Any, Any]) -> Any:
    if all(type(key) is str for key in value) and _MARK not in value:
        return {key: _written(element) for key, element in value.items()}
    pairs = [[_written(key), _written(element)] for key, element in value.items()]
    return {_MARK: "dict", "data": pairs}


def _read(value: Any) -> Any:
    if isinstance(value, list):
        return [_read(element) for element in value]
    if not isinstance(value, dict):
        return value
    if _MARK not in value:
        return {key: _read(element) for key, element in value.items()}
    data = value["data"]
    match value[_MARK]:
        case "bytes":
            return base64.b64decode(data, validate=True)
        case "tuple":
            return tuple(_read(element) for element in data)
        case "dict":
            return {_read(key): _read(element) for key, element in data}
        case "array":
            return _array(value["dtype"], value["shape"], base64.b64decode(data, validate=True))
        case "tensor":
            return _tensor(value["dtype"], value["shape"], base64.b64decode(data, validate=True))
    raise ValueError(f"{value[_MARK]!r} is not a kind of plain data")


def _tensor_bytes(tensor: Any) -> bytes:
    whole = tensor.detach().cpu().contiguous()
    # Not by numpy(): torch may be installed without NumPy.
    return ctypes.string_at(whole.data_ptr(), whole.nbytes) if whole.nbytes else b""


def _tensor(dtype: str, shape: list[int], data: bytes) -> Any:
    import torch

    kind = getattr(torch, dtype, None)
    # How the numbers of a quantized one are meant, its bytes do not say.
    if not isinstance(kind, torch.dtype) or dtype.startswith("q"):
        raise ValueError(f"{dtype!r} is not a dtype of numbers")
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("a tensor's shape is a list of numbers of at least 0")
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"a tensor of {len(data)} bytes has a shape of another size")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    import numpy

    kind = numpy.dtype(dtype)
    if kind.kind not in ARRAY_KINDS:
        raise ValueError(f"{dtype!r} is not a dtype of numbers or texts")
    # A copy, which may be written to.
    return numpy.frombuffer(data, dtype=kind).reshape(shape).copy()


MAX_DEPTH = 32
MAX_ELEMENTS = 10_000_000


def check_plain(value: Any, name: str) -> None:
    """Raise SnapshotError, naming the field, for anything but plain data."""
    _check_plain(value, name, MAX_DEPTH, MAX_ELEMENTS)


def _check_plain(value: Any, name: str, depth: int, left: int) -> int:
    """Check a value that may have ``left`` elements; return how many may follow it."""
    left -= 1
    if left < 0:
        raise SnapshotError(f"{name} has more than {MAX_ELEMENTS} elements")
    if value is None or type(value) in (bool, int, float, str, bytes):
        return left
    if is_tensor(value) or is_array(value):
        return left
    if type(value) not in (list, tuple, dict):
        raise SnapshotError(
            f"{name} holds a {type(value).__qualname__}, but a state may only hold plain data:"
            " None, bool, int, float, str, bytes, tensors that are not quantized, arrays, and"
            f" lists, tuples and dicts of those{_remedy(value)}"
        )
    if depth == 0:
        raise SnapshotError(f"{name} is nested more than {MAX_DEPTH} levels deep")
    if depth > 1 and is_table(value) and (count := len(value) + sum(map(len, value))) <= left:
        return left - count
    for element in _elements(value):
        left = _check_plain(element, name, depth - 1, left)
    return left


def _remedy(value: object) -> str:
    """Say what to save in the place of something that is nearly plain."""
    if isinstance(value, set | frozenset):
        return "; save a list of what is in it"
    generic = getattr(sys.modules.get("numpy"), "generic", None)
    is_number = generic is not None and isinstance(value, generic)
    return "; save what its method item() returns" if is_number else ""


def _elements(value: Any) -> Any:
    return (*value.keys(), *value.values()) if isinstance(value, dict) else value
