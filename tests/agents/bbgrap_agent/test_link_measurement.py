"""Links between executors on the in-process data plane."""

import threading
import time
from contextlib import contextmanager

import pytest
from bbgrap_agent.executor import Executor
from bbgrap_agent.link_measurement import AnsweredPeers, SilentPeers, measure_link, measure_links, unreachable

from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import Peer
from tests.inproc import InprocNetwork


@contextmanager
def running(network):
    """Run an executor in a thread of its own."""
    executor = Executor(network.plane(), lambda said: None)
    thread = threading.Thread(target=executor.run)
    thread.start()
    try:
        yield executor
    finally:
        executor.stop()
        thread.join()


def test_a_link_is_measured_if_the_peer_may_answer(monkeypatch):
    monkeypatch.setattr("bbgrap_agent.link_measurement._PING_WAIT_S", 0.05)
    network = InprocNetwork()
    with running(network) as one, running(network) as other:
        here, there = (Peer(device, name, executor.plane.address) for device, name, executor in ((0, "a", one), (1, "b", other)))
        assert measure_link(there, one) is None
        other.post(lambda: other.pings.allow((here,)))
        link = measure_link(there, one)
        other.post(lambda: other.pings.allow(()))
        assert measure_link(there, one) is None
    assert link.peer == "b"
    assert link.round_trip_s > 0
    assert link.bandwidth_bytes_per_s > 0


def test_small_answers_that_took_longer_than_large_ones_make_no_link_faster_than_memory(monkeypatch):
    """On a busy machine: a link had 8,400,000 Mbit/s, which is 1 MiB in the least time that is told, and plans were made for it."""
    monkeypatch.setattr("bbgrap_agent.link_measurement._ping", lambda executor, peer, size, asked: 1.5e-3 if size else 4e-3)
    with running(InprocNetwork()) as one:
        link = measure_link(Peer(1, "b", "inproc://b"), one)
    assert link.round_trip_s == pytest.approx(4e-3)
    assert link.bandwidth_bytes_per_s == pytest.approx((1 << 20) / 0.75e-3, rel=0.05)


@pytest.mark.parametrize(("round_trip_s", "bytes_per_s"), [(2e-4, 125e6), (0.04, 6e6), (0.2, 12e6), (0.3, 250e3), (2e-3, 50e3)])
def test_links_that_are_slow_or_far_are_measured_in_some_seconds(monkeypatch, round_trip_s, bytes_per_s):
    """Of 1 MiB in a second, as each had to answer: links of 8 Mbit/s or of 200 ms were taken for one of 1 Gbit/s."""
    took = []

    def ping(executor, peer, size, asked):
        took.append(round_trip_s + size / bytes_per_s)
        return took[-1]

    monkeypatch.setattr("bbgrap_agent.link_measurement._ping", ping)
    with running(InprocNetwork()) as one:
        link = measure_link(Peer(1, "b", "inproc://b"), one)
    assert sum(took) < 12
    assert max(took) < 2
    assert link.round_trip_s == pytest.approx(round_trip_s, rel=0.05)
    predicted, true = (100_000 / rate + round_trip_s / 2 for rate in (link.bandwidth_bytes_per_s, bytes_per_s))
    assert 0.95 * true < predicted < 1.6 * true


def test_who_is_not_measured_is_named(caplog, monkeypatch):
    """Plans were made as over 1 Gbit/s, and nobody was told."""
    monkeypatch.setattr("bbgrap_agent.link_measurement._PING_WAIT_S", 0.05)
    with caplog.at_level("INFO"), running(InprocNetwork()) as one:
        assert measure_links([Peer(1, "b", "inproc://b")], one, lambda: None) == ()
    assert "the link to 'b' is not measured: it gave no answer in time; if it can be reached at all" in caplog.text


def peer_of(device, executor):
    return Peer(device, "abc"[device], executor.plane.address)


def test_those_that_do_not_answer_are_found_all_at_once():
    network = InprocNetwork()
    with running(network) as one, running(network) as other, running(network) as third:
        here, there, mute = peer_of(0, one), peer_of(1, other), peer_of(2, third)
        gone = Peer(3, "d", "inproc://nobody")
        other.post(lambda: other.pings.allow((here,)))
        assert unreachable((), one) == ()
        assert unreachable((there,), one) == ()
        began = time.monotonic()
        assert unreachable((mute, there, gone), one, (0.1, 0.1)) == (mute, gone)
        assert time.monotonic() - began < 5, "one after the other would add up"
        third.post(lambda: third.pings.allow((here,)))
        assert unreachable((mute, there), one) == ()
        assert one._awaited == {}


def test_the_second_question_reaches_a_peer_that_has_just_learned_of_us():
    network = InprocNetwork()
    with running(network) as one, running(network) as other:
        here, there = peer_of(0, one), peer_of(1, other)
        threading.Timer(0.1, lambda: other.post(lambda: other.pings.allow((here,)))).start()
        assert unreachable((there,), one, (0.3, 5.0)) == ()


def test_where_one_answers_late_others_have_longer_and_one_that_is_gone_is_told_of_all_the_same(monkeypatch):
    """Twenty agents that started at once on two cores answered after 0.5 s or 1 s, and said of each other that they were not reached."""
    monkeypatch.setattr("bbgrap_agent.link_measurement._LONGEST_S", 1.6)
    network = InprocNetwork()
    with running(network) as one, running(network) as other, running(network) as third:
        here, late, later = peer_of(0, one), peer_of(1, other), peer_of(2, third)
        for executor, busy_s in ((other, 0.4), (third, 0.95)):
            executor.post(lambda executor=executor: executor.pings.allow((here,)))
            executor.post(lambda busy_s=busy_s: time.sleep(busy_s))
        gone = Peer(3, "d", "inproc://nobody")
        began = time.monotonic()
        assert unreachable((late, later, gone), one, (0.1, 0.7)) == (gone,)
        assert time.monotonic() - began < 5
        assert unreachable((gone,), one, (0.05,)) == (gone,)


def test_a_peer_that_is_far_away_has_longer_and_one_that_takes_no_connection_has_not(monkeypatch):
    """Over a round trip of 200 ms a first answer takes 0.8 s, and agents that joined from there were said not to be reached."""
    network = InprocNetwork()
    with running(network) as one, running(network) as far:
        here, there, gone = peer_of(0, one), peer_of(1, far), Peer(3, "d", "inproc://nobody")
        answer = far.plane.send
        monkeypatch.setattr(far.plane, "send", lambda *message: threading.Timer(0.4, answer, message).start())
        monkeypatch.setattr(one.plane, "round_trip_s", lambda address: {far.plane.address: 0.25}.get(address, 0.0))
        far.post(lambda: far.pings.allow((here,)))
        assert unreachable((there,), one, (0.05, 0.1)) == ()
        began = time.monotonic()
        assert unreachable((gone,), one, (0.05, 0.1)) == (gone,)
        assert time.monotonic() - began < 1.5, "it has no 2 s"


def test_a_pong_that_nobody_asked_for_proves_nothing():
    network = InprocNetwork()
    with running(network) as one:
        stranger = network.plane()
        stranger.connect(one.plane.address)
        for number in range(100):
            stranger.send(one.plane.address, Frame(Kind.PONG, 0, 0, number, 0).to_bytes())
        assert unreachable((Peer(1, "b", "inproc://nobody"),), one, (0.05,)) == (Peer(1, "b", "inproc://nobody"),)


def test_several_threads_may_ask_at_once():
    network = InprocNetwork()
    with running(network) as one, running(network) as other:
        other.post(lambda: other.pings.allow((peer_of(0, one),)))
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(unreachable((peer_of(1, other),), one, (5.0,)))),
            threading.Thread(target=lambda: found.append(measure_link(peer_of(1, other), one) is None)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(bool, found)) == [False, False]


def test_a_peer_is_asked_once_while_something_is_deployed_that_sends_to_it():
    one, other = Peer(0, "a", "tcp://a:1", "key"), Peer(1, "b", "tcp://b:1", "key")
    moved = Peer(3, "a", "tcp://a:1", "another key")
    answered = AnsweredPeers()
    assert answered.unasked((one, other)) == [one, other]
    answered.add(7, (one,))
    assert answered.unasked((one, other, moved)) == [other, moved]
    answered.add(8, (one, other))
    answered.forget(8)
    assert answered.unasked((one, other)) == [other]
    answered.lost(one.address)
    assert answered.unasked((one,)) == [one]
    answered.add(9, (one,))
    answered.forget(7)
    assert answered.unasked((one,)) == []
    answered.forget(9)
    answered.forget(9)
    assert answered.unasked((one,)) == [one]


def test_who_does_not_answer_twice_in_a_row_is_named_once_in_this_nodes_own_log(caplog):
    peers = tuple(Peer(device, name, f"tcp://{name}:1") for device, name in enumerate("abc"))
    silent = SilentPeers("tcp://10.0.0.5:1")
    with caplog.at_level("INFO", "bbgrap.agent"):
        silent.tried(peers, peers[:2])
        silent.tried(peers[1:], peers[2:])  # b answers again, nobody asks a
        assert not caplog.messages
        for _ in range(3):
            silent.tried(peers[:1], peers[:1])
        (line,) = caplog.messages
        assert line.startswith("this node does not reach 'a' at tcp://a:1, or is not reached by it at tcp://10.0.0.5:1: ")
        silent.tried(peers, ())
        assert caplog.messages[1:] == ["this node and 'a' reach each other again"]
