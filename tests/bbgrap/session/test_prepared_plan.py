"""What a session says of the plan that serves it."""

import json

import pytest

from bbgrap.protocol.client_messages import ModelPrepared
from bbgrap.session.answers import PreparedPlan


@pytest.mark.parametrize(
    ("agents", "used", "said"),
    [
        (("a", "b", "c"), ["b"], "single on 1 of 3 nodes: b"),
        (("a", "b"), ["a", "b"], "single on 2 nodes: a, b"),
        (("a",), ["a"], "single on 1 node: a"),
    ],
)
def test_a_summary_names_the_nodes_that_work(agents, used, said):
    plan = PreparedPlan(ModelPrepared(1, "0" * 64, 7, agents, json.dumps({"planner": "single", "nodes_used": used})))
    assert plan.summary().splitlines()[0] == said


@pytest.mark.parametrize(
    ("planner", "agents", "used", "is_said"),
    [
        ("tofu", ("a", "b"), ["b"], True),
        ("tofu", ("a", "b"), ["a", "b"], False),
        ("tofu", ("a",), ["a"], False),
        ("single", ("a", "b"), ["b"], False),
        ("auto", ("a", "b"), ["b"], False),
    ],
)
def test_a_planner_that_divides_nothing_says_so(planner, agents, used, is_said):
    plan = PreparedPlan(ModelPrepared(1, "0" * 64, 7, agents, json.dumps({"planner": planner, "nodes_used": used})))
    note = "one node has all of it; 'bbgrap inspect' says what stays whole, and why"
    assert (note in plan.summary().splitlines()) == is_said
