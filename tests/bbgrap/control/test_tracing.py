"""Stories of traced requests: events in, answers out."""

from dataclasses import replace

import pytest

from bbgrap.control import coordinator_events as ce
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from bbgrap.protocol.status_messages import ReadStatus, Status
from tests.bbgrap.control.tiny_plans import record_of
from tests.bbgrap.control.wire import ready_wire, standby_wire


def running(wire, deadline_s=30.0):
    """Begin a recorded request whose host waits; return the call, the number and the epoch of it."""
    call = wire.run(record=True, deadline_s=deadline_s)
    finish, wire.finish_requests = wire.finish_requests, lambda: False
    wire.settle()
    wire.finish_requests = finish
    ((number, start),) = wire.started.items()
    wire.started.clear()
    return call, number, start.epoch


def test_a_recorded_request_is_answered_with_all_records():
    wire = ready_wire("a", "b")
    call = wire.run(record=True)
    wire.settle()
    result = wire.answer(call)
    assert isinstance(result, c.RunResult)
    assert result.records == (record_of(0), record_of(1), record_of(2))
    assert result.devices == ("a", "b", "coordinator")


def test_a_request_without_recording_has_no_records():
    wire = ready_wire("a", "b")
    call = wire.run()
    wire.settle()
    assert wire.answer(call).records == ()
    assert wire.answer(call).devices == ()


def test_records_may_come_before_the_answer_twice_and_late():
    wire = ready_wire("a", "b")
    call, number, epoch = running(wire)
    first, second = wire.agents.values()
    for agent, device in ((first, 0), (first, 0), (second, 1)):
        wire.to_agent(agent, m.Recorded(epoch, number, record_of(device)))
        wire.settle()
    assert wire.answers[call] == []
    wire.to_coordinator(ce.RequestDone(number, (), (), record_of(2)))
    wire.to_agent(first, m.Recorded(epoch, number, record_of(0)))
    wire.settle()
    assert [record.device for record in wire.answer(call).records] == [0, 1, 2]


def test_a_request_is_answered_without_records_when_one_does_not_come():
    wire = ready_wire("a", "b")
    call, number, epoch = running(wire)
    first, _ = wire.agents.values()
    wire.to_agent(first, m.Recorded(epoch, number, record_of(0)))
    wire.to_coordinator(ce.RequestDone(number, (), (), record_of(2)))
    for _ in range(12):
        wire.settle()
        wire.pass_time(0.5)
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)
    assert (wire.answer(call).records, wire.answer(call).devices) == ((), ())
    assert not any(request.trace for request in wire.coordinator.requests.open.values())


def test_a_request_whose_records_do_not_come_before_its_deadline_is_answered_then():
    wire = ready_wire("a", "b")
    call, number, _ = running(wire, deadline_s=1.0)
    wire.to_coordinator(ce.RequestDone(number, (), (), record_of(2)))
    for _ in range(9):
        wire.pass_time(0.1)
        wire.settle()
    assert not wire.answers[call]
    wire.pass_time(0.2)
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)


def test_a_request_whose_agent_is_lost_while_it_records_runs_again():
    wire = ready_wire("a", "b")
    call, number, _ = running(wire)
    wire.to_coordinator(ce.RequestDone(number, (), (), record_of(2)))
    _, second = wire.agents.values()
    wire.crash(second)
    for _ in range(6):
        wire.settle()
        wire.pass_time(0.5)
    wire.settle()
    assert [record.device for record in wire.answer(call).records] == [0, 1]


def test_records_of_others_are_refused():
    wire = ready_wire("a", "b")
    call, number, epoch = running(wire)
    first, second = wire.agents.values()
    wire.to_coordinator(ce.RequestDone(number, (), (), record_of(2)))
    wire.to_agent(first, m.Recorded(epoch, number, record_of(0)))
    wire.to_agent(first, m.Recorded(epoch, number, record_of(1)))
    wire.settle()
    wire.to_coordinator(ce.FromPeer(second.identity, m.Recorded(epoch + 1, number, record_of(1))))
    assert wire.answers[call] == []
    wire.to_agent(second, m.Recorded(epoch, number, record_of(1)))
    wire.settle()
    assert isinstance(wire.answer(call), c.RunResult)


def test_records_name_the_devices_of_the_copy_that_ran_whatever_was_prepared():
    wire = standby_wire()
    wire.run()
    wire.settle()  # a model that has answered runs on both
    calls = [wire.run(record=True) for _ in range(2)]
    wire.settle()
    assert {wire.answer(call).devices for call in calls} == {("a", "coordinator"), ("b", "coordinator")}


def test_a_record_of_messages_with_a_device_that_is_not_there_is_refused_and_the_status_is_told_all_the_same():
    wire = ready_wire("a", "b")
    call, number, epoch = running(wire)
    first, second = wire.agents.values()
    strange = replace(record_of(0), labels=tuple(replace(label, peer=3) for label in record_of(0).labels))
    with pytest.raises(RemoteProtocolError, match=r"'a' speaks of device 3; there are 0 to 2"):
        wire.coordinator.handle(ce.FromPeer(first.identity, m.Recorded(epoch, number, strange)), wire.now)
    wire.to_agent(second, m.Recorded(epoch, number, record_of(1)))
    wire.to_coordinator(ce.RequestDone(number, (), (), record_of(2)))
    assert wire.until_answered(call).records == ()
    (said,) = (told for told in wire.coordinator.handle(ce.FromPeer(b"reader", ReadStatus(1, 0)), wire.now))
    assert isinstance(said.message, Status)
