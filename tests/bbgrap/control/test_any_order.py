"""Valid messages in any order, from anybody: the machines refuse with `RemoteProtocolError` or go on, and never break."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.control import agent_events as ae
from bbgrap.control import client as cm
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, coordinator_settings
from bbgrap.control.agent import AgentMachine
from bbgrap.control.agent_deployments import MAX_DEPLOYMENTS
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.saved_state import SavedState
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol import client_messages as c
from bbgrap.protocol.messages import Deploy, EndedBy, Heartbeat, WeightChunk, WorkerLost
from tests.bbgrap.control.tiny_plans import FILE, plan_of, standby_of
from tests.bbgrap.control.wire import introduction
from tests.bbgrap.protocol.test_codec import AGENT, ANSWERS, CLIENT, COMMANDS

STEPS = st.floats(0, 3)


@given(st.lists(st.tuples(st.sampled_from([b"1", b"2", b"c"]), st.sampled_from([*AGENT, *CLIENT]), STEPS), max_size=40), st.booleans())
def test_coordinator(moves, offers):
    machine, now = CoordinatorMachine(coordinator_settings.Settings("0.1.0", "tcp://h:1"), SavedState({FILE.digest: FILE.size})), 0.0
    if offers:
        machine.handle(ce.FromPeer(b"1", introduction("a")), now)
    for identity, message, step in moves:
        now += step
        events = [ce.FromPeer(identity, message), ce.Tick()]
        while events:
            try:
                done = machine.handle(events.pop(0), now)
            except RemoteProtocolError:
                continue
            events += [plan_of(i) for i in done if isinstance(i, coordinator_instructions.StartPlanning)]
            events += [standby_of(i) for i in done if isinstance(i, coordinator_instructions.StartStandby)]
            events += [ce.RequestDone(i.request, (), ()) for i in done if isinstance(i, coordinator_instructions.StartRequest)]


WORKERS = st.sampled_from(["lives", "lives", "lives", "dies", "crashes", "is ready", "is stopped"])


@given(st.lists(st.tuples(st.sampled_from(COMMANDS), WORKERS, STEPS), max_size=40), st.data())
def test_agent(moves, data):
    machine, now, ready = AgentMachine(introduction("a"), 0.0), 0.0, True
    for message, worker, step in moves:
        now += step
        events = [ae.Received(message), ae.AgentTick(None if worker == "is stopped" else Heartbeat())]
        if worker == "is ready" and not ready:
            ready = True
            events.append(ae.WorkerReady(machine.join))
        if worker in {"dies", "crashes"} and ready:
            ready = False
            loading = data.draw(st.sampled_from([0, *machine._deployments.by_epoch]))
            events = [WorkerLost("gone", 0, 0, EndedBy.CRASH if worker == "crashes" else EndedBy.OUTSIDE, loading), *events]
        while events:
            try:
                done = machine.handle(events.pop(0), now)
            except RemoteProtocolError:
                continue
            assert ready or not any(isinstance(instruction, ae.ToWorker) for instruction in done)
            for instruction in done:
                if isinstance(instruction, ae.CheckWeights):
                    missing = data.draw(st.sampled_from([(), instruction.digests]))
                    events.append(ae.WeightsChecked(instruction.epoch, missing))
                if isinstance(instruction, WeightChunk):
                    fault = data.draw(st.sampled_from(["", "damaged"]))
                    events.append(ae.WeightArrived(instruction.digest, 16, complete=True, fault=fault))
                if isinstance(instruction, Deploy):
                    outcomes = st.sampled_from([("",), ("no",), ("", tuple(instruction.weight_types))])
                    events.append(ae.DeploymentLoaded(instruction.epoch, *data.draw(outcomes)))
        assert len(machine._deployments.by_epoch) <= MAX_DEPLOYMENTS


@given(st.lists(st.tuples(st.sampled_from(ANSWERS), STEPS), max_size=40))
def test_client(moves):
    machine, now, completed = cm.ClientMachine("tcp://h:1"), 0.0, []
    machine.call(c.ListNodes(1), now)
    machine.call(c.ListNodes(2), now)
    for answer, step in moves:
        now += step
        done = [*machine.received(answer, now), *machine.tick(now)]
        completed += [instruction.call for instruction in done if isinstance(instruction, cm.Complete)]
    assert len(set(completed)) == len(completed)


def test_a_client_asks_says_again_and_gives_up():
    machine = cm.ClientMachine("tcp://h:1", ask_s=1.0, silence_s=10.0)
    assert machine.call(c.ListNodes(1), 0.0) == [cm.ToCoordinator(c.ListNodes(1))]
    assert machine.tick(0.5) == []
    assert machine.tick(1.0) == [cm.ToCoordinator(c.Ask((1,)))]
    assert machine.received(c.StillWorking((1,), ()), 1.5) == [cm.ToCoordinator(c.ListNodes(1))]
    assert machine.received(c.StillWorking((1,), ()), 1.6) == []
    assert machine.tick(8.0) == [cm.Reconnect(), cm.ToCoordinator(c.Ask((1,)))]
    gave_up, *_ = machine.tick(12.0)
    assert gave_up.answer.reason == "the coordinator at tcp://h:1 has not answered for 10 s; is it running, and is the address right?"
    assert machine.received(c.Nodes(1, ()), 13.0) == []


def test_a_client_does_not_give_up_before_it_has_asked():
    machine = cm.ClientMachine("tcp://h:1", ask_s=1.0)
    machine.call(c.MeasureNodes(1, ""), 0.0, 0.3)
    assert machine.tick(0.9) == []
    assert machine.tick(1.0) == [cm.ToCoordinator(c.Ask((1,)))]
    assert machine.received(c.StillWorking((1,), (1,)), 1.1) == []
    assert machine.tick(1.5) == []
    assert [each for now in (3.0, 5.0, 7.0) for each in machine.tick(now) if isinstance(each, cm.Complete)]


def large(call, seconds):
    """A request whose inputs may be on their way for so long."""
    return c.RunModel(call, "ab" * 32, 1e3, (), (bytes(round(seconds * cm.SLOWEST_LINK)),))


def asked(done):
    return [type(each) for each in done]


def test_a_client_waits_for_a_large_request_to_arrive_and_for_what_it_said_after_it():
    machine, first, second = cm.ClientMachine("tcp://h:1"), large(1, 10.0), large(2, 0.0)
    assert [*machine.call(first, 0.0), *machine.call(second, 1.0)] == [cm.ToCoordinator(first), cm.ToCoordinator(second)]
    for now in range(1, 10):  # nothing is heard meanwhile, or over another way that it is not there
        assert asked(machine.tick(now)) == [cm.ToCoordinator]
        assert machine.received(c.StillWorking((1, 2), ()), now + 0.1) == []
    assert machine.received(c.StillWorking((1, 2), ()), 10.6) == [cm.ToCoordinator(first), cm.ToCoordinator(second)]


def test_a_client_opens_a_connection_anew_that_is_silent_after_a_large_request():
    machine = cm.ClientMachine("tcp://h:1")
    machine.call(large(1, 10.0), 0.0, 100.0)
    assert asked(machine.tick(12.9)) == [cm.ToCoordinator]
    assert asked(machine.tick(13.5)) == [cm.Reconnect, cm.ToCoordinator]
    assert machine.received(c.StillWorking((1,), ()), 13.6) != []


def test_a_request_that_has_arrived_holds_up_nothing_any_more():
    machine = cm.ClientMachine("tcp://h:1")
    machine.call(large(1, 10.0), 0.0, 100.0)
    small = machine.call(c.ListNodes(2), 0.5, 100.0)
    assert machine.received(c.StillWorking((1, 2), ()), 1.5) == []
    assert machine.received(c.StillWorking((1, 2), (1,)), 2.0) == []
    assert machine.received(c.StillWorking((1, 2), (1,)), 2.6) == small
    assert machine.received(c.Nodes(2, ()), 3.0)
    assert asked(machine.tick(6.1)) == [cm.Reconnect, cm.ToCoordinator]


def test_what_was_on_its_way_over_a_connection_that_broke_is_said_again_at_once():
    machine = cm.ClientMachine("tcp://h:1")
    said = machine.call(large(1, 10.0), 0.0)
    machine.broken(1.0)
    assert machine.received(c.StillWorking((1,), ()), 1.4) == []
    assert machine.received(c.StillWorking((1,), ()), 1.5) == said


def test_an_answer_that_is_still_coming_is_no_silence():
    """Over a slow link: the connection was cut after 3 s each time, and the answer came anew, for ever."""
    machine = cm.ClientMachine("tcp://h:1")
    machine.call(c.ListNodes(1), 0.0)
    for now in range(1, 40):
        machine.moving(now)
        assert asked(machine.tick(now)) == [cm.ToCoordinator]
    assert asked(machine.tick(43)) == [cm.Reconnect, cm.ToCoordinator]


@pytest.mark.parametrize(("patience", "gives_up"), [(None, 10.0), (300.0, cm.LOST_S)])
def test_a_client_gives_up_where_only_short_messages_arrive(patience, gives_up):
    """As over a tunnel that loses long packets: the coordinator is heard, and what it answers never comes."""
    machine = cm.ClientMachine("tcp://h:1")
    machine.call(c.ListNodes(1), 0.0, patience)
    given_up, now = [], 0.0
    while not given_up:
        now += 1.0
        given_up = [each for each in machine.tick(now) if isinstance(each, cm.Complete)]
        machine.received(c.StillWorking((1,), ()), now + 0.1)
    assert gives_up < now <= gives_up + 2.0
    assert "answers, but not this" in given_up[0].answer.reason
    assert not machine.calls


def test_a_client_does_not_give_up_what_the_coordinator_works_on():
    machine = cm.ClientMachine("tcp://h:1")
    machine.call(c.ListNodes(1), 0.0)
    for now in range(1, 60):  # it is lost at times, and is there again
        machine.tick(now)
        machine.received(c.StillWorking((1,), (1,) if now % 5 == 0 else ()), now + 0.1)
    assert machine.calls


def test_what_a_slow_line_carries_arrives_and_is_not_said_again_for_ever():
    """Over 1.5 Mbit/s a piece of a model takes 6 s: its connection was opened anew after 4 s each time, and it failed after 30 s."""
    machine, now, opened, done = cm.ClientMachine("tcp://h:1"), 0.0, [], []
    way, carried = list[tuple[object, int]](), 0.0

    def take(instructions):
        nonlocal carried
        for instruction in instructions:
            match instruction:
                case cm.Reconnect():
                    way.clear()
                    carried = 0.0
                    opened.append(now)
                case cm.ToCoordinator(message):
                    way.append((message, sum(map(len, getattr(message, "payload", ())))))
                case cm.Complete():
                    done.append(instruction.answer)

    def arrived(message):
        known = tuple(number for number in getattr(message, "calls", ()) if number not in machine.calls)
        return c.StillWorking(message.calls, known) if isinstance(message, c.Ask) else c.Nodes(message.call, ())

    for call in range(1, 5):
        take(machine.call(large(call, 1.0), now))
        while len(done) < call:
            now += 0.1
            carried = carried + 18_000 if way else 0.0
            while way and carried >= way[0][1]:
                message, size = way.pop(0)
                carried -= size
                take(machine.received(arrived(message), now))
            take(machine.tick(now))
            assert now < 60
    assert all(isinstance(answer, c.Nodes) for answer in done)
    assert len(opened) <= 3
    assert not opened[1:] or opened[-1] < 20, "what is known of the line holds for what follows"
