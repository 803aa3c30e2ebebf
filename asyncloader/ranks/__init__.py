"""The ranks of a distributed run, and what they say to one another."""

from asyncloader.ranks.gloo import is_initialized, open_group, own_rank, world_size
from asyncloader.ranks.group import Alone, Group
from asyncloader.ranks.statements import Flags, Kind, Statement, ranks_in_words

__all__ = [
    "Alone",
    "Flags",
    "Group",
    "Kind",
    "Statement",
    "is_initialized",
    "open_group",
    "own_rank",
    "ranks_in_words",
    "world_size",
]
