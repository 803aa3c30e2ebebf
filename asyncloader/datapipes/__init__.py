"""The datapipes that a graph is made of: iter pipes are in ``iter``, map pipes in ``map``."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncloader.datapipes import iter, map
    from asyncloader.datapipes.base import functional_datapipe

__all__ = ["functional_datapipe", "iter", "map"]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    # Lazy, so that a process imports only the modules of the pipes in its graph.
    found: Any
    if name == "map":
        import asyncloader.datapipes.map as found
    elif name in ("functional_datapipe", "iter"):
        import asyncloader.datapipes.iter as found
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found.functional_datapipe if name == "functional_datapipe" else found
