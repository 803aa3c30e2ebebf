"""Connections that give up a server which answers without end.

This file is about ``Connector``, whose connections accept few interim answers (100, 102,
103) before the answer itself. aiohttp reads as many as are sent, and keeps those that it has
not looked at yet. It is imported with this file.
"""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from aiohttp import TCPConnector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

#: A server that takes long may say a few times that it is still at work.
MAX_INTERIM_ANSWERS = 100

#: So much of what is no body is parsed at once: it may be hundreds of answers.
_STEP_BYTES = 1 << 12


class Connector(TCPConnector):
    """Opens connections of the kind below."""

    def __init__(self, *, limit: int) -> None:
        super().__init__(limit=limit)
        loop = asyncio.get_running_loop()
        self._factory = functools.partial(Connection, loop=loop)  # type: ignore[assignment]


class Connection(ResponseHandler):
    """A connection that is closed when more comes for a request than it should."""

    _answers = 0

    def set_response_params(self, **params: Any) -> None:
        """Begin a request."""
        self._answers = 0
        super().set_response_params(**params)

    def data_received(self, data: bytes) -> None:
        # Once a body has begun it is fed on whole, and what follows it is little.
        while len(data) > _STEP_BYTES and self._is_between_bodies():
            super().data_received(data[:_STEP_BYTES])
            data = data[_STEP_BYTES:]
        if self._answers <= MAX_INTERIM_ANSWERS + 1:
            super().data_received(data)

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Hold an answer for whoever waits for it."""
        self._answers += 1
        if self._answers <= MAX_INTERIM_ANSWERS + 1:
            super().feed_data(data, size)
        elif self._answers == MAX_INTERIM_ANSWERS + 2:
            told = f"the server sent more than {MAX_INTERIM_ANSWERS} interim answers"
            self.set_exception(HttpProcessingError(message=told))
            if self.transport is not None:
                self.transport.abort()

    def _is_between_bodies(self) -> bool:
        has_body = self._payload is not None and not self._payload.is_eof()
        return not has_body and self._answers <= MAX_INTERIM_ANSWERS + 1
