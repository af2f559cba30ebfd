"""Bodies of inference over HTTP: JSON, which raw tensors may follow.

`Inference-Header-Content-Length` is the length of the JSON; the raw tensors follow in order, each with its `binary_data_size`.
"""

from __future__ import annotations

import json
import re
import threading
import zlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from bbgrap.graph.types import Array
from bbgrap.serving.datatypes import BodyBytes, check_shape, datatype_of_array, to_bytes, to_list
from bbgrap.serving.infer_request import MAX_TENSORS, InferRequest, InputTensor, RequestedOutput, part_of, refuse_parameters, timeout_of
from bbgrap.serving.refusals import Refusal, RefusedError, malformed

_WINDOW = {"gzip": 31, "deflate": 15}
"""zlib's `wbits` by the name of an encoding."""

_UNWANTED = re.compile(r";\s*q\s*=\s*0(\.0*)?\s*(;|$)")
"""In a part of `Accept-Encoding`: not this one."""

_LARGE_BYTES = 1 << 20
_LARGE_NUMBERS = 1 << 16
_LARGE = threading.Lock()
"""Held while large JSON becomes arrays, or arrays that: it takes some sixteen times its size meanwhile, and no less time if two do."""

COMPRESSED_FROM = 1024
"""Answers below this many bytes fit into a packet either way."""


def decompress(body: BodyBytes, encoding: str, most: int) -> BodyBytes:
    """Return what a body holds, at most so many bytes.

    Raises:
        RefusedError: if the encoding is unknown, the body is not in it, or it holds more.
    """
    if encoding in ("", "identity"):
        return body
    if encoding not in _WINDOW:
        raise RefusedError(Refusal.ENCODING, f"Content-Encoding: expected gzip, deflate or identity, got {encoding[:40]!r}")
    reader = zlib.decompressobj(_WINDOW[encoding])
    try:
        content = reader.decompress(body, most + 1)
    except zlib.error as error:
        raise malformed(f"body: it is not in {encoding}: {error}") from None
    if len(content) > most:
        raise RefusedError(Refusal.TOO_LARGE, f"body: more than {most} bytes once it is decompressed (--max-body)")
    if not reader.eof or reader.unused_data:
        raise malformed(f"body: it is not one whole stream of {encoding}")
    return content


def compress(parts: Sequence[BodyBytes], encoding: str) -> bytes:
    """Return the parts of a body, compressed as fast as it goes."""
    writer = zlib.compressobj(1, wbits=_WINDOW[encoding])
    return b"".join([*(writer.compress(part) for part in parts), writer.flush()])


def accepted_encoding(accept: str) -> str:
    """Return how an answer may be compressed, by the header `Accept-Encoding`; empty: not at all."""
    offered = {part.split(";")[0].strip() for part in accept.lower().split(",") if not _UNWANTED.search(part)}
    return next((name for name in _WINDOW if name in offered), "")


def parse_json(text: BodyBytes) -> dict[str, Any]:
    """Return the object in a body; an empty text is an empty one.

    Raises:
        RefusedError: if it is none.
    """
    try:
        value = json.loads(bytes(text)) if len(text) else {}
    except (ValueError, RecursionError) as error:
        raise malformed(f"body: it is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise malformed(f"body: expected a JSON object, got a {type(value).__name__}")
    return value


def json_length_of(header: str, body_length: int) -> int:
    """Return the length of the JSON in a body; all of it without the header.

    Raises:
        RefusedError: if the header is no length within the body.
    """
    if not header:
        return body_length
    if not (header.isascii() and header.isdecimal()) or len(header) > 18 or int(header) > body_length:
        raise malformed(f"Inference-Header-Content-Length: expected at most the body's {body_length}, got {header[:40]!r}")
    return int(header)


def parse_infer(body: BodyBytes, length: int) -> InferRequest:
    """Return the request in a body whose first `length` bytes are JSON; what follows them is viewed, not copied.

    Raises:
        RefusedError: if it is none.
    """
    if length <= _LARGE_BYTES:
        return _infer_in(body, length)
    with _LARGE:
        asked = _infer_in(body, length)
        return replace(asked, inputs=tuple(replace(given, content=given.array()) for given in asked.inputs))


def _infer_in(body: BodyBytes, length: int) -> InferRequest:
    view = memoryview(body)
    said = parse_json(view[:length])
    parameters = _parameters(said, "body")
    timeout_s, part = timeout_of(parameters), part_of(parameters)
    name = said.get("id", "")
    if not isinstance(name, str):
        raise malformed("id: expected a text")
    rest = view[length:]
    inputs = []
    for item in _objects(said, "inputs"):
        given, size = _input(item, rest)
        rest = rest[size:]
        inputs.append(given)
    if len(rest):
        raise malformed(f"body: {len(rest)} bytes follow the last input")
    binary = bool(parameters.get("binary_data_output"))
    return InferRequest(name, part, timeout_s, tuple(inputs), tuple(_output(item, binary) for item in _objects(said, "outputs")), binary)


def _parameters(said: Mapping[str, Any], whose: str) -> Mapping[str, Any]:
    parameters = said.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise malformed(f"{whose}: parameters: expected an object")
    refuse_parameters(parameters)
    return parameters


def _objects(said: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    items = said.get(key) or []
    if not isinstance(items, list) or len(items) > MAX_TENSORS or not all(isinstance(item, dict) for item in items):
        raise malformed(f"{key}: expected a list of objects, at most {MAX_TENSORS}")
    if not all(isinstance(item.get("name"), str) for item in items):
        raise malformed(f"{key}: each needs a name")
    return items


def _input(said: Mapping[str, Any], rest: memoryview) -> tuple[InputTensor, int]:
    name = said["name"]
    datatype, shape = check_shape(name, said.get("datatype"), said.get("shape"))
    size = _parameters(said, f"input '{name}'").get("binary_data_size")
    data = said.get("data")
    if size is None:
        if not isinstance(data, list):
            raise malformed(f"input '{name}': expected data as a list, or binary_data_size")
        return InputTensor(name, datatype, shape, data), 0
    if type(size) is not int or not 0 <= size <= len(rest):
        raise malformed(f"input '{name}': binary_data_size: expected at most the {len(rest)} bytes that are left, got {size!r:.40}")
    if data is not None:
        raise malformed(f"input '{name}': expected data or binary_data_size, got both")
    return InputTensor(name, datatype, shape, rest[:size]), size


def _output(said: Mapping[str, Any], binary: bool) -> RequestedOutput:
    return RequestedOutput(said["name"], bool(_parameters(said, f"output '{said['name']}'").get("binary_data", binary)))


def answer_body(name: str, version: str, asked: InferRequest, outputs: Sequence[tuple[str, Array]]) -> tuple[list[BodyBytes], int]:
    """Return an answer's parts, the JSON first and then views of raw tensors, and how long the JSON is where raw tensors may follow."""
    binary = {wanted.name: wanted.binary for wanted in asked.outputs}
    given = [(output, array, binary.get(output, asked.binary)) for output, array in outputs]
    listed = sum(array.size for _, array, is_raw in given if not is_raw)
    with _LARGE if listed > _LARGE_NUMBERS else nullcontext():
        return _answer_of(name, version, asked.id, given)


def _answer_of(name: str, version: str, request: str, outputs: Sequence[tuple[str, Array, bool]]) -> tuple[list[BodyBytes], int]:
    described, raw = [], list[BodyBytes]()
    for output, array, is_raw in outputs:
        entry: dict[str, Any] = {"name": output, "datatype": datatype_of_array(array), "shape": list(array.shape)}
        if is_raw:
            raw.append(to_bytes(array))
            entry["parameters"] = {"binary_data_size": len(raw[-1])}
        else:
            entry["data"] = to_list(array)
        described.append(entry)
    said = {"model_name": name, "model_version": version, **({"id": request} if request else {}), "outputs": described}
    text = json.dumps(said, separators=(",", ":")).encode()
    return [text, *raw], len(text) if raw else 0
