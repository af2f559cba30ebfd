"""What the tests speak: the protocol over HTTP and gRPC, by the standard library and the server's own messages."""

from __future__ import annotations

import http.client
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import grpc
import ml_dtypes
import numpy as np

from bbgrap.graph.types import Array
from bbgrap.serving.grpc_schema import SERVICE, message

JSON_LENGTH = "Inference-Header-Content-Length"
NAMES = {
    np.dtype(np.bool_): "BOOL",
    **{np.dtype(name): name.upper() for name in ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")},
    np.dtype(np.float16): "FP16",
    np.dtype(np.float32): "FP32",
    np.dtype(np.float64): "FP64",
    np.dtype(ml_dtypes.bfloat16): "BF16",
    np.dtype(object): "BYTES",
}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def raw(array: Array) -> bytes:
    if array.dtype == object:
        return b"".join(struct.pack("<I", len(text.encode())) + text.encode() for text in array.reshape(-1))
    return array.tobytes()


def of_raw(datatype: str, shape: Sequence[int], content: bytes) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(content, DTYPES[datatype]).reshape(shape)
    texts, start = [], 0
    while start < len(content):
        (length,) = struct.unpack_from("<I", content, start)
        texts.append(content[start + 4 : start + 4 + length].decode())
        start += 4 + length
    return np.array(texts, object).reshape(shape)


def binary_body(feed: Mapping[str, Array], **more: object) -> tuple[bytes, dict[str, str]]:
    """A request with raw tensors both ways, and its headers."""
    inputs = [
        {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape), "parameters": {"binary_data_size": len(raw(array))}}
        for name, array in feed.items()
    ]
    said = {"inputs": inputs, "parameters": {"binary_data_output": True}, **more}
    text = json.dumps(said).encode()
    return text + b"".join(map(raw, feed.values())), {JSON_LENGTH: str(len(text))}


def json_body(feed: Mapping[str, Array], **more: object) -> bytes:
    inputs = [
        {"name": name, "datatype": NAMES[array.dtype], "shape": list(array.shape), "data": array.astype(object).tolist()}
        for name, array in feed.items()
    ]
    return json.dumps({"inputs": inputs, **more}, default=float).encode()


class Http:
    """A connection."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)
        self.headers: Mapping[str, str] = {}

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        self.connection.request(method, path, body, dict(headers or {}))
        answer = self.connection.getresponse()
        self.headers = {name.lower(): value for name, value in answer.getheaders()}
        return answer.status, answer.read()

    def json(self, method: str, path: str, body: object = None) -> tuple[int, Any]:
        status, content = self.ask(method, path, None if body is None else json.dumps(body).encode())
        return status, json.loads(content)

    def run(self, model: str, feed: Mapping[str, Array], **more: object) -> dict[str, Array]:
        """Run a model with raw tensors."""
        body, headers = binary_body(feed, **more)
        status, content = self.ask("POST", f"/v2/models/{model}/infer", body, headers)
        assert status == 200, content
        return outputs_of(content, self.headers)


def outputs_of(content: bytes, headers: Mapping[str, str]) -> dict[str, Array]:
    length = int(headers.get(JSON_LENGTH.lower(), len(content)))
    said, rest = json.loads(content[:length]), content[length:]
    found = {}
    for output in said["outputs"]:
        if "data" in output:
            found[output["name"]] = np.array(output["data"], DTYPES[output["datatype"]]).reshape(output["shape"])
            continue
        size = output["parameters"]["binary_data_size"]
        found[output["name"]], rest = of_raw(output["datatype"], output["shape"], rest[:size]), rest[size:]
    assert not rest
    return found


class Grpc:
    """A channel."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address, [("grpc.max_receive_message_length", -1)])

    def send(self, method: str, request: Any, timeout: float = 60.0) -> Any:  # noqa: ANN401 - protobuf ships no types
        kinds = message(f"{method}Request"), message(f"{method}Response")
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", kinds[0].SerializeToString, kinds[1].FromString)
        return call(request, timeout=timeout)

    def send_bytes(self, method: str, body: bytes) -> grpc.StatusCode:
        """Send what may be no message, and return what becomes of it."""
        try:
            self.channel.unary_unary(f"/{SERVICE}/{method}")(body, timeout=60.0)
        except grpc.RpcError as error:
            return error.code()
        return grpc.StatusCode.OK

    def ask(self, method: str, /, **fields: object) -> Any:  # noqa: ANN401 - protobuf ships no types
        return self.send(method, message(f"{method}Request")(**fields))

    def run(self, model: str, feed: Mapping[str, Array], timeout: float = 60.0, **parameters: int | str) -> dict[str, Array]:
        """Run a model with raw tensors."""
        return grpc_outputs(self.send("ModelInfer", infer_request(model, feed, **parameters), timeout))


def infer_request(model: str, feed: Mapping[str, Array], **parameters: int | str) -> Any:  # noqa: ANN401 - protobuf ships no types
    request = message("ModelInferRequest")(model_name=model)
    for name, value in parameters.items():
        kind = "bool" if isinstance(value, bool) else "string" if isinstance(value, str) else "uint64" if value >> 63 else "int64"
        setattr(request.parameters[name], f"{kind}_param", value)
    for name, array in feed.items():
        request.inputs.add(name=name, datatype=NAMES[array.dtype], shape=array.shape)
        request.raw_input_contents.append(raw(array))
    return request


def grpc_outputs(answer: Any) -> dict[str, Array]:  # noqa: ANN401 - protobuf ships no types
    pairs = zip(answer.outputs, answer.raw_output_contents, strict=True)
    return {output.name: of_raw(output.datatype, output.shape, content) for output, content in pairs}
