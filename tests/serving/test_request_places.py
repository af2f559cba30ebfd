"""Places of requests: clients that were stopped in the middle of a body keep nobody else out."""

import select
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from bbgrap.serving import request_places
from bbgrap.serving.gateway import Gateway, Limits
from bbgrap.serving.refusals import RefusedError
from bbgrap.serving.repository import Repository
from bbgrap.serving.request_places import RequestPlaces
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
