"""Whose code a thread is running.

This file is about finding, in the frames of a thread that iterates pipes, the pipe that
it is in. Nothing has to be noted by the pipes for that, which are plain generators.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from asyncloader.datapipes.watch.attributes import attribute, latest_pass

#: The places of a thread that hands items on, and of one that is about something else.
HANDING, OUTSIDE = -1, -2

_PIPES = os.path.dirname(os.path.dirname(__file__))
_PACKAGE = os.path.join(os.path.dirname(_PIPES), "")
#: Where readers and sources of either colour meet, and where items are skipped.
_BETWEEN_PIPES = frozenset(
    os.path.join(_PIPES, *names)
    for names in (
        ("running", "crossing.py"),
        ("going_on", "cursors.py"),
        ("pipe", "run.py"),
        ("items", "sources.py"),
    )
)
_GENERATOR = inspect.CO_GENERATOR
#: What every pipe has says nothing of which pipe it is.
_BASES = frozenset(
    {"asyncloader.datapipes.pipe.base", "asyncloader.datapipes.pipe.run", "builtins"}
)


class Owners:
    """Which pieces of code run for which pipes of a graph, at one moment."""

    def __init__(self, pipes: Sequence[Any]) -> None:
        self._pipes = pipes
        self._places: dict[CodeType, list[int]] = {}
        for place, pipe in enumerate(pipes):
            for code in {*_codes_of(type(pipe)), *_codes_of(type(latest_pass(pipe)))}:
                self._places.setdefault(code, []).append(place)

    def place(self, frame: FrameType | None, inside: CodeType) -> int:
        """Return the place of the pipe that a thread is in, from its innermost frame on.

        HANDING where it is in the function ``inside``, but in none of the pipes, and
        OUTSIDE where it is not in that. What is iterated there is the first of the pipes.
        """
        inner: FrameType | None = None
        place, has_generator = HANDING, False
        while frame is not None and frame.f_code is not inside:
            places = self._places.get(frame.f_code)
            if places is not None and place == HANDING:
                place = self._place_of(frame, places, inner)
            has_generator = has_generator or bool(frame.f_code.co_flags & _GENERATOR)
            inner, frame = frame, frame.f_back
        if frame is None:
            return OUTSIDE
        # A generator of nobody's class belongs to the pipe that is iterated, if it is a pipe.
        return 0 if place == HANDING and has_generator and self._pipes else place

    def _place_of(self, frame: FrameType, places: list[int], inner: FrameType | None) -> int:
        place = places[0] if len(places) == 1 else self._place_of_self(frame, places)
        pipe = self._pipes[place]
        source = attribute(pipe, "source")
        if inner is None or not _reads(inner, pipe, source):
            return place
        return next((at for at, each in enumerate(self._pipes) if each is source), place)

    def _place_of_self(self, frame: FrameType, places: list[int]) -> int:
        owner = _self_of(frame)
        for place in places:
            pipe = self._pipes[place]
            if owner is pipe or attribute(attribute(owner, "run"), "pipe") is pipe:
                return place
        return places[0]


def _reads(inner: FrameType, pipe: Any, source: Any) -> bool:
    """Whether a frame that a pipe's own frame has called is where the pipe reads its source."""
    code = inner.f_code
    if code.co_filename in _BETWEEN_PIPES:
        return True
    iterates = code.co_flags & _GENERATOR or code.co_name == "__next__"
    if not iterates or code.co_filename.startswith(_PACKAGE):
        return False
    # An iterable of the user's, unless it is what the pipe's own function returned.
    has_frames = any(each.co_flags & _GENERATOR for each in _codes_of(type(source)))
    return not has_frames and code is not getattr(attribute(pipe, "fn"), "__code__", None)


def _self_of(frame: FrameType) -> Any:
    if frame.f_trace is not None:
        # A debugger that is in this frame owns the picture of its locals.
        return None
    fields = frame.f_locals
    owner = fields.get("self")
    if type(fields) is dict:
        # The picture would keep the present item alive, long after the frame let go of it.
        fields.clear()
    return owner


_known_codes: weakref.WeakKeyDictionary[type, tuple[CodeType, ...]] = weakref.WeakKeyDictionary()


def _codes_of(cls: type) -> tuple[CodeType, ...]:
    """Return the code of all methods of a pipe's or a pass's class."""
    codes = _known_codes.get(cls)
    if codes is None:
        functions = (
            inspect.unwrap(value)
            for base in cls.__mro__
            if base.__module__ not in _BASES
            # Pickling an instance, in the thread that is looked at, adds to what a class has.
            for value in list(vars(base).values())
            if isinstance(value, FunctionType)
        )
        codes = tuple(each.__code__ for each in functions if isinstance(each, FunctionType))
        _known_codes[cls] = codes
    return codes
