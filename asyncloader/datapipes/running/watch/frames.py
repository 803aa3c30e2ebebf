"""Which pipe a thread is in.

This file is about ``CodeOwners``: it finds, in the frames of a thread that iterates pipes,
the pipe whose code runs. Pipes are plain generators and note nothing for this. And it is
about ``present_frames``, which lets a thread look at the frames of the others.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import weakref
from collections.abc import Container, Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

from asyncloader.datapipes.running.traits import is_async_pipe, vars_of
from asyncloader.datapipes.running.watch.under_way import local_of, undisturbed

#: The places of a thread that passes items on, in no pipe; of one that does something else; of
#: one that waits for items which another thread or process makes, where they are watched; and of
#: one that imports a module, for whichever pipe: it does so once.
HANDING, OUTSIDE, ELSEWHERE, IMPORTING = -1, -2, -3, -4

_IMPORT = "<frozen importlib._bootstrap>"

_RUNNING = os.path.dirname(os.path.dirname(__file__))
_PIPES = os.path.dirname(_RUNNING)
_PACKAGE = os.path.join(os.path.dirname(_PIPES), "")

_BRIDGE = os.path.join(_RUNNING, "bridge.py")

#: Code between a pipe and its source: it bridges sync and async, and skips items.
_BETWEEN_PIPES = frozenset(
    [
        *(os.path.join(_RUNNING, name) for name in ("bridge.py", "cursors.py", "run.py")),
        os.path.join(_PIPES, "sources.py"),
    ]
)
_GENERATOR = inspect.CO_GENERATOR

#: Methods that every pipe inherits do not tell which pipe it is.
_BASES = frozenset({"asyncloader.datapipes.base", "asyncloader.datapipes.running.run", "builtins"})


class CodeOwners:
    """Which pieces of code run for which pipes of a graph, at one moment.

    ``made_elsewhere`` are the ids of pipes that threads of their own iterate at the moment.
    """

    def __init__(self, pipes: Sequence[Any], made_elsewhere: Container[int] = ()) -> None:
        self._pipes = pipes
        self.made_elsewhere = made_elsewhere
        self._places: dict[CodeType, list[int]] = {}
        for place, pipe in enumerate(pipes):
            for code in {*_codes_of(type(pipe)), *_codes_of(type(latest_pass(pipe)))}:
                self._places.setdefault(code, []).append(place)

    def place(self, frame: FrameType | None, inside: CodeType, iterated: Any = None) -> int:
        """Return the place of the pipe that a thread is in, from its innermost frame on.

        HANDING where it is in the function ``inside``, but in none of the pipes, IMPORTING
        where it imports something there, and OUTSIDE where it is not in that. What it iterates
        there is ``iterated``, or the first of the pipes. A thread that waits for a pipe that runs
        ahead is where ``awaited`` says.
        """
        place = self._place_of_frames(frame, inside, iterated)
        return place if place < 0 else self.awaited(place)

    def awaited(self, place: int) -> int:
        """Return the place of what a reader of this pipe waits for, if it waits.

        That is the pipe itself, unless it runs ahead, has room and wants more. Then it waits for
        its source: ELSEWHERE where another thread or process makes the source's items at the
        moment.
        """
        pipe = self._pipes[place]
        running, source = latest_pass(pipe), attribute(pipe, "source")
        if running is None:
            # A user's pipe may run ahead: it waits for its source if the thread of that works.
            return ELSEWHERE if id(source) in self.made_elsewhere else place
        if running.waits_for_source and is_async_pipe(pipe):
            at = self._at(source, ELSEWHERE)
            return ELSEWHERE if at < 0 or not is_async_pipe(source) else self.awaited(at)
        held, room = running.fullness()
        if not running.runs_ahead or held >= room > 0 or not running.wants_more():
            return place
        at = self._at(source, ELSEWHERE)
        if at < 0 or id(source) in self.made_elsewhere:
            return ELSEWHERE
        # On a loop a source may work at any time; in a thread of its own this one does not.
        return place if held and not is_async_pipe(source) else self.awaited(at)

    def _at(self, pipe: Any, default: int) -> int:
        return next((at for at, each in enumerate(self._pipes) if each is pipe), default)

    def _place_of_frames(self, frame: FrameType | None, inside: CodeType, iterated: Any) -> int:
        inner: FrameType | None = None
        place, has_generator, imports = HANDING, False, False
        while frame is not None and frame.f_code is not inside:
            places = self._places.get(frame.f_code)
            if places is not None and place == HANDING:
                place = self._place_of(frame, places, inner)
            has_generator = has_generator or bool(frame.f_code.co_flags & _GENERATOR)
            imports = imports or frame.f_code.co_filename == _IMPORT
            inner, frame = frame, frame.f_back
        if frame is None:
            return OUTSIDE
        if imports:
            return IMPORTING
        # A generator of no pipe's class belongs to the pipe that is iterated.
        is_iterated = place == HANDING and has_generator and self._pipes
        return self._at(iterated, 0) if is_iterated else place

    def _place_of(self, frame: FrameType, places: list[int], inner: FrameType | None) -> int:
        place = places[0] if len(places) == 1 else self._place_of_self(frame, places)
        pipe = self._pipes[place]
        source = attribute(pipe, "source")
        if inner is None or not _reads(inner, pipe, source):
            return place
        return self._at(source, place)

    def _place_of_self(self, frame: FrameType, places: list[int]) -> int:
        owner = local_of(frame, "self")
        for place in places:
            pipe = self._pipes[place]
            if owner is pipe or pipe_of(owner) is pipe:
                return place
        return places[0]


def _reads(inner: FrameType, pipe: Any, source: Any) -> bool:
    """Whether the frame that a pipe's own frame called is where the pipe reads its source."""
    code = inner.f_code
    iterates = code.co_flags & _GENERATOR or code.co_name == "__next__"
    if code.co_filename in _BETWEEN_PIPES:
        # The bridge also calls the pipe's own async function.
        return bool(iterates) or code.co_filename != _BRIDGE
    if not iterates or code.co_filename.startswith(_PACKAGE):
        return False
    # An iterable of the user's, unless it is what the pipe's own function returned.
    has_frames = any(each.co_flags & _GENERATOR for each in _codes_of(type(source)))
    return not has_frames and code is not getattr(attribute(pipe, "fn"), "__code__", None)


_known_codes: weakref.WeakKeyDictionary[type, tuple[CodeType, ...]] = weakref.WeakKeyDictionary()


def _codes_of(cls: type) -> tuple[CodeType, ...]:
    """Return the code of all methods of a pipe's or a pass's class."""
    codes = _known_codes.get(cls)
    if codes is None:
        functions = (
            inspect.unwrap(value)
            for base in cls.__mro__
            if base.__module__ not in _BASES
            # A copy: pickling an instance in the watched thread may add to the class.
            for value in list(vars(base).values())
            if isinstance(value, FunctionType)
        )
        codes = tuple(each.__code__ for each in functions if isinstance(each, FunctionType))
        _known_codes[cls] = codes
    return codes


def attribute(pipe: Any, name: str) -> Any:
    """Return an attribute of a pipe, or None, without running any of the pipe's code.

    A user's property may raise or take long.
    """
    return vars_of(pipe).get(name)


def pipe_of(begun: Any) -> Any:
    """Return the pipe of a pass, or None for something else."""
    return attribute(attribute(begun, "edge"), "pipe")


def latest_pass(pipe: Any) -> Any:
    """Return the latest pass over a pipe, which the epoch that runs it knows; or None."""
    tree = attribute(pipe, "_tree")
    return None if tree is None else tree.latest_pass(pipe)


def can_be_looked_at() -> bool:
    """Whether a thread stands still while another one looks at its frames."""
    has_gil = getattr(sys, "_is_gil_enabled", None)
    return has_gil is None or has_gil()


@contextlib.contextmanager
def present_frames() -> Iterator[dict[int, FrameType]]:
    """Return the innermost frame of each thread, to be used within the block only."""
    with undisturbed():
        frames = sys._current_frames()
        try:
            yield frames
        finally:
            frames.clear()
