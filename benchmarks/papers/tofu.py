"""Tofu (EuroSys 2019): recursive partition without copies, any number of workers, and the heuristics it is compared with. Training traffic.

Every tensor is divided, none is copied, so that each worker holds 1/k of the memory. A step of the recursion (section 5.2) divides every
tensor along one dimension, by dynamic programming over the coarsened chain; data fetched from the other groups are further inputs of the
next step, so later steps see operands, not stored tiles ("operand" in `soybean`). k workers are k1 * k2 * ... with k1 >= k2 >= ...
(theorem 1, that later steps cost no less, holds in all our runs for powers of two, and fails for 3 * 2: three ways cost more than two).
An operator runs along any of its loops: concatenating (case 1) or adding up (case 2). Skip connections are left out: a fork-join graph
counts as a chain, and the traffic of residual sums is not in our figures.

The heuristics of section 7.3; where the text is open, this is how we read it:
    allrow-greedy  everything along its first dimension (the weights' is the output channel), the best loops per operator
    spartan        the largest tensor first, along one dimension, then its incident operators; equal ones in the order of the layers
    equal-chop     the dynamic programming, but all k parts of a tensor along one dimension, and of an operator along one loop
    icml18         all tilings of a tensor over k workers, but no loop whose parts must be added up

The paper gives run times and no traffic [X]. Ours put Tofu first, spartan and equal-chop next and allrow-greedy last among the
heuristics, as there; icml18, which the paper finds close to Tofu on the RNN, moves far more than Tofu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import comb

from bbgrap.errors import PlanError
from bbgrap.planners.placements import factors
from benchmarks.papers.chains import Areas, ChainPlan, LayerTilings, Search, areas_of
from benchmarks.papers.coarsening import coarsen, is_chain, training_graph
from benchmarks.papers.networks import Network
from benchmarks.papers.soybean import Counted, recursive
from benchmarks.papers.tiling_words import words
from benchmarks.papers.tilings import COLUMNS, FORMS, ROWS, Tables, tables_of

GIB = 1 << 30
LETTERS = ROWS + COLUMNS


def partition(network: Network, batch: int, workers: int, timesteps: int = 1) -> Counted:
    """Coarsen the training graph of a network and partition the chain that remains, for any number of workers.

    `timesteps` are coalesced (section 5.1): they multiply the batch of every product.

    Raises:
        PlanError: if coarsening leaves no chain.
    """
    groups = coarsen(training_graph(network, timesteps))
    if not is_chain(groups) or len(groups) != len(network):
        raise PlanError(f"tofu: {len(network)} layers, but coarsening left {len(groups)} groups that form no chain")
    return recursive(network, batch * timesteps, factors(workers), LETTERS, "operand")


def ways_to_divide(rank: int, cuts: int) -> int:
    """Return in how many ways a tensor is divided evenly over 2^cuts workers: 20 for 4 dimensions and 8 workers (section 5.2)."""
    return comb(cuts + rank - 1, rank - 1)


def configurations(rank: int, cuts: int, tensors: int = 6) -> tuple[int, int]:
    """Return how many configurations an operator group has without recursion, and how many all steps of the recursion look at."""
    return int(ways_to_divide(rank, cuts) ** tensors), int(cuts * rank**tensors)


def table_2(weights: int) -> float:
    """Return what table 2 prints for a number of weights: weight, gradient and history in GiB, each rounded to one decimal [fitted]."""
    return 3 * round(weights * 4 / GIB, 1)


@dataclass(frozen=True, slots=True)
class Ranking:
    """Bytes moved per iteration by each algorithm on one network, by exact geometry, and Tofu's cost per step."""

    moved: dict[str, float]
    steps: tuple[float, ...]


def rank(network: Network, batch: int, cuts: int = 3) -> Ranking:
    """Compare all algorithms of figure 10 on 2^cuts workers; `optimum` is the best of all plans without copies, in one search."""
    areas = areas_of(network, batch)
    ours = partition(network, batch, 2**cuts)
    moved = {
        "optimum": _search(areas, cuts, words(LETTERS, cuts)).run().total,
        "tofu": ours.exact,
        "equal-chop": equal_chop(areas, cuts).total,
        "spartan": spartan(areas, cuts).total,
        "allrow-greedy": allrow_greedy(areas, cuts).total,
        "icml18": icml18(areas, cuts).total,
    }
    return Ranking(moved, ours.cuts)


def _search(areas: Sequence[Areas], cuts: int, tilings: Sequence[str]) -> Search:
    return Search(tables_of(tilings, words(FORMS, cuts), (2,) * cuts), areas)


def _one_dimension(cuts: int) -> tuple[str, str]:
    return ROWS * cuts, COLUMNS * cuts


def allrow_greedy(areas: Sequence[Areas], cuts: int) -> ChainPlan:
    """Divide everything along its first dimension."""
    rows, columns = _one_dimension(cuts)
    layer = LayerTilings(x=rows, dx=rows, w=columns, y=rows, dy=rows)
    return _search(areas, cuts, (rows, columns)).evaluate((layer,) * len(areas))


def equal_chop(areas: Sequence[Areas], cuts: int) -> ChainPlan:
    """Divide every tensor along the one dimension that the dynamic programming finds, every operator along one loop."""
    return Search(_chopped(cuts), areas).run()


def _chopped(cuts: int) -> Tables:
    return tables_of(_one_dimension(cuts), tuple(loop * cuts for loop in FORMS), (2,) * cuts)


def icml18(areas: Sequence[Areas], cuts: int) -> ChainPlan:
    """Find the best tilings if no operator may leave partial sums."""
    return Search(tables_of(words(LETTERS, cuts), words(FORMS, cuts), (2,) * cuts), areas, sums=False).run()


def spartan(areas: Sequence[Areas], cuts: int) -> ChainPlan:
    """Divide the largest tensor first: of its dimensions that one with which the rest could still be cheapest for its operators.

    Tensors not divided yet count with their best tilings, operator by operator.
    """
    search = Search(_chopped(cuts), areas)
    tensors = {("w", n): of["forward"][1] for n, of in enumerate(areas)}
    for name in ("x", "dx"):
        tensors |= {(name, n): of["forward"][0] for n, of in enumerate(areas)} | {(name, len(areas)): areas[-1]["forward"][2]}
    del tensors["dx", 0]
    chosen: dict[tuple[str, int], str] = {("dx", 0): search.tables.tilings[0]}
    for tensor in sorted(tensors, key=lambda tensor: -tensors[tensor]):
        cost = partial(_incident_cost, search, chosen, tensor)
        chosen[tensor] = min(search.tables.tilings, key=cost)
    return search.evaluate(
        tuple(
            LayerTilings(chosen["x", n], chosen["dx", n], chosen["w", n], chosen["x", n + 1], chosen["dx", n + 1])
            for n in range(len(areas))
        )
    )


def _incident_cost(search: Search, chosen: dict[tuple[str, int], str], tensor: tuple[str, int], tiling: str) -> float:
    """Return what the operators that touch a tensor cost at least, given what is chosen so far and `tiling` for it."""
    fixed = {**chosen, tensor: tiling}
    total = 0.0
    for n in {tensor[1] - 1, tensor[1]} & set(range(len(search.areas))):
        names = {
            "forward": (("x", n), ("w", n), ("x", n + 1)),
            "backward": (("dx", n + 1), ("w", n), ("dx", n)),
            "gradient": (("x", n), ("dx", n + 1), ("w", n)),
        }
        for product, sizes in search.areas[n].items():
            if tensor in names[product]:
                index = tuple(search.tables.tilings.index(fixed[t]) if t in fixed else slice(None) for t in names[product])
                total += float(search.cost(product, sizes)[index].min())
    return total
