"""What cluster files say of links and wires; `bbgrap.cluster.files` shows how they look."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from math import prod

import yaml

from bbgrap.cluster.documents import Document, keys
from bbgrap.cluster.types import COORDINATOR, Link
from bbgrap.cluster.units import RATES, TIMES
from bbgrap.cluster.wires import NO_WIRES, ROOT, Wire, Wiring, torus, tree

LINK_KEYS = ("bandwidth", "round_trip")
TOPOLOGIES = ("tree", "torus")


class WiringDocument(Document):
    """A file that speaks of links; what it returns is right if there are no faults."""

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
