"""The protocol over gRPC. Answers are the objects that HTTP gives, made into messages; only inference has a form of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import isawaitable
from typing import Any

import grpc
import grpc.aio
from google.protobuf import json_format
from google.protobuf.message import DecodeError

from bbgrap.errors import UsageError
from bbgrap.graph.types import Array
from bbgrap.serving.connection_threads import IDLE_S
from bbgrap.serving.datatypes import BodyBytes, check_shape, datatype_of_array, to_bytes
from bbgrap.serving.gateway import DEADLINE_S, Gateway, Inference
from bbgrap.serving.grpc_schema import SERVICE, message
from bbgrap.serving.http import BODY_S, server_metadata
from bbgrap.serving.infer_request import MAX_TENSORS, InferRequest, InputTensor, RequestedOutput, part_of, refuse_parameters, timeout_of
from bbgrap.serving.listening import most_descriptors
from bbgrap.serving.model import ServedModel
from bbgrap.serving.refusals import Refusal, RefusedError, malformed, refusal_of
from bbgrap.serving.request_places import RequestPlace, RequestPlaces, ending

_BESIDE = 64
"""Calls at once beyond those in flight: questions for readiness must be answered when all places are taken."""

_MOST_AWAITED = 64
"""Questions whose message has not come: of more, the one that waits for longest ends, so that who says nothing keeps nobody out. Chosen."""

_ADMITTED = ("ModelInfer", "RepositoryModelLoad")
"""What has a place among the requests in flight, before its message is read: grpc reads none that nobody asks for."""

_GREETING_S = 5.0
"""How long a connection may say nothing of HTTP/2 at first; grpc's default is 120 s. Chosen: some round trips, with losses."""

_MOST_REASON = 1024
"""Bytes of a reason; escaped they are up to three times as many."""

_RAW_OUTPUT = bytes([6 << 3 | 2])
"""What is before each of `raw_output_contents`: the number of that field, and that a length follows."""

_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}

_InferResponse = message("ModelInferResponse")
_Called = Callable[[Any, Any], Any]
"""Returns an object or a message, perhaps later."""
_Bodies = AsyncIterator[bytes]
_Read = Callable[[_Bodies, Any], Awaitable[Any]]
"""Reads the message of a call first."""


async def start_grpc(gateway: Gateway, address: str) -> tuple[grpc.aio.Server, int]:
    """Start serving at `HOST:PORT`, and return the server and its port.

    Raises:
        UsageError: if the address cannot be used.
    """
    most = gateway.limits.in_flight + _BESIDE
    server = grpc.aio.server(
        options=[
            ("grpc.max_concurrent_streams", most),  # of a connection; beyond a thousand that wait grpc cancels calls, whosever they are
            ("grpc.max_allowed_incoming_connections", most_descriptors() // 2),  # of HTTP's, too, which must go on beside them
            ("grpc.max_connection_idle_ms", round(IDLE_S * 1000)),  # whose call is under way when it ends sends it again by itself
            ("grpc.server_handshake_timeout_ms", round(_GREETING_S * 1000)),
            ("grpc.keepalive_time_ms", round(IDLE_S * 1000)),  # else who was stopped or cut off has its call and its answer kept for hours
            ("grpc.max_receive_message_length", gateway.limits.body_bytes),
            ("grpc.max_send_message_length", -1),
            ("grpc.so_reuseport", 0),  # two servers at one port would share its clients by chance
        ],
        maximum_concurrent_rpcs=most + _MOST_AWAITED,
    )
    server.add_generic_rpc_handlers((_handlers(gateway),))
    try:
        port = server.add_insecure_port(address)
    except RuntimeError as error:
        raise UsageError(f"--grpc {address}: {error}") from None
    await server.start()
    return server, port


def _handlers(gateway: Gateway) -> grpc.GenericRpcHandler:
    asking = RequestPlaces()
    handlers = {
        name: grpc.stream_unary_rpc_method_handler(  # of unary calls, too: so it is here when a message is read, and how long it may take
            _answering(_admitted(gateway, name, call) if name in _ADMITTED else _asked(asking, name, call), message(f"{name}Response")),
        )
        for name, call in _Calls(gateway).methods().items()
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _admitted(gateway: Gateway, name: str, call: _Called) -> _Read:
    """Read a message that may be large once it is let in, as HTTP does: nobody knows how much of it has come, so it may take longer.

    Nor does anybody know how large it is: it counts as the longest at first, later as those that have come lately.
    """
    usual = gateway.limits.body_bytes

    async def read(bodies: _Bodies, place: RequestPlace) -> Any:  # noqa: ANN401 - grpc ships no types
        nonlocal usual
        body = await _only(bodies, place, DEADLINE_S, patience_s=BODY_S)
        usual = max(len(body), usual * 3 // 4)
        place.count(len(body))
        return _parsed(name, body)

    async def answer(bodies: _Bodies, context: Any) -> Any:  # noqa: ANN401 - grpc ships no types
        async with gateway.admitted_soon(usual) as place:
            return await call(await read(bodies, place), context)

    return answer


def _asked(asking: RequestPlaces, name: str, call: _Called) -> _Read:
    """Read a small message whoever is in flight: of too many that do not come, the one that waits for longest ends."""

    async def answer(bodies: _Bodies, context: Any) -> Any:  # noqa: ANN401 - grpc ships no types
        with asking.lock:
            if len(asking) >= _MOST_AWAITED:
                asking.free_one()
            place = asking.take()
        with asking.held(place):
            body = await _only(bodies, place, BODY_S, patience_s=0.0)
        value = call(_parsed(name, body), context)
        return await value if isawaitable(value) else value

    return answer


def _answering(read: _Read, response: Any) -> _Read:  # noqa: ANN401 - grpc ships no types
    """Let an object become a message, and every error a status."""

    async def answer(bodies: _Bodies, context: Any) -> Any:  # noqa: ANN401 - grpc ships no types
        try:
            value = await read(bodies, context)
        except Exception as error:  # whatever it is, its sender gets an answer
            refused = refusal_of(error)
            after = refused.kind.retry_after_s
            if after is not None:
                context.set_trailing_metadata((("retry-after", str(after)),))
            return await context.abort(getattr(grpc.StatusCode, refused.kind.code), _short(refused.reason))
        return json_format.ParseDict(value, response()).SerializeToString() if isinstance(value, dict) else value

    return answer


def _short(reason: str) -> str:
    """Return the beginning of a reason: a status travels as a header, and clients take no more than 8 KiB of these, escaped."""
    text = reason.encode("utf-8", "replace")
    return text[:_MOST_REASON].decode("utf-8", "ignore") + (" ..." if len(text) > _MOST_REASON else "")


async def _only(bodies: _Bodies, place: RequestPlace, most_s: float, *, patience_s: float) -> bytes:
    """Read a call's message, which others that wait for its place leave so much time."""
    try:
        async with asyncio.timeout(most_s) as limit:
            place.await_body(ending(limit), patience_s)
            body = await anext(bodies)
            async for _ in bodies:  # else grpc before 1.83 takes the call for one that goes on, and counts it for ever
                raise malformed("the call has more than one message")
            place.has_body()
            return body
    except TimeoutError:
        place.check()
        raise RefusedError(Refusal.SLOW_BODY, f"the message did not come within {most_s:g} s") from None
    except StopAsyncIteration:
        raise malformed("the call ended without a message") from None


def _parsed(name: str, body: bytes) -> Any:  # noqa: ANN401 - grpc ships no types
    kind = message(f"{name}Request")
    try:
        return kind.FromString(body)
    except DecodeError as error:  # grpc would call it a fault of the server
        raise malformed(f"the body is no {kind.DESCRIPTOR.name}: {error}") from None


class _Calls:
    """The methods."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._repository = gateway.repository

    def methods(self) -> dict[str, _Called]:
        """Return what answers each of them."""
        return {
            "ServerLive": lambda *_: {"live": True},
            "ServerReady": lambda *_: {"ready": not self._gateway.why_not_ready()},
            "ServerMetadata": lambda *_: server_metadata(),
            "ModelReady": lambda request, _: {"ready": self._has(request) and not self._gateway.why_not_ready()},
            "ModelMetadata": lambda request, _: self._model(request).metadata(),
            "ModelConfig": lambda request, _: {"config": self._model(request).config()},
            "ModelStatistics": lambda request, _: {"model_stats": [model.counted() for model in self._models(request)]},
            "ModelInfer": self.infer,
            "RepositoryIndex": self.index,
            "RepositoryModelLoad": self.load,
            "RepositoryModelUnload": self.unload,
        }

    async def index(self, request: Any, _: Any) -> Mapping[str, Any]:  # noqa: ANN401
        return {"models": await self._gateway.beside(partial(self._repository.index, ready=request.ready))}

    async def load(self, request: Any, _: Any) -> Mapping[str, Any]:  # noqa: ANN401
        if request.parameters:
            raise malformed("parameters: models are loaded as their files say, without a configuration or files of the request")
        await self._gateway.loading(partial(self._repository.load, request.model_name))
        return {}

    async def unload(self, request: Any, _: Any) -> Mapping[str, Any]:  # noqa: ANN401
        await self._gateway.loading(partial(self._repository.unload, request.model_name))
        return {}

    async def infer(self, request: Any, context: Any) -> Any:  # noqa: ANN401
        model = self._repository.get(request.model_name, request.model_version)
        asked = _infer_of(request, context.time_remaining())
        del request  # it has all inputs a second time
        sent = dict(context.invocation_metadata() or ())
        answer = partial(_response, model, asked)
        answered = await self._gateway.infer(model, Inference(asked, answer, str(sent.get("traceparent", ""))))
        is_sent = self._gateway.begin_sending(2 * len(answered))  # grpc has a copy
        context.add_done_callback(lambda _: is_sent())
        return answered

    def _model(self, request: Any) -> ServedModel:  # noqa: ANN401
        return self._repository.get(request.name, request.version)

    def _has(self, request: Any) -> bool:  # noqa: ANN401
        with suppress(RefusedError):
            self._model(request)
            return True
        return False

    def _models(self, request: Any) -> list[ServedModel]:  # noqa: ANN401
        return [self._model(request)] if request.name else [model for _, model in sorted(self._repository.models.items())]


def _infer_of(request: Any, left_s: float | None) -> InferRequest:  # noqa: ANN401
    """Return what is asked for; `left_s` is the call's own deadline.

    Raises:
        RefusedError: if it makes no sense.
    """
    parameters = _parameters(request.parameters)
    refuse_parameters(parameters)
    given_s = timeout_of(parameters)
    timeout_s = min((seconds for seconds in (left_s, given_s) if seconds is not None), default=None)
    raw = list(request.raw_input_contents)
    if len(request.inputs) > MAX_TENSORS or len(request.outputs) > MAX_TENSORS:
        raise malformed(f"expected at most {MAX_TENSORS} inputs and outputs")
    if raw and len(raw) != len(request.inputs):
        raise malformed(f"raw_input_contents: expected one for each of {len(request.inputs)} inputs, got {len(raw)}")
    inputs = tuple(_given(item, raw[place] if raw else None) for place, item in enumerate(request.inputs))
    outputs = []
    for item in request.outputs:
        refuse_parameters(_parameters(item.parameters))
        outputs.append(RequestedOutput(item.name, binary=True))
    return InferRequest(request.id, part_of(parameters), timeout_s, inputs, tuple(outputs), binary=True)


def _given(item: Any, raw: BodyBytes | None) -> InputTensor:  # noqa: ANN401
    refuse_parameters(_parameters(item.parameters))
    datatype, shape = check_shape(item.name, item.datatype, item.shape)
    filled = [field.name for field, _ in item.contents.ListFields()]
    if raw is not None:
        if filled:
            raise malformed(f"input '{item.name}': expected contents or raw_input_contents, got both")
        return InputTensor(item.name, datatype, shape, raw)
    field = _CONTENTS.get(datatype)
    if field is None:
        raise malformed(f"input '{item.name}': {datatype} is given in raw_input_contents")
    if filled not in ([], [field]):
        raise malformed(f"input '{item.name}': {datatype} is given in {field}, got {', '.join(filled)}")
    return InputTensor(item.name, datatype, shape, list(getattr(item.contents, field)))


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    return {name: getattr(value, choice) for name, value in given.items() if (choice := value.WhichOneof("parameter_choice"))}


def _varint(number: int) -> bytes:
    """Return a length as protobuf writes it: seven bits a byte, the last ones first."""
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes((*digits, number))


def _response(model: ServedModel, asked: InferRequest, outputs: list[Array]) -> bytes:
    """Return the message as it is sent: made by protobuf, its raw outputs would be copied twice more."""
    answer = _InferResponse(model_name=model.name, model_version=model.version, id=asked.id)
    for name, array in zip(model.output_names(asked.output_names), outputs, strict=True):
        answer.outputs.add(name=name, datatype=datatype_of_array(array), shape=array.shape)
    parts: list[BodyBytes] = [answer.SerializeToString()]
    for array in outputs:
        raw = to_bytes(array)
        parts += [_RAW_OUTPUT, _varint(len(raw)), raw]
    if sum(map(len, parts)) >= 1 << 31:
        raise RefusedError(Refusal.TOO_LARGE, "the answer has 2 GiB or more, which no message of gRPC can; ask over HTTP")
    return b"".join(parts)
