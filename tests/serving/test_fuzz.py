"""A thousand damaged bodies over each protocol: each gets an answer, and nobody else notices."""

import random
import socket
from urllib.parse import urlsplit

import numpy as np
import pytest
from grpc import StatusCode

from tests.serving.clients import binary_body, infer_request, json_body
from tests.serving.test_http import every_type

pytestmark = pytest.mark.cluster

FEED = {"x": np.full((2, 4), 0.5, np.float32)}
TOKENS = (b"null", b"-1", b"1e999", b"{}", b"[]", b'"x"', b"true", b"99999999999999999999", b"[[[[1]]]]", b"NaN", b'"\\ud800"')


def damaged(rng: random.Random) -> tuple[bytes, dict[str, str]]:
    """A request whose JSON is damaged so that it means something else, or nothing."""
    body, headers = binary_body(FEED) if rng.random() < 0.5 else (json_body(FEED), {})
    length = int(next(iter(headers.values()), len(body)))
    text, rest = bytearray(body[:length]), body[length:]
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(text) or 1)
        match rng.randrange(5):
            case 0:
                text[at : at + 1] = rng.randbytes(1)
            case 1:
                del text[at : at + rng.randint(1, 20)]
            case 2:
                text[at:at] = text[at : at + rng.randint(1, 40)]
            case 3:
                colon = text.find(b":", at)
                end = min((place for mark in (b",", b"}") if (place := text.find(mark, colon)) > 0), default=colon + 1)
                text[colon + 1 : end] = rng.choice(TOKENS)
            case _:
                rest = rest[: rng.randrange(len(rest) + 1)] + rng.randbytes(rng.randrange(8))
    if headers:
        headers = {name: str(len(text) + rng.choice((0, 0, 0, 0, 1, -3))) for name in headers}
    return bytes(text) + rest, headers


def test_damaged_bodies_are_refused_and_hurt_nobody(http, served):
    rng = random.Random(27)
    counts: dict[int, int] = {}
    with served.http() as witness:
        for number in range(1000):
            body, headers = damaged(rng)
            status, answer = http.ask("POST", "/v2/models/rows/infer", body, headers)
            assert status in (200, 400), (body, answer)  # some damage changes nothing: an unknown key, a number
            counts[status] = counts.get(status, 0) + 1
            if number % 100 == 0:
                assert witness.run("rows", FEED)["y"].shape == (2, 4)
    assert counts[400] > 700, counts
    assert served.process.poll() is None


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET\r\n\r\n",
        b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n",
        b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_what_is_no_http_ends_its_own_connection(served, http, sent):
    parts = urlsplit(served.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), answer
    assert http.run("rows", FEED)["y"].shape == (2, 4)


@pytest.mark.parametrize(
    ("begun", "part"),
    [
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\n", b"x: y\r\n" * 10_000),
        (b"GET /v2 HTTP/1.1\r\nHost: localhost\r\nx: ", bytes([97]) * 60_000),
        (b"GET /", bytes([97]) * 60_000),
        (b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nx: ", bytes([97]) * 60_000),
        (b"POST /v2 HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"x: y\r\n" * 10_000),
    ],
)
def test_what_has_no_end_before_or_behind_a_body_ends_its_connection(served, http, begun, part):
    """The parser kept all of it, three times as large: one connection took all memory, or all time, as values were copied at each part."""
    parts = urlsplit(served.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(begun)
        with pytest.raises(ConnectionError):
            connection.sendall(part * 500)
    assert http.run("rows", FEED)["y"].shape == (2, 4)


def test_a_body_may_come_in_the_smallest_chunks(served):
    parts = urlsplit(served.url)
    with socket.create_connection((parts.hostname, parts.port), timeout=30) as connection:
        connection.sendall(b"POST /v2/repository/index HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        connection.sendall(b"1\r\n \r\n" * 50_000 + b"2\r\n{}\r\n0\r\n\r\n")
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")


def damaged_message(rng: random.Random) -> bytes:
    """A message for a model with inputs of every type, with some of its bytes changed, gone, repeated, or of another length."""
    body = bytearray(infer_request("types", every_type()).SerializeToString())
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(body) or 1)
        match rng.randrange(5):
            case 0:
                body[at : at + 1] = rng.randbytes(1)
            case 1:
                del body[at : at + rng.randint(1, 20)]
            case 2:
                body[at:at] = body[at : at + rng.randint(1, 40)]
            case 3:
                body[at : at + 1] = rng.choice((b"\xff" * 10, b"\x80", b"\x00", b"\xff\xff\xff\xff\x0f"))
            case _:
                del body[at:]
    return bytes(body)


def test_damaged_messages_are_refused_and_hurt_nobody(rpc, http, served):
    rng = random.Random(27)
    counts: dict[StatusCode, int] = {}
    for number in range(1000):
        body = damaged_message(rng)
        code = rpc.send_bytes("ModelInfer", body)
        assert code in (StatusCode.OK, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND), (code, body)  # a number or a name has changed
        counts[code] = counts.get(code, 0) + 1
        if number % 100 == 0:
            assert http.run("rows", FEED)["y"].shape == (2, 4)
    assert counts[StatusCode.INVALID_ARGUMENT] > 500, counts
    assert served.process.poll() is None
    assert "Traceback" not in served.log.read_text()


def test_no_method_takes_noise(rpc):
    rng = random.Random(27)
    methods = ("ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer", "ModelConfig", "ModelStatistics")
    for method in (*methods, "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload"):
        assert rpc.send_bytes(method, b"\xff" * 8) is StatusCode.INVALID_ARGUMENT, method
        for _ in range(20):
            noise = rng.randbytes(rng.randint(1, 200))
            assert rpc.send_bytes(method, noise) in (StatusCode.OK, StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND), (method, noise)
    assert rpc.ask("ServerReady").ready
    assert list(rpc.ask("ModelMetadata", name="rows").inputs[0].shape) == [-1, 4]
