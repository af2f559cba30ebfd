"""Recorded requests on the in-process data plane: what is noted, and in whose time."""

import pytest
from bbgrap_agent.recording import MAX_RECORDINGS, ROUND_TRIPS

from bbgrap.protocol.data import Frame, Kind, pack_number
from tests.agents.bbgrap_agent.test_executor import HOST, PEER, Bench

AHEAD = 1_000_000
"""How much the host's clock is ahead of the agent's."""


def begin(bench, request=1, source=HOST):
    bench.host.send(bench.plane.address, Frame(Kind.RECORD, source, 7, request, 0).to_bytes())


def compute(bench, request=1):
    bench.send(bench.host, HOST, request, 1, 10)
    bench.step()
    bench.send(bench.peer, PEER, request, 2, 1)
    bench.step()


def compare_clocks(bench, request=1, questions=ROUND_TRIPS):
    """Play the host: show the clock unasked, then answer the questions; return their numbers and the other messages' kinds."""
    asked, others = [], []
    bench.host.send(bench.plane.address, Frame(Kind.CLOCK, HOST, 7, request, 0).to_bytes(), pack_number(5))
    bench.step()
    while len(asked) < questions and (arrival := bench.host.receive(0)) is not None:
        frame = Frame.parse(arrival.header)
        if frame.kind is not Kind.CLOCK:
            others.append(frame.kind)
            continue
        asked.append(frame.message)
        assert (frame.source, frame.epoch, frame.request) == (0, 7, request)
        shown = next(bench.clock) + AHEAD
        bench.host.send(bench.plane.address, Frame(Kind.CLOCK, HOST, 7, request, frame.message).to_bytes(), pack_number(shown))
        bench.step()
    return asked, others


def test_every_step_is_noted_in_the_time_of_the_host():
    bench = Bench()
    begin(bench)
    bench.step()
    compute(bench)
    assert bench.records == []
    assert compare_clocks(bench) == (list(range(1, ROUND_TRIPS + 1)), [Kind.DATA])
    (said,) = bench.records
    record = said.record
    assert (said.epoch, said.request, record.device) == (7, 1, 0)
    assert [(label.lane, label.number, label.peer, label.bytes) for label in record.labels] == [
        ("receive", 1, HOST, 8),
        ("receive", 2, PEER, 8),
        ("compute", 0, None, 0),
        ("send", 3, HOST, 8),
    ]
    assert record.labels[2].name == "first: row"
    assert all(reached <= started < stopped for reached, started, stopped in record.times)
    waited = [started > reached for reached, started, _ in record.times]
    assert waited == [True, True, False, False]
    # Every look at the clock is 10 ns after the one before, so the host showed its own exactly in between.
    assert record.clock_error_ns == 11
    assert record.times[0][0] == AHEAD + 0


def test_requests_without_the_word_are_not_recorded():
    bench = Bench()
    compute(bench)
    assert compare_clocks(bench) == ([], [Kind.DATA])
    assert bench.records == []
    assert next(bench.clock) == 10  # looked at once, for the host's unasked word


def test_the_answer_does_not_change_and_clocks_may_be_compared_before_the_end():
    bench = Bench()
    begin(bench)
    bench.send(bench.host, HOST, 1, 1, 10)
    bench.step()
    compare_clocks(bench)
    assert bench.records == []
    bench.send(bench.peer, PEER, 1, 2, 1)
    bench.step()
    assert bench.answers() == {1: [11, 11]}
    assert len(bench.records) == 1
    assert not bench.executor._recorder.busy


@pytest.mark.parametrize("end", ["drop", "remove", "failure"])
def test_an_ended_request_is_forgotten(end):
    bench = Bench((lambda inputs: 1 / 0) if end == "failure" else (lambda inputs: inputs))
    begin(bench)
    bench.send(bench.host, HOST, 1, 1, 10)
    bench.step()
    if end == "drop":
        bench.executor.drop(7, 1)
    elif end == "remove":
        bench.executor.remove(7)
    else:
        bench.send(bench.peer, PEER, 1, 2, 1)
        bench.step()
    assert bench.executor._recorder._recordings == {}
    assert compare_clocks(bench) == ([], [])
    assert bench.records == []


def test_only_the_host_may_ask_for_a_recording_and_show_its_clock(caplog):
    bench = Bench()
    begin(bench, source=PEER)
    bench.step()
    assert bench.executor._running == {}
    begin(bench)
    bench.step()
    compute(bench)
    for source, payload in ((PEER, pack_number(5)), (HOST, b"short"), (HOST, b"\xff" * 8)):
        bench.peer.send(bench.plane.address, Frame(Kind.CLOCK, source, 7, 1, 0).to_bytes(), payload)
        bench.step()
    assert compare_clocks(bench)[0] == list(range(1, ROUND_TRIPS + 1))
    assert len(bench.records) == 1
    assert len(caplog.records) <= 1


def test_recordings_are_bounded(monkeypatch):
    monkeypatch.setattr("bbgrap_agent.executor.MAX_RUNNING", 1000)
    bench = Bench()
    for request in range(MAX_RECORDINGS + 5):
        begin(bench, request)
        bench.step()
    assert len(bench.executor._recorder._recordings) == MAX_RECORDINGS
    assert (7, 4) not in bench.executor._recorder._recordings
