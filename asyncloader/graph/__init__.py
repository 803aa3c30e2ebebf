"""Graphs as data: walk them, change them, copy them, cut them, draw them."""

from asyncloader.datapipes.edges import edges_of
from asyncloader.graph.cut import Cut, WorkerPart, cut_graph, read_without_fork
from asyncloader.graph.draw import to_dot, to_html, to_mermaid, to_svg, to_text
from asyncloader.graph.edit import copy_graph, remove_dp, replace_dp
from asyncloader.graph.fingerprint import differences, fingerprint
from asyncloader.graph.settings import (
    apply_random_seed,
    apply_sharding,
    apply_shuffle_settings,
    check_shuffle_before_sharding,
    set_datapipes_seed,
    set_graph_random_seed,
)
from asyncloader.graph.walk import (
    DataPipe,
    DataPipeGraph,
    breadth_first,
    find_dps,
    list_dps,
    traverse_dps,
)

__all__ = [
    "Cut",
    "DataPipe",
    "DataPipeGraph",
    "WorkerPart",
    "apply_random_seed",
    "apply_sharding",
    "apply_shuffle_settings",
    "breadth_first",
    "check_shuffle_before_sharding",
    "copy_graph",
    "cut_graph",
    "differences",
    "edges_of",
    "find_dps",
    "fingerprint",
    "list_dps",
    "read_without_fork",
    "remove_dp",
    "replace_dp",
    "set_datapipes_seed",
    "set_graph_random_seed",
    "to_dot",
    "to_html",
    "to_mermaid",
    "to_svg",
    "to_text",
    "traverse_dps",
]


def __dir__() -> list[str]:
    return __all__
