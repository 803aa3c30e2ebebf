"""A loader's own copy of a reading service.

This file is about ``own_service``: a service that was given to a loader can be given to
another one as well, since neither runs it itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from asyncloader.datapipes.naming import kind_name
from asyncloader.services.base import ReadingServiceInterface
from asyncloader.services.in_process import InProcessReadingService

#: What our services call is the user's, with all that it is bound to.
_FUNCTIONS = ("init_fn", "reset_fn", "worker_init_fn", "worker_reset_fn")


def own_service(service: ReadingServiceInterface | None) -> ReadingServiceInterface:
    """Return a copy of a service, with the same functions; in-process where none was given."""
    if service is None:
        return InProcessReadingService()
    if not isinstance(service, ReadingServiceInterface):
        raise TypeError(
            f"reading_service must derive from ReadingServiceInterface, got {kind_name(service)}"
        )
    return copy.deepcopy(service, {id(each): each for each in _functions_of(service)})


def _functions_of(service: Any) -> Iterator[Any]:
    for name in _FUNCTIONS:
        function = getattr(service, name, None)
        # A method of the service is the copy's own.
        if getattr(function, "__self__", None) is not service:
            yield function
    for each in getattr(service, "reading_services", ()):
        yield from _functions_of(each)
