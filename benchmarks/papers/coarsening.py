"""Tofu's graph coarsening (section 5.1): from the operators of a training iteration to a chain that dynamic programming can walk.

Four rules merge operators and tensors into groups:
    1  a forward operator and the backward operators generated from it
    2  a forward tensor and its gradient (and the sums of several gradients of one weight)
    3  element-wise operators with what they read and make: one tiling for all of it (activations, optimizer steps)
    4  the same operator in every timestep of an unrolled network, with its weights and maps

`training_graph` writes down the fine-grained graph of a network; `coarsen` needs nothing but that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from benchmarks.papers.networks import Layer, Network


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of the fine-grained graph.

    `of` is the forward operator that it was generated from (its own name for a forward one), without its timestep.
    """

    name: str
    of: str
    reads: tuple[str, ...]
    makes: str
    elementwise: bool = False


def training_graph(network: Network, steps: int = 1) -> tuple[Operator, ...]:
    """Return the operators of one training iteration: products, activations, their gradients, sums over timesteps, and the update.

    Tensors are `layer.x@t` (what it reads), `layer.z@t` (before its activation), `layer.w`; a gradient has a `d` in front. With more
    than one timestep a layer also reads its own activation of the step before.
    """
    found: list[Operator] = []
    for t in range(steps):
        for number, layer in enumerate(network):
            found += _layer_operators(network, number, layer, t, steps)
    for layer in network:
        n = layer.name
        found += [Operator(f"sum {n}@{t}", f"sum {n}", (f"d{n}.w", f"d{n}.w@{t}"), f"d{n}.w", True) for t in range(steps)]
        found += [
            Operator(f"history {n}", f"history {n}", (f"d{n}.w", f"{n}.history"), f"{n}.history", True),
            Operator(f"update {n}", f"update {n}", (f"{n}.w", f"{n}.history"), f"{n}.w", True),
        ]
    return tuple(found)


def _layer_operators(network: Network, number: int, layer: Layer, t: int, steps: int) -> list[Operator]:
    n = layer.name
    x = f"{network[number - 1].name}.y@{t}" if number else f"input@{t}"
    recurrent = (f"{n}.y@{t - 1}",) if steps > 1 and t else ()
    z, y, w = f"{n}.z@{t}", f"{n}.y@{t}", f"{n}.w"
    operators = [
        Operator(f"product {n}@{t}", f"product {n}", (x, *recurrent, w), z),
        Operator(f"act {n}@{t}", f"act {n}", (z,), y, True),
        Operator(f"act' {n}@{t}", f"act {n}", (f"d{y}", z), f"d{z}", True),
        Operator(f"gradient {n}@{t}", f"product {n}", (x, *recurrent, f"d{z}"), f"d{w}@{t}"),
    ]
    if number:
        operators.append(Operator(f"backward {n}@{t}", f"product {n}", (f"d{z}", w), f"d{x}"))
    return operators


def _tensor(name: str) -> str:
    """Return a tensor's group by rules 2 and 4: without timestep and without the mark of a gradient."""
    return name.partition("@")[0].removeprefix("d")


@dataclass(frozen=True, slots=True)
class Group:
    """Operators that are partitioned together, and the tensor groups that they touch."""

    operators: tuple[str, ...]
    tensors: frozenset[str]


def coarsen(operators: Sequence[Operator]) -> tuple[Group, ...]:
    """Apply the four rules; groups of products only, since element-wise operators dissolve into their tensors, in order of appearance."""
    merged = _merge((_tensor(o.makes), *map(_tensor, o.reads)) for o in operators if o.elementwise)
    groups: dict[str, list[Operator]] = {}
    for operator in operators:
        if not operator.elementwise:
            groups.setdefault(operator.of, []).append(operator)
    return tuple(
        Group(
            tuple(o.name for o in members),
            frozenset(merged.get(t, t) for t in map(_tensor, chain.from_iterable((*o.reads, o.makes) for o in members))),
        )
        for members in groups.values()
    )


def _merge(sets: Iterable[tuple[str, ...]]) -> dict[str, str]:
    """Return one representative, the first, for all names that are connected through shared sets."""
    found: dict[str, str] = {}
    for names in sets:
        old = {found.setdefault(name, name) for name in names}
        target = min(old)
        for name, group in found.items():
            if group in old:
                found[name] = target
    return found


def is_chain(groups: Sequence[Group]) -> bool:
    """Tell whether the groups form a line: each tensor group joins at most two groups, and those are neighbours."""
    touching: dict[str, list[int]] = {}
    for number, group in enumerate(groups):
        for tensor in group.tensors:
            touching.setdefault(tensor, []).append(number)
    return all(len(users) == 1 or (len(users) == 2 and users[1] - users[0] == 1) for users in touching.values())
