"""Items put together by what they have in common.

This file is about groupby: which groups are held, and which must go when the
buffer is full.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from asyncloader.datapipes.going_on.cursors import Cursor, Cursors
from asyncloader.datapipes.going_on.forms import Form, Rule, ascending, counts, fields
from asyncloader.datapipes.going_on.marks import Marks
from asyncloader.datapipes.patterns.rereading import begin_with
from asyncloader.datapipes.pipe.answers import key_of
from asyncloader.datapipes.pipe.arguments import checked_count, checked_function, iterable_source
from asyncloader.datapipes.pipe.base import IterDataPipe, functional_datapipe
from asyncloader.datapipes.pipe.function import calling, is_async
from asyncloader.datapipes.pipe.run import Pass, Run

T = TypeVar("T")


@functional_datapipe("groupby")
class Grouper(IterDataPipe[Any]):
    """Yield lists of items for which ``group_key_fn(item)`` is the same.

    A group is yielded once it has ``group_size`` items. When ``buffer_size`` items
    are held, the largest group is yielded if it has ``guaranteed_group_size``
    (default: ``group_size``); otherwise it is left out with ``drop_remaining``, and
    a RuntimeError without. At the end of the source all that is held is yielded,
    in the order the groups began. With ``keep_key`` each comes as ``(key, group)``.

    >>> from asyncloader.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["apple", "beet", "avocado"]).groupby(lambda name: name[0]))
    [['apple', 'avocado'], ['beet']]
    """

    def __init__(
        self,
        datapipe: Iterable[T],
        group_key_fn: Callable[[T], Any],
        *,
        keep_key: bool = False,
        buffer_size: int = 10000,
        group_size: int | None = None,
        guaranteed_group_size: int | None = None,
        drop_remaining: bool = False,
    ) -> None:
        self.source = iterable_source(datapipe)
        self.group_key_fn = checked_function("group_key_fn", group_key_fn, takes=1)
        self.keep_key = keep_key
        self.buffer_size = checked_count("buffer_size", buffer_size, at_least=1)
        self.group_size = _checked_size("group_size", group_size, "buffer_size", buffer_size)
        self.guaranteed_group_size = _checked_size(
            "guaranteed_group_size", guaranteed_group_size, "group_size", group_size
        )
        self.drop_remaining = drop_remaining

    def waits(self) -> bool:
        return is_async(self.group_key_fn)

    def new_pass(self, run: Run[Any]) -> GroupPass:
        return GroupPass(run)

    def cursor_form(self) -> Form:
        held = ascending(most=self.buffer_size)
        return fields({"held": held, **counts("taken", "yielded")}, _HELD_WERE_TAKEN)


_HELD_WERE_TAKEN: Rule = (
    "the items that are held were taken, and each was yielded or is held",
    lambda cursor: (
        (not cursor["held"] or cursor["held"][-1] < cursor["taken"])
        and cursor["yielded"] + len(cursor["held"]) <= cursor["taken"]
    ),
)


def _checked_size(name: str, size: int | None, limit_name: str, limit: int | None) -> int | None:
    if size is None:
        return None
    checked_count(name, size, at_least=1)
    if limit is None:
        raise ValueError(f"{name}={size} needs a {limit_name} of at least {size}; give both")
    if size > limit:
        raise ValueError(f"{name} must be at most {limit_name} ({limit}), got {size}")
    return size


@dataclass
class GroupPass(Pass[Any]):
    """One pass over a Grouper, which holds the groups that are not yet full."""

    marks = ("taken", "yielded")

    taken: int = 0
    yielded: int = 0
    held: int = 0
    groups: dict[Any, Group] = field(default_factory=dict, repr=False)
    above: Marks = field(init=False, repr=False)
    # Minus the size, the first position and the key of every group, as it is and as it was;
    # nothing while nobody asks for the largest.
    _by_size: list[tuple[int, int, Any]] = field(default_factory=list, init=False, repr=False)
    _positions: list[int] = field(default_factory=list, init=False, repr=False)
    _cursors: Cursors = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        source = self.source
        self.above = Marks(source.put_cursors, self._oldest_held, source.first_cursors())

    def __iter__(self) -> Iterator[Any]:
        pipe = self.pipe
        with calling(pipe.group_key_fn, pipe) as function:
            for item in self._refilled(function):
                key = key_of(pipe, function, item)
                self._hold(key, item, self.taken)
                self.taken += 1
                if self.groups[key].size == pipe.group_size:
                    yield self._yielded(key)
                if self.held == pipe.buffer_size:
                    largest = self._largest()
                    if self._may_leave(largest):
                        yield self._yielded(largest)
                self.above.passed(self.taken)
        while self.groups:
            yield self._yielded(next(iter(self.groups)))

    def cursor(self) -> Cursor:
        positions = [place for group in self.groups.values() for place in group.positions]
        return {**super().cursor(), "held": sorted(positions)}

    def put_above(self, into: Cursors) -> None:
        into.update(self.above.at(self._oldest_held()))

    def _oldest_held(self) -> int:
        # The groups are in the order in which they began.
        oldest = next(iter(self.groups.values()), None)
        return self.taken if oldest is None else oldest.positions[0]

    def go_on(self, position: int, cursor: Cursor | None, cursors: Cursors) -> int:
        if cursor is None:
            return position
        self.taken, self.yielded = cursor["taken"], cursor["yielded"]
        self._positions, self._cursors = cursor["held"], cursors
        self.above.restart(min(self._positions, default=self.taken), cursors)
        return position - self.yielded

    def _refilled(self, function: Callable[..., Any]) -> Iterator[Any]:
        """Hold the items again that were held; return those that follow."""
        # Whoever holds cursors may keep all that is handed out from then on.
        cursors, self._cursors = self._cursors, {}
        positions = self._positions
        again, following = begin_with(self.source, positions, self.taken, cursors)
        for position, item in zip(positions, again, strict=True):
            self._hold(key_of(self.pipe, function, item), item, position)
        return following

    def _hold(self, key: Any, item: Any, position: int) -> None:
        group = self.groups.get(key)
        if group is None:
            self.groups[key] = group = Group()
        group.items.append(item)
        group.positions.append(position)
        self.held += 1
        if self._by_size:
            heapq.heappush(self._by_size, group.entry(key))
            if len(self._by_size) > 4 * self.pipe.buffer_size:
                # Most are as they were: it is made anew when the buffer is full again.
                self._by_size.clear()

    def _yielded(self, key: Any) -> Any:
        items = self._released(key)
        self.yielded += 1
        return (key, items) if self.pipe.keep_key else items

    def _released(self, key: Any) -> list[Any]:
        items = self.groups.pop(key).items
        self.held -= len(items)
        return items

    def _largest(self) -> Any:
        """Return the key of the largest group, the oldest of several."""
        if not self._by_size:
            self._by_size = [group.entry(key) for key, group in self.groups.items()]
            heapq.heapify(self._by_size)
        while True:
            entry = self._by_size[0]
            group = self.groups.get(entry[2])
            if group is not None and group.entry(entry[2])[:2] == entry[:2]:
                return entry[2]
            heapq.heappop(self._by_size)

    def _may_leave(self, key: Any) -> bool:
        # Whether the group may be yielded to make room. One that is too small is
        # dropped here where that is allowed.
        pipe, size = self.pipe, self.groups[key].size
        least = pipe.guaranteed_group_size or pipe.group_size or 1
        if size >= least:
            return True
        if not pipe.drop_remaining:
            raise RuntimeError(
                f"the buffer of {pipe!r} is full and its largest group has {size} items, fewer"
                f" than the {least} guaranteed; make buffer_size larger, guaranteed_group_size"
                " smaller, or set drop_remaining=True to leave such groups out"
            )
        self._released(key)
        return False


class Group:
    """Items that belong together, and where in the source they were."""

    __slots__ = ("items", "positions")

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.positions: list[int] = []

    @property
    def size(self) -> int:
        """How many items there are."""
        return len(self.items)

    def entry(self, key: Any) -> tuple[int, int, Any]:
        """Return what sorts groups by their sizes, and then by their ages."""
        return -len(self.items), self.positions[0], key
