"""SoyBean (2018): one tiling per tensor, the cheapest by one-cut dynamic programming, 2^k devices by k cuts. Training traffic.

    one cut   equation 5 over the layers of a chain, equation 2 per product (`chains.Search` with one cut)
    k cuts    Algorithm 1: cut, construct the tile graph, cut that; c_k = delta_k + 2 c_(k-1) = sum of 2^(k-i) delta_i (theorem 1)

The text leaves open what the areas of the tile graph are:
    "stored"   every product sees the stored tiles of its tensors (the literal ConstructTileGraph)
    "operand"  every product sees what its form gives it: a copied operand keeps its area, as do partial sums
Both are estimates: what the plan really moves is the exact geometric count (`Counted.exact`), where every device's boxes are intersected.
`optimum` minimises that count over all cuts at once; the greedy plans are up to 27 % above it (2 cuts of the 8K MLP).

The paper has no traffic numbers besides the worked example of section 2.2, which counts as a parameter server does; the
figures of the tests are our own derivations [D], and its run times depend on its GPUs [X].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from benchmarks.papers.chains import ROLES, Areas, Areas3, ChainPlan, LayerTilings, Search, areas_of
from benchmarks.papers.networks import BYTES, Network
from benchmarks.papers.tiling_words import words
from benchmarks.papers.tilings import AXES_OF, COPY, FORMS, tables_of

TilesAre = Literal["stored", "operand"]
LETTERS = "RCr"
Counter = Literal["ps", "ring"]


@dataclass(frozen=True, slots=True)
class Counted:
    """A plan of several cuts: what the recursion believes that it moves, cut by cut, and what it moves."""

    layers: tuple[LayerTilings, ...]
    cuts: tuple[float, ...]
    """Bytes of each cut, over all groups: 2^(i-1) delta in the paper's terms."""
    exact: float
    """Bytes by exact geometry."""

    @property
    def claimed(self) -> float:
        """The recursion's own total (theorem 1)."""
        return sum(self.cuts)


def one_cut(network: Network, batch: int) -> ChainPlan:
    """Return the cheapest tiling across two devices."""
    return Search(tables_of(LETTERS, FORMS, (2,)), areas_of(network, batch)).run()


def k_cut(network: Network, batch: int, cuts: int, tiles: TilesAre = "stored") -> Counted:
    """Algorithm 1 for 2^cuts devices."""
    return recursive(network, batch, (2,) * cuts, LETTERS, tiles)


def recursive(network: Network, batch: int, ways: tuple[int, ...], letters: str, tiles: TilesAre) -> Counted:
    """Cut a network `ways[0]`-fold, then each of the parts `ways[1]`-fold, and so on, each time as cheaply as it can be."""
    areas, costs, groups = areas_of(network, batch), [], 1
    joined = (LayerTilings("", "", "", "", ""),) * len(network)
    for way in ways:
        plan = Search(tables_of(letters, FORMS, (way,)), areas).run()
        costs.append(groups * plan.total)
        groups *= way
        joined = tuple(first.joined(second) for first, second in zip(joined, plan.layers, strict=True))
        areas = tuple(_tile(*of, way, tiles) for of in zip(areas, plan.layers, plan.forms, strict=True))
    exact = exact_bytes(network, batch, ways, joined)
    return Counted(joined, tuple(costs), exact)


def _tile(areas: Areas, layer: LayerTilings, forms: dict[str, str], way: int, tiles: TilesAre) -> Areas:
    """Construct the tile graph: the areas that one of the parts sees."""

    def part(product: str, sizes: Areas3) -> Areas3:
        letters = layer.of(product) if tiles == "stored" else tuple(AXES_OF[role][forms[product]] for role in ROLES[product])
        a, b, c = (size if letter == COPY else size / way for size, letter in zip(sizes, letters, strict=True))
        return a, b, c

    return {product: part(product, sizes) for product, sizes in areas.items()}


def exact_bytes(network: Network, batch: int, ways: tuple[int, ...], layers: tuple[LayerTilings, ...]) -> float:
    """Return what a plan moves, by exact geometry, every product in its cheapest form."""
    used = sorted({tiling for layer in layers for tiling in (layer.x, layer.dx, layer.w, layer.y, layer.dy)})
    return Search(tables_of(used, words(FORMS, len(ways)), ways), areas_of(network, batch)).evaluate(layers).total


def optimum(network: Network, batch: int, cuts: int) -> ChainPlan:
    """Return the plan that moves least of all for 2^cuts devices, by exact geometry; up to 3 cuts in well under a second."""
    tables = tables_of(words(LETTERS, cuts), words(FORMS, cuts), (2,) * cuts)
    return Search(tables, areas_of(network, batch)).run()


def classical_data_parallel(network: Network, devices: int) -> float:
    """Return the bytes of T_data: the gradient of every weight summed and handed back to all devices, 2 (N - 1) of them."""
    return 2 * (devices - 1) * BYTES * sum(layer.weights for layer in network)


def classical_model_parallel(network: Network, batch: int, devices: int) -> float:
    """Return the bytes of T_model: every layer's output scattered as sums, every output gradient but the last gathered."""
    made = [batch * layer.makes for layer in network]
    return (devices - 1) * BYTES * (sum(made) + sum(made[:-1]))


@dataclass(frozen=True, slots=True)
class WorkedExample:
    """Section 2.2's comparison for N devices: an N-th of the traffic per exchange, times N devices, both ways; bytes."""

    data: float
    model: float
    hybrid: float


def worked_example(network: Network, batch: int, devices: int, groups: int, counter: Counter) -> WorkedExample:
    """Count data and model parallelism and the hybrid (data parallel over groups, model parallel inside) as the paper does.

    "ps" is the paper's number: every device sends to and receives from a server, 2 N X. "ring" needs no server: 2 (N - 1) X.
    """
    weights = BYTES * sum(layer.weights for layer in network)
    maps = BYTES * batch * sum(layer.makes for layer in network)

    def both_ways(amount: float, parties: int) -> float:
        return 2 * amount * (parties if counter == "ps" else parties - 1)

    inside = groups * both_ways(maps / groups, devices // groups)
    return WorkedExample(both_ways(weights, devices), both_ways(maps, devices), both_ways(weights, groups) + inside)
