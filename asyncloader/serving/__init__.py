"""Requests in, answers out: a graph that answers the requests of an async server."""

from asyncloader.errors import Overloaded
from asyncloader.serving.feed import Feed
from asyncloader.serving.requests import FedBatch, FedItem, FeedStats

__all__ = ["FedBatch", "FedItem", "Feed", "FeedStats", "Overloaded"]
