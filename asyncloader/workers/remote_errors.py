"""Errors that travel from a worker to the loader.

This file is about ``pack_error`` and ``unpack_error``: the loader raises the user's own exception,
with the process and the remote traceback in a note. An exception that cannot be pickled becomes a
PipelineError that names it.
"""

from __future__ import annotations

import pickle
from typing import Any

from asyncloader.datapipes.tracebacks import trim_tracebacks
from asyncloader.errors import PipelineError, TransportError
from asyncloader.safe_error_text import note, notes_of, repr_of, text_of, traceback_of
from asyncloader.transport.code import dumps_code, loads_code
from asyncloader.workers.process.inherited import has_inherited

#: How many errors of a chain of causes are sent.
_CAUSES = 8


def pack_error(error: BaseException, where: str) -> bytes:
    """Return an error as bytes; ``where`` says which process it was raised in.

    Errors that would end a process or a generator become the cause of a RuntimeError.
    """
    if not isinstance(error, Exception):
        error = _as_failure(error)
    left_out = _left_out(error)
    if left_out:
        note(error, left_out)
    trim_tracebacks(error)
    story = f"{where}:\n{traceback_of(error)}".rstrip()
    return pickle.dumps((_packed_chain(error), _summary(error, where), story))


def unpack_error(data: bytes) -> BaseException:
    """Return the error that was packed, with its causes and the remote traceback as a note."""
    try:
        chain, summary, story = pickle.loads(data)
    except Exception as failure:
        raise TransportError(f"an error could not be read: {repr_of(failure)}") from failure
    error = _unpacked(chain[0], summary) if chain else PipelineError(_refusal(summary))
    note(error, story)
    last = error
    for packed in chain[1:]:
        cause = _unpacked(packed, "a cause of an error")
        # The user's class may refuse attributes.
        BaseException.__setattr__(last, "__cause__", cause)
        last = cause
    return error


def _left_out(error: BaseException) -> str:
    """Say that an object lacks an attribute because its pickle left that out; or return ""."""
    if not isinstance(error, AttributeError) or has_inherited():
        return ""
    kind = type(error.obj)
    if kind.__getstate__ is object.__getstate__ or not isinstance(error.name, str):
        return ""
    return (
        f"{kind.__qualname__}.__getstate__ decides what of it is sent to workers, and may have left"
        f' {error.name!r} out: with multiprocessing_context="fork" workers inherit the whole object'
    )


def _as_failure(error: BaseException) -> RuntimeError:
    failure = RuntimeError(
        f"user code raised {type(error).__name__}; it must raise a subclass of Exception"
    )
    failure.__cause__ = error
    return failure


def _packed_chain(error: BaseException | None) -> list[bytes]:
    chain: list[bytes] = []
    while error is not None and len(chain) < _CAUSES:
        data = _packed(error)
        if data is None:
            break
        chain.append(data)
        error = error.__cause__
    return chain


def _packed(error: BaseException) -> bytes | None:
    """Pickle the error; None if unpickling would not give the same error."""
    try:
        data = dumps_code(error)
        back: Any = loads_code(data)
        same = type(back).__qualname__ == type(error).__qualname__
        return data if same and len(back.args) == len(error.args) else None
    except Exception:  # noqa: BLE001 - user code ran: constructors, __reduce__
        return None


def _unpacked(data: bytes, summary: str) -> BaseException:
    try:
        error: BaseException = loads_code(data)
    except Exception as failure:  # noqa: BLE001 - the user's class may not be importable here
        return PipelineError(
            f"{summary}; it could not be unpickled in the loader: {repr_of(failure)}"
        )
    return error


def _refusal(summary: str) -> str:
    return (
        f"{summary}; this error could not be pickled, so the loader cannot raise it itself. Give"
        " its class a constructor that takes its args, with plain data in them"
    )


def _summary(error: BaseException, where: str) -> str:
    raised = "; ".join(notes_of(error)) or "raised outside of any pipe's function"
    return f"{_name(type(error))}: {text_of(error)} ({raised}, {where})"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
