"""Fluent methods of iter pipes.

This file is about ``IterFluent``: those of all families together.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from asyncloader.datapipes.fluent.branches import BranchMethods
from asyncloader.datapipes.fluent.calls import CallMethods
from asyncloader.datapipes.fluent.files import FileMethods
from asyncloader.datapipes.fluent.groups import GroupMethods
from asyncloader.datapipes.fluent.items import ItemMethods

T_co = TypeVar("T_co", covariant=True)


class IterFluent(
    ItemMethods[T_co],
    CallMethods[T_co],
    GroupMethods[T_co],
    BranchMethods[T_co],
    FileMethods[T_co],
    Generic[T_co],
):
    """The methods of ``IterDataPipe``."""
