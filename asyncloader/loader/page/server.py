"""The server of the live picture.

This file is about ``PageServer``: a page on this machine's own address 127.0.0.1, behind a token
that is made for it, served by a thread and a loop of its own. It looks at the loaders once a
second while somebody looks at it, and not at all otherwise. Other processes of the program may
report their panels to it (``Reporter`` does).

    browser ── GET  /token/        ──▶ the page, its style and its script
            ── GET  /token/events  ──▶ all panels, once a second
    why PID ── GET  /token/why     ──▶ what each loader waits for now
    ranks   ── POST /token/report  ──▶ their panels; the answer comes when new ones are wanted
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import os
import re
import secrets
import socket
import weakref
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from asyncloader.graph.svg import style
from asyncloader.loader.page.panels import Panel, Panels
from asyncloader.runtime import LoopThread, descriptors_for, in_thread
from asyncloader.system import in_forked_child

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

logger = logging.getLogger("asyncloader")
_SILENT = logging.Logger("asyncloader watch", logging.CRITICAL + 1)

#: How often it looks, while somebody looks at the page.
TICK_SECONDS = 1.0

#: What has not reported for so many ticks is not shown any more.
_MISSED_TICKS = 5
_MOST_VIEWERS = 32
_MOST_REPORT_BYTES = 4 << 20
_CLOSE_SECONDS = 1.0

#: How many connections may be open that have not shown the token, and for how long.
_MOST_STRANGERS = 16
STRANGE_SECONDS = 5.0

#: Whoever asks for another name was sent here by a page of somebody else.
_HOSTS = ("127.0.0.1", "localhost")

_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_RAW_HEADERS = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]

_EXTRA = (
    "the live picture needs starlette and uvicorn, which are not installed; install them with"
    " `pip install 'asyncloader[watch]'`"
)

_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
_App = Callable[[_Message, _Receive, _Send], Awaitable[None]]
_GuardedApp = Callable[[Callable[[], None], _Message, _Receive, _Send], Awaitable[None]]


def check_installed() -> None:
    """Raise ImportError, which says what to install, where the extra is missing."""
    try:
        import starlette
        import uvicorn
    except ImportError as error:
        raise ImportError(_EXTRA) from error
    del starlette, uvicorn


class PageServer:
    """Serves the panels until it is closed, or the process ends."""

    def __init__(self, panels: Panels) -> None:
        check_installed()
        self.panels = panels
        token = secrets.token_urlsafe(24)
        with descriptors_for("the live picture"):
            self._socket = socket.create_server(("127.0.0.1", 0))
        try:
            #: Where the page is. Who knows it may look.
            self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}/{token}/"
            self._thread = LoopThread("asyncloader watch")
            self._view = self._thread.call(lambda: self._open(token))
        except BaseException:
            self._socket.close()
            raise
        _servers.add(self)

    def close(self) -> None:
        """Close the port and end the thread, within two seconds."""
        _servers.discard(self)
        try:
            self._thread.call(self._aclose)
        finally:
            self._thread.close(_CLOSE_SECONDS)

    def leave_to_parent(self) -> None:
        """In a forked child: let go of the port and of who is connected."""
        _servers.discard(self)
        # The numbers stay taken: objects of the parent's loop believe that they own them.
        nothing = os.open(os.devnull, os.O_RDWR)
        for number in self._descriptors():
            os.dup2(nothing, number, inheritable=False)
        os.close(nothing)

    async def _open(self, token: str) -> _View:
        view = _View(self.panels)
        await self._listen(view.app(token))
        return view

    async def _listen(self, app: _GuardedApp) -> None:
        from uvicorn import Config
        from uvicorn.protocols.http.h11_impl import H11Protocol
        from uvicorn.server import ServerState

        # Without uvicorn's own server, which looks ten times a second whether it is to stop, and
        # handles signals. The logging of the program stays as it is.
        config = Config(
            app, http="h11", ws="none", lifespan="off", log_config=None, proxy_headers=False
        )
        config.load()
        self._state = state = ServerState()
        strangers = _Strangers()

        class Connection(H11Protocol):
            def __init__(self) -> None:
                super().__init__(config, state, {})
                self.app = partial(app, self._is_known)
                # The token is in the path, and must not get into a log.
                self.access_log = False
                # Nor may a stranger write to the program's.
                self.logger = _SILENT

            def _is_known(self) -> None:
                strangers.remove(self.transport)

            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                strangers.add(transport)

            def connection_lost(self, exc: Exception | None) -> None:
                strangers.remove(self.transport)
                super().connection_lost(exc)

            def data_received(self, data: bytes) -> None:
                try:
                    super().data_received(data)
                except Exception:
                    # Garbage behind a request that is being answered.
                    logger.debug("a connection is closed", exc_info=True)
                    self.transport.abort()

        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            Connection, sock=self._socket, backlog=_MOST_STRANGERS
        )

    def _descriptors(self) -> list[int]:
        """Return the descriptors of the port and of the connections to it."""
        sockets = [self._socket, *self._server.sockets]
        sockets += [
            connection.transport.get_extra_info("socket")
            for connection in list(self._state.connections)
        ]
        numbers = (each.fileno() for each in sockets if each is not None)
        return [number for number in numbers if number >= 0]

    async def _aclose(self) -> None:
        """Close the port, let answers end, and close the connections."""
        self._view.end()
        self._server.close()
        if tasks := list(self._state.tasks):
            await asyncio.wait(tasks, timeout=_CLOSE_SECONDS)
        for connection in list(self._state.connections):
            connection.transport.abort()
        self._socket.close()


_servers: weakref.WeakSet[PageServer] = weakref.WeakSet()


@in_forked_child
def _leave_to_parent() -> None:
    for server in list(_servers):
        server.leave_to_parent()


class _Strangers:
    """The connections that have not shown the token yet: a few, and not for long.

    Anybody on this machine can open connections, and each takes a descriptor of the program.
    """

    def __init__(self) -> None:
        self._ends: dict[asyncio.Transport, asyncio.TimerHandle] = {}

    def add(self, transport: asyncio.Transport) -> None:
        """Let one wait for a moment, and send the oldest away if there are too many."""
        if len(self._ends) >= _MOST_STRANGERS:
            oldest = next(iter(self._ends))
            self.remove(oldest)
            oldest.abort()
        loop = asyncio.get_running_loop()
        self._ends[transport] = loop.call_later(STRANGE_SECONDS, transport.abort)

    def remove(self, transport: asyncio.Transport) -> None:
        """One is known now, or gone."""
        if (end := self._ends.pop(transport, None)) is not None:
            end.cancel()


class _View:
    """What is shown, and who looks at it; everything on the server's loop."""

    def __init__(self, panels: Panels) -> None:
        self._panels = panels
        #: The panels of other processes, and the number of the tick in which they came.
        self._reported: dict[str, tuple[list[Panel], int]] = {}
        self._ticks = 0
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        # Done at the next tick, and replaced then.
        self._tick: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._latest: list[Panel] = []
        self._is_over = False

    def app(self, token: str) -> _GuardedApp:
        """Return the application, which answers those who know the token only."""
        from starlette.applications import Starlette
        from starlette.responses import Response
        from starlette.routing import Route

        def static(text: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
            async def answer(request: Request) -> Response:
                return Response(text, media_type=kind)

            return answer

        folder = files("asyncloader.loader.page")
        page, sheet, script = (
            (folder / f"page.{ending}").read_text(encoding="utf-8")
            for ending in ("html", "css", "js")
        )
        routes = [
            Route("/", static(page, "text/html")),
            Route("/style.css", static(style(), "text/css")),
            Route("/page.css", static(sheet, "text/css")),
            Route("/page.js", static(script, "text/javascript")),
            Route("/events", self._events),
            Route("/why", self._why),
            Route("/report", self._report, methods=["POST"]),
        ]
        app = Starlette(routes=routes)
        app.router.redirect_slashes = False
        return _guarded(app, token)

    def end(self) -> None:
        """End every answer that is under way."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        self._turn()

    async def _events(self, request: Request) -> _App | Response:
        from starlette.responses import PlainTextResponse

        if self._viewers >= _MOST_VIEWERS:
            return PlainTextResponse("too many pages look at this program already", 503)
        return self._stream_text if request.query_params.get("as") == "text" else self._stream_json

    async def _stream_text(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        await self._stream(_as_text, receive, send)

    async def _stream_json(self, scope: _Message, receive: _Receive, send: _Send) -> None:
        await self._stream(_as_json, receive, send)

    async def _stream(
        self, form: Callable[[list[Panel]], str], receive: _Receive, send: _Send
    ) -> None:
        headers = [(b"content-type", b"text/event-stream; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._enter()
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            while await self._ticks_before(gone):
                body = _event(form(self._latest))
                await send({"type": "http.response.body", "body": body, "more_body": True})
        finally:
            gone.cancel()
            self._leave()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _why(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse

        # Other processes report at one look what is seen at the next.
        self._enter()
        try:
            own = await in_thread(self._panels.why)
            for _ in range(2):
                await self._tick
        finally:
            self._leave()
        reported = (panel.waits for panels, _ in self._reported.values() for panel in panels)
        texts = "\n\n".join(filter(None, [own, *reported]))
        return PlainTextResponse(texts or "No loader has run yet.")

    def _enter(self) -> None:
        self._viewers += 1
        if self._viewers == 1:
            self._task = asyncio.create_task(self._look_on(), name="asyncloader watch")

    def _leave(self) -> None:
        self._viewers -= 1
        if not self._viewers and self._task is not None:
            self._task.cancel()

    async def _look_on(self) -> None:
        """Look at all loaders again and again; cancelled when nobody looks at the page."""
        while True:
            self._ticks += 1
            for name, (_, came_in) in list(self._reported.items()):
                if self._ticks - came_in > _MISSED_TICKS:
                    del self._reported[name]
            reported = [panel for panels, _ in self._reported.values() for panel in panels]
            self._latest = [*self._panels.look(), *sorted(reported, key=_by_title)]
            self._turn()
            await asyncio.sleep(TICK_SECONDS)

    def _turn(self) -> None:
        tick, self._tick = self._tick, asyncio.get_running_loop().create_future()
        tick.set_result(None)

    async def _ticks_before(self, gone: asyncio.Future[None]) -> bool:
        """Wait for the next tick; False if who waits is gone, or all ends, before that."""
        await asyncio.wait([gone, self._tick], return_when=asyncio.FIRST_COMPLETED)
        return not gone.done() and not self._is_over

    async def _report(self, request: Request) -> Response:
        from starlette.responses import PlainTextResponse, Response

        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MOST_REPORT_BYTES:
                return PlainTextResponse("the report is too long", 413)
        try:
            source, panels = report_of(bytes(body))
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            return PlainTextResponse(f"this is no report: {error}", 400)
        self._reported[source] = panels, self._ticks
        gone = asyncio.ensure_future(_disconnected(request.receive))
        try:
            if not await self._ticks_before(gone):
                self._reported.pop(source, None)
        finally:
            gone.cancel()
        return Response(status_code=204)


async def _disconnected(receive: _Receive) -> None:
    """Wait until the other side is gone."""
    while (await receive())["type"] != "http.disconnect":
        pass


def _event(data: str) -> bytes:
    """Return a server-sent event."""
    lines = "".join(f"data: {line}\n" for line in data.split("\n"))
    return f"{lines}\n".encode()


def _as_json(panels: list[Panel]) -> str:
    return json.dumps(
        [
            {"key": each.key, "title": each.title, "summary": each.summary, "html": each.html}
            for each in panels
        ]
    )


def _as_text(panels: list[Panel]) -> str:
    return "\n\n".join(each.text for each in panels) or "No loader has run yet."


def _by_title(panel: Panel) -> list[tuple[int, str]]:
    """Return what sorts titles as people do: rank 9 before rank 10."""
    return [(int(part or 0), rest) for part, rest in re.findall(r"(\d*)(\D*)", panel.title)]


#: What may be the key of a panel, or the name of a process that reports.
_KEY = re.compile(r"[A-Za-z0-9-]{1,80}")


def report(source: str, panels: list[Panel]) -> bytes:
    """Return the panels of a process as the body of a report."""
    return json.dumps({"source": source, "panels": [asdict(panel) for panel in panels]}).encode()


def report_of(body: bytes) -> tuple[str, list[Panel]]:
    """Return who reports, and the panels.

    Raises ValueError, TypeError, LookupError or RecursionError if it is no report.
    """
    found = json.loads(body)
    source, panels = found["source"], [Panel(**each) for each in found["panels"]]
    texts = [source, *(text for panel in panels for text in asdict(panel).values())]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("everything in it must be text")
    if not all(_KEY.fullmatch(key) for key in [source, *(panel.key for panel in panels)]):
        raise ValueError("a key has letters, digits and dashes only")
    return source, panels


def _guarded(app: _App, token: str) -> _GuardedApp:
    """Return an application that answers only those who know the token and came here directly.

    It says when somebody does.
    """

    async def guarded(
        is_known: Callable[[], None], scope: _Message, receive: _Receive, send: _Send
    ) -> None:
        from starlette.responses import PlainTextResponse, RedirectResponse

        async def send_with_headers(message: _Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *_RAW_HEADERS]
            await send(message)

        answer: _App = app
        given, slash, rest = scope["path"].removeprefix("/").partition("/")
        if not _is_own_name(scope["headers"]):
            answer = PlainTextResponse("this page has no such name", 403)
        elif not hmac.compare_digest(given.encode(), token.encode()):
            answer = PlainTextResponse("this is not the page's address: copy the whole of it", 403)
        else:
            is_known()
            if not slash:
                answer = RedirectResponse(f"/{token}/")
        path = f"/{rest}"
        await answer({**scope, "path": path, "raw_path": path.encode()}, receive, send_with_headers)

    return guarded


def _is_own_name(headers: list[tuple[bytes, bytes]]) -> bool:
    # Another page's name may be made to lead here, so that its script reads the answer.
    hosts = [value.decode("latin-1") for name, value in headers if name == b"host"]
    return len(hosts) == 1 and hosts[0].rpartition(":")[0] in _HOSTS
