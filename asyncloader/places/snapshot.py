"""A loader's state between two items, as plain data.

This file is about ``Snapshot``: what must be remembered to go on with the next item, as a value,
and its form as the dict that ``state_dict`` returns; and about plain data as a text, JSON in which
bytes, tuples and tensors have marked forms. A text is one leaf wherever states are stored,
whatever it holds.
"""

from __future__ import annotations

import base64
import ctypes
import hashlib
import json
import math
import sys
from dataclasses import dataclass, field
from operator import is_
from typing import Any

from asyncloader.errors import SnapshotError

VERSION = 6

#: The cursors of a graph's pipes, by their numbers in it.
Cursors = dict[int, dict[str, Any]]

_GRAPH = "serialized_datapipe"
_FIELDS = (
    "version",
    _GRAPH,
    "reading_service_state",
    "randomness_state",
    "position",
    "fingerprint",
    "checksums",
)
_CHECKED = _FIELDS[1:-1]
_POSITION = "items workers in_order rank ranks ahead cursors lengths"

# More items, and epochs, than any loader has counted: ten million a second for most of a year.
_MOST = 2**48
# More workers, and ranks, than any run has.
_MOST_PROCESSES = 2**20
_MOST_DIGITS = 9


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
            _GRAPH: snapshot.graph,
            "fingerprint": self._fingerprint,
            "reading_service_state": snapshot.service_state,
            "randomness_state": {
                "seed": snapshot.seed,
                "epoch": snapshot.epoch,
                "epoch_seed": snapshot.epoch_seed,
                "drawn": snapshot.drawn,
            },
            "position": {
                "items": snapshot.items,
                "workers": snapshot.workers,
                "in_order": snapshot.in_order,
                "rank": snapshot.rank,
                "ranks": snapshot.ranks,
                "ahead": snapshot.ahead,
                "cursors": self._cursors_text(snapshot.cursors),
                # Most graphs have none, and a state may be taken at every step.
                "lengths": json.dumps(sorted(snapshot.lengths.items()))
                if snapshot.lengths
                else "[]",
                **({} if snapshot.padding is None else {"padding": snapshot.padding}),
            },
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
            text = to_text(by_name, "the state of a pipe")
            self._cursors = cursors, text
        return text


def without_graph(state: dict[str, Any]) -> dict[str, Any]:
    """Return a state that is the same but for the graph, which is left out."""
    sums = {**state["checksums"], _GRAPH: checksum(None)}
    return {**state, _GRAPH: None, "checksums": sums}


def checksum(value: Any) -> str:
    """Return a checksum of a leaf of a state, or of a dict of such."""
    parts = []
    leaves = sorted(value.items(), key=_name) if isinstance(value, dict) else [("", value)]
    for name, leaf in leaves:
        data = leaf if isinstance(leaf, bytes) else ascii(leaf).encode()
        parts += [f"{name}:{type(leaf).__name__}:{len(data)}:".encode(), data]
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


def _name(leaf: tuple[Any, Any]) -> str:
    return str(leaf[0])


def decode(state: Any) -> Snapshot:
    """Return the snapshot in a state; SnapshotError, naming the field, for anything wrong."""
    if not isinstance(state, dict):
        raise SnapshotError(f"a state is a dict, as state_dict() returns it, not {_kind(state)}")
    for name in _FIELDS:
        if name not in state:
            raise SnapshotError(f"the state has no {name!r}; was it made by DataLoader2?")
    version = state["version"]
    if type(version) is not int or version != VERSION:
        raise SnapshotError(
            f"the state's version is {_shown(version)}; this release reads version {VERSION}"
        )
    graph = _bytes(state[_GRAPH], _GRAPH)
    randomness = _fields(state["randomness_state"], "randomness_state", "seed epoch epoch_seed")
    position = _fields(state["position"], "position", _POSITION)
    _check_sums(state)
    items = _count(position["items"], "position.items")
    ranks = _count(position["ranks"], "position.ranks", _MOST_PROCESSES)
    if not ranks:
        raise SnapshotError("position.ranks must be at least 1, got 0")
    return Snapshot(
        seed=_seed(randomness["seed"], "randomness_state.seed"),
        epoch=_count(randomness["epoch"], "randomness_state.epoch"),
        epoch_seed=_seed(randomness["epoch_seed"], "randomness_state.epoch_seed"),
        # Earlier states do not have it.
        drawn=_seed(randomness.get("drawn"), "randomness_state.drawn"),
        items=items,
        workers=_count(position["workers"], "position.workers", _MOST_PROCESSES),
        in_order=_truth(position["in_order"], "position.in_order"),
        rank=_count(position["rank"], "position.rank", ranks - 1),
        ranks=ranks,
        ahead=_count(position["ahead"], "position.ahead", items),
        # Only states with padded shares have it.
        padding=_count(position["padding"], "position.padding", items)
        if "padding" in position
        else None,
        cursors=_cursors(from_text(position["cursors"], "position.cursors")),
        lengths=_lengths(from_text(position["lengths"], "position.lengths")),
        fingerprint=_list(from_text(state["fingerprint"], "fingerprint"), "fingerprint"),
        service_state=_bytes(state["reading_service_state"], "reading_service_state"),
        graph=graph,
    )


def _check_sums(state: dict[str, Any]) -> None:
    sums = state["checksums"]
    if not isinstance(sums, dict):
        raise SnapshotError(f"checksums must be a dict, not {_kind(sums)}")
    for name in _CHECKED:
        if sums.get(name) != _checksum(state[name], name):
            raise SnapshotError(f"{name} was damaged or changed: its checksum does not match")


def _checksum(value: Any, name: str) -> str:
    try:
        return checksum(value)
    except Exception as error:
        raise SnapshotError(f"{name} is not plain data: {error!r}") from error


def _fields(value: Any, name: str, keys: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SnapshotError(f"{name} must be a dict, not {_kind(value)}")
    for key in keys.split():
        if key not in value:
            raise SnapshotError(f"{name} has no {key!r}")
    return value


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


def _lengths(value: Any) -> dict[int, int]:
    name = "position.lengths"
    lengths = {}
    for pair in _list(value, name):
        if not isinstance(pair, list) or len(pair) != 2:
            raise SnapshotError(f"{name} must hold pairs of numbers, got {_shown(pair)}")
        lengths[_count(pair[0], f"a pipe in {name}")] = _count(pair[1], f"a length in {name}")
    return lengths


def _count(value: Any, name: str, most: int = _MOST) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise SnapshotError(f"{name} must be a number from 0 to {most}, got {_shown(value)}")
    return value


def _truth(value: Any, name: str) -> bool:
    if type(value) is not bool:
        raise SnapshotError(f"{name} must be True or False, got {_shown(value)}")
    return value


def _seed(value: Any, name: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value < 2**64:
        raise SnapshotError(f"{name} must be None or a 64-bit number, got {_shown(value)}")
    return value


def _bytes(value: Any, name: str) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise SnapshotError(f"{name} must be bytes or None, not {_kind(value)}")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise SnapshotError(f"{name} must be a list, not {_kind(value)}")
    return value


def _shown(value: object) -> str:
    is_short = value is None or (isinstance(value, bool | int | float) and abs(value) < 2**70)
    return repr(value) if is_short else f"something {_kind(value)}"


def _kind(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__qualname__}"


# Plain data as a text --------------------------------------------------------------------

_MARK = "__plain__"


def to_text(value: Any, name: str) -> str:
    """Return plain data as a text; SnapshotError, naming it, for anything else."""
    check_plain(value, name)
    return json.dumps(_written(value), separators=(",", ":"), sort_keys=True)


def from_text(text: Any, name: str) -> Any:
    """Return the data in a text; SnapshotError, naming it, where there is none."""
    if not isinstance(text, str):
        raise SnapshotError(f"{name} must be a string, not of type {type(text).__qualname__}")
    try:
        value = _read(json.loads(text))
    except (ValueError, TypeError, KeyError, RecursionError, RuntimeError) as error:
        raise SnapshotError(f"{name} cannot be read: {error}") from error
    check_plain(value, name)
    return value


def _written(value: Any) -> Any:
    if isinstance(value, bytes):
        return {_MARK: "bytes", "data": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {_MARK: "tuple", "data": [_written(element) for element in value]}
    if isinstance(value, list):
        return [_written(element) for element in value]
    if isinstance(value, dict):
        return _written_dict(value)
    if is_tensor(value):
        return {
            _MARK: "tensor",
            "dtype": str(value.dtype).rpartition(".")[2],
            "shape": list(value.shape),
            "data": base64.b64encode(_tensor_bytes(value)).decode(),
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
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{dtype!r} is not a dtype")
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("a tensor's shape is a list of numbers of at least 0")
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"a tensor of {len(data)} bytes has a shape of another size")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)


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
    if value is None or type(value) in (bool, int, float, str, bytes) or is_tensor(value):
        return left
    if type(value) not in (list, tuple, dict):
        raise SnapshotError(
            f"{name} holds a {type(value).__qualname__}, but a state may only hold plain data:"
            " None, bool, int, float, str, bytes, tensors, and lists, tuples and dicts of those"
        )
    if depth == 0:
        raise SnapshotError(f"{name} is nested more than {MAX_DEPTH} levels deep")
    for element in _elements(value):
        left = _check_plain(element, name, depth - 1, left)
    return left


def is_tensor(value: object) -> bool:
    """Whether something is a tensor; nobody has one without having imported torch."""
    torch = sys.modules.get("torch")
    # Another thread may be in the middle of importing it.
    return torch is not None and type(value) is getattr(torch, "Tensor", None)


def _elements(value: Any) -> Any:
    return (*value.keys(), *value.values()) if isinstance(value, dict) else value
