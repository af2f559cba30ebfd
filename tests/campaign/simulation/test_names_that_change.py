"""Nodes that have another name whenever they start, for ever: what a coordinator knows does not grow with the names there ever were.

Everything that can be reached from its state is counted: lists, sets and dicts by where they are, objects by their class.
"""

import enum
import types
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control import loading, membership, plan_trial, request_statistics, traffic
from bbgrap.protocol.status_messages import ReadStatus
from tests.campaign.simulation.clients import Use
from tests.campaign.simulation.models import Model
from tests.campaign.simulation.story import Story
from tests.campaign.simulation.world import World

LEAVES = (str, bytes, int, float, enum.Enum, np.ndarray, types.FunctionType, types.BuiltinFunctionType, type, type(None))
NAMES = 12
"""That are new in each half."""
FEW = 4


def counts(root):
    """Return how many entries there are in what can be reached from an object, by class and attribute, and how many objects, by class."""
    found, seen, waiting = Counter(), set(), [(root, "")]
    while waiting:
        each, place = waiting.pop()
        if isinstance(each, LEAVES) or id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, Collection):
            if not isinstance(each, tuple):
                found[place] += len(each)
            waiting += [(part, place) for part in (*each, *(each.values() if isinstance(each, Mapping) else ()))]
            continue
        kind = type(each)
        found[kind.__name__] += 1
        names = {*getattr(each, "__dict__", ()), *(name for base in kind.__mro__ for name in getattr(base, "__slots__", ()))}
        waiting += [(getattr(each, name), f"{kind.__name__}.{name}") for name in names if hasattr(each, name)]
    return found


def churned(world, number):
    """Let one node come, another one go, and requests be answered before, between and after."""
    name = f"pod-{number}"
    world.story = replace(world.story, agents=(*((known, 1.0) for known in world.agents), (name, 1.0)))
    world.start_agent(name)
    for width in (2, 3):
        world.ask(world.clients[0], Use("m0", width), "", 20.0)
        world.clock.run(world.clock.now + 0.7)
    world.end_agent(next(iter(world.agents.values())), silent=bool(number % 2))
    world.ask(world.clients[0], Use("m0"), "", 20.0)
    world.clock.run(world.clock.now + (30.0 if number % 3 == 0 else 2.0))  # time enough to be measured


def test_what_is_known_by_name_does_not_grow_with_the_names_there_ever_were(monkeypatch):
    monkeypatch.setattr(loading, "KEEP_AWAY_S", 20.0)
    monkeypatch.setattr(request_statistics, "MAX_GONE", FEW)
    monkeypatch.setattr(request_statistics, "MAX_EVENTS", FEW)
    monkeypatch.setattr(membership, "MAX_REMEMBERED", FEW)
    monkeypatch.setattr(plan_trial, "MAX_SEEN", FEW)
    monkeypatch.setattr(traffic, "MAX_PAIRS", FEW)
    story = Story(38153201, tuple((name, 1.0) for name in "abc"), (Model("m0"),), (Use("m0"),), 1, (), (), 0.0)
    world = World(story)
    world.clock.run(3.0)
    found = []
    for number in range(2 * NAMES):
        churned(world, number)
        found += [counts(world.head.machine)] if number % NAMES == NAMES - 1 else []
    assert not world.surprises
    first, then = found
    assert {place: (first[place], then[place]) for place in then if then[place] - first[place] > NAMES // 3} == {}
    assert len(world.head_disk.profiles[0]) <= FEW + len(story.agents)
    status = world.head.machine.status.read(ReadStatus(1, 0), world.clock.now)
    told = {name for exchange in status.exchanges for name in (exchange.source, exchange.destination)}
    assert told <= {COORDINATOR, *(node.name for node in status.nodes)}
    assert told & world.agents.keys()
