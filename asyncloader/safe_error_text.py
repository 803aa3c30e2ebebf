"""Errors of anybody's class.

This file is about noting something on an error and saying what it is, whatever its class does
about that: it may refuse attributes, have notes that are none, or fail to say what it is.
"""

from __future__ import annotations

import contextlib
import traceback


def note(error: BaseException, text: str) -> None:
    """Add a note to an error, unless it is there."""
    # A function may raise one and the same error every time.
    if text in notes_of(error):
        return
    try:
        error.add_note(text)
    except Exception:  # noqa: BLE001 - a user's class may do anything
        # A frozen class refuses every attribute, and what a class has for notes may be no list.
        with contextlib.suppress(Exception):
            BaseException.__setattr__(error, "__notes__", [*notes_of(error), text])


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an error, as far as they are texts."""
    try:
        return [text for text in error.__notes__ if isinstance(text, str)]
    except Exception:  # noqa: BLE001 - most have none, and a user's class may do anything
        return []


def text_of(error: BaseException) -> str:
    """Return what an error says."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ ran
        return "<its message cannot be shown>"


def repr_of(error: BaseException) -> str:
    """Return an error as it is written."""
    try:
        return repr(error)
    except Exception:  # noqa: BLE001 - a user's __repr__ ran
        return f"{type(error).__qualname__}({text_of(error)})"


def traceback_of(error: BaseException) -> str:
    """Return an error with its causes and where each was raised, as Python prints it."""
    try:
        return "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a user's class may do anything
        stack = "".join(traceback.format_tb(error.__traceback__))
        return f"Traceback (most recent call last):\n{stack}{type(error).__qualname__}\n"
