"""The page's routes: its files, what it is told (server-sent events), the pictures of a plan; and `/metrics`. All of it is read-only.

The page loads nothing from elsewhere, and its policy lets no browser do so; it has no inline script or style.
"""

from __future__ import annotations

import asyncio
import re
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from bbgrap.errors import BbgrapError
from bbgrap.observing.metrics import CONTENT_TYPE, exposition
from bbgrap.report.svg import DARK, LIGHT, STYLE
from bbgrap.serving.gateway import Gateway, ended
from bbgrap.serving.status_poller import StatusPoller
from bbgrap.serving.tracing import Tracing
from bbgrap.serving.triton_metrics import triton_metrics
from bbgrap.session.stops import StoppedError

MAX_PAGES = 64
"""Pages that are told at once."""
_STUCK_S = 30.0
"""A page that takes nothing for so long has gone."""

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
_KINDS = {"html": "text/html; charset=utf-8", "js": "text/javascript", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}
_STREAM = "text/event-stream"
_FILES = ("index.html", "page.css", "page.js", "panels.js", "plans.js", "draw.js", "icon.svg")
_THEMES = "".join(
    f':root[data-theme="{name}"] :is(body, svg).bbgrap {{{colours}}}\n:root[data-theme="{name}"] {{ color-scheme: {name}; }}\n'
    for name, colours in (("light", LIGHT), ("dark", DARK))
)
_DIGEST = re.compile(r"[0-9a-f]{64}")


def page_routes(gateway: Gateway) -> list[BaseRoute]:
    """Return the routes of the page and of `/metrics`."""
    poller, tracing = StatusPoller(gateway), gateway.tracing
    files = {name: _file(name) for name in _FILES}

    async def told(request: Request) -> Response:
        if request.method == "HEAD":
            return _answer(b"", _STREAM)
        if tracing.watchers >= MAX_PAGES:
            return _refused(503, f"{MAX_PAGES} pages are open; close one")
        return _Stream(poller, tracing)

    async def plan(request: Request) -> Response:
        key = request.path_params["plan"]
        if not _DIGEST.fullmatch(key):
            return _refused(404, "expected the key of a plan: 64 hexadecimal digits")
        try:
            return _answer(await poller.plan(key), "application/json")
        except (BbgrapError, StoppedError, TimeoutError) as error:
            return _refused(404, str(error) or "the coordinator does not answer")

    async def metrics(_: Request) -> Response:
        status = (await poller.snapshot()).status
        models = [model for _, model in sorted(gateway.repository.models.items())]
        return _answer((await asyncio.to_thread(exposition, status, triton_metrics(models, status))).encode(), CONTENT_TYPE)

    return [
        Route("/", files["index.html"], methods=["GET"]),
        *(Route(f"/page/{name}", file, methods=["GET"]) for name, file in files.items()),
        Route("/live", told, methods=["GET"]),
        Route("/live/plans/{plan}", plan, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


def _file(name: str) -> Response:
    content = (resources.files("bbgrap.serving") / "page" / name).read_bytes()
    if name == "page.css":
        content = (STYLE + _THEMES).encode() + content
    return _answer(content, _KINDS[name.rpartition(".")[2]])


def _answer(content: bytes, kind: str, status: int = 200) -> Response:
    return Response(content, status, {**_HEADERS, "content-type": kind})


def _refused(status: int, why: str) -> Response:
    return _answer(why.encode(), "text/plain; charset=utf-8", status)


class _Stream(Response):
    """What one page is told, until it goes or the server stops."""

    def __init__(self, poller: StatusPoller, tracing: Tracing) -> None:
        super().__init__(None, 200, {**_HEADERS, "content-type": _STREAM, "cache-control": "no-store"})
        del self.headers["content-length"]
        self._poller = poller
        self._tracing = tracing

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._tracing.watchers += 1
        tasks = (asyncio.ensure_future(_gone(receive)), asyncio.ensure_future(self._tell(send)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._tracing.watchers -= 1
            for task in tasks:
                await ended(task)

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for text in self._poller.told():
                await asyncio.wait_for(send({"type": "http.response.body", "body": text, "more_body": True}), _STUCK_S)
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        except TimeoutError:
            return


async def _gone(receive: Receive) -> None:
    message: Message = {}
    while message.get("type") != "http.disconnect":
        message = await receive()
