"""The price of a message: one formula, asked by everybody."""

import pytest

from bbgrap.cluster import Cluster, NodeProfile
from bbgrap.cluster.types import ETHERNET, LOCAL, Link, Network
from bbgrap.costmodel.messages import EXCHANGE_S, MESSAGE_S, NetworkModel, Price


def test_the_price_is_both_ends_and_the_link() -> None:
    network = NetworkModel(Cluster.even(2))
    for size in (0, 1000, 1 << 20):
        ends = network.handling(0, 0, 1, size) + network.handling(1, 0, 1, size)
        expected = ends + ETHERNET.latency_s + size / ETHERNET.bandwidth_bytes_per_s
        assert network.price(0, 1).seconds(size) == pytest.approx(expected)


def test_of_generic_nodes_it_is_what_is_said_of_them() -> None:
    price = NetworkModel(Cluster.even(2)).price(0, 1)
    assert price.fixed_s == pytest.approx(EXCHANGE_S)
    assert pytest.approx(ETHERNET.latency_s) == EXCHANGE_S - MESSAGE_S


def test_within_a_machine_bytes_take_no_link() -> None:
    nodes = (NodeProfile("a", machine="box"), NodeProfile("b", machine="box"), NodeProfile("c"))
    network = NetworkModel(Cluster(nodes, Network(Link(1e9, 1e-4))))
    assert 0 < network.price(0, 1).s_per_byte < network.price(0, 2).s_per_byte
    assert network.price(0, 1).fixed_s == pytest.approx(MESSAGE_S + LOCAL.latency_s)


def test_the_dearest_way_is_no_cheaper_than_any() -> None:
    nodes = (NodeProfile("a"), NodeProfile("b", share=0.1), NodeProfile("c", group="g"), NodeProfile("d", group="g"))
    network = NetworkModel(Cluster(nodes, Network(Link(1e8, 1e-3), (("g", Link(1e9, 1e-5)),))))
    for source, destination in ((0, 1), (1, 2), (3, 2)):
        price = network.price(source, destination)
        assert network.dearest.fixed_s >= price.fixed_s
        assert network.dearest.s_per_byte >= price.s_per_byte
    assert NetworkModel(Cluster.even(1)).dearest == Price(0.0, 0.0)
