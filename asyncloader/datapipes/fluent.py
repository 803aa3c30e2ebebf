"""The fluent methods, as editors and type checkers see them.

This file is about ``pipe.map(fn).batch(64)``: ``functional_datapipe`` puts the
methods in place when a pipe class is defined, so here are only their types. A
test holds every declaration against the constructor it stands for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

T_co = TypeVar("T_co", covariant=True)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from asyncloader.datapipes.base import IterDataPipe, MapDataPipe

    U = TypeVar("U")


class IterFluent(Generic[T_co]):
    """The methods of ``IterDataPipe``."""

    if TYPE_CHECKING:

        def map(
            self,
            fn: Callable[..., Awaitable[U]] | Callable[..., U],
            input_col: Any = None,
            output_col: Any = None,
        ) -> IterDataPipe[U]: ...


class MapFluent(Generic[T_co]):
    """The methods of ``MapDataPipe``."""

    if TYPE_CHECKING:

        def map(self, fn: Callable[[T_co], U]) -> MapDataPipe[U]: ...
