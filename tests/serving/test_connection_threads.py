"""Connections that ask for inference: whatever else they ask, however it is cut, every request has its answer, in order."""

import json
import random
import socket
import time
from contextlib import ExitStack, contextmanager
from urllib.parse import urlsplit

import numpy as np
import psutil
import pytest

from bbgrap.serving.request_head import plain_head, without_offer
from tests.serving.clients import JSON_LENGTH, binary_body
from tests.serving.conftest import serving
from tests.waiting import until

ROWS = 40_000
"""So many take several packets."""


def head_of(*lines, begin="POST /v2/models/m/infer HTTP/1.1"):
    return "\r\n".join([begin, "Host: a", *lines, "", ""]).encode()


def test_a_plain_head_says_what_and_how_long():
    head = plain_head(head_of("Content-Length: 12", "Connection: keep-alive", "X: 1", "x: 2"))
    assert (head.model, head.version, head.length, head.by_name["x"]) == ("m", "", 12, "1")
    assert head.headers[-1] == (b"x", b"2")
    assert plain_head(head_of("Content-Length: 0", begin="POST /v2/models/m/versions/3/infer HTTP/1.1")).version == "3"


@pytest.mark.parametrize(
    "head",
    [
        head_of(),
        head_of("Content-Length: 12", "Transfer-Encoding: chunked"),
        head_of("Transfer-Encoding: chunked"),
        head_of("Content-Length: 12", "Content-Encoding: gzip"),
        head_of("Content-Length: 12", "Expect: 100-continue"),
        head_of("Content-Length: 12", "Connection: close"),
        head_of("Content-Length: 12", "Connection: upgrade", "Upgrade: websocket"),
        head_of("Content-Length: 12", "Content-Length: 13"),
        head_of("Content-Length: +12"),
        head_of("Content-Length: 12", begin="POST /v2/models/m/infer HTTP/1.0"),
        head_of("Content-Length: 12", begin="GET /v2/models/m/infer HTTP/1.1"),
        head_of("Content-Length: 12", begin="POST /v2/models/m%20/infer HTTP/1.1"),
        head_of("Content-Length: 12", begin="POST /v2/models/m/infer?x HTTP/1.1"),
        head_of("Content-Length: 12", begin="POST /v2/models/m/load HTTP/1.1"),
        head_of("Content-Length : 12"),
        b"POST /v2/models/m/infer\r\n\r\n",
    ],
)
def test_what_is_not_plain_is_left_to_others(head):
    assert plain_head(head) is None


@contextmanager
def connection_to(server):
    parts = urlsplit(server.url)
    with socket.create_connection((parts.hostname, parts.port), 30) as connection:
        yield connection, connection.makefile("rb")


def infer(rows=2, *more, model="rows"):
    x = np.random.default_rng(rows).random((rows, 4), np.float32) * 0.5
    body, headers = binary_body({"x": x})
    lines = [f"POST /v2/models/{model}/infer HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, f"{JSON_LENGTH}: {headers[JSON_LENGTH]}", *more, "", ""]).encode() + body


GET = b"GET /v2/models/rows HTTP/1.1\r\nHost: localhost\r\n\r\n"


def answer(stream):
    """Status, headers and body."""
    status = int(stream.readline().split()[1])
    headers = {}
    while line := stream.readline().strip():
        name, _, value = line.decode().partition(": ")
        headers[name.lower()] = value
    return status, headers, stream.read(int(headers["content-length"]))


def rows_of(answered):
    status, headers, body = answered
    assert status == 200, body
    return json.loads(body[: int(headers[JSON_LENGTH.lower()])])["outputs"][0]["shape"][0]


@pytest.mark.cluster
def test_requests_of_all_kinds_take_turns_on_one_connection(served):
    with connection_to(served) as (connection, stream):
        for rows in (2, ROWS, 3):
            connection.sendall(infer(rows))
            assert rows_of(answer(stream)) == rows
            connection.sendall(GET)
            assert json.loads(answer(stream)[2])["name"] == "rows"
            connection.sendall(infer(rows, "Expect: 100-continue"))
            assert stream.readline().split()[1] == b"100"
            assert stream.readline() == b"\r\n"
            assert rows_of(answer(stream)) == rows
        connection.sendall(infer(2, "Connection: close"))
        assert rows_of(answer(stream)) == 2
        assert stream.read() == b""


OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA")
"""What Java's client says with each request, unless it is told to speak HTTP/1.1."""


@pytest.mark.parametrize("name", ["Upgrade", "UPGRADE", "upgrade "])
def test_an_offer_of_another_protocol_is_taken_out_of_a_head_and_of_nothing_else(name):
    body = b"Upgrade: h2c\r\n\r\nUpgrade: h2c\r\n\r\n"
    offered = head_of(f"{name}: h2c", "X-Upgrade: 1", f"{name}:h2c")
    assert without_offer(offered + body) == head_of("X-Upgrade: 1") + body
    for begun in (head_of("X-Upgrade: 1") + body, offered[:-1], head_of(f"{name}: h2c", " more", "X: 1"), b""):
        assert without_offer(begun) == begun


@pytest.mark.cluster
def test_who_offers_to_go_on_in_http_2_is_answered_in_http_1(served):
    """The body was taken for the beginning of HTTP/2, and the inputs were not there."""
    load = "\r\n".join(["POST /v2/repository/models/rows/load HTTP/1.1", "Host: localhost", *OFFER, "Content-Length: 17", "", ""])
    with connection_to(served) as (connection, stream):
        for _ in range(2):
            for asked in (infer(2, *OFFER), infer(2, *OFFER, "Expect: 100-continue"), infer(2, "Expect: 100-continue", *OFFER)):
                connection.sendall(asked)
                if b"Expect" in asked:
                    assert stream.readline().split()[1] == b"100"
                    assert stream.readline() == b"\r\n"
                assert rows_of(answer(stream)) == 2
            connection.sendall(load.encode())
            time.sleep(0.05)  # what is there when it is sent would be taken with the head
            connection.sendall(b'{"parameters":{}}')
            assert answer(stream)[0] == 200


@pytest.mark.cluster
def test_a_request_without_a_body_is_answered_as_the_first_one_and_after_a_failure(served):
    """Its connection ended, with a traceback in the log and no answer."""
    head = "POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n"
    with connection_to(served) as (connection, stream):
        for body in (b"", b"{}", b""):
            connection.sendall(head.format(len(body)).encode() + body)
            status, _, said = answer(stream)
            assert (status, "error" in json.loads(said)) == (400, True)
        connection.sendall(infer(2))
        assert rows_of(answer(stream)) == 2


@pytest.mark.cluster
def test_requests_behind_each_other_are_answered_in_order(served):
    order = [2, 5, ROWS, 0, 7, 0, 0, 3]
    with connection_to(served) as (connection, stream):
        connection.sendall(b"".join(infer(rows) if rows else GET for rows in order))
        for rows in order:
            answered = answer(stream)
            assert rows_of(answered) == rows if rows else json.loads(answered[2])["name"] == "rows"


@pytest.mark.cluster
def test_it_does_not_matter_how_requests_are_cut(served):
    rng = random.Random(5)
    with connection_to(served) as (connection, stream):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(8):
            text = infer(9) + GET + infer(4)
            cuts = sorted(rng.sample(range(len(text)), 4))
            for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
                connection.sendall(text[begin:end])
                time.sleep(0.005)
            assert (rows_of(answer(stream)), answer(stream)[0], rows_of(answer(stream))) == (9, 200, 4)


@pytest.mark.cluster
@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        (infer(2).replace(b'"FP32"', b'"FP99"'), 400),
        (infer(2).replace(b'"x"', b'"q"'), 400),
        (infer(2, model="nobody"), 404),
        (infer(2).replace(b"localhost", b"elsewhere.example"), 421),
        (infer(2, "Origin: http://elsewhere.example"), 421),
    ],
)
def test_a_refusal_does_not_end_the_connection(served, wrong, status):
    with connection_to(served) as (connection, stream):
        for _ in range(2):
            connection.sendall(infer(3))
            assert rows_of(answer(stream)) == 3
            connection.sendall(wrong)
            refused = answer(stream)
            assert refused[0] == status, refused
            assert json.loads(refused[2])["error"]


@pytest.mark.cluster
def test_a_client_that_goes_in_the_middle_is_forgotten(served):
    text = infer(ROWS)
    for end in (5, 30, 200, len(text) // 2):
        with connection_to(served) as (connection, _):
            connection.sendall(text[:end])
    with connection_to(served) as (connection, stream):
        connection.sendall(infer(3))
        assert rows_of(answer(stream)) == 3


@pytest.mark.cluster
@pytest.mark.parametrize("begun", [b"", infer()[:60]])
def test_an_idle_connection_does_not_keep_a_server_from_ending(cluster, models, tmp_path, begun):
    from tests.serving.conftest import serving

    with serving(cluster.address, models, tmp_path / "log") as server, connection_to(server) as (connection, stream):
        connection.sendall(infer(3))
        assert rows_of(answer(stream)) == 3
        connection.sendall(begun)
        began = time.monotonic()
        server.process.terminate()
        assert server.process.wait(20) == 0
        assert stream.read() == b""
        assert time.monotonic() - began < 15
        assert "Traceback" not in server.log.read_text()


@pytest.mark.broad
def test_memory_is_taken_as_a_body_comes(cluster, models, tmp_path):
    """Eight heads of ninety bytes took two gigabytes."""
    head = head_of(f"Content-Length: {200 << 20}", begin="POST /v2/models/rows/infer HTTP/1.1").replace(b"Host: a", b"Host: localhost")
    with serving(cluster.address, models, tmp_path / "log") as server, ExitStack() as connections, server.http() as http:
        http.run("rows", {"x": np.zeros((2, 4), np.float32)})
        opened = [connections.enter_context(connection_to(server)) for _ in range(4)]
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        for connection, _ in opened:
            connection.sendall(head)
        assert http.json("GET", "/v2/health/ready")[0] == 200
        time.sleep(0.5)
        assert process.memory_info().rss - before < 100 << 20


@pytest.mark.cluster
def test_clients_that_do_not_take_their_answers_keep_nobody_out(cluster, models, tmp_path):
    """As programs that were stopped: all others were told for 75 s that too many requests are in flight."""
    many = 1 << 20  # rows, of 16 bytes: more than sockets hold
    with serving(cluster.address, models, tmp_path / "log", "--max-in-flight", "2") as server, ExitStack() as opened:
        stopped = [opened.enter_context(connection_to(server)) for _ in range(2)]
        for connection, _ in stopped:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
            connection.sendall(infer(many))
        with server.http() as http:
            until(lambda: http.json("GET", "/v2/models/rows/stats")[1]["model_stats"][0]["inference_count"] == 2)
        with connection_to(server) as (connection, stream):
            connection.sendall(infer(3))
            assert rows_of(answer(stream)) == 3
        server.process.terminate()
        assert [rows_of(answer(stream)) for _, stream in stopped] == [many, many]  # a server that stops waits for them
        assert server.process.wait(30) == 0
