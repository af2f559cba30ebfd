"""HyPar (HPCA 2019): data or model parallelism per layer and hierarchy level, Algorithms 1 and 2, training traffic.

A layer is cut either along its batch (dp: weights copied, gradients summed) or along its input channels (mp: weights and input cut,
outputs are partial sums). One level cuts every layer between two halves of the accelerators; H levels make 2^H accelerators.

    cost of a level (one pair of halves; Tables 1 and 2)  = sum over layers of intra(t) + inter(t before, t)
    total (Algorithm 2: com = com_h + 2 com_n)            = sum over levels h of 2^h * cost of level h

Between levels dp halves the batch of the layer, mp its input channels; fractions are real numbers (3 channels become 1.5).
`A(F)` of a layer's output is taken after pooling. Three readings of the tables, by the factors of `Convention`:

    FIGURE_8   fitted: the only one of about 70 tried that gives figure 8's totals to the printed digits and all facts of figure 5.
               Intra counts both accelerators of a pair (section 3.4 does: 56 KB and 25.6 KB), dp-mp twice; it charges
               nothing for mp-mp and mp-dp, which contradicts Table 2 (0.5 A(E)).
    CONSISTENT both tables literal, both accelerators counted: physically consistent, differs from the printed totals by up to 14 %.
    LITERAL    both tables literal, one accelerator counted: close to the printed MP column of the VGGs and Cifar-c (within 1.3 %, 4.3 %);
               the MP column as a whole follows no one convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import inf, prod

from benchmarks.papers.networks import BYTES, Layer, Network

DATA, MODEL = 0, 1
"""The two choices; digits of a plan as figure 5 prints them (mp is 1)."""

Plan = tuple[tuple[int, ...], ...]
"""Per layer, the choice at each level, first level first: figure 5's digits H1, H2, ..."""


@dataclass(frozen=True, slots=True)
class Convention:
    """How to read Tables 1 and 2: factors of the areas."""

    intra: float
    """Of A(dW) under dp and of A(F of the next layer) under mp (Table 1)."""
    dp_mp: float
    """Of A(F) from dp to mp, forward and backward together (Table 2: .25 + .25)."""
    mp_mp: float
    """Of A(E) between two mp layers (Table 2: .5)."""
    mp_dp: float
    """Of A(E) from mp to dp (Table 2: .5)."""


FIGURE_8 = Convention(intra=2, dp_mp=1, mp_mp=0, mp_dp=0)
CONSISTENT = Convention(intra=2, dp_mp=1, mp_mp=1, mp_dp=1)
LITERAL = Convention(intra=1, dp_mp=0.5, mp_mp=0.5, mp_dp=0.5)


@dataclass(frozen=True, slots=True)
class Shares:
    """What is left of a layer after some levels: fractions of its batch and of its input channels."""

    batch: float = 1.0
    channels: float = 1.0

    def cut(self, choice: int) -> Shares:
        """Return the shares one level further down."""
        return Shares(self.batch / 2, self.channels) if choice == DATA else Shares(self.batch, self.channels / 2)


@dataclass(frozen=True, slots=True)
class Result:
    """A plan, and what it moves in bytes: in total and per level (`2^h` pairs included)."""

    total: float
    levels: tuple[float, ...]
    plan: Plan


@dataclass(frozen=True, slots=True)
class HyPar:
    """The cost model of one network at one batch size."""

    network: Network
    batch: int = 256
    convention: Convention = FIGURE_8

    def intra(self, layer: Layer, shares: Shares, choice: int) -> float:
        """Bytes within a layer (Table 1)."""
        elements = layer.weights * shares.channels if choice == DATA else self.batch * shares.batch * layer.makes
        return self.convention.intra * BYTES * elements

    def inter(self, layer: Layer, shares: Shares, before: int, choice: int) -> float:
        """Bytes between the layer before and this one, whose shape and shares are those of the map in between (Table 2)."""
        factors = {(DATA, DATA): 0.0, (DATA, MODEL): self.convention.dp_mp, (MODEL, MODEL): self.convention.mp_mp}
        factor = factors.get((before, choice), self.convention.mp_dp)
        return factor * BYTES * self.batch * shares.batch * shares.channels * layer.reads

    def partition_two(self, shares: Sequence[Shares]) -> tuple[float, tuple[int, ...]]:
        """Algorithm 1: the cheapest choice per layer between two halves, by dynamic programming over the layers, O(layers).

        Of equals dp is taken.
        """
        costs: list[float] = [0.0, 0.0]
        paths: list[tuple[int, ...]] = [(), ()]
        for number, (layer, share) in enumerate(zip(self.network, shares, strict=True)):
            found: list[tuple[float, tuple[int, ...]]] = []
            for choice in (DATA, MODEL):
                options = [
                    (costs[before] + (self.inter(layer, share, before, choice) if number else 0.0), before) for before in (DATA, MODEL)
                ]
                cost, before = min(options)
                found.append((cost + self.intra(layer, share, choice), (*paths[before], choice)))
            costs, paths = [cost for cost, _ in found], [path for _, path in found]
        best = min((DATA, MODEL), key=lambda choice: costs[choice])
        return costs[best], paths[best]

    def hierarchical(self, levels: int = 4) -> Result:
        """Algorithm 2: Algorithm 1 level by level on the shapes that the levels above left."""
        shares = [Shares() for _ in self.network]
        totals, choices = [], []
        for level in range(levels):
            cost, chosen = self.partition_two(shares)
            totals.append(2**level * cost)
            choices.append(chosen)
            shares = [share.cut(choice) for share, choice in zip(shares, chosen, strict=True)]
        return Result(sum(totals), tuple(totals), tuple(zip(*choices, strict=True)) if choices else ())

    def evaluate(self, plan: Plan) -> Result:
        """Count a given plan."""
        levels = len(plan[0])
        totals = [0.0] * levels
        for number, (layer, choices) in enumerate(zip(self.network, plan, strict=True)):
            before = plan[number - 1] if number else None
            for level, cost in enumerate(self._column(layer, before, choices)):
                totals[level] += cost
        return Result(sum(totals), tuple(totals), plan)

    def uniform(self, choice: int, levels: int = 4) -> Result:
        """Count Data Parallelism or Model Parallelism: the same choice everywhere."""
        return self.evaluate(((choice,) * levels,) * len(self.network))

    def one_weird_trick(self, levels: int = 4) -> Result:
        """Count Krizhevsky's rule: convolutions data parallel, products model parallel."""
        return self.evaluate(tuple(((MODEL if layer.kernel == layer.size_in == 1 else DATA),) * levels for layer in self.network))

    def optimum(self, levels: int = 4) -> Result:
        """Find the cheapest of all plans, not level by level: a chain over the layers with the choices of all levels as its state.

        Not in the paper, which enumerates; on SFC, SCONV and Lenet-c it finds nothing better than Algorithm 2.
        """
        states = tuple(product((DATA, MODEL), repeat=levels))
        best: dict[tuple[int, ...], tuple[float, Plan]] = {(): (0.0, ())}
        for number, layer in enumerate(self.network):
            found: dict[tuple[int, ...], tuple[float, Plan]] = {}
            for state in states:
                options = (
                    (cost + sum(self._column(layer, before if number else None, state)), plan) for before, (cost, plan) in best.items()
                )
                cost, plan = min(options, key=lambda option: option[0])
                found[state] = (cost, (*plan, state))
            best = found
        return self.evaluate(min(best.values(), key=lambda option: option[0])[1])

    def exhaustive(self, levels: int = 4) -> float:
        """Return the bytes of the cheapest plan by enumerating all of them; 2^(layers * levels) plans."""
        states = tuple(product((DATA, MODEL), repeat=levels))
        first = {(None, s): sum(self._column(self.network[0], None, s)) for s in states}
        tables = [{(b, s): sum(self._column(layer, b, s)) for b in states for s in states} for layer in self.network[1:]]
        cheapest = inf
        for plan in product(states, repeat=len(self.network)):
            cost = first[None, plan[0]]
            for table, pair in zip(tables, pairwise(plan), strict=True):
                cost += table[pair]
            cheapest = min(cheapest, cost)
        return cheapest

    def _column(self, layer: Layer, before: tuple[int, ...] | None, choices: tuple[int, ...]) -> list[float]:
        """Return a layer's bytes at each level, over all pairs of that level."""
        costs, shares = [], Shares()
        for level, choice in enumerate(choices):
            between = 0.0 if before is None else self.inter(layer, shares, before[level], choice)
            costs.append(2**level * (between + self.intra(layer, shares, choice)))
            shares = shares.cut(choice)
        return costs


def digits(plan: Plan) -> tuple[str, ...]:
    """Write a plan as figure 5 does, one word per layer."""
    return tuple("".join(map(str, choices)) for choices in plan)


def example_bytes(weights: Sequence[int], output: Sequence[int], batch: int) -> tuple[int, int]:
    """Return what one layer moves between two accelerators under dp and under mp (section 3.4), in bytes."""
    return 2 * BYTES * prod(weights), 2 * BYTES * batch * prod(output)
