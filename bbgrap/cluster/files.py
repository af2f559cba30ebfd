"""Cluster and profile files: YAML that people write, and that `bbgrap profile --output` writes.

    nodes:                                    # a cluster file; the order is the order of device numbers
      - name: big                             # the only key that is needed
        share: 2                              # relative part of the work, default 1
        cores: 8
        threads: 8
        memory: 16GiB
        memory_bandwidth: 20GB/s
        kernels: {conv3x3_64_56: 85.5}        # kind of work: GFLOP/s
        links:
          small: {bandwidth: 1Gbit/s, round_trip: 0.3ms}

A profile file is one such node mapping alone. Reading lists every fault of a file at once, each with its line; a quantity is a number
in base units (bytes, bytes per second, seconds) or one with a unit. What is not known is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from bbgrap.cluster.types import COORDINATOR, Cluster, KernelRate, LinkProfile, NodeProfile
from bbgrap.cluster.units import RATES, SIZES, TIMES, format_quantity, parse_quantity
from bbgrap.errors import ClusterFileError

_Item = TypeVar("_Item")

_NODE_KEYS = ("name", "share", "cores", "threads", "memory", "memory_bandwidth", "kernels", "links")
_LINK_KEYS = ("bandwidth", "round_trip")


def read_cluster(path: Path) -> Cluster:
    """Read a cluster file.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    reader = _Reader(path)
    cluster = reader.cluster(reader.root()) if not reader.faults else None
    reader.report()
    assert cluster is not None, "a file without faults has nodes"
    return cluster


def read_profile(path: Path) -> NodeProfile:
    """Read a profile file.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    reader = _Reader(path)
    node = reader.node(reader.root()) if not reader.faults else None
    reader.report()
    assert node is not None, "a file without faults is a node"
    return node


def read_profiles(path: Path) -> tuple[NodeProfile, ...]:
    """Read a profile file, or all nodes of a cluster file.

    Raises:
        ClusterFileError: with every fault of the file.
    """
    reader = _Reader(path)
    reader.report()
    root = reader.root()
    return read_cluster(path).nodes if "nodes" in _keys(root) else (read_profile(path),)


def cluster_text(cluster: Cluster) -> str:
    """Return the text of a cluster file; reading it gives the same cluster."""
    return _dump({"nodes": [node_mapping(node) for node in cluster.nodes]})


def profile_text(node: NodeProfile) -> str:
    """Return the text of a profile file; reading it gives the same profile."""
    return _dump(node_mapping(node))


def node_mapping(node: NodeProfile) -> dict[str, Any]:
    """Return a node as plain values, as its file shows them; what is not known is left out."""
    mapping: dict[str, Any] = {
        "name": node.name,
        "share": int(node.share) if node.share == int(node.share) else node.share,
        "cores": node.cores,
        "threads": node.threads,
        "memory": format_quantity(node.memory_bytes, SIZES),
        "memory_bandwidth": format_quantity(node.memory_bandwidth_bytes_per_s, RATES),
        "kernels": {kernel.kind: kernel.gflops for kernel in node.kernels},
        "links": {
            link.peer: {
                "bandwidth": format_quantity(link.bandwidth_bytes_per_s, RATES),
                "round_trip": format_quantity(link.round_trip_s, TIMES),
            }
            for link in node.links
        },
    }
    return {key: value for key, value in mapping.items() if value or key == "name"}


def _dump(document: Mapping[str, Any]) -> str:
    return yaml.safe_dump(document, sort_keys=False)


class _Reader:
    """Walks the YAML of one file and collects its faults, in the order of its lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.faults: list[tuple[int, str]] = []
        self.seen: list[tuple[yaml.Node, str, tuple[str, ...]]] = []
        """Per node that was read: where, its name, and the peers of its links."""
        self._root: yaml.Node | None = None
        try:
            self._root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except OSError as error:
            raise ClusterFileError(f"'{path}': cannot be read: {error.strerror or error}") from None
        except UnicodeDecodeError:
            self.faults.append((1, "it is not UTF-8 text"))
        except RecursionError:
            self.faults.append((1, "it is nested too deep"))
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            self.faults.append((mark.line + 1 if mark else 1, f"it is not YAML: {error.problem or error.context}"))
        except yaml.YAMLError as error:
            self.faults.append((1, f"it is not YAML: {' '.join(str(error).split())}"))
        else:
            if self._root is None:
                self.faults.append((1, "it is empty"))

    def report(self) -> None:
        """Raise if there are faults."""
        if self.faults:
            lines = "; ".join(f"line {line}: {text}" for line, text in sorted(self.faults))
            raise ClusterFileError(f"'{self.path}': {lines}")

    def root(self) -> yaml.Node:
        assert self._root is not None, "whoever asks has looked at the faults"
        return self._root

    def fault(self, node: yaml.Node, text: str) -> None:
        self.faults.append((node.start_mark.line + 1, text))

    def cluster(self, root: yaml.Node) -> Cluster | None:
        entries = self.mapping(root, "the file", ("nodes",))
        listed = entries.get("nodes")
        if listed is None:
            if isinstance(root, yaml.MappingNode):
                self.fault(root, "expected the key 'nodes' with a list of nodes")
            return None
        if not isinstance(listed, yaml.SequenceNode) or not listed.value:
            self.fault(listed, "'nodes': expected a list of nodes, at least one")
            return None
        read = [self.node(item) for item in listed.value]
        names = [name for _, name, _ in self.seen]
        for place, (item, name, peers) in enumerate(self.seen):
            if name and name in names[:place]:
                self.fault(item, f"node '{name}': there is already one of this name")
            for peer in peers:
                if peer not in (*names, COORDINATOR):
                    self.fault(item, f"node '{name}': its link leads to '{peer}', which is no node of this file")
        return None if self.faults else Cluster(tuple(node for node in read if node is not None))

    def node(self, root: yaml.Node) -> NodeProfile | None:
        before = len(self.faults)
        entries = self.mapping(root, "a node", _NODE_KEYS)
        name = self.text(entries["name"], "name") if "name" in entries else ""
        if "name" not in entries and isinstance(root, yaml.MappingNode):
            self.fault(root, "expected the key 'name' for a node")
        who = f"node '{name}'" if name else "a node"

        def number(key: str, units: Mapping[str, float], *, default: float = 0.0, above: float | None = None) -> float:
            return self.number(entries[key], f"{who}: '{key}'", units, above) if key in entries else default

        share = number("share", {}, default=1.0, above=0)
        cores, threads = (self.count(entries[key], f"{who}: '{key}'") if key in entries else 0 for key in ("cores", "threads"))

        def kernel(kind: str, item: yaml.Node) -> KernelRate:
            return KernelRate(kind, self.number(item, f"{who}: kernel '{kind}'", {}, 0))

        kernels = self.each(entries.get("kernels"), f"{who}: 'kernels'", kernel)
        links = self.each(entries.get("links"), f"{who}: 'links'", lambda peer, item: self.link(peer, item, who))
        self.seen.append((root, name, _keys(entries.get("links"))))
        memory, bandwidth = number("memory", SIZES), number("memory_bandwidth", RATES)
        if len(self.faults) > before:
            return None
        return NodeProfile(name, share, cores, threads, round(memory), bandwidth, kernels, links)

    def link(self, peer: str, root: yaml.Node, who: str) -> LinkProfile:
        entries = self.mapping(root, f"{who}: link to '{peer}'", _LINK_KEYS)
        values: dict[str, float] = {}
        for key, units, above in (("bandwidth", RATES, 0.0), ("round_trip", TIMES, None)):
            if key in entries:
                values[key] = self.number(entries[key], f"{who}: link to '{peer}': '{key}'", units, above)
            elif isinstance(root, yaml.MappingNode):
                self.fault(root, f"{who}: link to '{peer}': expected the key '{key}'")
        return LinkProfile(peer, values.get("bandwidth", 0.0), values.get("round_trip", 0.0))

    def each(self, root: yaml.Node | None, who: str, read: Callable[[str, yaml.Node], _Item]) -> tuple[_Item, ...]:
        return () if root is None else tuple(read(key, item) for key, item in self.mapping(root, who, None).items())

    def mapping(self, root: yaml.Node, who: str, known: tuple[str, ...] | None) -> dict[str, yaml.Node]:
        """Return the values of a mapping by key; `known=None` allows any key."""
        if not isinstance(root, yaml.MappingNode):
            keys = "" if known is None else f" with the keys {', '.join(known)}"
            self.fault(root, f"{who}: expected a mapping{keys}, got {_shown(root)}")
            return {}
        found: dict[str, yaml.Node] = {}
        for key_node, value in root.value:
            key = self.text(key_node, f"{who}: a key")
            if key in found:
                self.fault(key_node, f"{who}: the key '{key}' is there twice")
            elif known is not None and key not in known:
                self.fault(key_node, f"{who}: unknown key '{key}', expected {', '.join(known)}")
            else:
                found[key] = value
        return found

    def text(self, node: yaml.Node, who: str) -> str:
        if isinstance(node, yaml.ScalarNode) and node.value and node.tag != "tag:yaml.org,2002:null":
            return str(node.value)
        self.fault(node, f"{who}: expected a text, got {_shown(node)}")
        return ""

    def number(self, node: yaml.Node, who: str, units: Mapping[str, float], above: float | None) -> float:
        expected = "a number"
        if isinstance(node, yaml.ScalarNode):
            try:
                value = parse_quantity(str(node.value), units)
            except ValueError as error:
                expected = str(error)
            else:
                if value >= 0 if above is None else value > above:
                    return value
                expected = "a number that is not negative" if above is None else f"a number above {above:g}"
        self.fault(node, f"{who}: expected {expected}, got {_shown(node)}")
        return 1.0

    def count(self, node: yaml.Node, who: str) -> int:
        if isinstance(node, yaml.ScalarNode) and str(node.value).isascii() and str(node.value).isdigit():
            return int(node.value)
        self.fault(node, f"{who}: expected a whole number, got {_shown(node)}")
        return 0


def _keys(node: yaml.Node | None) -> tuple[str, ...]:
    return tuple(str(key.value) for key, _ in node.value) if isinstance(node, yaml.MappingNode) else ()


def _shown(node: yaml.Node) -> str:
    match node:
        case yaml.ScalarNode():
            return f"'{node.value}'" if node.value else "nothing"
        case yaml.SequenceNode():
            return "a list"
        case _:
            return "a mapping"
