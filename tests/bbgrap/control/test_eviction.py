"""Which variants go on agents that have as many as they may have, or no memory for more."""

from dataclasses import replace

import numpy as np
import pytest

from bbgrap.cluster import NodeProfile
from bbgrap.compiler.artifacts import WeightRef
from bbgrap.control import coordinator_events as ce
from bbgrap.control import eviction
from bbgrap.control.coordinator_instructions import Log
from bbgrap.control.eviction import MAX_LOADED
from bbgrap.control.planning import standby_key
from bbgrap.control.plans import IN_USE_S
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol import client_messages as c
from bbgrap.protocol.messages import Deploy, EndedBy, WorkerLost
from tests.bbgrap.control.test_standbys import bring, standbys_of
from tests.bbgrap.control.tiny_plans import plan_of, standby_of
from tests.bbgrap.control.wire import MODEL, joined_wire, ready_wire

WEIGHT_BYTES = 300
"""Of every model here; a plan has half of them on each of two nodes."""


def prepare(wire, top, planner="widest", wait=True):
    """Prepare the model with so many largest elements, which are a plan and a standby of their own; returns who serves."""
    options = PlanOptions(planner=planner, top=(("y", top),))
    call = wire.call(lambda number: c.PrepareModel(number, MODEL, {"x": (2, 2)}, options, wait=wait))
    answer = wire.until_answered(call)
    assert isinstance(answer, c.ModelPrepared)
    return answer


def use(wire, top, planner="widest", wait=False):
    """Run a request of a model; returns the agents that took part."""
    key = prepare(wire, top, planner, wait).plan
    call = wire.call(lambda number: c.RunModel(number, key, 30.0, (), ()))
    wire.deliver_all()
    (start,) = wire.started.values()
    names = tuple(peer.name for peer in wire.parts[start.epoch])
    assert isinstance(wire.until_answered(call), c.RunResult)
    return names


def weighing(made, top, nbytes):
    """Give every segment of what was made weights of its own, of so many bytes."""
    variants = []
    for place, planned in enumerate(made.variants):
        weights, parts = {}, []
        for device in planned.artifacts.devices:
            segments = []
            for segment in device.segments:
                weight = np.full(nbytes, len(weights), np.uint8)
                weight[:4] = top, place, nbytes % 251, len(planned.artifacts.devices)
                ref = WeightRef(digest_of(weight), TensorType(DType.UINT8, weight.shape))
                weights[ref.digest] = weight
                segments.append(replace(segment, weights={"w": ref}))
            parts.append(replace(device, segments=tuple(segments)))
        report = planned.report | ({"memory_bytes": 2 * nbytes} if planned.name == "standby" else {})
        variants.append(replace(planned, artifacts=replace(planned.artifacts, devices=tuple(parts), weights=weights), report=report))
    return ce.Planned(made.job, tuple(variants))


def wire_with_memory(nbytes, names=("a", "b")):
    """Agents that may use so many bytes."""
    wire = joined_wire(*names)
    wire.standby = lambda job: weighing(standby_of(job), dict(job.top)["y"], WEIGHT_BYTES)
    wire.plan = lambda job: weighing(plan_of(job), dict(job.options.top)["y"], WEIGHT_BYTES // 2)
    for name in names:
        wire.call(lambda number, name=name: c.SetProfile(number, NodeProfile(name, memory_bytes=nbytes)))
    wire.settle()
    return wire


def packed(wire):
    return max(wire.coordinator.loading.packed_bytes(name) for name in ("a", "b"))


@pytest.mark.parametrize("planner", ["widest", "auto"])
@pytest.mark.parametrize("tops", [2, 3])
def test_plans_in_use_stay_while_standbys_are_idle(planner, tops):
    wire = joined_wire("a", "b")
    for top in range(10, 11 + MAX_LOADED):
        prepare(wire, top, planner)
    wire.wait(1.5 * IN_USE_S)
    first = {top: prepare(wire, top, planner).epoch for top in range(1, 1 + tops)}
    for _ in range(4):
        wire.wait(1.0)
        assert {top: prepare(wire, top, planner).epoch for top in range(1, 1 + tops)} == first


@pytest.mark.parametrize("models", [1, 3, pytest.param(12, marks=pytest.mark.broad)])
@pytest.mark.parametrize("planner", ["widest", "auto"])
def test_models_that_nobody_uses_make_room_in_memory(models, planner):
    memory = 4 * WEIGHT_BYTES
    wire = wire_with_memory(memory)
    for top in range(1, models + 1):
        assert len(use(wire, top, planner)) == 1
        prepare(wire, top, planner)
        assert packed(wire) <= memory
        wire.wait(1.5 * IN_USE_S)
    served = prepare(wire, models, planner)
    assert served.agents == ("a", "b")
    (standby,) = (standby for standby in wire.coordinator.standbys.by_model.values() if dict(standby.top)["y"] == models)
    assert {name for variant in standby.variants for name in variant.parts} == {"a", "b"}


def test_models_in_use_do_not_take_turns_in_memory():
    wire = wire_with_memory(3 * WEIGHT_BYTES)
    seen = []
    for _ in range(4):
        for top in (1, 2, 3):
            assert use(wire, top)
            wire.wait(1.0)
        seen.append({epoch for epoch, variant in wire.coordinator.loading.by_epoch.items() if variant.plan.is_standby})
    assert seen[1] == seen[2] == seen[3]
    assert all(standby.variants for standby in wire.coordinator.standbys.by_model.values())
    assert packed(wire) <= 3 * WEIGHT_BYTES


def test_what_makes_too_little_room_by_itself_stays_where_something_larger_has_to_go():
    wire = wire_with_memory(5 * WEIGHT_BYTES)
    sizes = {1: WEIGHT_BYTES // 10, 2: 2 * WEIGHT_BYTES, 3: 2 * WEIGHT_BYTES}
    wire.standby = lambda job: weighing(standby_of(job), dict(job.top)["y"], sizes[dict(job.top)["y"]])
    wire.plan = lambda job: weighing(plan_of(job), dict(job.options.top)["y"], 4)
    use(wire, 1)
    use(wire, 2)
    small = {epoch for epoch, variant in wire.coordinator.loading.by_epoch.items() if dict(variant.plan.top)["y"] == 1}
    assert small
    wire.wait(1.5 * IN_USE_S)
    use(wire, 3)
    assert small <= set(wire.coordinator.loading.by_epoch)
    assert packed(wire) <= 5 * WEIGHT_BYTES


def test_a_model_larger_than_any_node_takes_no_standby_away():
    wire = wire_with_memory(4 * WEIGHT_BYTES)
    use(wire, 1)
    wire.wait(1.5 * IN_USE_S)
    copies = {epoch for epoch, variant in wire.coordinator.loading.by_epoch.items() if variant.plan.is_standby}
    wire.standby = lambda job: weighing(standby_of(job), dict(job.top)["y"], 10 * WEIGHT_BYTES)
    wire.plan = lambda job: weighing(plan_of(job), dict(job.options.top)["y"], WEIGHT_BYTES)
    assert use(wire, 2, wait=True) == ("a", "b")
    assert copies < set(wire.coordinator.loading.by_epoch)


def test_standbys_that_nobody_uses_do_not_take_turns():
    wire = wire_with_memory(4 * WEIGHT_BYTES)
    for top in range(1, 8):
        use(wire, top)
    wire.wait(3 * IN_USE_S)
    before = set(wire.coordinator.loading.by_epoch)
    wire.add_agent("c")
    wire.wait(IN_USE_S)
    assert before <= set(wire.coordinator.loading.by_epoch)


def test_what_serves_nobody_goes_first():
    wire = joined_wire("a", "b")
    for top in range(1, 1 + MAX_LOADED // 3):
        prepare(wire, top, "auto")
    loading = wire.coordinator.loading
    assert len(loading.of_member("a")) == MAX_LOADED, "of each a standby, the plan, the best node"
    for top in range(1 + MAX_LOADED // 3, 1 + MAX_LOADED // 2):
        prepare(wire, top, "auto")
    plans = [plan for plan in wire.coordinator.planning.plans.values() if plan.variants]
    assert len(loading.of_member("a")) <= MAX_LOADED
    assert len(plans) == MAX_LOADED // 2, "of every plan what serves is there"
    assert all(plan.serving for plan in plans)


def test_what_is_to_be_timed_with_what_is_still_loaded_does_not_go_for_the_plan_of_another_model(monkeypatch):
    monkeypatch.setattr(eviction, "MAX_LOADED", 4)
    wire, jobs = joined_wire("a", "b"), []
    wire.plan = jobs.append
    use(wire, 1, "auto")
    use(wire, 2)
    carry = wire.carry_agent
    wire.carry_agent = lambda agent, instruction: (
        None if isinstance(instruction, Deploy) and agent.name == "b" else carry(agent, instruction)
    )
    wire.carry_plan(plan_of(jobs[0]))
    wire.deliver_all()
    loading = wire.coordinator.loading
    *_, over_both, alone = loading.of_member("a")
    assert (over_both.is_ready, alone.is_ready) == (False, True)
    wire.carry_plan(plan_of(jobs[1]))
    wire.deliver_all()
    gone, *_ = [text for text in wire.told if "to make room" in text]
    assert "standby is released" in gone, "of that, there is another copy"
    assert alone in loading.of_member("a")


@pytest.mark.parametrize(("models", "place"), [(1, "a"), (4, "b")])
def test_a_new_model_does_not_wait_behind_those_that_a_new_worker_loads_again(models, place):
    wire = joined_wire("a", "b")
    for top in range(1, 1 + models):
        use(wire, top)
    wire.to_agent(wire.agent("a"), WorkerLost("it was ended", 0, 0, EndedBy.OUTSIDE))
    wire.deliver_all()
    wire.call(lambda number: c.PrepareModel(number, MODEL, {"x": (2, 2)}, PlanOptions("auto", top=(("y", 10),)), wait=False))
    wire.deliver_all()
    first, *_ = wire.coordinator.standbys.by_model[standby_key(MODEL, (), (("y", 10),))].variants
    assert list(first.parts) == [place]


def test_a_plan_over_those_that_are_left_takes_the_place_of_the_one_that_waits_for_the_other():
    wire = wire_with_memory(6 * WEIGHT_BYTES, ("a", "b", "c"))
    wire.standby = lambda job: weighing(standby_of(job), dict(job.top)["y"], 10 * WEIGHT_BYTES)
    wire.plan = lambda job: weighing(plan_of(job), dict(job.options.top)["y"], 6 * WEIGHT_BYTES // len(job.cluster.nodes))
    assert use(wire, 1, wait=True) == ("a", "b", "c")
    wire.crash(wire.agent("c"))
    wire.wait(2.0)
    assert prepare(wire, 1).agents == ("a", "b")
    assert packed(wire) == 3 * WEIGHT_BYTES, "with the other, it would be more than these agents have"


def test_a_request_that_lost_the_plan_and_its_only_standby_runs_on_the_next_plan():
    wire = wire_with_memory(6 * WEIGHT_BYTES)
    wire.add_agent("c")  # has room for the standby
    wire.settle()
    wire.standby = lambda job: weighing(standby_of(job), dict(job.top)["y"], 10 * WEIGHT_BYTES)
    wire.plan = lambda job: weighing(plan_of(job), dict(job.options.top)["y"], 6 * WEIGHT_BYTES // len(job.cluster.nodes))
    assert use(wire, 1, wait=True) == ("a", "b", "c")
    wire.crash(wire.agent("c"))
    key = prepare(wire, 1).plan
    call = wire.call(lambda number: c.RunModel(number, key, 30.0, (), ()))
    assert isinstance(wire.until_answered(call), c.RunResult)


def test_what_has_made_room_is_not_loaded_again_after_a_restart():
    wire = ready_wire("a", "b")
    wire.standby = lambda job: weighing(standby_of(job), job.job % 251, WEIGHT_BYTES)
    for name in "ab":
        wire.call(lambda number, name=name: c.SetProfile(number, NodeProfile(name, memory_bytes=2 * WEIGHT_BYTES)))
    bring(wire, 0)
    (first,) = standbys_of(wire) - {MODEL}
    for number in (1, 2):
        bring(wire, number)
        wire.wait(2 * IN_USE_S)
    loaded = standbys_of(wire)
    assert first not in loaded
    wire.restart_coordinator()
    wire.wait(10.0)
    assert standbys_of(wire) == loaded


def test_the_line_of_what_makes_room_names_its_model_and_epoch():
    wire = wire_with_memory(2 * WEIGHT_BYTES, names=("a",))
    lines, carry = [], wire.carry_coordinator

    def seen(instruction):
        if isinstance(instruction, Log):
            lines.append(instruction)
        carry(instruction)

    wire.carry_coordinator = seen
    for top in (1, 2, 3):
        use(wire, top)
        wire.wait(2 * IN_USE_S)
    (first, *_) = [line for line in lines if "to make room" in line.text]
    assert first.text == f"model 'm' ({MODEL[:8]}): widest is released, to make room on 'a'"
    assert first.model == MODEL
    assert first.epoch
