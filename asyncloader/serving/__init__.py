"""Requests in, answers out: a graph that answers the requests of an async server."""

from asyncloader.errors import Overloaded
from asyncloader.serving.feed import Feed
from asyncloader.serving.requests import FeedStats

__all__ = ["Feed", "FeedStats", "Overloaded"]


def __dir__() -> list[str]:
    return __all__
