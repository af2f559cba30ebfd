"""Stories of further shapes of a model: answered at once, planned when they come back, like what was searched for before."""

from dataclasses import replace

import pytest

from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, eviction, planning
from bbgrap.control.plan_trial import TRIALS
from bbgrap.control.planned_variant import SCALED_FROM, PlannedVariant
from bbgrap.control.planning import EARNED, ONE_NODE, standby_key
from bbgrap.control.plans import FIRST_AGAIN_S, IN_USE_S, SLOWER_AGAIN_S
from bbgrap.control.scaled_plans import SEARCH_EVERY_S
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.shapes import AUTO, BOTH, FIRST, SECOND, THIRD, A, B, Story, planned
from tests.bbgrap.control.tiny_plans import MODEL, artifacts


def test_a_shape_is_planned_when_it_came_often_enough_and_like_the_first_one():
    story = Story()
    story.prepare()
    (first,) = story.wire.jobs
    assert story.served(FIRST) == [BOTH]
    assert all(nodes in (A, B) for nodes in story.served(THIRD))
    assert all(nodes in (A, B) for nodes in story.served(SECOND, EARNED - 1))
    assert {plan.variants == [] for plan in (story.plan(SECOND), story.plan(THIRD))} == {True}
    assert story.served(SECOND)[0] in (A, B), "the one that earns it does not wait for it"
    assert story.bases == [(), (coordinator_instructions.Base(first.job, 0),)]
    assert story.wire.jobs[-1].shapes == {"x": SECOND}
    assert story.served(SECOND, 3) == [BOTH] * 3
    assert story.prepare(SECOND, wait=False)[SCALED_FROM] == [list(FIRST)]
    assert story.served(FIRST) == [BOTH]


def test_the_nearest_plan_that_was_searched_for_is_the_base():
    story = Story()
    story.prepare(FIRST)
    story.prepare((20, 20))
    searched = [job.job for job in story.wire.jobs]
    story.served((18, 20), EARNED)
    story.served((2, 3), EARNED)
    story.served((17, 20), EARNED)  # the nearest one is scaled itself
    assert [bases[0].job for bases in story.bases[2:]] == [searched[1], searched[0], searched[1]]
    assert {base.job for base in story.bases[-1]} == set(searched), "others are tried, too"


def test_a_plan_for_other_ranks_is_no_base():
    story = Story()
    story.prepare(FIRST)
    story.served((2, 2, 8), EARNED + 1)
    assert [(job.shapes["x"], job.bases) for job in story.wire.jobs] == [(FIRST, ()), ((2, 2, 8), ())]


def test_further_shapes_wait_for_the_first_plan_to_be_found():
    story = Story()
    found = []
    story.wire.plan = lambda job: found.append(planned(job))
    story.served(FIRST)
    story.served(SECOND, EARNED + 2)
    assert len(story.wire.jobs) == 1
    story.wire.plan = planned
    story.wire.carry_plan(found[0])
    story.wire.wait(1)
    story.wire.settle()
    story.served(FIRST, 20)
    assert story.served(FIRST) == [BOTH]
    story.served(SECOND, 2)
    assert story.bases == [(), (coordinator_instructions.Base(story.wire.jobs[0].job, 0),)]


def test_nothing_is_searched_where_one_node_was_the_fastest_for_inputs_half_as_large():
    story = Story(both=0.3, alone=0.1)
    story.prepare(FIRST)
    assert story.served(FIRST) == [A]
    story.served(SECOND, EARNED + 3)
    assert len(story.wire.jobs) == 1
    assert story.prepare(SECOND, wait=False)["why_not"] == ONE_NODE[1]
    story.served((4, 2), EARNED)
    assert story.bases == [(), ()], "twice as large: it is worth a search"


def test_a_plan_that_a_caller_waits_for_is_searched():
    story = Story()
    story.prepare(FIRST)
    assert SCALED_FROM not in story.prepare(SECOND)
    assert story.bases == [(), ()]


def test_other_planners_and_streams_are_made_for_each_shape():
    for options in (replace(AUTO, planner="bbgrap"), replace(AUTO, objective="throughput")):
        story = Story(options=options)
        story.prepare(FIRST)
        story.served(SECOND, EARNED)
        assert set(story.bases) == {()}


def test_a_scaled_plan_that_is_slower_than_the_standby_goes_for_good():
    story = Story()
    story.prepare(FIRST)
    story.served(SECOND, EARNED)
    story.wire.seconds[BOTH] = 0.5
    assert story.served(SECOND, TRIALS) == [BOTH] * TRIALS
    assert story.plan(SECOND).variants == []
    assert all(nodes in (A, B) for nodes in story.served(SECOND, 2 * EARNED))
    assert len(story.wire.jobs) == 2
    assert "requests took 500.0 ms on it, and 200.0 ms on one node" in story.prepare(SECOND, wait=False)["why_not"]
    assert story.served(FIRST) == [BOTH], "that of another shape stays"
    assert all(len(agent.loaded) == 2 + (agent.name == "a") for agent in story.wire.agents.values()), "standby, plan; a: it alone, too"


def only_over_both(job):
    """What the planner makes where no variant of a plan is on one node."""
    return ce.Planned(job.job, (PlannedVariant("auto", artifacts(len(job.cluster.nodes)), {"planner": "auto"}),))


def searched_beside_standby(story: Story, planned=planned) -> None:
    """Let a plan be found once the standby has answered some requests."""
    found = []
    story.wire.plan = lambda job: found.append(planned(job))
    story.served(FIRST, 2 * TRIALS)
    story.wire.plan = planned
    story.wire.carry_plan(found[0])
    story.wire.settle_for(10.0)


def test_one_that_was_searched_for_and_is_slower_than_the_standby_does_not_serve_and_another_is_searched_for_later():
    """Of two nodes of which one was unknown that one was taken for the faster one: what served took 133 ms, the standby on the other 97."""
    story = Story(both=0.03, alone=0.02)
    story.wire.seconds[B] = 0.01
    searched_beside_standby(story)
    assert story.plan(FIRST).variants == []
    assert "requests took 20.0 ms on it, and 10.0 ms on one node" in story.prepare(wait=False)["why_not"]
    assert B in story.served(FIRST, 3)
    story.wire.settle_for(50.0)
    assert len(story.wire.jobs) == 1
    story.wire.seconds[BOTH] = 0.005
    story.wire.settle_for(20.0)
    story.served(FIRST)
    story.wire.settle_for(10.0)
    assert len(story.wire.jobs) == 2
    assert story.served(FIRST, 3) == [BOTH] * 3


def test_a_plan_that_has_become_slower_than_the_standby_goes_and_is_made_anew_later():
    """From 1 Gbit/s to 20 Mbit/s a plan served on for good with twice what the near node takes alone: only plans were compared."""
    story = Story(both=0.01, alone=0.02)
    searched_beside_standby(story, only_over_both)
    assert story.served(FIRST, 20) == [BOTH] * 20
    story.wire.seconds[BOTH] = 0.04
    took = story.served(FIRST, 40)
    assert BOTH not in took[-10:]
    assert "requests took 40.0 ms on it, and 20.0 ms on one node" in story.prepare(wait=False)["why_not"]
    story.wire.seconds[BOTH] = 0.01
    story.wire.settle_for(SLOWER_AGAIN_S)
    story.served(FIRST)
    story.wire.settle_for(10.0)
    assert story.served(FIRST, 3) == [BOTH] * 3


def test_what_was_doubted_of_a_plan_says_nothing_of_the_next_one():
    story = Story(both=0.01, alone=0.02)
    searched_beside_standby(story, only_over_both)
    story.served(FIRST, 20)
    story.wire.seconds[BOTH] = 0.04
    while not story.plan(FIRST).trial.doubted_s:
        story.served(FIRST)
    story.wire.seconds[*BOTH, "c"] = 0.005
    story.wire.add_agent("c")
    story.wire.settle_for(10.0)
    story.served(FIRST)
    story.wire.settle_for(10.0)
    assert story.served(FIRST, 40) == [(*BOTH, "c")] * 40


def test_a_plan_that_has_become_slower_as_the_standby_has_stays():
    """Other programs took half of the machines."""
    story = Story(both=0.01, alone=0.02)
    searched_beside_standby(story, only_over_both)
    assert story.served(FIRST, 20) == [BOTH] * 20
    story.wire.seconds |= {BOTH: 0.03, A: 0.06, B: 0.06}
    took = story.served(FIRST, 100)
    assert 0 < len([nodes for nodes in took if nodes != BOTH]) <= TRIALS
    assert set(took[-50:]) == {BOTH}


def test_one_that_was_searched_for_is_not_compared_with_the_standby_on_a_node_that_has_gone():
    story, rest = Story(alone=0.03), ("b", "c")
    wire = story.wire
    wire.add_agent("c")
    wire.settle()
    wire.seconds |= {A: 0.005, ("c",): 0.03, rest: 0.02}
    wire.plan = lambda job: None
    assert story.served(FIRST, 2 * TRIALS).count(A) > TRIALS
    wire.plan = planned
    wire.crash(wire.agent("a"))
    wire.settle_for(3.0)
    story.served(FIRST)
    wire.settle_for(5.0)
    assert story.served(FIRST, 3) == [rest] * 3


def test_a_plan_that_was_waited_for_and_has_become_slower_than_a_copy_that_was_never_asked_goes():
    """One of two nodes lost 70 % of its core: after `prepare` a plan took 250 ms for good, the standby on the other node would have 93."""
    story = Story(both=0.01, alone=0.02)
    story.prepare(FIRST)
    assert story.served(FIRST, 20) == [BOTH] * 20
    story.wire.seconds |= {BOTH: 0.05, A: 0.06}
    took = story.served(FIRST, 100)
    assert took[-10:] == [B] * 10
    story.wire.seconds |= {BOTH: 0.01, A: 0.02}
    story.wire.settle_for(SLOWER_AGAIN_S)
    story.served(FIRST)
    story.wire.settle_for(10.0)
    assert story.served(FIRST, 3) == [BOTH] * 3


@pytest.mark.parametrize("is_seen", [False, True])
def test_a_plan_that_was_slow_for_a_moment_is_compared_with_the_standby_as_it_is_then(is_seen):
    """Another program ran for a second: the standby, asked after that, took less than the plan had, and served for a minute."""
    story = Story(both=0.01, alone=0.02)
    if is_seen:
        searched_beside_standby(story, only_over_both)
    else:
        story.wire.plan = only_over_both
        story.prepare(FIRST)
    story.served(FIRST, 20)
    story.wire.seconds[BOTH] = 0.04
    while not story.plan(FIRST).trial.doubted_s:
        story.served(FIRST)
    story.wire.seconds[BOTH] = 0.01
    assert len([nodes for nodes in story.served(FIRST, 50) if nodes != BOTH]) <= TRIALS
    assert story.served(FIRST, 20) == [BOTH] * 20


def test_a_planner_that_fails_after_a_plan_was_slower_than_the_standby_is_asked_again_as_soon_as_any():
    """It counted as its seventh failure in a row: no plan was made over all agents for another minute (simulation 43065412)."""
    story = Story(both=0.03, alone=0.02)
    story.wire.seconds[B] = 0.01
    searched_beside_standby(story)
    assert story.plan(FIRST).variants == []
    story.wire.plan = lambda job: ce.PlanFailed(job.job, c.Fault.EXECUTION, "its process was ended")
    story.wire.add_agent("c")
    story.served(FIRST)
    story.wire.settle_for(0.5)
    assert len(story.wire.jobs) == 2
    story.wire.plan = planned
    story.wire.settle_for(FIRST_AGAIN_S)
    assert len(story.wire.jobs) == 3


@pytest.mark.parametrize("waits", [False, True])
def test_one_that_is_hardly_slower_or_that_somebody_waits_for_serves(waits):
    story = Story(both=0.03 if waits else 0.0102, alone=0.02)
    story.wire.seconds[B] = 0.01
    if waits:
        story.served(FIRST, 2 * TRIALS)
        story.prepare()
    else:
        searched_beside_standby(story)
    assert story.plan(FIRST).serving


def test_one_that_is_faster_stays():
    story = Story()
    story.prepare(FIRST)
    story.served(SECOND, EARNED)
    assert story.served(SECOND, 3 * TRIALS) == [BOTH] * 3 * TRIALS


def test_what_comes_together_goes_to_the_copies_oldest_first_and_plans_nothing():
    story = Story()
    story.prepare(FIRST)
    story.served(SECOND, EARNED)
    assert story.served(SECOND) == [BOTH]
    jobs = len(story.wire.jobs)
    shapes = (SECOND, FIRST, THIRD, SECOND, THIRD, THIRD, (2, 7), (2, 7), (2, 7), (2, 7))
    for shape in {*shapes}:
        story.prepare(shape, wait=False)
    calls = [story.begin(shape) for shape in shapes]
    order = []
    while len(order) < len(calls):
        story.wire.deliver_all()
        order += [call for call in calls if story.wire.answers[call] and call not in order]
        running = list(story.wire.started.values())
        if len(calls) - len(order) > 4:
            assert {story.wire.nodes_of(start) for start in running} <= {A, B, BOTH}
            assert {A, B} <= {story.wire.nodes_of(start) for start in running}
            assert len(story.wire.jobs) == jobs, "one plan more would take what answers"
        assert story.wire.finish_requests() or story.wire.pending() or len(order) == len(calls)
    assert order == sorted(order)
    assert story.wire.coordinator.standbys.by_model[standby_key(MODEL)].outstanding == 0


def test_a_crowd_of_one_shape_goes_to_the_copies_too():
    """While the plan's nodes are at one request together, each takes others alone, as many as it may have in flight."""
    story = Story()
    story.prepare(FIRST)
    calls = [story.begin(FIRST) for _ in range(6)]
    story.wire.deliver_all()
    running = sorted(story.wire.nodes_of(start) for start in story.wire.started.values())
    assert running == [A, A, BOTH, B, B]
    story.wire.settle()
    assert all(isinstance(story.wire.answer(call), c.RunResult) for call in calls)
    assert story.served(FIRST, 2) == [BOTH] * 2


def test_no_scaled_plan_is_kept_on_disk():
    story = Story()
    story.prepare(FIRST)
    kept = set(story.wire.kept)
    assert story.wire.jobs[0].job in kept
    story.served(SECOND, EARNED + 5)
    assert len(story.wire.jobs) == 2
    assert set(story.wire.kept) == kept
    story.wire.restart_coordinator()
    story.wire.wait(10)
    story.wire.settle()
    story.served(SECOND, EARNED)
    assert story.bases[-1] == (coordinator_instructions.Base(story.wire.jobs[0].job, 0),), (
        "what was searched for before is the base of it again"
    )
    assert story.served(SECOND) == [BOTH]


def test_a_new_shape_takes_the_place_of_the_one_that_was_asked_for_least_recently(monkeypatch):
    monkeypatch.setattr(planning, "MAX_PLANS", 2)
    story = Story()
    story.prepare(FIRST)
    for shape in (SECOND, THIRD, (2, 7), (2, 8)):
        story.served(shape)
        assert len(story.wire.coordinator.planning.plans) <= 2
    assert {plan.shapes["x"] for plan in story.wire.coordinator.planning.plans.values()} == {(2, 7), (2, 8)}


@pytest.fixture
def full(monkeypatch):
    """A story in which two further shapes have taken all the room that there is for such; the first one was used last."""
    monkeypatch.setattr(eviction, "MAX_SCALED", 2)
    story = Story()
    story.prepare(FIRST)
    for shape in ((2, 3), (2, 5)):
        story.served(shape, EARNED + 1)
    assert story.served((2, 3)) == [BOTH]
    return story


def scaled(story):
    plans = story.wire.coordinator.planning.plans.values()
    return {plan.shapes["x"] for plan in plans if any(variant.is_scaled for variant in plan.variants)}


def test_a_scaled_plan_in_use_does_not_go_for_another(full):
    assert all(nodes in (A, B) for nodes in full.served((2, 7), EARNED + 1))
    assert scaled(full) == {(2, 3), (2, 5)}
    assert "no room beside the variants" in full.prepare((2, 7), wait=False)["why_not"]


def test_the_least_recently_used_of_too_many_scaled_plans_goes(full):
    full.wire.wait(IN_USE_S + 1)
    full.wire.settle()
    full.served((2, 7), EARNED)
    assert scaled(full) == {(2, 3), (2, 7)}
    assert full.served((2, 7)) == full.served(FIRST) == [BOTH], "scaled ones take no place of others"
    assert all(sum(v.is_scaled for v in full.wire.coordinator.loading.of_member(name)) == 2 for name in BOTH)


@pytest.mark.parametrize("fault", [c.Fault.PLAN, c.Fault.EXECUTION])
def test_what_cannot_be_scaled_is_answered_by_the_standby(fault):
    story = Story()
    story.prepare(FIRST)
    story.wire.plan = lambda job: ce.PlanFailed(job.job, fault, "it cannot be cut like that")
    assert all(nodes in (A, B) for nodes in story.served(SECOND, 3 * EARNED))
    assert "cannot be cut like that" in story.prepare(SECOND, wait=False)["why_not"]


def test_who_asks_why_there_is_no_plan_is_told_what_it_cannot_be_like():
    story = Story()
    story.prepare()
    failed = "with other shapes it has other nodes"
    story.wire.plan = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, failed) if job.bases else None
    story.served(SECOND, EARNED)
    assert story.prepare(SECOND, wait=False)["why_not"] == failed


def test_what_can_be_like_no_other_is_searched_for_once_a_minute():
    story = Story()
    story.prepare(FIRST)
    story.wire.plan = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, "it cannot be cut like that") if job.bases else planned(job)
    story.served(SECOND, EARNED + 20)
    assert story.served(SECOND) == [BOTH]
    assert [bool(bases) for bases in story.bases] == [False, True, False]
    assert all(nodes in (A, B) for nodes in story.served(THIRD, EARNED + 20)), "the standby answers meanwhile"
    assert [len(bases) for bases in story.bases] == [0, 1, 0, 2]
    story.wire.wait(SEARCH_EVERY_S)
    story.served(THIRD, 20)
    assert story.served(THIRD) == [BOTH]
