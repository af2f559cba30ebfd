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
