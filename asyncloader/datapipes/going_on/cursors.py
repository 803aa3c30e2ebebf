"""Where passes stand, and how they go on from there.

This file is about cursors. A cursor is a pipe's place in its stream as plain data, and
``Cursors`` holds those of a graph by the numbers of its pipes. Cursors are read between two
items, and a later pass goes on from them:

    put_cursors(pipe, into)            where the pipe and all above it stand
    resume(pipe, position, cursors)    its next pass begins after that many items

``position`` may be further on than the cursors, which are taken now and then: what
lies between is skipped, or made and dropped.
"""

from __future__ import annotations

import copy
import sys
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from itertools import islice
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.iterating import aclose_items, close_items
from asyncloader.errors import SnapshotError

T = TypeVar("T")

#: What a pass says of its place: whole numbers, truths, texts, and lists and dicts of those.
Cursor = dict[str, Any]

#: The cursors of a graph, by the numbers of its pipes.
Cursors = dict[int, Cursor]

# What a pipe holds between its passes, beside what its user gave it.
_START = "_start"
_CROSSING = "_crossing"
_NUMBER = "_number_in_graph"
_COUNT = "_count"
_LOADED = "_loaded"
_ENDED = "_ended"
_BEGINNINGS = "_beginnings"
COURSE = "_course"

#: The fields of a pipe that are about its passes: a copy of the pipe has none of them.
PASSING = frozenset(
    {"current_pass", _START, _CROSSING, _COUNT, _LOADED, _ENDED, _BEGINNINGS, COURSE}
)


def set_numbers(pipes: Iterable[Any]) -> None:
    """Give the pipes of a graph their numbers, in this order."""
    for number, pipe in enumerate(pipes):
        object.__setattr__(pipe, _NUMBER, number)


def number_of(pipe: Any) -> int | None:
    """Return a pipe's number in its graph, or None where no loader gave it one."""
    number: int | None = getattr(pipe, _NUMBER, None)
    return number


def take_number_of(pipe: Any, other: Any) -> None:
    """Give a pipe the number of another, for which it stands."""
    object.__setattr__(pipe, _NUMBER, number_of(other))


def cursor_of(pipe: Any, cursors: Cursors) -> Cursor | None:
    """Return a pipe's own cursor, or None where it has none."""
    number = number_of(pipe)
    return None if number is None else cursors.get(number)


def put_cursor(pipe: Any, cursor: Cursor, into: Cursors) -> None:
    """Add a pipe's own cursor; one that is in no loader's graph has nowhere to go on."""
    number = number_of(pipe)
    if number is not None and cursor:
        into[number] = cursor


def cursors_of(pipes: Iterable[Any], cursors: Cursors) -> Cursors:
    """Return those of the cursors that are these pipes' own."""
    own: Cursors = {}
    for pipe in pipes:
        put_cursor(pipe, cursor_of(pipe, cursors) or {}, own)
    return own


def resume(pipe: Any, position: int, cursors: Cursors) -> None:
    """Let the next pass of a pipe begin after its first ``position`` items."""
    object.__setattr__(pipe, _START, (position, cursors))


def pick(pipe: Any, positions: list[int]) -> None:
    """Let the next pass of a pipe yield the items at these ascending positions only.

    To be asked of a pipe that ``picks()``.
    """
    object.__setattr__(pipe, _START, (positions, {}))


def take_start(pipe: Any) -> tuple[int, Cursors] | None:
    """Return where the pass that begins now begins, if that is not its first item."""
    start: tuple[int, Cursors] | None = getattr(pipe, "__dict__", {}).pop(_START, None)
    return start


def started(pipe: Iterable[T]) -> Iterator[T]:
    """Begin a pass where ``resume`` said, or at the first item."""
    start = take_start(pipe)
    if hasattr(pipe, "load_state_dict"):
        position, cursor = _noted(pipe, start)
        return dropped(_counted(pipe, cursor), position - _yielded(cursor))
    if start is None:
        return iter(pipe)
    if hasattr(pipe, "iter_from"):
        begun = pipe.iter_at(start[0]) if isinstance(start[0], list) else pipe.iter_from(*start)
        found: Iterator[T] = begun
        return found
    return dropped(iter(pipe), start[0])


def astarted(pipe: AsyncIterable[T]) -> AsyncIterable[T]:
    """Begin an async pass where ``resume`` said, or at the first item."""
    start = take_start(pipe)
    if hasattr(pipe, "load_state_dict"):
        position, cursor = _noted(pipe, start)
        return adropped(_acounted(pipe, cursor), position - _yielded(cursor))
    if start is None:
        # One that yields groups is asked for those instead.
        return pipe if hasattr(pipe, "groups") else aiter(pipe)
    if hasattr(pipe, "aiter_from"):
        found: AsyncIterable[T] = pipe.aiter_from(*start)
        return found
    return adropped(aiter(pipe), start[0])


def picks(pipe: Any) -> bool:
    """Whether single items of a pipe can be had, by ``pick``, without all before them."""
    return hasattr(pipe, "picks") and pipe.picks()


def can_share(pipe: Any) -> bool:
    """Whether a pipe can make the items of one share alone.

    A class has to say so itself: of one derived from it nobody knows what it does otherwise.
    """
    return "can_share" in vars(type(pipe)) and pipe.can_share()


def put_cursors(pipe: Any, into: Cursors) -> None:
    """Add where a pipe and all above it stand, as the pipe's reader sees it.

    To be called between two items, after the first. Torch's pipes have no cursors.
    """
    crossing = getattr(pipe, _CROSSING, None)
    if crossing is not None:
        crossing.put_cursors(into)
    else:
        put_own_cursors(pipe, into)


def put_own_cursors(pipe: Any, into: Cursors) -> None:
    """Add where a pipe and all above it stand, where it is iterated."""
    beginnings: Cursors | None = getattr(pipe, "__dict__", {}).get(_BEGINNINGS)
    into.update(beginnings or {})
    if hasattr(pipe, "load_state_dict"):
        put_cursor(pipe, _cursor_with_state(pipe), into)
    elif beginnings is None and hasattr(pipe, "put_cursors"):
        pipe.put_cursors(into)


def first_cursors(pipe: Any) -> Cursors:
    """Return the cursors with which the next pass of a pipe begins."""
    start: tuple[int, Cursors] = getattr(pipe, _START, (0, {}))
    return start[1]


def set_beginnings(pipe: Any, cursors: Cursors) -> None:
    """Note where some pipes above one stood when it began, as it will begin there again."""
    object.__setattr__(pipe, _BEGINNINGS, cursors)


def set_crossing(pipe: Any, crossing: Any) -> None:
    """Note that what a pipe yields crosses to its reader, ahead of it; None if it does not."""
    if crossing is not None or _CROSSING in getattr(pipe, "__dict__", {}):
        object.__setattr__(pipe, _CROSSING, crossing)


def forget_passes(pipes: Iterable[Any]) -> None:
    """Let the next passes of all these pipes begin at the beginning, whatever was before."""
    for pipe in pipes:
        fields = getattr(pipe, "__dict__", {})
        for name in ("current_pass", _START, _CROSSING, _BEGINNINGS, COURSE):
            fields.pop(name, None)


def forget_starts(pipes: Iterable[Any]) -> None:
    """Let the next passes of all these pipes begin at their first items."""
    for pipe in pipes:
        take_start(pipe)


def dropped(items: Iterator[T], count: int) -> Iterator[T]:
    """Return an iterator without its first ``count`` items, which are made when it is read."""
    _check_behind(count)
    return _dropped(items, count) if count > 0 else items


def _dropped(items: Iterator[T], count: int) -> Iterator[T]:
    try:
        deque(islice(items, min(count, sys.maxsize)), maxlen=0)
        yield from items
    finally:
        close_items(items)


def _check_behind(count: int) -> None:
    """Raise SnapshotError where a pipe was said to be further than its reader."""
    if count < 0:
        raise SnapshotError(
            f"the state contradicts itself: a pipe had yielded {-count} items more than its reader"
            " had taken"
        )


def picked(items: Iterator[T], positions: list[int]) -> Iterator[T]:
    """Yield the items at these ascending positions; those between are made and dropped."""
    at = 0
    try:
        for position in positions:
            found = list(islice(items, position - at, position - at + 1))
            if not found:
                return
            at = position + 1
            yield found[0]
    finally:
        close_items(items)


def adropped(items: AsyncIterator[T], count: int) -> AsyncIterator[T]:
    """Return an async iterator without its first ``count`` items, which are made and dropped."""
    _check_behind(count)
    return _adropped(items, count) if count > 0 else items


async def _adropped(items: AsyncIterator[T], count: int) -> AsyncIterator[T]:
    try:
        async for item in items:
            if count > 0:
                count -= 1
            else:
                yield item
    finally:
        await aclose_items(items)


def _cursor_with_state(pipe: Any) -> Cursor:
    fields = vars(pipe)
    if _COUNT not in fields:
        # A pass that has yielded nothing yet stands where it began.
        return fields.get(_LOADED) or {}
    # It may be the very object that the pipe goes on changing.
    cursor = {"yielded": fields[_COUNT], "state": copy.deepcopy(pipe.state_dict())}
    # Many are at their beginning again by then.
    return {**cursor, "ended": True} if _ENDED in fields else cursor


def _noted(pipe: Any, start: tuple[int, Cursors] | None) -> tuple[int, Cursor | None]:
    """Note where a user's source begins; return the position, and the cursor from before it."""
    position, cursors = start or (0, {})
    cursor = cursor_of(pipe, cursors)
    for name in (_COUNT, _ENDED):
        vars(pipe).pop(name, None)
    vars(pipe)[_LOADED] = cursor
    return position, cursor


def _yielded(cursor: Cursor | None) -> int:
    return 0 if cursor is None else cursor["yielded"]


def _give_back(pipe: Any, state: Any) -> None:
    """Give a user's source its own state back."""
    try:
        pipe.load_state_dict(state)
    except Exception as error:
        raise SnapshotError(
            f"{type(pipe).__qualname__}.load_state_dict refused its state: {error!r}"
        ) from error


def _counted(pipe: Any, cursor: Cursor | None) -> Iterator[Any]:
    # A pass that ends without asking this source for an item leaves it as it is, so its own
    # state is given back here, and not before.
    if cursor is not None:
        _give_back(pipe, cursor["state"])
    fields, count, items = vars(pipe), _yielded(cursor), iter(pipe)
    try:
        if cursor is not None and "ended" in cursor:
            # It stands at its end, which its next pass must not begin with, or at its
            # beginning again.
            next(items, None)
            return
        for item in items:
            count += 1
            fields[_COUNT] = count
            yield item
        fields[_ENDED] = True
    finally:
        close_items(items)


async def _acounted(pipe: Any, cursor: Cursor | None) -> AsyncIterator[Any]:
    if cursor is not None:
        _give_back(pipe, cursor["state"])
    fields, count, items = vars(pipe), _yielded(cursor), aiter(pipe)
    try:
        if cursor is not None and "ended" in cursor:
            await anext(items, None)
            return
        async for item in items:
            count += 1
            fields[_COUNT] = count
            yield item
        fields[_ENDED] = True
    finally:
        await aclose_items(items)
