"""What the audit log is told: each thing once, and what is many is counted."""

from collections import Counter

from bbgrap.cluster.types import NodeProfile, Speed
from bbgrap.control import audit, coordinator_instructions, coordinator_settings
from bbgrap.control import coordinator_events as ce
from bbgrap.control.audit import EVERY_S
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.uploads import offer_digest
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.tiny_plans import FILE, MODEL
from tests.bbgrap.control.wire import CLIENT, introduction, ready_wire

WHO = {"client": CLIENT.hex()[:12]}


def told(wire, event):
    return [(said.who, dict(said.detail)) for said in wire.audits if said.event == event]


def test_each_thing_that_happens_is_told_once():
    wire = ready_wire("a", "b")
    a, b = (wire.agent(name) for name in "ab")
    wire.until_answered(wire.prepare())  # again: nothing new
    wire.settle()
    wire.offer()
    wire.settle()
    wire.until_answered(wire.call(lambda n: c.SetProfile(n, NodeProfile("a", cores=3))))
    for _ in range(3):  # it asks twice a second
        wire.to_coordinator(ce.FromPeer(b"other", introduction("a")))
    wire.to_coordinator(ce.FromPeer(b.identity, m.Leave("")))
    wire.crash(a)
    wire.crash(b)
    wire.wait(2.0)
    counted = Counter(said.event for said in wire.audits)
    assert counted == {"joined": 2, "brought": 1, "prepared": 1, "profile set": 1, "refused": 1, "left": 1, "lost": 1}
    assert told(wire, "joined")[0] == ({"agent": "a", "id": a.identity.hex()[:12]}, {"address": "tcp://a:1", "version": "0.1.0"})
    assert told(wire, "brought") == [(WHO, {"model": MODEL, "names": [FILE.name], "bytes": FILE.size})]
    ((who, prepared),) = told(wire, "prepared")
    assert (who, prepared["model"], prepared["shapes"]) == (WHO, MODEL, {"x": [2, 2]})
    assert told(wire, "profile set") == [(WHO, {"node": "a"})]
    ((agent, taken),) = told(wire, "refused")
    assert agent["agent"] == "a"
    assert "is taken" in taken["reason"]
    assert (told(wire, "left")[0][0]["agent"], told(wire, "lost")[0][0]["agent"]) == ("b", "a")


def test_what_was_run_is_told_by_the_minute():
    wire = ready_wire("a", "b")
    wire.pass_time(EVERY_S)
    plan = next(iter(wire.coordinator.planning.plans))
    for _ in range(3):
        wire.until_answered(wire.run())
    wire.run()
    wire.deliver_all()
    (number,) = wire.started
    wire.to_coordinator(ce.RequestBroke(number, c.Fault.EXECUTION, "no luck"))
    wire.run()
    wire.deliver_all()
    wire.to_coordinator(ce.FromPeer(CLIENT, c.Cancel(wire.calls)))
    assert told(wire, "ran") == []
    wire.pass_time(EVERY_S)
    assert told(wire, "ran") == [(WHO, {"model": MODEL, "plan": plan, "requests": 5, "failed": 1, "cancelled": 1})]
    wire.pass_time(EVERY_S)
    assert len(told(wire, "ran")) == 1


def test_counters_are_bounded(monkeypatch):
    monkeypatch.setattr(audit, "MAX_COUNTS", 3)
    wire = ready_wire("a")
    plan = next(iter(wire.coordinator.planning.plans.values()))
    counts = wire.coordinator.statistics.runs
    for number in range(10):
        counts.ended(bytes([number]), plan, "refused")
    reports = counts.report(wire.now + EVERY_S)
    assert [report.detail["requests"] for report in reports] == [1, 1, 1, 7]
    assert reports[-1].who == {"client": "others"}


def test_a_measured_node_is_told():
    wire = ready_wire("a")
    wire.wait(3.0)
    agent = wire.agent("a")
    wire.to_coordinator(ce.FromPeer(agent.identity, m.Measured(1, NodeProfile("a", work=(Speed("matmul", 1e9),)), "")))
    wire.to_coordinator(ce.FromPeer(agent.identity, m.LinksMeasured(2, (), "")))
    assert told(wire, "measured") == [({"agent": "a"}, {})]


def test_an_offer_that_is_refused_is_not_told():
    machine = CoordinatorMachine(coordinator_settings.Settings("0.1.0", "tcp://head:1"))
    files = (c.ModelFile("m.onnx", "ab" * 32, 1), c.ModelFile("m.onnx", "ab" * 32, 1))
    done = machine.handle(ce.FromPeer(b"1", c.OfferModel(1, offer_digest(files), files)), 0.0)
    assert not any(isinstance(said, coordinator_instructions.Audit) for said in done)
