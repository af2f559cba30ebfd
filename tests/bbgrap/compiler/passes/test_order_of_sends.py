"""What is sent at once: the host's inputs leave for the agent beside it last, halos for the device after the sender first."""

from dataclasses import replace
from itertools import groupby

import pytest

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import LOCAL, Link, Network
from bbgrap.compiler.compile import compile_plan
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.registry import make_plan
from bbgrap.program.steps import Send
from bbgrap.zoo import build


def rows(options, cluster):
    """Return whom each device of a program of the tiny model sends to in a row, one list each."""
    graph = build("tiny")
    descriptions = all_descriptions(graph)
    compiled = compile_plan(make_plan(graph, cluster, options, descriptions), descriptions)
    return [
        [[send.destination for send in row] for sending, row in groupby(device.steps, lambda step: isinstance(step, Send)) if sending]
        for device in compiled.optimized.devices
    ]


@pytest.mark.parametrize("between", [Link(1e6, 1e-4), LOCAL])
def test_the_input_leaves_for_the_others_before_the_agent_beside_the_coordinator_gets_its_own(between):
    cluster = replace(Cluster.even(3), network=Network(between=between, coordinator_on=Cluster.even(3).nodes[0].name))
    assert rows(PlanOptions("bbgrap"), cluster)[cluster.host][0] == [1, 2, 0]


def test_of_an_exchange_everybody_begins_with_the_device_after_its_own():
    of_devices = rows(PlanOptions("bbgrap", split="channels"), Cluster.even(4))[:-1]
    for device, sent in enumerate(of_devices):
        assert [device, *max(sent, key=len)] == [(device + step) % 4 for step in range(4)]
