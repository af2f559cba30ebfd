"""The protocol over HTTP: routes, bodies in and out, and refusals as JSON with a status.

A body is received once and viewed from then on; raw outputs are sent as views. Law: whatever is sent, the answer is of the protocol.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from bbgrap.graph.types import Array
from bbgrap.protocol.version import VERSION
from bbgrap.serving import http_bodies as bodies
from bbgrap.serving.datatypes import BodyBytes
from bbgrap.serving.gateway import Gateway, Inference, ended
from bbgrap.serving.infer_request import InferRequest
from bbgrap.serving.model import ServedModel
from bbgrap.serving.refusals import Refusal, RefusedError, malformed, refusal_of
from bbgrap.serving.request_head import MOST_BYTES
from bbgrap.serving.request_places import RequestPlace, RequestPlaces, ending

EXTENSIONS = ("binary_tensor_data", "model_configuration", "model_repository", "sequence", "statistics")

JSON_LENGTH = "inference-header-content-length"
BODY_S = 30.0
"""How long the next part of a body may take: a client that has gone without a word must not keep a place for ever."""

_INLINE_BYTES = 16 << 10
"""JSON up to here is parsed on the event loop, in some 100 µs, and what is answered is put together; else more hands cost as much."""

Endpoint = Callable[[Request], Any]
"""Returns a response, or what is answered as JSON, perhaps later."""


def server_metadata() -> dict[str, Any]:
    """Return what the protocol's clients are told of the server."""
    return {"name": "bbgrap", "version": VERSION, "extensions": list(EXTENSIONS)}


def make_app(gateway: Gateway, more: Sequence[BaseRoute] = ()) -> Starlette:
    """Return the application, which has further routes as well."""
    api = _Api(gateway)
    roots = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    asked = [  # routes are tried in this order
        *(("POST", f"{root}/infer", api.infer) for root in roots),
        *(("GET", path, lambda _: server_metadata()) for path in ("/v2", "/v2/")),
        ("GET", "/v2/health/live", lambda _: {"live": True}),
        ("GET", "/v2/health/ready", api.ready),
        ("GET", "/v2/models/stats", lambda _: _counted(model for _, model in sorted(gateway.repository.models.items()))),
        ("POST", "/v2/repository/index", api.index),
        ("POST", "/v2/repository/models/{model}/load", api.load),
        ("POST", "/v2/repository/models/{model}/unload", api.unload),
        *(("GET", root, lambda request: api.model(request).metadata()) for root in roots),
        *(("GET", f"{root}/ready", api.model_ready) for root in roots),
        *(("GET", f"{root}/config", lambda request: api.model(request).config()) for root in roots),
        *(("GET", f"{root}/stats", lambda request: _counted([api.model(request)])) for root in roots),
    ]
    routes = [Route(path, _answering(endpoint), methods=[method]) for method, path, endpoint in asked]
    return Starlette(routes=[*routes, *more], exception_handlers={HTTPException: _unrouted})


class _Parts(Response):
    """A response whose body is sent part by part, without copying them together."""

    def __init__(self, parts: Sequence[BodyBytes], headers: Mapping[str, str]) -> None:
        self.parts = parts
        super().__init__(None, 200, {**headers, "content-length": str(sum(map(len, parts)))})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        for left, part in zip(range(len(self.parts) - 1, -1, -1), self.parts, strict=True):
            await send({"type": "http.response.body", "body": part, "more_body": left > 0})


def _json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json.dumps(value).encode(), status, {"content-type": "application/json", **(headers or {})})


def refused(error: RefusedError) -> tuple[bytes, int, dict[str, str]]:
    """Return what a refusal says, its status and its headers."""
    after = error.kind.retry_after_s
    headers = {"content-type": "application/json", **({} if after is None else {"retry-after": str(after)})}
    return json.dumps({"error": error.reason}).encode(), error.kind.status, headers


async def _unrouted(request: Request, error: Exception) -> Response:
    """Answer what has no route, or another method."""
    assert isinstance(error, HTTPException)
    return _json({"error": f"{request.method} {request.url.path[:200]}: {error.detail}"}, error.status_code, error.headers)


def _answering(endpoint: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Let what an endpoint returns, and every error of it, become an answer."""

    async def answer(request: Request) -> Response:
        try:
            said = endpoint(request)
            if isawaitable(said):
                said = await said
            return said if isinstance(said, Response) else _json(said)
        except Exception as error:  # whatever it is, its sender gets an answer
            return Response(*refused(refusal_of(error)))

    return answer


class _Api:
    """The endpoints."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._repository = gateway.repository

    def ready(self, _: Request) -> Response:
        why = self._gateway.why_not_ready()
        # The specification calls the field `live` here, clients `ready`.
        return _json({"live": not why, "ready": not why, **({"error": why} if why else {})}, 503 if why else 200)

    def model_ready(self, request: Request) -> Response:
        model, why = self.model(request), self._gateway.why_not_ready()
        return _json({"name": model.name, "ready": not why, **({"error": why} if why else {})}, 503 if why else 200)

    async def index(self, request: Request) -> list[dict[str, Any]]:
        said = bodies.parse_json(await self._body(request))
        return await self._gateway.beside(lambda: self._repository.index(ready=bool(said.get("ready"))))

    async def load(self, request: Request) -> dict[str, Any]:
        with self._gateway.admitted() as place:
            parameters = bodies.parse_json(await self._body(request, place)).get("parameters")
            if parameters:
                raise malformed("parameters: models are loaded as their files say, without a configuration or files of the request")
            await self._gateway.loading(partial(self._repository.load, request.path_params["model"]))
        return {}

    async def unload(self, request: Request) -> dict[str, Any]:
        await self._body(request)
        await self._gateway.loading(partial(self._repository.unload, request.path_params["model"]))
        return {}

    async def infer(self, request: Request) -> Response:
        async with self._gateway.admitted_soon(_announced(request, self._gateway.limits.body_bytes)) as place:
            model = self.model(request)
            body = await self._body(request, place)
            encoding = request.headers.get("content-encoding", "").strip().lower()
            header = request.headers.get(JSON_LENGTH, "").strip()
            if encoding:
                body = await self._gateway.beside(partial(bodies.decompress, body, encoding, self._gateway.limits.body_bytes))
                place.count(len(body))
            length = bodies.json_length_of(header, len(body))
            if length <= _INLINE_BYTES:
                asked = bodies.parse_infer(body, length)
            else:
                asked = await self._gateway.beside(partial(bodies.parse_infer, body, length))
            accept = bodies.accepted_encoding(request.headers.get("accept-encoding", ""))
            answer = partial(_response, model, asked, accept)
            work = Inference(asked, answer, request.headers.get("traceparent", ""))
            return await _unless_gone(request, self._gateway.infer(model, work))

    def model(self, request: Request) -> ServedModel:
        """Return the model that a path names."""
        return self._repository.get(request.path_params["model"], request.path_params.get("version", ""))

    async def _body(self, request: Request, place: RequestPlace | None = None) -> BodyBytes:
        """Receive the body, of at most some KiB without a place: as many of these may come at once as there are connections.

        Raises:
            RefusedError: if it is too large, or does not come.
        """
        most = self._gateway.limits.body_bytes if place else MOST_BYTES
        announced = _announced(request, most)
        parts: list[bytes] = []
        size, loop = 0, asyncio.get_running_loop()
        place = place or RequestPlace(RequestPlaces())  # not one of the gateway's, and so never lost
        try:
            async with asyncio.timeout(BODY_S) as limit:
                place.await_body(ending(limit))
                while True:
                    message = await request.receive()
                    place.check()
                    place.has_part()
                    limit.reschedule(loop.time() + BODY_S)
                    if message["type"] == "http.disconnect":
                        raise malformed("body: the connection ended before it")
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > most:
                        raise _too_large(most)
                    if size > announced:
                        place.count(size)
                    if not message.get("more_body", False):
                        place.has_body()
                        return b"".join(parts)
        except TimeoutError:
            place.check()
            raise RefusedError(Refusal.SLOW_BODY, f"body: nothing of it came for {BODY_S:g} s") from None


def _counted(models: Iterable[ServedModel]) -> dict[str, Any]:
    return {"model_stats": [model.counted() for model in models]}


def _announced(request: Request, most: int) -> int:
    """Return how long a body is, 0 if its head does not say so.

    Raises:
        RefusedError: if it is too large.
    """
    announced = int(request.headers.get("content-length", "0"))
    if announced > most:
        raise _too_large(most)
    return announced


def _too_large(most: int) -> RefusedError:
    return RefusedError(Refusal.TOO_LARGE, f"body: expected at most {most} bytes{'' if most == MOST_BYTES else ' (--max-body)'}")


def encoded(model: ServedModel, asked: InferRequest, accept: str, outputs: list[Array]) -> tuple[list[BodyBytes], dict[str, str]]:
    """Return the parts of an answer, and its headers; `accept` is how it may be compressed."""
    named = list(zip(model.output_names(asked.output_names), outputs, strict=True))
    parts, json_length = bodies.answer_body(model.name, model.version, asked, named)
    headers = {"content-type": "application/octet-stream" if json_length else "application/json"}
    if json_length:
        headers[JSON_LENGTH] = str(json_length)
    if accept and sum(map(len, parts)) >= bodies.COMPRESSED_FROM:
        parts = [bodies.compress(parts, accept)]
        headers["content-encoding"] = accept
    elif sum(map(len, parts)) <= _INLINE_BYTES:
        parts = [b"".join(parts)]  # sent at once
    return parts, headers


def _response(model: ServedModel, asked: InferRequest, accept: str, outputs: list[Array]) -> Response:
    return _Parts(*encoded(model, asked, accept, outputs))


async def _unless_gone(request: Request, answer: Awaitable[Response]) -> Response:
    """Wait for an answer; if its client goes, cancel it."""
    answering = asyncio.ensure_future(answer)
    # After the whole body, all that comes is that the connection has ended.
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait((answering, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise RefusedError(Refusal.UNAVAILABLE, "the client has gone")
        return await answering
    finally:
        gone.cancel()
        if not answering.done():
            await ended(answering)
