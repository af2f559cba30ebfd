"""Cluster and profile files: YAML that people write, and that `bbgrap profile --output` writes.

    nodes:                                    # a cluster file; the order is the order of device numbers
      - name: big                             # the only key that is needed
        share: 2                              # relative part of the work; default: as measured, or 1
        group: rack1                          # the rack or site it stands in
        machine: box7                         # the computer it runs on, if other nodes do, too
        cores: 8
        threads: 8
        memory: 16GiB
        work:                                 # speeds by kind of work (bbgrap.work), with all threads
          conv3x3: {flops: 85GFLOP/s, weights: 20GB/s, maps: 10GB/s, overhead: 10us}
          matmul: 60 GFLOP/s                  # operations alone
        links:                                # as measured or known from here; `coordinator` is a peer, too
          small: {bandwidth: 1Gbit/s, round_trip: 0.3ms}
    network: {bandwidth: 1Gbit/s, round_trip: 0.3ms}              # every link that is not under 'links', or within a group
    groups:
      rack1: {bandwidth: 10Gbit/s, round_trip: 0.1ms}             # links within it; {}: like all others
    coordinator_on: big                       # the node on whose machine the coordinator runs, if it is one
    topology:                                 # what links share: a tree of switches over the nodes, in their order, from its root down
      tree:
        - {ways: 2, bandwidth: 10Gbit/s, round_trip: 0.1ms}
        - {ways: 4, bandwidth: 1Gbit/s, round_trip: 0.1ms}
      # torus: {sides: [2, 4], bandwidth: 1Gbit/s, round_trip: 0.1ms}       instead: each node joined to the next along each side
    wires:                                    # more wires, or all: between nodes, switches of any name, and `coordinator`
      upstairs: {ends: [big, switch2], bandwidth: 1Gbit/s, round_trip: 0.1ms}

A profile file is one such node mapping alone. Reading lists every fault of a file at once, each with its line; a quantity is a number
in base units (bytes, bytes per second, operations per second, seconds) or one with a unit. What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from bbgrap.cluster.documents import keys
from bbgrap.cluster.reading import ClusterDocument
from bbgrap.cluster.types import ETHERNET, Cluster, Link, NodeProfile, Speed
from bbgrap.cluster.units import FLOPS, RATES, SIZES, TIMES, format_quantity

_WIDTH = 120


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    document = ClusterDocument(path)
    cluster = document.cluster(document.root) if not document.faults else None
    document.report()
    assert cluster is not None, "a file without faults has nodes"
    return cluster


def read_profile(path: Path) -> NodeProfile:
    """Read a profile file.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    document = ClusterDocument(path)
    node = document.node(document.root) if not document.faults else None
    document.report()
    assert node is not None, "a file without faults is a node"
    return node


def read_profiles(path: Path) -> tuple[NodeProfile, ...]:
    """Read a profile file, or all nodes of a cluster file with the links that its network and groups give them.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    document = ClusterDocument(path)
    document.report()
    return read_cluster(path).profiles() if "nodes" in keys(document.root) else (read_profile(path),)


def has_wires(path: Path) -> bool:
    """Whether a file says what links share, which profiles cannot.

    Raises:
        ClusterFileError: if the file cannot be read.
    """
    document = ClusterDocument(path)
    document.report()
    return not {"topology", "wires"}.isdisjoint(keys(document.root))


def cluster_text(cluster: Cluster) -> str:
    """Return the text of a cluster file; reading it gives the same cluster."""
    network = cluster.network
    within = dict(network.within)
    groups = [*within, *(node.group for node in cluster.nodes if node.group)]
    mapping = {
        "nodes": [node_mapping(node) for node in cluster.nodes],
        "network": {} if network.between == ETHERNET else _link_mapping(network.between),
        "groups": {name: _link_mapping(within[name]) if name in within else {} for name in dict.fromkeys(groups)},
        "coordinator_on": network.coordinator_on,
        "wires": {wire.name: {"ends": list(wire.ends), **_link_mapping(wire.link)} for wire in network.wiring.wires},
    }
    return _dump({key: value for key, value in mapping.items() if value})


def profile_text(node: NodeProfile) -> str:
    """Return the text of a profile file; reading it gives the same profile."""
    return _dump(node_mapping(node))


def node_mapping(node: NodeProfile) -> dict[str, Any]:
    """Return a node as plain values, as its file shows them; what is not known is left out."""
    mapping: dict[str, Any] = {
        "name": node.name,
        "share": 0 if node.share == 1 else int(node.share) if node.share == int(node.share) else node.share,
        "group": node.group,
        "machine": node.machine,
        "cores": node.cores,
        "threads": node.threads,
        "memory": format_quantity(node.memory_bytes, SIZES),
        "work": {speed.kind: _speed_value(speed) for speed in node.work},
        "links": {link.peer: _link_mapping(Link(link.bandwidth_bytes_per_s, link.round_trip_s / 2)) for link in node.links},
    }
    return {key: value for key, value in mapping.items() if value or key == "name"}


def _speed_value(speed: Speed) -> dict[str, Any] | str | float:
    terms = {
        "flops": format_quantity(speed.flops_per_s, FLOPS),
        "weights": format_quantity(speed.weight_bytes_per_s, RATES),
        "maps": format_quantity(speed.map_bytes_per_s, RATES),
        "overhead": format_quantity(speed.overhead_s, TIMES),
    }
    known = {key: value for key, value in terms.items() if value}
    return known["flops"] if list(known) == ["flops"] else known


def _link_mapping(link: Link) -> dict[str, Any]:
    return {"bandwidth": format_quantity(link.bandwidth_bytes_per_s, RATES), "round_trip": format_quantity(2 * link.latency_s, TIMES)}


def _dump(document: Mapping[str, Any]) -> str:
    # innermost mappings on one line each
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=_WIDTH)


LEAST_FLOPS, MOST_FLOPS = 1e7, 500e12
"""Operations per second of one node: a microcontroller does more than the first, no CPU does the second."""
LEAST_RATE, MOST_RATE = 1e3, 1e13
"""Bytes per second, of memory or a link."""
LEAST_MEMORY, MOST_MEMORY = 16 << 20, 1 << 50
"""Bytes."""
MOST_TIME = 60.0
"""Seconds, of an overhead or a round trip."""


def doubts(node: NodeProfile) -> Iterator[str]:
    """Yield a sentence for each figure of a profile by hand that no machine has: mostly a unit was forgotten."""
    who = f"node '{node.name}'"
    for speed in node.work:
        what = f"{who}: work '{speed.kind}'"
        yield from _doubt(f"{what}: flops", speed.flops_per_s, LEAST_FLOPS, MOST_FLOPS, FLOPS, "GFLOP/s")
        yield from _doubt(f"{what}: weights", speed.weight_bytes_per_s, LEAST_RATE, MOST_RATE, RATES, "GB/s")
        yield from _doubt(f"{what}: maps", speed.map_bytes_per_s, LEAST_RATE, MOST_RATE, RATES, "GB/s")
        yield from _doubt(f"{what}: overhead", speed.overhead_s, 0, MOST_TIME, TIMES, "us")
    yield from _doubt(f"{who}: memory", node.memory_bytes, LEAST_MEMORY, MOST_MEMORY, SIZES, "GiB")
    for link in node.links:
        what = f"{who}: link to '{link.peer}'"
        yield from _doubt(f"{what}: bandwidth", link.bandwidth_bytes_per_s, LEAST_RATE, MOST_RATE, RATES, "Gbit/s")
        yield from _doubt(f"{what}: round_trip", link.round_trip_s, 0, MOST_TIME, TIMES, "ms")


def _doubt(what: str, value: float, least: float, most: float, units: Mapping[str, float], usual: str) -> Iterator[str]:
    if value and not least <= value <= most:
        base = next(iter(units))
        expected = (
            f"{format_quantity(least, units)} to {format_quantity(most, units)}" if least else f"at most {format_quantity(most, units)}"
        )
        yield f"{what} is {value:g} {base}, expected {expected}; is a unit missing, like {usual}?"
