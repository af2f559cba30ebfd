"""The machines: what each can do, in units, as planning sees them. No live object, no address that must be reachable.

Laws: node names are unique; the order of `Cluster.nodes` is the order of device numbers; shares are relative and positive.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bbgrap.cluster.profiles import LinkProfile as LinkProfile
from bbgrap.cluster.profiles import NodeProfile as NodeProfile
from bbgrap.cluster.profiles import Speed as Speed
from bbgrap.cluster.speeds import shares_of
from bbgrap.cluster.wires import NO_WIRES, Route, Wiring
from bbgrap.cluster.wires import Link as Link
from bbgrap.errors import ClusterFileError

COORDINATOR = "coordinator"
"""What a link calls the coordinator, which is no node."""


LOCAL = Link(4e9, 20e-6)
"""Between two processes of one machine: measured on two cores, loopback TCP."""

ETHERNET = Link(125e6, 100e-6)
"""A network of which nothing is known: 1 Gbit/s, 0.2 ms there and back."""

AGENT_BYTES = 192 << 20
"""What an agent's two processes take besides the weights. Measured: 105 MiB once they have measured the machine. What is on its way, and
what loading has freed and not given back, come on top: with 128 MiB a plan that filled a container of 1,100 MiB ended the worker."""


@dataclass(frozen=True, slots=True)
class Network:
    """Links that no profile speaks of.

    `between` joins nodes of different groups (and those of none), `within` those of one group, by its name. `coordinator_on` names the
    node on whose machine the coordinator runs, if it is one. `wiring` says what of the way messages share: where wires join two nodes, they
    are the link.
    """

    between: Link = ETHERNET
    within: tuple[tuple[str, Link], ...] = ()
    coordinator_on: str = ""
    wiring: Wiring = NO_WIRES


@dataclass(frozen=True, slots=True)
class Cluster:
    """The nodes in device order; device number `len(nodes)` is the host (the coordinator), which computes nothing."""

    nodes: tuple[NodeProfile, ...] = field(default=())
    network: Network = Network()

    def __post_init__(self) -> None:
        """Check the laws."""
        names = [node.name for node in self.nodes]
        if not names:
            raise ClusterFileError("cluster: expected at least one node, got none")
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise ClusterFileError(f"cluster: node names must be unique, got {', '.join(repeated)} more than once")
        if apart := list(self.network.wiring.apart(names)):
            raise ClusterFileError(f"cluster: expected wires from '{names[0]}' to every node, got none to {', '.join(apart)}")

    @property
    def host(self) -> int:
        """The device number of the coordinator."""
        return len(self.nodes)

    @property
    def beside_host(self) -> int | None:
        """The device that the coordinator shares a machine with, if it is one."""
        return next((device for device, node in enumerate(self.nodes) if node.name == self.network.coordinator_on), None)

    @property
    def shares(self) -> tuple[float, ...]:
        """Relative parts of the work, in device order: declared, or measured."""
        return shares_of(self.nodes)

    def machine(self, device: int) -> int:
        """Return the number of a device's machine: that of the first node on it, or the host's own if no node is beside it."""
        at = self.beside_host if device == self.host else device
        if at is None:
            return self.host
        name = self.nodes[at].machine
        return next(number for number, node in enumerate(self.nodes) if number == at or (name and node.machine == name))

    def link(self, source: int, destination: int) -> Link:
        """Return the link between two devices, the host among them: as either end knows it, else as wires or the network say.

        Within a machine the bandwidth is always that of `LOCAL`, and to the host the latency, too.
        """
        is_memory = self.machine(source) == self.machine(destination)
        if is_memory and self.host in (source, destination):
            return LOCAL
        ends = [COORDINATOR if device == self.host else self.nodes[device].name for device in (source, destination)]
        for device, peer in ((source, ends[1]), (destination, ends[0])):
            for link in self.nodes[device].links if device != self.host else ():
                if link.peer == peer:
                    return Link(LOCAL.bandwidth_bytes_per_s if is_memory else link.bandwidth_bytes_per_s, link.round_trip_s / 2)
        if is_memory:
            return LOCAL
        if route := self.route(source, destination):
            links = [way.wire.link for way in route]
            return Link(min(link.bandwidth_bytes_per_s for link in links), sum(link.latency_s for link in links))
        if self.host in (source, destination):
            # the coordinator stands where its machine's node stands
            at = self.beside_host
            if at is not None:
                return self.link(at if source == self.host else source, at if destination == self.host else destination)
            return self.network.between
        groups = {self.nodes[source].group, self.nodes[destination].group}
        within = dict(self.network.within)
        return within.get(groups.pop(), self.network.between) if len(groups) == 1 else self.network.between

    def route(self, source: int, destination: int) -> Route:
        """Return the wires between two devices, the host among them; none within a machine, or if none are known."""
        if self.machine(source) == self.machine(destination):
            return ()
        return self.network.wiring.route(self._point(source), self._point(destination))

    def _point(self, device: int) -> str:
        """Return where a device's wires end: the coordinator's own, or else those of the node that it is beside."""
        if device != self.host:
            return self.nodes[device].name
        return self.network.coordinator_on or COORDINATOR

    def profiles(self) -> tuple[NodeProfile, ...]:
        """Return the nodes, each with all its links as the network gives them: for where nodes are known one by one."""
        if self.network == Network():
            return self.nodes
        peers = [*(node.name for node in self.nodes), COORDINATOR]
        found = []
        for device, node in enumerate(self.nodes):
            ways = [(name, self.link(device, peer)) for peer, name in enumerate(peers) if peer != device]
            links = tuple(LinkProfile(name, way.bandwidth_bytes_per_s, 2 * way.latency_s) for name, way in ways)
            found.append(replace(node, links=links))
        return tuple(found)

    @classmethod
    def even(cls, count: int) -> Cluster:
        """Return `count` equal nodes named node0, node1, ..."""
        return cls(tuple(NodeProfile(f"node{i}") for i in range(count)))
