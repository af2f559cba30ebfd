"""What a message costs: the one price that planners, passes and the clock ask.

    seconds  = handling by its sender + bytes / bandwidth + latency + handling by its receiver
    handling = COLD_MESSAGE_S + the overhead of kind `message` + bytes / the rate of kind `message`     (`bbgrap.cluster.speeds`)

Of several that are sent in a row, or received in a row, the first one is cold.

`NetworkModel` takes them from a cluster's nodes and links. Who decides before a cluster is known uses `MESSAGE_S` and `EXCHANGE_S`, the
same of generic cores on a network of which nothing is known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import permutations
from math import inf

from bbgrap.cluster import Cluster
from bbgrap.cluster.speeds import DEFAULT_WORK, speeds_of
from bbgrap.cluster.types import ETHERNET, Link, NodeProfile, Speed
from bbgrap.cluster.wires import Route
from bbgrap.work import Work

COLD_MESSAGE_S = 80e-6
"""What a message costs at either end beyond one of many in a row, which profiles measure: right after a kernel nothing of the code that
handles it is in the processor's caches (decision 8: 0.35 ms an exchange, of which sending is 0.12 to 0.2 and receiving 0.11). The next
one of the same kind finds it there (decision 45: 24 to 39 µs of its processor instead of 64 to 175)."""

PACKETS_S_PER_BYTE = ((300e6, 2e-9), (2e9, 0.5e-9))
"""What a byte takes of a core beyond its handling, by packets and interrupts, over links of up to so many bytes per second. Measured with
emulated links: 2.2e-9 to 2.8e-9 at 1 Gbit/s, 0.3e-9 to 0.6e-9 at 10 Gbit/s, where packets are larger (decision 24)."""

AT_ONCE_BYTES = 64 << 10
"""Of a message that leave within the call that sends it, and are part of its handling: one packet at most. Chosen."""

GENERIC: Mapping[str, Speed] = {speed.kind: speed for speed in DEFAULT_WORK}
"""The speeds of a generic core, by kind of work."""

MESSAGE_S = 2 * (COLD_MESSAGE_S + GENERIC["message"].overhead_s)
"""What a small message takes of generic cores, both ends together: 0.19 ms."""

EXCHANGE_S = MESSAGE_S + ETHERNET.latency_s
"""How long a small message is on its way over a network of which nothing is known, with its handling: 0.29 ms."""

COMPARED = 16
"""Devices among which the dearest way is looked for, the first ones."""


@dataclass(frozen=True, slots=True)
class Price:
    """What messages over one way cost: seconds each, and per byte."""

    fixed_s: float
    s_per_byte: float

    def seconds(self, size: float) -> float:
        """Return the seconds of a message of so many bytes."""
        return self.fixed_s + size * self.s_per_byte


class NetworkModel:
    """The price of work on the devices of a cluster, the host among them, and of messages between them.

    `speeds` are the devices' by kind of work, the host's last.
    """

    def __init__(self, cluster: Cluster) -> None:
        """Look up every device's speed."""
        self.cluster = cluster
        nodes = tuple(map(speeds_of, cluster.nodes))
        beside = cluster.beside_host
        host = speeds_of(NodeProfile("coordinator")) if beside is None else nodes[beside]
        self.speeds: tuple[Mapping[str, Speed], ...] = (*nodes, host)
        self._machines = tuple(cluster.machine(device) for device in range(len(self.speeds)))
        self._links: dict[tuple[int, int], Link] = {}
        self.seconds: Callable[[int, Work], float] = cache(self._seconds)
        """What a piece of work takes on a device."""
        self.route: Callable[[int, int], Route] = cache(cluster.route)
        """The wires that messages from one device to another share with others."""

    def _seconds(self, device: int, work: Work) -> float:
        is_free = not (work.flops or work.weight_bytes or work.map_bytes)
        return 0.0 if is_free else self.speeds[device][work.kind].seconds_of(work)

    def machine(self, device: int) -> int:
        """Return the number of the machine that a device runs on."""
        return self._machines[device]

    def is_memory(self, source: int, destination: int) -> bool:
        """Whether two devices are on one machine: what the sender has written has arrived."""
        return self.machine(source) == self.machine(destination)

    def link(self, source: int, destination: int) -> Link:
        """Return the link from one device to another; within a machine it takes no time per byte."""
        known = self._links.get((source, destination))
        if known is None:
            link = self.cluster.link(source, destination)
            known = Link(inf, link.latency_s) if self.is_memory(source, destination) else link
            self._links[source, destination] = known
        return known

    def handling(self, device: int, source: int, destination: int, size: int, *, in_a_row: bool = False) -> float:
        """Return the seconds that one end's processor, `device`, spends on a message; `in_a_row`: right after another one like it."""
        return (0.0 if in_a_row else COLD_MESSAGE_S) + self.speeds[device]["message"].seconds(0, 0, size)

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        """Return of whose processor a message that `device` handles takes time besides, later, and how much.

        That is a node that computes with all of its cores: the one beside the coordinator for the coordinator's messages, and every node
        for what it sends. What a node receives takes next to nothing but its handling: on the links that were measured the sender pays.
        """
        if self.is_memory(source, destination):
            return None
        host = self.cluster.host
        whose = self.cluster.beside_host if device == host else device if device == source else None
        if whose is None or self.cluster.nodes[whose].threads < self.cluster.nodes[whose].cores:
            return None
        bandwidth = self.link(source, destination).bandwidth_bytes_per_s
        packets = next((seconds for most, seconds in PACKETS_S_PER_BYTE if bandwidth <= most), None)
        if packets is None:
            return None
        own = packets * max(0, size - AT_ONCE_BYTES)
        seconds = self.handling(device, source, destination, size) + packets * size if device == host else own
        return whose, seconds / max(1, self.cluster.nodes[whose].threads)

    def price(self, source: int, destination: int) -> Price:
        """Return what messages from one device to another take until they are received."""
        link, large = self.link(source, destination), 1 << 20
        empty, full = (sum(self.handling(device, source, destination, size) for device in (source, destination)) for size in (0, large))
        return Price(empty + link.latency_s, (full - empty) / large + 1 / link.bandwidth_bytes_per_s)

    @cached_property
    def dearest(self) -> Price:
        """What messages between two nodes take at most, of each and per byte; nothing if there is one node only."""
        prices = [self.price(*pair) for pair in permutations(range(min(self.cluster.host, COMPARED)), 2)]
        return Price(max((price.fixed_s for price in prices), default=0.0), max((price.s_per_byte for price in prices), default=0.0))
