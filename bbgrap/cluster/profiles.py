"""What is known of a machine and its links, in units: measured, declared, or not known (0 or empty)."""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.errors import ClusterFileError
from bbgrap.work import Work


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a node does one kind of work (`bbgrap.work.KINDS`), with all its threads.

        seconds = overhead_s + flops / flops_per_s + weight bytes / weight_bytes_per_s + map bytes / map_bytes_per_s

    So half of the rows of a layer costs more than half of its time: its weights are read whole. A rate of 0 costs nothing.
    """

    kind: str
    flops_per_s: float = 0.0
    weight_bytes_per_s: float = 0.0
    map_bytes_per_s: float = 0.0
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        """Reject rates that would give time back."""
        if not min(self.flops_per_s, self.weight_bytes_per_s, self.map_bytes_per_s, self.overhead_s) >= 0:
            raise ClusterFileError(f"speed of '{self.kind}': expected rates and an overhead of at least 0, got {self}")

    def seconds(self, flops: float, weight_bytes: float, map_bytes: float) -> float:
        """Return the time of one piece of work."""
        terms = ((flops, self.flops_per_s), (weight_bytes, self.weight_bytes_per_s), (map_bytes, self.map_bytes_per_s))
        return self.overhead_s + sum(amount / rate for amount, rate in terms if rate)

    def seconds_of(self, work: Work) -> float:
        """Return the time of one piece of work."""
        return self.seconds(work.flops, work.weight_bytes, work.map_bytes)


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """A link between two nodes, measured or declared: one-way bandwidth and round-trip time of a small message."""

    peer: str
    bandwidth_bytes_per_s: float
    round_trip_s: float

    def __post_init__(self) -> None:
        """Reject a link over which nothing ever arrives, or before it was sent."""
        if not self.bandwidth_bytes_per_s > 0 or not self.round_trip_s >= 0:
            expected = "expected a bandwidth above 0 bytes/s and a round trip of at least 0 s"
            raise ClusterFileError(f"link to '{self.peer}': {expected}, got {self.bandwidth_bytes_per_s} and {self.round_trip_s}")


@dataclass(frozen=True, slots=True)
class NodeProfile:
    """One machine.

    `share` is its relative part of the work (1.0 each: even split). `group` names the rack or site it stands in. `work` are its speeds
    by kind of work. `machine` names the computer it runs on, if others do, too. Zero or empty fields are not known.
    """

    name: str
    share: float = 1.0
    cores: int = 0
    threads: int = 0
    memory_bytes: int = 0
    links: tuple[LinkProfile, ...] = ()
    group: str = ""
    work: tuple[Speed, ...] = ()
    machine: str = ""

    def __post_init__(self) -> None:
        """Reject a share that divides nothing."""
        if not self.share > 0:
            raise ClusterFileError(f"node '{self.name}': expected a share above 0, got {self.share}; leave the node out instead")

    def over(self, other: NodeProfile) -> NodeProfile:
        """Return this profile, with what it does not know taken from another: field by field, kind by kind, link by link."""
        return NodeProfile(
            self.name,
            other.share if self.share == 1 else self.share,
            self.cores or other.cores,
            self.threads or other.threads,
            self.memory_bytes or other.memory_bytes,
            tuple({link.peer: link for link in (*other.links, *self.links)}.values()),
            self.group or other.group,
            tuple({speed.kind: speed for speed in (*other.work, *self.work)}.values()),
            self.machine or other.machine,
        )
