"""Clients that do not take an answer of the event loop, as programs that were stopped."""

import asyncio
import os
import signal
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress

import psutil
import pytest
from starlette.responses import Response
from starlette.routing import Route

from bbgrap.planners.options import PlanOptions
from bbgrap.serving import gateway as gateways
from bbgrap.serving.gateway import Gateway, Limits
from bbgrap.serving.model import ServedModel
from bbgrap.serving.refusals import RefusedError
from bbgrap.serving.repository import Repository
from bbgrap.serving.server import listen, serve
from tests.serving.conftest import serving
from tests.serving.test_connection_threads import answer, connection_to, infer
from tests.waiting import until

pytestmark = pytest.mark.cluster

LARGE = 24 << 20
"""Bytes: more than sockets hold."""


def served_to(cluster, client, repository=None):
    """Serve a large answer, and return what a client makes of it, with the server's port and gateway."""

    def begin(*_):
        future = pool.submit(client, listening.getsockname()[1], gateway)
        future.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGTERM))
        futures.append(future)

    listening, futures = listen("--http", "127.0.0.1:0"), []
    gateway = Gateway(cluster.connection, repository or Repository({}, None, lambda _: None), Limits())
    large = Route("/large", lambda _: Response(bytes(LARGE)))
    with ThreadPoolExecutor(1) as pool:
        asyncio.run(serve(gateway, listening, "", begin, [large]))
        return futures[0].result()


@pytest.mark.parametrize("connection", ["keep-alive", "close"])
@pytest.mark.parametrize("is_slow", [True, False])
def test_who_takes_nothing_is_not_waited_for_and_who_is_slow_gets_all(cluster, monkeypatch, connection, is_slow):
    monkeypatch.setitem(serve.__globals__, "IDLE_S", 0.5)

    def client(port, _):
        with socket.create_connection(("127.0.0.1", port), 20) as asking:
            asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 17)  # else what was taken is told in steps of megabytes
            asking.sendall(f"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: {connection}\r\n\r\n".encode())
            got, until = 0, time.monotonic() + 2
            while time.monotonic() < until:
                time.sleep(0.02)
                got += len(asking.recv(1 << 19)) if is_slow else 0
            with suppress(OSError):
                while got <= LARGE and (more := asking.recv(1 << 20)):
                    got += len(more)
            return got

    assert (served_to(cluster, client) > LARGE) == is_slow


def test_answers_that_nobody_takes_are_bounded(cluster, monkeypatch):
    monkeypatch.setattr(gateways, "MOST_UNSENT_BYTES", LARGE * 3 // 2)

    def is_let_in(gateway):
        with suppress(RefusedError), gateway.admitted():
            return True
        return False

    def client(port, gateway):
        with ExitStack() as opened:
            for number in (1, 2):
                asking = opened.enter_context(socket.create_connection(("127.0.0.1", port), 20))
                asking.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
                until(lambda number=number: gateway.unsent == number)
                assert is_let_in(gateway) == (number == 1)
        until(lambda: gateway.unsent == 0)
        return is_let_in(gateway)

    assert served_to(cluster, client)


def test_further_answers_are_dropped_where_others_are_not_taken_and_small_ones_are_not(cluster, models, monkeypatch):
    """Ten clients that stopped reading had more kept than what nobody else was let in for, and nobody was."""
    monkeypatch.setattr(gateways, "MOST_UNSENT_BYTES", LARGE)

    def load(entry):
        return ServedModel.load(entry.name, entry.version, entry.path, cluster.connection, PlanOptions("single"), 60.0)

    def client(port, gateway):
        def status(rows):
            with socket.create_connection(("127.0.0.1", port), 20) as asking:
                asking.sendall(infer(rows))
                return answer(asking.makefile("rb"))[0]

        with socket.create_connection(("127.0.0.1", port), 20) as stopped:
            stopped.sendall(b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n")
            until(lambda: gateway.unsent == 1)
            told = status(1 << 18), status(3)
        until(lambda: gateway.unsent == 0)
        return (*told, status(1 << 18))

    assert served_to(cluster, client, Repository({"rows": models / "rows.onnx"}, None, load)) == (429, 200, 200)


def own_bytes(process):
    """What a process has, but for what it shares with the coordinator."""
    taken = process.memory_info()
    return taken.rss - taken.shared


@pytest.mark.broad
@pytest.mark.skipif(sys.platform != "linux", reason="other systems' libraries keep less")
def test_the_memory_of_answers_is_given_back(cluster, models, tmp_path):
    """A crowd of them left most of its memory behind, several crowds a multiple of it, for good."""
    with serving(cluster.address, models, tmp_path / "log") as server:
        process = psutil.Process(server.process.pid)
        before = own_bytes(process)
        for _ in range(2):
            with ExitStack() as opened:
                for _ in range(20):
                    asking, _ = opened.enter_context(connection_to(server))
                    asking.sendall(infer(1 << 20, "Connection: close"))
                    assert asking.recv(1 << 10)
                assert own_bytes(process) - before > 200 << 20
        until(lambda: own_bytes(process) - before < 100 << 20, 20, lambda: f"{(own_bytes(process) - before) >> 20} MiB more")
