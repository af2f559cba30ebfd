"""What cluster and profile files say, part by part; `bbgrap.cluster.files` shows how they look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import yaml

from bbgrap.cluster.documents import Document, keys, shown
from bbgrap.cluster.types import COORDINATOR, Cluster, Link, LinkProfile, Network, NodeProfile, Speed
from bbgrap.cluster.units import FLOPS, RATES, SIZES, TIMES
from bbgrap.cluster.wires import NO_WIRES, ROOT, Wire, Wiring, torus, tree
from bbgrap.work import KINDS

LINK_KEYS = ("bandwidth", "round_trip")
TOPOLOGIES = ("tree", "torus")


CLUSTER_KEYS = ("nodes", "network", "groups", "coordinator_on", "topology", "wires")
NODE_KEYS = ("name", "share", "group", "machine", "cores", "threads", "memory", "work", "links")
SPEED_UNITS: Mapping[str, Mapping[str, float]] = {"flops": FLOPS, "weights": RATES, "maps": RATES, "overhead": TIMES}


_LEAST_MEMORY = 64 << 10
"""Bytes. Chosen: with less a unit is missing, and 0 would be as good as no limit."""


@dataclass(frozen=True)
class _Seen:
    """What of a node is compared with the rest of the file, and where it stands, even if the node has faults."""

    node: yaml.Node
    name: str
    group: str
    at: Mapping[str, yaml.Node]
    peers: Mapping[str, yaml.Node]


class ClusterDocument(Document):
    """A file about one node or about a cluster; what it returns is right if there are no faults."""

    def cluster(self, root: yaml.Node) -> Cluster | None:
        """Return the cluster that a file describes; None if there are faults."""
        entries = self.mapping(root, "the file", CLUSTER_KEYS)
        listed = entries.get("nodes")
        nodes: list[NodeProfile | None] = []
        seen: list[_Seen] = []
        if listed is None:
            if isinstance(root, yaml.MappingNode):
                self.fault(root, "expected the key 'nodes' with a list of nodes")
        elif not isinstance(listed, yaml.SequenceNode) or not listed.value:
            self.fault(listed, "'nodes': expected a list of nodes, at least one")
        else:
            for item in listed.value:
                profile, found = self._node(item)
                nodes.append(profile)
                seen.append(found)
        network = self._network(entries)
        self._compare(seen, entries)
        if not self.faults:  # the nodes are known
            network = replace(network, wiring=self.wiring(entries, {node.name: node.node for node in seen}))
        return None if self.faults else Cluster(tuple(node for node in nodes if node is not None), network)

    def node(self, root: yaml.Node) -> NodeProfile | None:
        """Return the node that a mapping describes; None if there are faults in it."""
        return self._node(root)[0]

    def _compare(self, seen: list[_Seen], entries: Mapping[str, yaml.Node]) -> None:
        """Find what does not fit together: names, links, groups and where the coordinator is."""
        names = {node.name: None for node in seen if node.name}
        groups = keys(entries.get("groups"))
        before: set[str] = set()
        for node in seen:
            if node.name and node.name in before:
                self.fault(node.node, f"node '{node.name}': there is already one of this name")
            before.add(node.name)
            for peer, at in node.peers.items():
                if peer not in names and peer != COORDINATOR:
                    self.fault(at, f"node '{node.name}': its link leads to '{peer}', which is no node of this file")
            if node.group and node.group not in groups:
                there = ", ".join(groups) or "none"
                self.fault(node.at["group"], f"node '{node.name}': expected a group that 'groups' declares ({there}), got '{node.group}'")
        used = {node.group for node in seen}
        for group, at in groups.items():
            if seen and group not in used:
                self.fault(at, f"group '{group}': no node is in it; give one the key 'group', or leave the group out")
        host = entries.get("coordinator_on")
        if host is not None and (name := self.text(host, "'coordinator_on'")) and seen and name not in names:
            self.fault(host, f"'coordinator_on': expected one of the nodes, {', '.join(names)}, got '{name}'")

    def _network(self, entries: Mapping[str, yaml.Node]) -> Network:
        network = Network()
        if "network" in entries:
            network = replace(network, between=self.link(entries["network"], "'network'"))
        within = self.each(entries.get("groups"), "'groups'", self._group)
        host = entries.get("coordinator_on")
        named = str(host.value) if isinstance(host, yaml.ScalarNode) else ""
        return replace(network, within=tuple((name, link) for name, link in within if link is not None), coordinator_on=named)

    def _group(self, name: str, root: yaml.Node) -> tuple[str, Link | None]:
        """Return a group's name and its inner links; None if they are like all others."""
        empty = isinstance(root, yaml.MappingNode) and not root.value
        return name, None if empty else self.link(root, f"group '{name}'")

    def _node(self, root: yaml.Node) -> tuple[NodeProfile | None, _Seen]:
        before = len(self.faults)
        entries = self.mapping(root, "a node", NODE_KEYS)
        name = self.text(entries["name"], "name") if "name" in entries else ""
        if "name" not in entries and isinstance(root, yaml.MappingNode):
            self.fault(root, "expected the key 'name' for a node")
        if name == COORDINATOR:
            self.fault(entries["name"], f"a node cannot be called '{COORDINATOR}': links to the coordinator are")
        who = f"node '{name}'" if name else "a node"
        profile = NodeProfile(
            name,
            self.number(entries["share"], f"{who}: 'share'", {}, 0) if "share" in entries else 1.0,
            self.count(entries["cores"], f"{who}: 'cores'") if "cores" in entries else 0,
            self.count(entries["threads"], f"{who}: 'threads'") if "threads" in entries else 0,
            self._memory(entries["memory"], f"{who}: 'memory'") if "memory" in entries else 0,
            self.each(entries.get("links"), f"{who}: 'links'", lambda peer, item: self._link_to(peer, item, who)),
            self.text(entries["group"], f"{who}: 'group'") if "group" in entries else "",
            self._work(entries.get("work"), who),
            self.text(entries["machine"], f"{who}: 'machine'") if "machine" in entries else "",
        )
        seen = _Seen(root, name, profile.group, entries, keys(entries.get("links")))
        return (profile if len(self.faults) == before else None), seen

    def _memory(self, root: yaml.Node, who: str) -> int:
        before, size = len(self.faults), round(self.number(root, who, SIZES, None))
        if len(self.faults) == before and size < _LEAST_MEMORY:
            self.fault(root, f"{who}: expected at least 64KiB, with a unit, like 8GiB, got {shown(root)}; leave it out if it is not known")
        return size

    def _work(self, root: yaml.Node | None, who: str) -> tuple[Speed, ...]:
        for kind, at in keys(root).items():
            if kind not in KINDS:
                self.fault(at, f"{who}: unknown kind of work '{kind}', expected {', '.join(KINDS)}")
        return self.each(root, f"{who}: 'work'", lambda kind, item: self._speed(kind, item, f"{who}: work '{kind}'"))

    def _speed(self, kind: str, root: yaml.Node, who: str) -> Speed:
        """Return the speed of one kind of work, of its terms or of its operations per second alone."""
        if isinstance(root, yaml.ScalarNode):
            return Speed(kind, self.number(root, who, FLOPS, 0))
        entries = self.mapping(root, who, tuple(SPEED_UNITS))
        if isinstance(root, yaml.MappingNode) and not root.value:
            self.fault(root, f"{who}: expected at least one of {', '.join(SPEED_UNITS)}, got {shown(root)} without any")
        terms = {
            key: self.number(entries[key], f"{who}: '{key}'", units, None if key == "overhead" else 0)
            for key, units in SPEED_UNITS.items()
            if key in entries
        }
        return Speed(kind, *(terms.get(key, 0.0) for key in SPEED_UNITS))

    def _link_to(self, peer: str, root: yaml.Node, who: str) -> LinkProfile:
        link = self.link(root, f"{who}: link to '{peer}'")
        return LinkProfile(peer, link.bandwidth_bytes_per_s, 2 * link.latency_s)

    # --- links and wires ------------------------------------------------------------------------------------------

    def link(self, root: yaml.Node, who: str) -> Link:
        """Return the link that a mapping describes."""
        return self._link_of(self.mapping(root, who, LINK_KEYS), root, who)

    def wiring(self, entries: Mapping[str, yaml.Node], nodes: Mapping[str, yaml.Node]) -> Wiring:
        """Return the wires of the topology and those that are listed: they join all nodes, given by name; all else is a switch."""
        of_topology = self._topology(entries["topology"], nodes) if "topology" in entries else ()
        listed = self.each(entries.get("wires"), "'wires'", self._wire)
        wiring, at = Wiring((*of_topology, *listed)), keys(entries.get("wires"))
        for name, count in Counter(wire.name for wire in wiring.wires).items():
            if count > 1:
                self.fault(at.get(name, entries["topology"]), f"wire '{name}': the topology already has one of this name")
        if self.faults:
            return NO_WIRES
        for wire in listed:
            for end in wiring.loose_ends(wire, [*nodes, COORDINATOR]):
                self.fault(at[wire.name], f"wire '{wire.name}': '{end}' is no node, and no switch, which has two wires at least")
            if COORDINATOR in wire.ends and "coordinator_on" in entries:
                self.fault(at[wire.name], f"wire '{wire.name}': the coordinator is where 'coordinator_on' says; leave one of them out")
        for name in wiring.apart(tuple(nodes)):
            self.fault(nodes[name], f"node '{name}': no wires lead to it from '{next(iter(nodes))}'; all nodes have wires, or none")
        return wiring

    def _wire(self, name: str, root: yaml.Node) -> Wire:
        who = f"wire '{name}'"
        entries = self._with(root, who, "ends")
        ends = [self.text(item, f"{who}: 'ends'") for item in self.items(entries.get("ends"), f"{who}: 'ends'")]
        if len(ends) != 2 or ends[0] == ends[1]:
            self.fault(root, f"{who}: 'ends': expected the names of two different nodes or switches, got {', '.join(ends) or 'none'}")
            ends = ["", ""]
        return Wire(name, (ends[0], ends[1]), self._link_of(entries, root, who))

    def _topology(self, root: yaml.Node, nodes: Mapping[str, yaml.Node]) -> tuple[Wire, ...]:
        known = self.mapping(root, "'topology'", TOPOLOGIES)
        if len(known) != 1:
            self.fault(root, f"'topology': expected one of {', '.join(TOPOLOGIES)}, got {len(known)} of them")
        found: tuple[Wire, ...] = ()
        for kind, shape in known.items():
            found = self._tree(shape, nodes) if kind == "tree" else self._torus(shape, tuple(nodes))
        return found

    def _tree(self, root: yaml.Node, nodes: Mapping[str, yaml.Node]) -> tuple[Wire, ...]:
        who, levels = "a level of 'tree'", []
        for item in self.items(root, "'tree': its levels, from the root down"):
            entries = self._with(item, who, "ways")
            levels.append((self.count(entries["ways"], f"{who}: 'ways'") if "ways" in entries else 0, self._link_of(entries, item, who)))
        for name, node in nodes.items():
            if name == ROOT or name.startswith(f"{ROOT}."):
                self.fault(node, f"node '{name}': a switch of the tree is called so; give the node another name")
        return tree(tuple(nodes), levels) if self._fits(root, "tree", [ways for ways, _ in levels], len(nodes)) else ()

    def _torus(self, root: yaml.Node, names: Sequence[str]) -> tuple[Wire, ...]:
        entries = self._with(root, "'torus'", "sides")
        sides = [self.count(item, "'torus': 'sides'") for item in self.items(entries.get("sides"), "'torus': 'sides'")]
        link = self._link_of(entries, root, "'torus'")
        return torus(names, sides, link) if self._fits(root, "torus", sides, len(names)) else ()

    def _fits(self, root: yaml.Node, kind: str, counts: Sequence[int], nodes: int) -> bool:
        if not self.faults and (min(counts) < 1 or prod(counts) != nodes):
            self.fault(root, f"'{kind}': expected as many places as there are nodes, {nodes}, got {' x '.join(map(str, counts))}")
        return not self.faults

    def _with(self, root: yaml.Node, who: str, key: str) -> dict[str, yaml.Node]:
        """Return the values of a mapping that describes a link and has one more key."""
        entries = self.mapping(root, who, (key, *LINK_KEYS))
        if key not in entries and isinstance(root, yaml.MappingNode):
            self.fault(root, f"{who}: expected the key '{key}'")
        return entries

    def _link_of(self, entries: Mapping[str, yaml.Node], root: yaml.Node, who: str) -> Link:
        values: dict[str, float] = {}
        for key, units, above in (("bandwidth", RATES, 0.0), ("round_trip", TIMES, None)):
            if key in entries:
                values[key] = self.number(entries[key], f"{who}: '{key}'", units, above)
            elif isinstance(root, yaml.MappingNode):
                self.fault(root, f"{who}: expected the key '{key}'")
        return Link(values.get("bandwidth", 1.0), values.get("round_trip", 0.0) / 2)
