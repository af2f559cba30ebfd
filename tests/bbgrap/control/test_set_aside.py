"""Nodes of which nothing is known, where requests never cease: each is set aside, measured, and takes part again."""

import pytest

from bbgrap.control.coordinator_events import Planned, RequestDone
from bbgrap.control.planning import SPARED
from bbgrap.control.profiling import BUSY_S, LATER_S
from bbgrap.protocol import client_messages as c
from tests.bbgrap.control.shapes import BOTH, FIRST, A, B, Story, planned
from tests.bbgrap.control.test_profiling import WORK, finish, known, measuring, profile


class BusyStory(Story):
    """A client that sends a request as soon as the one before is answered."""

    def goes_on(self, seconds: float, *, answer: bool = True) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Send requests for so long; which nodes took each, and who measured then. Agents measure within one of them, if at all."""
        took = []
        for _ in range(round(10 * seconds)):
            call = self.begin(FIRST)
            self.wire.deliver_all()
            asked = tuple(measuring(self.wire))
            took += [(self.wire.nodes_of(start), asked) for start in self.wire.started.values()]
            self.wire.pass_time(0.1)
            assert isinstance(self.wire.until_answered(call), c.RunResult)
            for name in measuring(self.wire).keys() & set(asked) if answer else ():
                finish(self.wire, name)
        return took

    def goes_on_until_somebody_measures(self) -> str:
        """Who does."""
        for _ in range(round(30 * BUSY_S)):
            self.goes_on(0.1, answer=False)
            if names := list(measuring(self.wire)):
                (name,) = names
                return name
        raise AssertionError("nobody is set aside")


def busy_story(both: float = 0.1, alone: float = 0.2, alone_on_b: float = 0.2, *, is_planned: bool = True) -> BusyStory:
    """One whose plan is made once both copies of the standby have answered."""
    story, made = BusyStory(both, alone), list[Planned]()
    story.wire.seconds[B] = alone_on_b
    story.wire.plan = lambda job: made.append(planned(job))
    story.prepare(wait=False)
    assert {nodes for nodes, _ in story.goes_on(1.0)} == {A, B}
    if is_planned:
        story.wire.plan = planned
        story.wire.carry_plan(made[0])
    return story


def test_requests_run_on_the_others_meanwhile_and_the_plan_is_made_of_all_that_is_known_then():
    story = busy_story()
    took = story.goes_on(BUSY_S / 3)
    assert (BOTH, ()) in took
    took = story.goes_on(BUSY_S)
    assert {asked for _, asked in took} == {(), A, B}
    assert all(set(nodes).isdisjoint(asked) for nodes, asked in took)
    assert known(story.wire) == {name: profile(name) for name in "ab"}
    assert [[bool(node.work) for node in job.cluster.nodes] for job in story.wire.jobs] == [[False, False], [True, True]]
    assert (BOTH, ()) in story.goes_on(1.0)
    assert {f"'{name}' is measured; requests run on the others meanwhile" for name in "ab"} <= set(story.wire.told)


def test_requests_that_come_together_wait_for_the_others_rather_than_for_the_end_of_a_measurement():
    story = busy_story()
    measured = story.goes_on_until_somebody_measures()
    calls = [story.begin(FIRST) for _ in range(20)]
    ran = []
    for _ in calls:
        story.wire.deliver_all()
        ran += [story.wire.nodes_of(start) for start in story.wire.started.values()]
        story.wire.finish_requests()
    assert all(story.wire.answer(call) for call in calls)
    assert set(ran) == {A, B} - {(measured,)}
    assert measuring(story.wire) == {measured: "Measure"}


def test_it_is_broken_off_where_the_others_are_gone_and_begun_anew_later():
    story = busy_story()
    measured = story.goes_on_until_somebody_measures()
    story.wire.crash(story.wire.agent("b" if measured == "a" else "a"))
    assert story.goes_on(1.0)[-1] == ((measured,), ())
    story.wire.add_agent("c")
    assert all(measured not in asked for _, asked in story.goes_on(LATER_S / 4))
    story.goes_on(LATER_S)
    assert known(story.wire) == {name: profile(name) for name in (measured, "c")}


def test_what_runs_on_it_when_it_is_set_aside_is_waited_for():
    story = busy_story()
    wire, until = story.wire, story.wire.now + BUSY_S + LATER_S / 2
    for _ in range(8):
        story.begin(FIRST)
    while not measuring(wire) and wire.now < until:
        wire.deliver_all()
        oldest = min(wire.started)
        del wire.started[oldest]
        wire.to_coordinator(RequestDone(oldest, (), ()))
        story.begin(FIRST)
        wire.pass_time(0.1)
    assert len(measuring(wire)) == 1


def test_the_only_node_is_not_set_aside():
    story = busy_story()
    story.wire.crash(story.wire.agent("b"))
    assert {asked for _, asked in story.goes_on(3 * BUSY_S)} == {()}


@pytest.mark.parametrize(("slower", "measured"), [(0.9 * SPARED, {"a", "b"}), (1.5 * SPARED, {"b"})])
def test_a_node_beside_which_the_others_are_much_slower_is_not_set_aside(slower, measured):
    story = busy_story(0.3, 0.02, slower * 0.12 - 0.1)  # a turn takes 0.1 s besides
    story.goes_on(3 * BUSY_S)
    assert {name for name, known_of in known(story.wire).items() if known_of} == measured
    assert (A, ()) in story.goes_on(1.0)


def test_what_is_known_of_some_is_planned_with_where_others_cannot_be_spared():
    story = busy_story(0.3, 0.02, 1.5 * SPARED * 0.12 - 0.1)
    story.goes_on(3 * BUSY_S)
    assert {name for name, known_of in known(story.wire).items() if known_of} == {"b"}
    # Of the other nothing is known: it is taken for no faster.
    assert [node.work for node in story.wire.jobs[-1].cluster.nodes] == [WORK, WORK]


def test_no_node_is_set_aside_while_a_plan_is_made():
    story = busy_story(is_planned=False)
    assert {asked for _, asked in story.goes_on(3 * BUSY_S)} == {()}


def test_where_requests_have_pauses_too_plans_are_told_of_all_that_is_known_at_once():
    """After each of twelve nodes they were told, and none was made until the last one was measured."""
    story, told = busy_story(), []
    changed = story.wire.coordinator.planning.world_changed
    story.wire.coordinator.planning.world_changed = lambda now: told.append(list(known(story.wire).values())) or changed(now)
    for _ in range(round(10 * BUSY_S)):
        story.goes_on(0.1)
        story.wire.wait(0.15)
    assert [profile("a"), profile("b")] in told
    assert not any(None in of_all and of_all.count(None) < len(of_all) for of_all in told)
