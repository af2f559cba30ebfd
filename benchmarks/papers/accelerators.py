"""HyPar's array of accelerators, simulated: its training steps as programs, on the clock, over an H-tree and over a torus.

The paper's own simulator is not described. Here every accelerator does what its program says, one segment after the other, and messages
fly meanwhile. The input is there when a step begins, and messages take nothing of processors. Of the paper are 84 GOPS/s per processing
unit, 320 GB/s of memory, and links of 1600 Mb/s. Chosen: `UNITS`, no latency, wires that carry each direction by itself.

`serial_seconds` is what the paper's figures fit best: computing is divided evenly, then levels of the hierarchy exchange one after
another, and nothing is done at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log2, prod

from bbgrap.cluster import Cluster
from bbgrap.cluster.types import Link, Network, NodeProfile, Speed
from bbgrap.cluster.wires import Wire, Wiring, torus, tree
from bbgrap.compiler.predict import Predictor
from bbgrap.costmodel.clock import run_clock
from bbgrap.costmodel.messages import NetworkModel
from bbgrap.program.steps import Program
from bbgrap.work import KINDS

UNITS = 16
"""Processing units of an accelerator, one a vault: chosen; the paper says neither how many there are nor how many vaults."""
UNIT_FLOPS = 84e9
MEMORY_BYTES_PER_S = 320e9
LINK_BYTES_PER_S = 1600e6 / 8
TORUS_LINKS_BYTES_PER_S: Mapping[str, float] = {"torus": LINK_BYTES_PER_S, "torus/2": LINK_BYTES_PER_S / 2}
"""Of its wires, by reading: each is a link of 1600 Mb/s; or all together are the 25.6 Gb/s of the paper, which 16 such links make."""
TOPOLOGIES = ("tree", *TORUS_LINKS_BYTES_PER_S)
SLOWER = 1.4
"""How many times as long as with `UNITS` computing takes, fitted: then both printed means come out."""
SERIAL: Mapping[str, tuple[str, float]] = {
    "serial tree": ("tree", 1.0),
    "serial torus/2": ("torus/2", 1.0),
    "serial tree, slower": ("tree", SLOWER),
    "serial torus/2, slower": ("torus/2", SLOWER),
}
"""By name: the topology, and how much longer computing takes."""


def accelerators(count: int, topology: str) -> Cluster:
    """Return 2^H accelerators: a tree whose wires are twice as fast and half as many at every level, or a torus as square as can be."""
    levels = round(log2(count))
    assert 2**levels == count, "the paper's arrays are powers of two"
    work = tuple(Speed(kind, UNITS * UNIT_FLOPS, MEMORY_BYTES_PER_S, MEMORY_BYTES_PER_S) for kind in KINDS)
    names = [f"accelerator{number}" for number in range(count)]
    wires: tuple[Wire, ...] = ()
    if topology == "tree":
        wires = tree(names, [(2, Link(LINK_BYTES_PER_S * 2**above, 0.0)) for above in reversed(range(levels))])
    else:
        wires = torus(names, (2 ** (levels - levels // 2), 2 ** (levels // 2)), Link(TORUS_LINKS_BYTES_PER_S[topology], 0.0))
    return Cluster(tuple(NodeProfile(name, work=work) for name in names), Network(wiring=Wiring(wires)))


class _Array(NetworkModel):
    """Messages take their wires and nothing else; the host is no part of the array."""

    def link(self, source: int, destination: int) -> Link:
        return Link(1e18, 0.0) if self.cluster.host in (source, destination) else super().link(source, destination)

    def handling(self, device: int, source: int, destination: int, size: int, *, in_a_row: bool = False) -> float:
        return 0.0

    def besides(self, device: int, source: int, destination: int, size: int) -> tuple[int, float] | None:
        return None


def step_seconds(program: Program, topology: str) -> float:
    """Return what a training step takes on an array of as many accelerators as the program has devices."""
    cluster = accelerators(program.host, topology)
    acts = Predictor(cluster).acts(program)
    acts[program.host] = acts[program.host][1:-1]  # a request of a client, and its answer
    names = [*(node.name for node in cluster.nodes), "host"]
    return run_clock(names, acts, _Array(cluster)).total_s


def serial_seconds(levels: Sequence[float], alone_s: float, topology: str) -> float:
    """Return what a step takes if nothing is done at once.

    Between two halves of a tree, or of an array of 16 in a torus, lie as many links, or wires, as either half has accelerators.

    Args:
        levels: Bytes that all pairs of a level exchange, the uppermost first; half of them go either way.
        alone_s: What a step takes on one accelerator.
        topology: One of `TOPOLOGIES`.
    """
    link = TORUS_LINKS_BYTES_PER_S.get(topology, LINK_BYTES_PER_S)
    links = 2 ** (len(levels) - 1)  # between all pairs of a level together
    return alone_s / 2 ** len(levels) + sum(moved / 2 / (link * links) for moved in levels)


def geometric_mean(*values: float) -> float:
    """Return the geometric mean."""
    return prod(values) ** (1 / len(values))
