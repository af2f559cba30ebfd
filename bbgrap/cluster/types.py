"""The machines: what each can do, in units, as planning sees them. No live object, no address that must be reachable.

Laws: node names are unique; the order of `Cluster.nodes` is the order of device numbers; shares are relative and positive.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.errors import ClusterFileError


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A link between two nodes, measured or declared: one-way bandwidth and round-trip time of a small message."""

    peer: str
    bandwidth_bytes_per_s: float
    round_trip_s: float


@dataclass(frozen=True, slots=True)
class KernelRate:
    """Speed of one kind of work, e.g. `conv3x3_64_56`: billions of floating point operations per second."""

    kind: str
    gflops: float


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """One machine.

    `share` is its relative part of the work (1.0 each: even split). Zero or empty fields are not known.
    """

    name: str
    share: float = 1.0
    cores: int = 0
    threads: int = 0
    memory_bytes: int = 0
    memory_bandwidth_bytes_per_s: float = 0.0
    kernels: tuple[KernelRate, ...] = ()
    links: tuple[LinkProfile, ...] = ()

    def __post_init__(self) -> None:
        """Reject a share that divides nothing."""
        if not self.share > 0:
            raise ClusterFileError(f"node '{self.name}': expected a share above 0, got {self.share}; leave the node out instead")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes in device order; device number `len(nodes)` is the host (the coordinator), which computes nothing."""

    nodes: tuple[NodeProfile, ...] = field(default=())

    def __post_init__(self) -> None:
        """Check the laws."""
        names = [node.name for node in self.nodes]
        if not names:
            raise ClusterFileError("cluster: expected at least one node, got none")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ClusterFileError(f"cluster: node names must be unique, got {', '.join(repeated)} more than once")

    @property
    def host(self) -> int:
        """The device number of the coordinator."""
        return len(self.nodes)

    @property
    def shares(self) -> tuple[float, ...]:
        """Relative parts of the work, in device order."""
        return tuple(node.share for node in self.nodes)

    @classmethod
    def even(cls, count: int) -> Cluster:
        """Return `count` equal nodes named node0, node1, ..."""
        return cls(tuple(NodeProfile(f"node{i}") for i in range(count)))
