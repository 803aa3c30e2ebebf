"""Plain data as a text.

This file is about writing plain data as JSON, and reading it back as it was: bytes,
tuples and tensors have marked forms. A text is one leaf wherever states are stored,
whatever it holds.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from asyncloader.errors import SnapshotError
from asyncloader.snapshot.plain import check_plain, is_tensor

_MARK = "__plain__"


def to_text(value: Any, name: str) -> str:
    """Return plain data as a text; SnapshotError, naming it, for anything else."""
    check_plain(value, name)
    return json.dumps(_written(value), separators=(",", ":"), sort_keys=True)


def from_text(text: Any, name: str) -> Any:
    """Return the data in a text; SnapshotError, naming it, where there is none."""
    if not isinstance(text, str):
        raise SnapshotError(f"{name} must be a text, not of type {type(text).__qualname__}")
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
    raise ValueError(f"{value[_MARK]!r} is no kind of plain data")


def _tensor_bytes(tensor: Any) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().view(-1)
    return bytes(flat.view(torch.uint8).numpy().tobytes()) if flat.numel() else b""


def _tensor(dtype: str, shape: list[int], data: bytes) -> Any:
    import torch

    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise ValueError(f"{dtype!r} is no dtype")
    if type(shape) is not list or any(type(size) is not int or size < 0 for size in shape):
        raise ValueError("a tensor's shape is a list of numbers of at least 0")
    if math.prod(shape) * kind.itemsize != len(data):
        raise ValueError(f"a tensor of {len(data)} bytes has the shape of another one")
    if not data:
        return torch.empty(shape, dtype=kind)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).view(kind).reshape(shape)
