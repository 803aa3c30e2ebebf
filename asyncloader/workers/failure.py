"""Errors on their way from a worker to the loader.

This file is about ``pack_error`` and ``unpack_error``: a user's exception comes
out as itself, with the process and its traceback in a note. One that cannot be
brought across becomes a PipelineError that names it.
"""

from __future__ import annotations

import pickle
import traceback
from typing import Any

from asyncloader.errors import PipelineError
from asyncloader.transport.codec import dumps_code, loads_code


def pack_error(error: BaseException, where: str) -> bytes:
    """Return an error as bytes; ``where`` says which process it was raised in."""
    text = "".join(traceback.format_exception(error))
    note = f"{where}:\n{text}"
    packed = _packed(error)
    if packed is not None:
        return pickle.dumps((packed, None, note))
    summary = f"{_name(type(error))}: {_text_of(error)} ({_notes_of(error)})"
    return pickle.dumps((None, summary, note))


def unpack_error(data: bytes) -> BaseException:
    """Return the error that was packed, with the remote traceback as a note."""
    packed, summary, note = pickle.loads(data)
    error = PipelineError(_refusal(summary)) if packed is None else _unpacked(packed, note)
    error.add_note(note)
    return error


def _packed(error: BaseException) -> bytes | None:
    """Pickle the error, if it comes back as what it is."""
    try:
        data = dumps_code(error)
        back: Any = loads_code(data)
    except Exception:  # noqa: BLE001 - user code ran: constructors, __reduce__
        return None
    same = type(back).__qualname__ == type(error).__qualname__
    return data if same and len(back.args) == len(error.args) else None


def _unpacked(data: bytes, note: str) -> BaseException:
    try:
        error: BaseException = loads_code(data)
    except Exception as failure:  # noqa: BLE001 - the user's class may not be importable here
        return PipelineError(f"an error could not be unpickled in the loader: {failure!r}")
    return error


def _refusal(summary: str) -> str:
    return (
        f"{summary}; this error could not be pickled, so it cannot come out as itself. Give its"
        " class a constructor that takes its args, with plain data in them"
    )


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failure:  # noqa: BLE001 - a user's __str__ ran
        return f"<its message cannot be shown: {failure!r}>"


def _notes_of(error: BaseException) -> str:
    return "; ".join(getattr(error, "__notes__", [])) or "raised outside of any pipe's function"
