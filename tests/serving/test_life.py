"""What a server does when it is too much, when somebody goes, when it is told to stop, and when the coordinator is away."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from bbgrap.serving.gateway import Gateway, Limits
from bbgrap.serving.repository import Repository
from bbgrap.serving.server import listen, serve
from tests.known_agents import known_cluster
from tests.serving.clients import JSON_LENGTH, Grpc, binary_body
from tests.serving.conftest import serving
from tests.serving.models import write_rows
from tests.waiting import until

pytestmark = pytest.mark.cluster

X = {"x": np.full((2, 4), 0.5, np.float32)}
SECOND = 300_000
"""Turns of the slow model that take about a second."""


def slow(times):
    return binary_body({"x": np.zeros(1), "times": np.array(times)})


def infer(server, body_and_headers, model="slow"):
    body, headers = body_and_headers
    with server.http() as http:
        status, answer = http.ask("POST", f"/v2/models/{model}/infer", body, headers)
        return status, answer, http.headers


def failed(http):
    return http.json("GET", "/v2/models/slow/stats")[1]["model_stats"][0]["inference_stats"]["fail"]["count"]


def test_a_deadline_ends_a_request(served, http):
    body, headers = binary_body({"x": np.zeros(1), "times": np.array(SECOND)}, parameters={"timeout": 50_000})
    status, answer = http.ask("POST", "/v2/models/slow/infer", body, headers)
    assert (status, json.loads(answer)["error"]) == (504, "model 'slow': its deadline of 0.05 s passed")


def test_clients_that_go_take_their_requests_along(served, http):
    """One agent would be busy with them for 100 s or more."""
    body, headers = slow(2 * SECOND)
    lengths = f"Content-Length: {len(body)}\r\n{JSON_LENGTH}: {headers[JSON_LENGTH]}\r\n"
    head = f"POST /v2/models/slow/infer HTTP/1.1\r\nHost: localhost\r\n{lengths}\r\n"
    before, parts = failed(http), urlsplit(served.url)
    gone = [socket.create_connection((parts.hostname, parts.port)) for _ in range(50)]
    for connection in gone:
        connection.sendall(head.encode() + body)
    until(lambda: http.json("GET", "/v2/models/slow/stats")[1]["model_stats"][0]["execution_count"] > 40)
    for connection in gone:
        connection.close()
    until(lambda: failed(http) >= before + 45)  # some may have been answered
    assert http.run("rows", X)["y"].shape == (2, 4)  # within the connection's 60 s, of which the machine may take most
    assert infer(served, slow(3))[0] == 200


def test_too_many_are_told_to_come_again_and_the_last_is_answered(cluster, models, tmp_path):
    with serving(cluster.address, models, tmp_path / "log", "--max-in-flight", "1") as server, server.http() as http:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(infer, server, slow(2 * SECOND))
            until(lambda: http.json("GET", "/v2/models/slow/stats")[1]["model_stats"][0]["execution_count"] == 1)
            status, answer, headers = infer(server, binary_body(X), "rows")
            assert (status, headers["retry-after"], "--max-in-flight" in json.loads(answer)["error"]) == (429, "1", True)
            server.process.send_signal(signal.SIGTERM)
            until(lambda: http.json("GET", "/v2/health/ready")[0] == 503)
            assert http.json("GET", "/v2/health/live")[0] == 200
            status, answer, headers = infer(server, binary_body(X), "rows")
            assert (status, headers["retry-after"], json.loads(answer)["error"]) == (503, "1", "the server is stopping")
            assert running.result()[0] == 200
        assert server.process.wait(30) == 0
        assert "Traceback" not in server.log.read_text()


def slowly(listening, address, may_go_on):
    """Carry a connection to an address, and of what comes back only the beginning until `may_go_on` is set."""
    host, _, port = address.rpartition(":")
    with listening.accept()[0] as client, socket.create_connection((host, int(port))) as server:

        def carry(source, sink, most):
            with contextlib.suppress(OSError):
                while content := source.recv(1 << 14):
                    sink.sendall(content)
                    most -= len(content)
                    assert most > 0 or may_go_on.wait(30)
                sink.shutdown(socket.SHUT_WR)

        there = threading.Thread(target=carry, args=(client, server, 1 << 30))
        there.start()
        carry(server, client, 1 << 16)
        there.join()


@pytest.mark.faults
def test_a_server_that_stops_waits_until_a_client_of_grpc_has_taken_its_answer(cluster, models, tmp_path):
    x, may_go_on = np.full((1 << 19, 4), 0.5, np.float32), threading.Event()
    with (
        serving(cluster.address, models, tmp_path / "log", "--grpc", "127.0.0.1:0") as server,
        server.http() as http,
        socket.create_server(("127.0.0.1", 0)) as listening,
        ThreadPoolExecutor(2) as pool,
    ):
        pool.submit(slowly, listening, server.grpc, may_go_on)
        client = Grpc(f"127.0.0.1:{listening.getsockname()[1]}")
        running = pool.submit(client.run, "rows", {"x": x})
        until(lambda: http.json("GET", "/v2/models/rows/stats")[1]["model_stats"][0]["inference_count"])
        server.process.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(2)
        may_go_on.set()
        assert running.result()["y"].shape == x.shape
        assert server.process.wait(30) == 0
        client.channel.close()


@pytest.mark.parametrize("is_given_up", [True, False])
def test_told_to_stop_while_it_loads_its_models_a_server_stops_and_never_says_that_it_serves(cluster, is_given_up):
    def load(_):
        os.kill(os.getpid(), signal.SIGHUP if is_given_up else signal.SIGTERM)
        if is_given_up:  # as when loading waits for a plan
            cluster.connection.stops.pause(60)
        until(lambda: gateway.is_draining and listening.fileno() < 0)

    urls, listening = [], listen("--http", "127.0.0.1:0")
    gateway = Gateway(cluster.connection, Repository({"rows": Path("rows.onnx")}, None, load), Limits())
    hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, and ends no server
    try:
        asyncio.run(serve(gateway, listening, "", lambda url, _: urls.append(url)))
    finally:
        signal.signal(signal.SIGHUP, hangup)
    assert (urls, gateway.why_not_ready()) == ([], "the server is stopping")


def test_loads_that_wait_for_plans_keep_nothing_else_waiting(cluster):
    may_end = threading.Event()

    async def look():
        loads = [asyncio.create_task(gateway.loading(may_end.wait)) for _ in range(3)]
        try:
            return await asyncio.wait_for(gateway.beside(lambda: "parsed"), 10)
        finally:
            may_end.set()
            await asyncio.gather(*loads)

    gateway = Gateway(cluster.connection, Repository({}, None, lambda _: None), Limits())
    assert asyncio.run(look()) == "parsed"
    gateway.close()


def test_batches_answer_as_single_requests_do(cluster, models, tmp_path, served):
    feeds = [{"x": np.full((1 + number % 3, 4), number / 40, np.float32)} for number in range(32)]
    feeds[7] = {"x": np.full((1, 4), 5000, np.float32)}  # fails, and no other
    ready = threading.Barrier(len(feeds))
    with serving(cluster.address, models, tmp_path / "log", "--max-batch", "8", "--batch-delay", "20") as server:

        def one(feed):
            ready.wait()
            return infer(server, binary_body(feed), "rows")

        with ThreadPoolExecutor(len(feeds)) as pool:
            answers = list(pool.map(one, feeds))
        with server.http() as http:
            assert [number for number, answer in enumerate(answers) if answer[0] != 200] == [7]
            assert "out of data bounds" in json.loads(answers[7][1])["error"]
            counts = http.json("GET", "/v2/models/rows/stats")[1]["model_stats"][0]
            assert counts["inference_count"] == 31
            ran = counts["execution_count"]
            assert ran < 31, counts
            assert counts["inference_stats"]["queue"]["ns"] > 0, "some waited until their batch was filled"
            metrics = http.ask("GET", "/metrics")[1].decode()
            for what, count in (("request_success", 31), ("request_failure", 1), ("count", 31), ("exec_count", ran)):
                assert f'nv_inference_{what}{{model="rows",version="1"}} {count}.0\n' in metrics, what
    with served.http() as http:
        for feed, (_, content, headers) in zip(feeds, answers, strict=True):
            if feed is not feeds[7]:
                alone = http.run("rows", feed)
                length = int(headers[JSON_LENGTH.lower()])
                assert content[length:] == alone["y"].tobytes() + alone["z"].tobytes()


@contextlib.contextmanager
def without_coordinator(tmp_path):
    """A cluster, a server with one model that has answered, and a connection to it, just after the coordinator was killed."""
    folder = tmp_path / "models"
    write_rows(folder / "rows.onnx")
    with (
        known_cluster(1, tmp_path / "weights", pin=False) as own,
        serving(own.address, folder, tmp_path / "log") as server,
        server.http() as http,
    ):
        assert http.run("rows", X)["y"].shape == (2, 4)
        own.kill("coordinator")
        until(lambda: http.json("GET", "/v2/health/ready")[0] == 503)
        yield own, server, http


@pytest.mark.faults
def test_while_the_coordinator_is_away_requests_are_sent_elsewhere(models, tmp_path):
    with without_coordinator(tmp_path) as (own, server, http):
        status, answer, headers = infer(server, binary_body(X), "rows")
        assert (status, headers["retry-after"]) == (503, "1"), answer
        own.start_coordinator()
        until(lambda: http.json("GET", "/v2/health/ready")[0] == 200)
        assert http.run("rows", X)["y"].shape == (2, 4)
        said = server.log.read_text()
        assert 0 < said.index("requests are refused: ") < said.index("requests are taken again")


def test_a_model_whose_file_changed_and_that_the_cluster_has_lost_is_to_be_loaded_again(tmp_path):
    """As after a deployment of new files, when the coordinator's machine is another one. Requests failed with 500, and no log said so."""
    with without_coordinator(tmp_path) as (own, server, http):
        for part in (own.logs / "state").iterdir():
            if part.is_dir() and part.name != "keys":
                shutil.rmtree(part)
            elif part.is_file():
                part.unlink()
        model, new = tmp_path / "models" / "rows.onnx", tmp_path / "models" / "new"
        new.write_bytes(model.read_bytes() + b"\x32\x03new")  # has another description
        new.replace(model)
        own.start_coordinator()
        until(lambda: http.json("GET", "/v2/health/ready")[0] == 200)
        until(lambda: b"model 'rows' must be loaded again" in infer(server, binary_body(X), "rows")[1])  # as soon as the agent is there
        status, answer, _ = infer(server, binary_body(X), "rows")
        assert (status, b"model 'rows' must be loaded again" in answer) == (503, True), answer
        assert server.log.read_text().count("model 'rows' must be loaded again") == 1
        assert http.json("POST", "/v2/repository/models/rows/load", {})[0] == 200
        assert http.run("rows", X)["y"].shape == (2, 4)
