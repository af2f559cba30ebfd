"""P9: whatever the wire does (drop, repeat, reorder) and whoever crashes, every call is answered exactly once when the wire heals."""

import re

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_settings
from bbgrap.control.scaled_plans import answer_more_at_once
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.wire import Wire
from tests.examples import examples

NAMES = ("a", "b", "c")
FAULTS = r"broken|deadline|trace again|in time|it may be what ends them"
"""What may end a request: the loss of one agent does not."""


class ClusterOnAFakeWire(RuleBasedStateMachine):
    options = PlanOptions()

    def __init__(self):
        super().__init__()
        self.wire = Wire(coordinator_settings.Settings("0.1.0", "tcp://head:1", max_waiting=5), options=self.options)
        for name in NAMES[:2]:
            self.wire.add_agent(name)
        self.wire.offer()
        self.wire.prepare()

    @rule()
    def prepare(self):
        self.wire.offer()
        self.wire.prepare()

    @rule()
    def run(self):
        self.wire.run()

    @rule()
    def record(self):
        self.wire.run(record=True)

    @precondition(lambda self: self.wire.pending())
    @rule(data=st.data(), count=st.integers(1, 10))
    def deliver(self, data, count):
        for _ in range(count):
            if self.wire.pending():
                self.wire.deliver(data.draw(st.sampled_from(self.wire.pending())))

    @rule()
    def deliver_all(self):
        self.wire.settle()

    @precondition(lambda self: self.wire.pending())
    @rule(data=st.data())
    def drop(self, data):
        key = data.draw(st.sampled_from(self.wire.pending()))
        self.wire.queues[key].pop(data.draw(st.integers(0, len(self.wire.queues[key]) - 1)))

    @precondition(lambda self: self.wire.pending())
    @rule(data=st.data())
    def repeat_or_reorder(self, data):
        key = data.draw(st.sampled_from(self.wire.pending()))
        self.wire.deliver(key, data.draw(st.integers(0, len(self.wire.queues[key]) - 1)), keep=data.draw(st.booleans()))

    @rule(seconds=st.sampled_from([0.25, 0.5, 1.0, 3.0]))
    def time(self, seconds):
        self.wire.pass_time(seconds)

    @rule(count=st.integers(1, 12))
    def run_many(self, count):
        for _ in range(count):
            self.wire.run()

    @precondition(lambda self: self.wire.client.calls)
    @rule(data=st.data())
    def cancel(self, data):
        call = data.draw(st.sampled_from(list(self.wire.client.calls)))
        self.wire.carry_client(self.wire.client.cancel(call))
        del self.wire.answers[call]

    @rule()
    def finish(self):
        self.wire.finish_requests()

    @precondition(lambda self: self.wire.started)
    @rule(data=st.data())
    def a_request_breaks_on_the_host(self, data):
        number = data.draw(st.sampled_from(list(self.wire.started)))
        del self.wire.started[number]
        self.wire.to_coordinator(ce.RequestBroke(number, c.Fault.EXECUTION, "broken"))

    @precondition(lambda self: any(agent.loaded for agent in self.wire.agents.values()))
    @rule(data=st.data())
    def a_variant_breaks_on_an_agent(self, data):
        agent = data.draw(st.sampled_from([agent for agent in self.wire.agents.values() if agent.loaded]))
        epoch = data.draw(st.sampled_from(sorted(agent.loaded)))
        self.wire.to_coordinator(ce.FromPeer(agent.identity, m.DeploymentFailed(epoch, "broken")))

    @precondition(lambda self: self.wire.agents)
    @rule(data=st.data())
    def crash(self, data):
        self.wire.crash(data.draw(st.sampled_from(list(self.wire.agents.values()))))

    @precondition(lambda self: len(self.wire.agents) > 1)
    @rule(data=st.data())
    def a_request_survives_the_loss_of_an_agent(self, data):
        self.heal()
        if len(self.wire.agents) < 2:
            return  # one gave up, since its name was taken for too long
        self.wire.offer()
        self.wire.prepare()
        self.wire.settle()
        call = self.wire.run()
        self.wire.deliver_all()
        self.wire.crash(data.draw(st.sampled_from(list(self.wire.agents.values()))))
        self.heal()
        assert isinstance(self.wire.answer(call), c.RunResult)

    def heal(self):
        """Let nothing go wrong until everybody has noticed what did."""
        for _ in range(50):
            self.wire.settle()
            self.wire.pass_time(0.5)
        self.wire.settle()

    @rule(name=st.sampled_from(NAMES))
    def start_agent(self, name):
        if name not in {agent.name for agent in self.wire.agents.values()}:
            self.wire.add_agent(name)

    @rule()
    def restart_coordinator(self):
        self.wire.restart_coordinator()

    @invariant()
    def nothing_is_answered_twice(self):
        assert all(len(answers) <= 1 for answers in self.wire.answers.values())

    @invariant()
    def requests_are_where_they_belong(self):
        machine = self.wire.coordinator
        variants = machine.loading.by_epoch.values()
        waiting = [number for plan in machine.planning.plans.values() for number in plan.waiting]
        running = [number for variant in variants for number in variant.queue.running]
        assert sorted(waiting + running) == sorted(machine.requests.open)
        assert len(machine.requests.table.by_caller) == len(machine.requests.open)
        for standby in machine.standbys.by_model.values():
            assert standby.outstanding == sum(request.plan.standby is standby for request in machine.requests.open.values())
        for plan in machine.planning.plans.values():
            assert plan.outstanding == sum(request.plan is plan for request in machine.requests.open.values())
        for variant in variants:
            assert variant in variant.plan.variants
            assert len(variant.queue.running) <= variant.queue.limit
            assert all(machine.requests.open[number].epoch == variant.epoch for number in variant.queue.running)
            assert not variant.queue.running or variant.is_ready
            assert variant.is_ready == (variant.tracker.state == "ready" and not variant.away and not variant.pending)
        for plan in machine.planning.plans.values():
            if plan.waiting and not machine.requests.synthetic.has_turn:
                standby = plan.standby.open_variants
                crowded = answer_more_at_once(len(standby), plan)
                idle = standby if crowded else plan.serving
                assert not any(v.queue.has_room for v in idle) or machine.requests.open[plan.waiting[0]].interruptions
                assert plan.serving or not any(variant.queue.has_room for variant in standby)
        recorded = {number for number in running if machine.requests.open[number].message.record}
        assert {number for number, request in machine.requests.open.items() if request.trace} == recorded
        # A coordinator that knows plans of an earlier one looks at them with the first event: a constructor has no instructions to give.
        assert self.wire.fresh or not machine.loading.touched
        assert set(machine.members.by_name) == {member.name for member in machine.members.by_identity.values()}

    def teardown(self):
        wire = self.wire
        self.heal()
        if not wire.agents:
            # Whoever waits without any agent waits until one comes, or the deadline.
            wire.add_agent("a")
        self.heal()
        assert {call: len(answers) for call, answers in wire.answers.items() if len(answers) != 1} == {}
        assert wire.coordinator.requests.open == {}
        failed = [answer for answers in wire.answers.values() for answer in answers if isinstance(answer, c.Failed)]
        assert [answer for answer in failed if answer.fault is c.Fault.EXECUTION and not re.search(FAULTS, answer.reason)] == []
        wire.offer()
        wire.settle()
        wire.prepare()
        wire.settle()
        call = wire.run()
        wire.settle()
        assert isinstance(wire.answer(call), c.RunResult)


ClusterOnAFakeWire.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40, deadline=None)
TestClusterOnAFakeWire = ClusterOnAFakeWire.TestCase


class VariantsForLatency(ClusterOnAFakeWire):
    options = PlanOptions(planner="auto")


class VariantsForStreams(ClusterOnAFakeWire):
    options = PlanOptions(planner="auto", objective="throughput")


VariantsForLatency.TestCase.settings = VariantsForStreams.TestCase.settings = ClusterOnAFakeWire.TestCase.settings
TestVariantsForLatency = VariantsForLatency.TestCase
TestVariantsForStreams = VariantsForStreams.TestCase
