"""Stories of plans that are made at the second request of a shape, held, and loaded with the third."""

import pytest

from bbgrap.cluster.types import NodeProfile
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions, made_plans, planning
from bbgrap.control.planned_variant import SCALED_FROM
from bbgrap.control.planning import EARNED
from bbgrap.control.plans import IN_USE_S
from bbgrap.protocol import client_messages as c
from bbgrap.protocol import messages as m
from tests.bbgrap.control.shapes import BOTH, FIRST, SECOND, THIRD, A, B, Story, planned


@pytest.fixture
def story():
    """One with a plan for the first shape; requests take so little time that agents are not silent meanwhile."""
    story = Story(both=0.001, alone=0.002)
    story.prepare(FIRST)
    return story


@pytest.fixture
def held(story):
    """One that holds a plan for the second shape, which came as often as is needed for that."""
    story.served(SECOND, EARNED - 1)
    assert story.wire.jobs[-1].bases == (coordinator_instructions.Base(story.wire.jobs[0].job, 0),)
    assert story.plan(SECOND).ahead.job.number == story.wire.jobs[-1].job
    assert story.plan(SECOND).variants == []
    return story


def is_kept(story, job):
    return job.job in story.wire.made


def test_what_is_held_is_loaded_with_the_next_request_and_nothing_is_planned(held):
    jobs = len(held.wire.jobs)
    held.wire.plan = lambda job: None
    assert held.served(SECOND)[0] in (A, B)
    assert held.served(SECOND, 2) == [BOTH] * 2
    assert len(held.wire.jobs) == jobs
    assert held.plan(SECOND).ahead is None


def test_it_does_not_wait_for_what_is_earned_meanwhile_either(story):
    story.wire.plan = lambda job: None
    story.served(SECOND, EARNED)
    assert [bool(job.bases) for job in story.wire.jobs] == [False, True]
    story.wire.carry_plan(planned(story.wire.jobs[-1]))
    story.wire.settle()
    assert [variant.is_ready for variant in story.plan(SECOND).variants] == [True]
    assert story.served(SECOND) == [BOTH]
    assert len(story.wire.jobs) == 2


def test_what_came_once_is_not_made(story):
    story.served(SECOND, EARNED - 2)
    assert len(story.wire.jobs) == 1


def test_of_too_many_the_least_recently_asked_one_is_forgotten(story, monkeypatch):
    monkeypatch.setattr(made_plans, "MAX_AHEAD", 2)
    for shape in ((2, 3), (2, 5), (2, 7)):
        story.served(shape, EARNED - 1)
    assert [is_kept(story, job) for job in story.wire.jobs[1:]] == [False, True, True]
    assert [story.plan(shape).ahead is None for shape in ((2, 3), (2, 5), (2, 7))] == [True, False, False]
    story.served((2, 3))
    assert story.wire.jobs[-1].shapes == {"x": (2, 3)}, "it is made when it is earned"
    assert story.served((2, 3)) == [BOTH]


def test_what_is_forgotten_with_its_plan_is_kept_no_longer(held, monkeypatch):
    monkeypatch.setattr(planning, "MAX_PLANS", 2)
    held.wire.now += 0.1
    held.prepare(FIRST, wait=False)
    held.prepare(THIRD, wait=False)
    assert not is_kept(held, held.wire.jobs[-1])


def test_one_over_an_agent_that_is_gone_is_forgotten(held):
    held.wire.crash(held.wire.agent("b"))
    held.wire.wait(10)
    assert held.plan(SECOND).ahead is None
    assert not is_kept(held, held.wire.jobs[-1])
    held.served(SECOND)
    assert all(job.cluster.nodes[0].name == "a" for job in held.wire.jobs)


def test_one_for_other_profiles_is_made_anew(held):
    before = held.wire.jobs[-1]
    held.wire.until_answered(held.wire.call(lambda n: c.SetProfile(n, NodeProfile("a", cores=3))))
    held.wire.wait(planning.SETTLE_S + 0.2)
    held.wire.settle()
    held.served(SECOND)
    (after,) = [job for job in held.wire.jobs if job.shapes == {"x": SECOND} and job is not before]
    assert after.bases == before.bases
    assert after.cluster != before.cluster
    assert not is_kept(held, before)
    assert held.served(SECOND) == [BOTH]


def test_a_caller_gets_a_search_whether_one_is_held(held):
    ahead = held.wire.jobs[-1]
    assert SCALED_FROM not in held.prepare(SECOND)
    assert held.wire.jobs[-1].bases == ()
    assert not is_kept(held, ahead)
    assert held.served(SECOND) == [BOTH]


def test_or_is_being_made(story):
    story.wire.plan = lambda job: None
    story.served(SECOND, EARNED - 1)
    ahead = story.wire.jobs[-1]
    call = story.wire.call(lambda n: story.message(n, SECOND, wait=True))
    story.wire.deliver_all()
    story.wire.plan = planned
    story.wire.carry_plan(planned(ahead))
    story.wire.until_answered(call)
    assert [job.bases for job in story.wire.jobs] == [(), ahead.bases, ()]
    assert not is_kept(story, ahead)


def test_a_model_that_is_not_run_again_holds_nothing(held):
    (standby,) = held.wire.coordinator.standbys.by_model.values()
    standby.is_proven = False
    for variant in standby.variants:
        (name,) = variant.parts
        identity = held.wire.coordinator.members.by_name[name].identity
        held.wire.to_coordinator(ce.FromPeer(identity, m.WorkerLost("it crashed", 0, 0, m.EndedBy.CRASH, variant.epoch)))
    assert held.plan(SECOND).quarantine
    assert held.plan(SECOND).ahead is None
    assert not is_kept(held, held.wire.jobs[-1])


def test_nothing_is_made_ahead_while_the_planner_has_other_work(story):
    story.wire.plan = lambda job: None
    call = story.wire.call(lambda n: story.message(n, (20, 20), wait=True))
    story.wire.deliver_all()
    search = story.wire.jobs[-1]
    story.served(SECOND, EARNED - 1)
    story.served(THIRD, EARNED - 1)
    story.wire.wait(0.5)
    assert story.wire.jobs[-1] is search
    story.wire.plan = planned
    story.wire.carry_plan(planned(search))
    story.wire.until_answered(call)
    story.wire.wait(1.0)
    assert [job.shapes["x"] for job in story.wire.jobs[2:]] == [THIRD, SECOND], "the latest one first"


def test_what_is_being_made_ahead_keeps_no_other_from_its_search(story):
    failed = "it cannot be cut like that"
    story.wire.plan = lambda job: ce.PlanFailed(job.job, c.Fault.PLAN, failed) if job.shapes["x"] == THIRD and job.bases else planned(job)
    story.served(THIRD, EARNED - 1)
    assert story.plan(THIRD).unlike
    story.wire.plan = lambda job: None
    story.served(SECOND, EARNED - 1)
    story.served(THIRD)
    assert (story.wire.jobs[-1].shapes["x"], story.wire.jobs[-1].bases) == (THIRD, ())


def test_what_is_held_needs_its_base_no_longer(held):
    """Other shapes wait for the search that goes on."""
    held.plan(FIRST).quarantine = "it has ended workers"
    held.wire.plan = lambda job: None
    held.wire.call(lambda n: held.message(n, (20, 20), wait=True))
    held.wire.settle()
    assert held.served(SECOND)[0] in (A, B)
    assert held.served(SECOND) == [BOTH]


def test_it_waits_until_requests_do_not_come_together(held):
    for shape in (FIRST, THIRD):
        held.prepare(shape, wait=False)
    calls = [held.begin(shape) for shape in (THIRD, FIRST, THIRD, SECOND)]
    held.wire.deliver_all()
    assert held.plan(SECOND).ahead is not None
    held.wire.settle()
    assert all(isinstance(held.wire.answer(call), c.RunResult) for call in calls)
    held.wire.wait(0.3)
    assert held.served(SECOND) == [BOTH]


def test_what_is_not_asked_for_again_stays_held_until_then(held):
    held.wire.wait(IN_USE_S + 1)
    jobs = len(held.wire.jobs)
    assert held.served(SECOND)[0] in (A, B)
    assert held.served(SECOND) == [BOTH]
    assert len(held.wire.jobs) == jobs


def test_a_coordinator_that_comes_back_holds_nothing(held):
    assert held.wire.jobs[-1].job not in held.wire.kept
    held.wire.restart_coordinator()
    held.wire.wait(10)
    held.wire.settle()
    assert all(plan.ahead is None for plan in held.wire.coordinator.planning.plans.values())
    held.served(SECOND, EARNED)
    assert held.served(SECOND) == [BOTH]


@pytest.mark.parametrize("slow", ["a", "b"])
def test_requests_go_to_a_copy_on_an_agent_that_loads_nothing(held, slow):
    """Beside a load, a request takes longer, and makes that take longer."""
    call = held.begin(SECOND)
    other = B if slow == "a" else A
    identity = held.wire.agent(slow).identity
    for _ in range(20):
        for key in held.wire.pending():
            if key != (b"", identity):
                held.wire.deliver(key)
        held.wire.finish_requests()
    assert isinstance(held.wire.answer(call), c.RunResult)
    assert held.wire.coordinator.loading.loading_agents == {slow}
    for _ in range(3):
        call = held.begin(SECOND)
        while held.wire.queues[(b"client", b"")]:
            held.wire.deliver((b"client", b""))
        (start,) = held.wire.started.values()
        assert held.wire.nodes_of(start) == other
        held.wire.finish_requests()
