"""Requests in, answers out: a graph that serves an async server."""

from asyncloader.errors import Overloaded
from asyncloader.serving.feed import Feed
from asyncloader.serving.stats import FeedStats
from asyncloader.serving.unanswered import FedBatch, FedItem

__all__ = ["FedBatch", "FedItem", "Feed", "FeedStats", "Overloaded"]
