"""Places of requests: clients that were stopped in the middle of a body keep nobody else out."""

import asyncio
import select
import socket
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from bbgrap.serving import request_places
from bbgrap.serving.gateway import Gateway, Limits
from bbgrap.serving.grpc import start_grpc
from bbgrap.serving.grpc_schema import SERVICE
from bbgrap.serving.refusals import RefusedError
from bbgrap.serving.repository import Repository
from bbgrap.serving.request_places import RequestPlaces
from bbgrap.serving.silent_connections import silences
from tests.serving.conftest import serving
from tests.serving.test_connection_threads import answer, connection_to, infer, rows_of
from tests.waiting import until

MOST = 4


def test_who_is_silent_for_longest_loses_its_place_and_nobody_else(monkeypatch):
    monkeypatch.setattr(request_places, "SILENT_S", 1e-9)
    places, told = RequestPlaces(), []
    first, second, whole, running = (places.take() for _ in range(4))
    for place in (second, first, whole):
        place.await_body(lambda place=place: told.append(place))
    whole.has_body()
    second.has_part()
    with places.lock:
        assert [places.free_one() for _ in range(3)] == [True, True, False]
    assert told == [first, second]
    with pytest.raises(RefusedError, match="others waited for its place"):
        first.has_body()
    for place in (first, second, whole, running):
        with places.held(place):
            pass
    assert len(places) == 0


def test_a_moment_of_silence_costs_no_place():
    places = RequestPlaces()
    places.take().await_body(lambda: None)
    assert not places.free_one()
    assert len(places) == 1


def test_large_inputs_wait_until_others_have_ended_and_small_ones_do_not(monkeypatch):
    """40 clients with 60 MB each took 2.6 GB of the server and 2.0 of the coordinator, and others' small requests waited for 15 s."""
    monkeypatch.setitem(RequestPlaces.has_room.__globals__, "MOST_BYTES", 2 << 20)
    gateway = Gateway(None, Repository({}, None, lambda _: None), Limits())

    def wait():
        with gateway.admitted(3 << 20):
            return gateway.in_flight

    with ThreadPoolExecutor(1) as pool:
        with gateway.admitted(3 << 20) as first:
            waiting = pool.submit(wait)
            with pytest.raises(TimeoutError):
                waiting.result(0.1)
            with gateway.admitted(1 << 20):
                assert gateway.in_flight == 2
            first.count(4 << 20)  # there is nobody else
        assert waiting.result(10) == 1
    with gateway.admitted(3 << 20), gateway.admitted() as unknown:
        unknown.count(1 << 20)
        with pytest.raises(RefusedError, match="no room for 2097152 bytes beside the 3145728"):
            unknown.count(2 << 20)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_connections_tell_for_how_long_nothing_has_come():
    with socket.create_server(("127.0.0.1", 0)) as listening, ExitStack() as opened:
        asking = [opened.enter_context(socket.create_connection(listening.getsockname())) for _ in range(2)]
        taken = [opened.enter_context(listening.accept()[0]) for _ in asking]
        for connection, other in zip(asking, taken, strict=True):
            connection.sendall(b"x")
            until(lambda other=other: select.select([other], [], [], 0)[0])
        taken[0].recv(1)
        time.sleep(0.1)
        before = set(Path("/proc/self/fd").iterdir())
        silent = silences()
        assert set(Path("/proc/self/fd").iterdir()) == before
        assert [silent[connection.getsockname()] >= 0.1 for connection in asking] == [True, False]  # the second's byte is not read


@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not tell")
def test_calls_that_stop_within_their_inputs_keep_others_out_for_seconds(monkeypatch):
    """Whoever came was told for 30 s that too many requests are in flight."""
    monkeypatch.setitem(RequestPlaces.free_one.__globals__, "SILENT_S", 0.2)
    gateway = Gateway(None, Repository({}, None, lambda _: None), Limits(in_flight=1))

    def frame(kind, flags, content):
        return struct.pack(">I", len(content))[1:] + bytes([kind, flags]) + struct.pack(">I", kind < 2) + content

    def literal(text):
        return bytes([len(text)]) + text.encode()

    async def ask():
        server, port = await start_grpc(gateway, "127.0.0.1:0")
        tidying = asyncio.ensure_future(gateway.tidy())
        path = f"/{SERVICE}/ModelInfer"
        said = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "a",
            "te": "trailers",
            "content-type": "application/grpc",
        }
        heads = b"".join(b"\0" + literal(name) + literal(value) for name, value in said.items())
        try:
            with socket.create_connection(("127.0.0.1", port)) as stopped:
                stopped.sendall(
                    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, b"") + frame(1, 4, heads) + frame(0, 0, b"\0\0\1\0\0begun")
                )
                while not gateway.in_flight:
                    await asyncio.sleep(0.01)
                async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                    while (told := await channel.unary_unary(path)(b"", timeout=10).code()) == grpc.StatusCode.RESOURCE_EXHAUSTED:
                        await asyncio.sleep(0.05)
                    return told
        finally:
            tidying.cancel()
            await server.stop(None)

    assert asyncio.run(asyncio.wait_for(ask(), 20)) == grpc.StatusCode.NOT_FOUND  # it got in: there is no such model


@pytest.mark.cluster
def test_inputs_that_are_announced_and_do_not_come_keep_large_ones_out_for_two_seconds_and_small_ones_not_at_all(cluster, models, tmp_path):
    rows = 1 << 17
    announced = f"POST /v2/models/rows/infer HTTP/1.1\r\nHost: localhost\r\nContent-Length: {600 << 20}\r\n\r\n"
    with serving(cluster.address, models, tmp_path / "log", "--max-body", "600") as server, ExitStack() as opened:
        for _ in range(2):
            stopped, _ = opened.enter_context(connection_to(server))
            stopped.sendall(announced.encode())
        with connection_to(server) as (large, large_stream), connection_to(server) as (small, small_stream):
            time.sleep(0.1)
            large.sendall(infer(rows))
            small.sendall(infer(3))
            assert rows_of(answer(small_stream)) == 3
            assert not select.select([large], [], [], 0)[0]
            assert rows_of(answer(large_stream)) == rows


@pytest.mark.cluster
@pytest.mark.parametrize("more", [(), ("Connection: close",)], ids=["threads", "event loop"])
def test_clients_that_stop_in_the_middle_of_a_body_keep_others_out_for_two_seconds(cluster, models, tmp_path, more):
    """All others were told for 30 s that too many requests are in flight."""
    with serving(cluster.address, models, tmp_path / "log", "--max-in-flight", str(MOST)) as server, ExitStack() as stack:
        with connection_to(server) as (asking, stream):
            asking.sendall(infer(2))
            assert rows_of(answer(stream)) == 2
        stopped, told = dict(stack.enter_context(connection_to(server)) for _ in range(2 * MOST)), []  # some are refused
        for connection in stopped:
            connection.sendall(infer(2, *more)[:-8])

        def status():
            with connection_to(server) as (asking, stream):
                asking.sendall(infer(3))
                return answer(stream)[0]

        def ended():
            """Return what was told to who lost a place; one that came while another was answered was told to come again."""
            status()
            told.extend(answer(stopped.pop(connection)) for connection in select.select(list(stopped), [], [], 0)[0])
            return [body for code, _, body in told if code == 408]

        assert b"others waited for its place" in until(ended, 20, every_s=0.1)[0]
        assert status() == 200
