"""Sequences on the control machines: whatever is lost, an answer is the sum of what its sequence was given, once each and in order."""

from dataclasses import replace

import numpy as np
from bbgrap_agent.sequence_states import SequenceStates
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bbgrap.control.planning import plan_key
from bbgrap.control.sequences import MAX_LOSSES, Sequences
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from bbgrap.protocol import status_messages as s
from tests.bbgrap.control.counters import JOININGS, OPTIONS, counters, total
from tests.bbgrap.control.wire import prepare_message
from tests.examples import examples


def test_a_sequence_stays_where_its_state_is_and_nothing_is_loaded_for_it():
    wire = counters("a", "b")
    wire.settle()
    deployed, homes = set(wire.coordinator.loading.by_epoch), set()
    for step in range(20):
        call = wire.run_of(1, step, 1)
        wire.deliver_all()
        (start,) = wire.started.values()
        homes.add(start.epoch)
        assert bool(start.before) == bool(step)
        assert int(bytes(wire.until_answered(call).payload[0])) == step + 1
    assert len(homes) == 1
    assert set(wire.coordinator.loading.by_epoch) == deployed
    assert len(wire.jobs) == 1


def test_requests_of_one_sequence_do_not_overtake_each_other():
    wire = counters("a", "b")
    first, second = wire.run_of(1, 0, 5), wire.run_of(1, 1, 7)
    wire.deliver_all()
    assert wire.answer(second).fault is c.Fault.INPUT
    wire.settle()
    assert isinstance(wire.answer(first), c.RunResult)
    assert total(wire, 1, 3, 7) is c.Fault.INPUT
    assert total(wire, 1, 1, 7) == 12


def test_who_has_not_heard_an_answer_asks_again_and_nothing_is_counted_twice():
    wire = counters("a", "b")
    assert [total(wire, 1, step, 1) for step in range(4)] == [1, 2, 3, 4]
    assert total(wire, 1, 3, 10) == 13
    assert total(wire, 1, 4, 1) == 14


def test_a_death_is_made_up_for_by_running_all_requests_again():
    wire = counters("a", "b", "c")
    assert [total(wire, 1, step, step) for step in range(6)] == [0, 1, 3, 6, 10, 15]
    wire.crash(wire.agent("a"))
    assert total(wire, 1, 6, 6) == 21
    assert recovered(wire) == (1, 6)
    assert total(wire, 1, 7, 7) == 28
    assert recovered(wire) == (1, 6)


def test_a_large_state_that_is_on_its_way_again_is_waited_for():
    """What is run again brings more than the request that waits for it, and than all that was timed."""
    wire = counters("a", "b", "c")
    call = wire.run_of(1, 0, *[1] * (4 << 20))
    wire.until_answered(call)
    assert [total(wire, 1, step, 1) for step in range(1, 4)] == [(4 << 20) + step for step in range(1, 4)]
    home = wire.coordinator.loading.by_epoch.get(next(iter(wire.coordinator.requests.sequences._known.values())).epoch)
    wire.crash(wire.agent(next(iter(home.parts))))
    call = wire.run_of(1, 4, 1)
    wire.wait(1.0)
    (again,) = wire.started.values()
    assert sum(map(len, again.payload)) == 32 << 20
    wire.wait(3.0)
    assert list(wire.started.values()) == [again]
    wire.wait(3.0)
    assert list(wire.started.values()) != [again], "32 MiB at 8 MiB/s"
    assert int(bytes(wire.until_answered(call).payload[0])) == (4 << 20) + 4


def test_a_state_is_read_and_stays_as_it_is():
    wire = counters("a", "b", "c")
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]

    def read(step):
        answer = wire.until_answered(wire.read_of(1, step))
        return int(bytes(answer.payload[0])) if isinstance(answer, c.RunResult) else answer.fault

    assert [read(3), read(3), total(wire, 1, 3, 1), read(4)] == [3, 3, 4, 4]
    wire.crash(wire.agent("a"))
    assert [read(4), total(wire, 1, 4, 1)] == [4, 5]
    assert [read(0), read(7)] == [c.Fault.INPUT, c.Fault.INPUT]
    assert read(4) == 4  # the answer to the last one was not heard: it is no part of the sequence


def recovered(wire):
    (model,) = wire.coordinator.status.read(s.ReadStatus(1), wire.now).models
    return model.recovered, model.replayed


def counters_whose_home_is_gone():
    """A sequence of six requests that may run again as one, whose state was on an agent that is gone."""
    wire = counters("a", "b", joinings=JOININGS)
    assert [total(wire, 1, step, step) for step in range(6)] == [0, 1, 3, 6, 10, 15]
    home = wire.coordinator.loading.by_epoch.get(next(iter(wire.coordinator.requests.sequences._known.values())).epoch)
    wire.crash(wire.agent(next(iter(home.parts))))
    return wire


def test_where_the_model_takes_it_all_requests_run_again_as_one():
    wire = counters_whose_home_is_gone()
    wire.ran.clear()
    assert total(wire, 1, 6, 6) == 21
    assert wire.ran == [[0, 1, 2, 3, 4, 5], [6]]
    assert recovered(wire) == (1, 6)


def test_what_is_refused_as_one_is_run_again_one_by_one():
    wire = counters_whose_home_is_gone()
    wire.most = 1
    wire.ran.clear()
    assert [total(wire, 1, step, step) for step in (6, 7)] == [21, 28]
    assert wire.ran == [[step] for step in range(8)]


def test_what_ended_a_worker_as_one_is_run_again_one_by_one():
    """So many words at once may want more memory than there is; a second worker would be ended by them, and the model not be run."""
    wire = counters_whose_home_is_gone()
    wire.ran.clear()
    call = wire.run_of(1, 6, 6)
    wire.wait(20.0)  # until the agent is known to be gone
    (start,) = wire.started.values()
    assert np.frombuffer(start.payload[0], np.int64).tolist() == [*range(6)]
    (name,) = wire.nodes_of(start)
    wire.say(name, m.WorkerLost("out of memory", start.epoch, start.request, m.EndedBy.MEMORY))
    wire.say(name, m.Deployed(start.epoch))
    assert int(bytes(wire.until_answered(call).payload[0])) == 21
    assert wire.ran == [[step] for step in range(7)]


def test_a_sequence_whose_inputs_are_not_kept_is_lost_with_its_state_and_the_others_go_on():
    wire = counters("a", "b")
    wire.coordinator.requests.sequences.most_kept = 1300
    assert [total(wire, 1, step, 1) for step in range(2)] == [1, 2]
    assert [total(wire, 2, step, 1) for step in range(2)] == [1, 2]
    for states in wire.states.values():
        states.drop_all(next(iter(wire.coordinator.loading.by_epoch)))
    wire.states.clear()
    assert total(wire, 1, 2, 1) is c.Fault.STATE_LOST
    assert total(wire, 2, 2, 1) == 3
    assert total(wire, 1, 0, 4) == 4  # begun again


def test_an_agent_without_room_for_one_state_ends_the_sequence_in_words():
    wire = counters("a", "b")
    assert total(wire, 1, 0, 1) == 1
    wire.states = {agent.identity: SequenceStates(limit=0) for agent in wire.agents.values()}
    call = wire.run_of(1, 1, 1)
    assert wire.until_answered(call).fault is c.Fault.STATE_LOST
    assert "sequence 1 of model" in wire.answer(call).reason
    assert MAX_LOSSES == 3


def test_inputs_that_nothing_takes_and_plans_without_state_are_refused():
    wire = counters("a", "b")
    assert total(wire, 1, 0, 1) == 1
    key = plan_key(prepare_message(0, replace(OPTIONS, input_values="any")))
    call = wire.call(lambda n: c.RunModel(n, key, 1e6, (), (), sequence=1, step=1))
    assert wire.until_answered(call).fault is c.Fault.INPUT
    assert total(wire, 1, 1, 1) == 2
    wire.until_answered(wire.call(lambda n: prepare_message(n, PlanOptions())))
    call = wire.call(lambda n: c.RunModel(n, plan_key(prepare_message(n, PlanOptions(input_values="any"))), 1e6, (), (), sequence=2))
    assert "without state" in wire.until_answered(call).reason


def test_forks_go_on_from_the_same_state_each_by_itself():
    wire = counters("a", "b")
    assert [total(wire, 1, step, 1) for step in range(3)] == [1, 2, 3]
    wire.tell(c.ForkSequence(1, 2))
    assert (total(wire, 1, 3, 10), total(wire, 2, 3, 100), total(wire, 1, 4, 1)) == (13, 103, 14)
    wire.crash(wire.agent("a"))
    assert (total(wire, 2, 4, 1), total(wire, 1, 5, 1)) == (104, 15)


def test_an_agent_may_compute_the_state_for_longer_than_the_outputs():
    wire = counters("a", "b")
    total(wire, 1, 0, 1)
    (sequence,) = wire.coordinator.requests.sequences._known.values()

    member = wire.coordinator.members.by_name["a"]

    def told(request, seconds):
        wire.now += 2
        member.beat = m.Heartbeat(sequence.epoch, request, seconds, 1, 0)
        return [instruction.message for instruction in wire.coordinator.recovery.forgotten(member, wire.now)]

    assert told(sequence.state, 5.0) == []
    assert [type(message) for message in told(sequence.state + 1000, 5.0)] == [m.Abandon]
    assert [type(message) for message in told(sequence.state, 100.0)] == [m.Abandon]


def test_what_is_ended_or_idle_for_long_is_forgotten_everywhere():
    wire = counters("a", "b")
    total(wire, 1, 0, 1)
    total(wire, 2, 0, 1)
    wire.tell(c.EndSequence(1))
    assert total(wire, 1, 1, 1) is c.Fault.STATE_LOST
    assert {len(states._states) for states in wire.states.values() if states.nbytes} == {1}
    wire.wait(1)
    wire.now += 700
    wire.wait(1)
    assert len(wire.coordinator.requests.sequences) == 0
    assert not any(states.nbytes for states in wire.states.values())


class SequencesOnAFakeWire(RuleBasedStateMachine):
    """What may go wrong, goes wrong; each sequence counts on."""

    def __init__(self):
        super().__init__()
        self.wire = counters("a", "b", "c", joinings=JOININGS)
        self.given = {}
        self.open = {}

    @rule(sequence=st.integers(1, 3), value=st.integers(1, 9))
    def run(self, sequence, value):
        if sequence not in self.open:
            given = self.given.setdefault(sequence, [])
            self.open[sequence] = self.wire.run_of(sequence, len(given), value), value

    @rule(sequence=st.integers(1, 3))
    def read(self, sequence):
        if sequence not in self.open and self.given.get(sequence):
            self.open[sequence] = self.wire.read_of(sequence, len(self.given[sequence])), None

    @rule(sequence=st.integers(1, 3), other=st.integers(1, 3))
    def fork(self, sequence, other):
        if sequence != other and not {sequence, other} & self.open.keys() and self.given.get(sequence):
            self.wire.settle()
            self.wire.tell(c.ForkSequence(sequence, other))
            self.given[other] = list(self.given[sequence])

    @precondition(lambda self: self.wire.pending())
    @rule(data=st.data(), count=st.integers(1, 10))
    def deliver(self, data, count):
        for _ in range(count):
            if self.wire.pending():
                self.wire.deliver(data.draw(st.sampled_from(self.wire.pending())))

    @precondition(lambda self: self.wire.pending())
    @rule(data=st.data())
    def drop(self, data):
        key = data.draw(st.sampled_from(self.wire.pending()))
        self.wire.queues[key].pop(data.draw(st.integers(0, len(self.wire.queues[key]) - 1)))

    @rule()
    def finish(self):
        self.wire.finish_requests()

    @rule(count=st.integers(1, 2))
    def some_of_its_agents_do_their_part(self, count):
        self.wire.finish_requests(only=count)

    @rule(seconds=st.sampled_from([0.25, 1.0, 3.0]))
    def time(self, seconds):
        self.wire.pass_time(seconds)

    @precondition(lambda self: len(self.wire.agents) > 1)
    @rule(name=st.sampled_from("abc"))
    def crash(self, name):
        for agent in [agent for agent in self.wire.agents.values() if agent.name == name]:
            self.wire.crash(agent)

    @rule(name=st.sampled_from("abc"))
    def come_back(self, name):
        if all(agent.name != name for agent in self.wire.agents.values()):
            self.wire.add_agent(name)

    @rule(name=st.sampled_from("abc"))
    def states_make_room(self, name):
        for agent in self.wire.agents.values():
            if agent.name == name:
                self.wire.states.pop(agent.identity, None)

    @invariant()
    def answers_are_sums(self):
        for sequence, (call, value) in list(self.open.items()):
            for answer in self.wire.answers[call]:
                del self.open[sequence]
                if isinstance(answer, c.RunResult):
                    if value is not None:
                        self.given[sequence].append(value)
                    assert int(bytes(answer.payload[0])) == sum(self.given[sequence])
                else:
                    # An agent that loses it again and again, or three agents that die with it, end a request, no sequence.
                    assert answer.fault is c.Fault.STATE_LOST or "lost while it ran" in answer.reason, answer

    @invariant()
    def what_is_kept_is_counted(self):
        sequences: Sequences = self.wire.coordinator.requests.sequences
        assert sequences._kept == sum(given.price for known in sequences._known.values() for given in known.given or ())

    def teardown(self):
        if not self.wire.agents:
            self.wire.add_agent("a")
        for call, _ in list(self.open.values()):
            self.wire.until_answered(call)
        self.answers_are_sums()


TestSequencesOnAFakeWire = SequencesOnAFakeWire.TestCase
TestSequencesOnAFakeWire.settings = settings(max_examples=examples(80), stateful_step_count=40, deadline=None)
