"""Functions that read and write some columns of an item.

This file is about ``input_col`` and ``output_col``: which parts of a tuple,
list or dict a function is given, and where its result goes.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Awaitable, Callable, MutableSequence
from dataclasses import dataclass
from types import CoroutineType
from typing import Any

from asyncloader.arguments import check_takes, checked_function
from asyncloader.datapipes.call import is_async


@dataclass(frozen=True)
class Columns:
    """Where a function's arguments come from and where its result goes.

    ``input_col`` is a key, or a list or tuple of keys. ``output_col`` is a key,
    ``-1`` for a new last column, or None for the place of the (first) input.
    """

    input_col: Any = None
    output_col: Any = None

    def pick(self, item: Any) -> tuple[Any, ...]:
        """Return the arguments that the function gets for an item."""
        if self.input_col is None:
            return (item,)
        if isinstance(self.input_col, list | tuple):
            return tuple(item[column] for column in self.input_col)
        return (item[self.input_col],)

    def put(self, item: Any, result: Any) -> Any:
        """Return the item with the function's result in its place."""
        if self.input_col is None and self.output_col is None:
            return result
        # Others may hold the item too, so the result goes into a copy.
        changed = list(item) if isinstance(item, tuple) else copy.copy(item)
        if self.output_col == -1:
            changed.append(result)
        elif self.output_col is not None:
            changed[self.output_col] = result
        else:
            self._put_back(changed, result)
        return tuple(changed) if isinstance(item, tuple) else changed

    def _put_back(self, changed: Any, result: Any) -> None:
        if not isinstance(self.input_col, list | tuple):
            changed[self.input_col] = result
            return
        first, *rest = self.input_col
        changed[first] = result
        if isinstance(changed, MutableSequence):
            # Indices may be negative, and deleting one element moves those behind it.
            places = range(len(changed))
            first, rest = places[first], sorted((places[each] for each in rest), reverse=True)
        for column in dict.fromkeys(rest):
            if column != first:
                del changed[column]


def changing(function: Callable[..., Any], input_col: Any, output_col: Any) -> Callable[..., Any]:
    """Return a function of whole items that puts results of ``function`` into them.

    It is ``function`` itself if no column is named.
    """
    columns = changed_columns(checked_function("fn", function), input_col, output_col)
    if input_col is None and output_col is None:
        return function
    return functools.partial(change_async if is_async(function) else change, function, columns)


def change(function: Callable[..., Any], columns: Columns, item: Any) -> Any:
    """Return an item with the result of a function of some columns in its place."""
    result = function(*columns.pick(item))
    if result.__class__ is CoroutineType:
        return result  # the pipe raises the error, with its name
    return columns.put(item, result)


async def change_async(function: Callable[..., Awaitable[Any]], columns: Columns, item: Any) -> Any:
    """Return an item with the result of an async function of some columns in its place."""
    return columns.put(item, await function(*columns.pick(item)))


def reading(function: Callable[..., Any], input_col: Any) -> Callable[..., Any]:
    """Return a function of whole items that calls ``function`` with their columns."""
    columns = checked_columns(function, input_col, None)
    if input_col is None:
        return function
    return functools.partial(_read_async if is_async(function) else _read, function, columns)


def _read(function: Callable[..., Any], columns: Columns, item: Any) -> Any:
    return function(*columns.pick(item))


async def _read_async(function: Callable[..., Any], columns: Columns, item: Any) -> Any:
    return await function(*columns.pick(item))


def changed_columns(
    function: Callable[..., Any], input_col: Any, output_col: Any, *, more: int = 0
) -> Columns:
    """Return the columns of a function whose result goes into the item, if they are possible."""
    columns = checked_columns(function, input_col, output_col, more=more)
    if output_col is None and isinstance(input_col, list | tuple) and not input_col:
        raise ValueError("input_col names no column: pass output_col, to say where results go")
    return columns


def checked_columns(
    function: Callable[..., Any], input_col: Any, output_col: Any, *, more: int = 0
) -> Columns:
    """Return the columns, or raise ValueError for a combination that is not possible.

    The function takes ``more`` arguments after those that come from columns.
    """
    if input_col is None and output_col is not None:
        raise ValueError("output_col needs an input_col: name the column that the function gets")
    if isinstance(output_col, list | tuple):
        if len(output_col) != 1:
            raise ValueError(f"output_col must be a single column, got {output_col!r}")
        output_col = output_col[0]
    count = len(input_col) if isinstance(input_col, list | tuple) else 1
    check_takes("the function", function, count + more)
    return Columns(input_col, output_col)
