"""Places of requests: clients that were stopped in the middle of a body keep nobody else out."""

import select
from contextlib import ExitStack

import pytest

from bbgrap.serving import request_places
from bbgrap.serving.refusals import RefusedError
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
        places.give_back(place)
    assert len(places) == 0


def test_a_moment_of_silence_costs_no_place():
    places = RequestPlaces()
    places.take().await_body(lambda: None)
    assert not places.free_one()
    assert len(places) == 1


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
