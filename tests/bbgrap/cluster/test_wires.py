"""Ways over wires: shortest ones, the same always; trees and tori have the ways that their names promise."""

from collections import Counter
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import LOCAL, Link, Network
from bbgrap.cluster.wires import Wire, Wiring, torus, tree
from bbgrap.errors import ClusterFileError

LINK = Link(1e8, 1e-4)
sides = st.lists(st.integers(1, 5), min_size=1, max_size=3)


def names_of(count: int) -> list[str]:
    return [f"n{number}" for number in range(count)]


@given(sides)
def test_ways_in_a_torus_are_the_shortest_round_every_axis(of: list[int]) -> None:
    names = names_of(prod(of))
    wiring = Wiring(torus(names, of, LINK))
    for number, other in ((a, b) for a in range(len(names)) for b in range(len(names))):
        apart, rest = 0, (number, other)
        for side in reversed(of):
            steps = (rest[0] - rest[1]) % side
            apart += min(steps, side - steps)
            rest = (rest[0] // side, rest[1] // side)
        route = wiring.route(names[number], names[other])
        assert len(route) == apart
        assert not route or route[-1].to == names[other]


def test_everybody_to_everybody_loads_a_square_torus_evenly() -> None:
    names = names_of(16)
    wiring = Wiring(torus(names, [4, 4], LINK))
    assert set(Counter(way for a in names for b in names for way in wiring.route(a, b)).values()) == {8}


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_ways_in_a_tree_go_up_to_the_common_switch_and_down(ways: list[int], data: st.DataObject) -> None:
    names = names_of(prod(ways))
    wiring = Wiring(tree(names, [(way, LINK) for way in ways]))
    one, other = (data.draw(st.sampled_from(range(len(names)))) for _ in range(2))
    shared = sum(one // prod(ways[depth:]) == other // prod(ways[depth:]) for depth in range(1, len(ways) + 1))
    there, back = wiring.route(names[one], names[other]), wiring.route(names[other], names[one])
    assert len(there) == 2 * (len(ways) - shared)
    assert [way.wire for way in there] == [way.wire for way in reversed(back)]
    assert not set(there) & set(back), "each direction by itself"


def test_of_equally_short_ways_the_first_wires_are_taken() -> None:
    left, right = [Wire("l1", ("a", "l"), LINK), Wire("l2", ("l", "b"), LINK)], [Wire("r1", ("a", "r"), LINK), Wire("r2", ("r", "b"), LINK)]
    assert [way.wire.name for way in Wiring((*left, *right)).route("a", "b")] == ["l1", "l2"]
    assert [way.wire.name for way in Wiring((*right, *left)).route("a", "b")] == ["r1", "r2"]


def test_wires_join_all_nodes() -> None:
    nodes = tuple(NodeProfile(name) for name in "abc")
    with pytest.raises(ClusterFileError, match="expected wires from 'a' to every node, got none to c"):
        Cluster(nodes, Network(wiring=Wiring((Wire("x", ("a", "b"), LINK),))))


def test_what_is_on_one_machine_needs_no_wires() -> None:
    nodes = (NodeProfile("a", machine="box"), NodeProfile("b", machine="box"), NodeProfile("c"))
    cluster = Cluster(nodes, Network(coordinator_on="a", wiring=Wiring(tree("abc", [(3, LINK)]))))
    assert cluster.route(0, 1) == cluster.route(cluster.host, 1) == ()
    assert cluster.link(0, cluster.host) == LOCAL
    assert len(cluster.route(cluster.host, 2)) == 2
