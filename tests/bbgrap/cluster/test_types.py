"""Which links a cluster knows, and which it guesses."""

import pytest

from bbgrap.cluster.types import COORDINATOR, ETHERNET, LOCAL, Cluster, Link, LinkProfile, Network, NodeProfile

MEASURED = NodeProfile("a", links=(LinkProfile("b", 1e8, 2e-3), LinkProfile(COORDINATOR, 5e7, 4e-3)))
NODES = (MEASURED, NodeProfile("b"), NodeProfile("c"))


def test_measured_links_are_known_from_either_end() -> None:
    cluster = Cluster(NODES)
    assert cluster.link(0, 1) == cluster.link(1, 0) == Link(1e8, 1e-3)
    assert cluster.link(0, cluster.host) == Link(5e7, 2e-3)


@pytest.mark.parametrize(("source", "destination"), [(1, 2), (2, 3), (0, 2)])
def test_what_nobody_measured_is_ethernet(source: int, destination: int) -> None:
    assert Cluster(NODES).link(source, destination) == ETHERNET


def test_a_declared_network_is_known() -> None:
    assert Cluster(NODES, Network(Link(2e8, 1e-4))).link(1, 2) == Link(2e8, 1e-4)
    assert Cluster(NODES, Network(coordinator_on="b")).link(1, 3) == LOCAL


def test_a_machine_is_shared_by_nodes_of_its_name_and_the_host_beside_one() -> None:
    names = {"a": "x", "b": "", "c": "x", "d": "y"}
    nodes = tuple(NodeProfile(name, machine=machine, links=(LinkProfile("c", 1e8, 2e-3),)) for name, machine in names.items())
    cluster = Cluster(nodes, Network(Link(2e8, 1e-4), coordinator_on="c"))
    assert [cluster.machine(device) for device in range(5)] == [0, 1, 0, 3, 0]
    assert cluster.link(4, 0) == cluster.link(2, 4) == LOCAL
    assert cluster.link(0, 2) == cluster.link(2, 0) == Link(LOCAL.bandwidth_bytes_per_s, 1e-3), "bandwidth is that of memory"
    assert cluster.link(1, 2) == Link(1e8, 1e-3)
    assert Cluster(nodes).machine(4) == 4
