"""Training a chain of products: what three products per layer cost under given tilings, and the cheapest tilings by dynamic programming.

Layer l computes y = x w forward, dx = dy w^T backward and dw = x^T dy as gradient; all three run over the same loops b, i, o:

              reads           makes     the loop whose cut leaves partial sums
    forward   x[b,i] w[i,o]   y[b,o]    i
    backward  dy[b,o] w[i,o]  dx[b,i]   o
    gradient  x[b,i] dy[b,o]  dw[i,o]   b

A convolution is a product whose x and y have the area of their maps, its loops the batch and the channels. A tensor between two layers
has one tiling (y of one is x of the next, dx is dy of the one before), dw has that of w. Pooling or gates between layers keep the
tiling and change the area. The network's first dx is not computed; losses and activations bind no tiling (SoyBean leaves both open).

The search is SoyBean's equation 5 on a chain, whose breadth-first levels are the layers: its state is the pair (tiling of y, tiling of
dy), weights are eliminated on the way, so a chain costs O(layers) whatever the alphabet of tilings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.networks import BYTES, Layer, Network
from benchmarks.papers.tilings import FORMS, Floats, Tables

Areas3 = tuple[float, float, float]
"""Elements of what a product reads, first and second, and of what it makes."""

ROLES: Mapping[str, tuple[str, str, str]] = {"forward": ("x", "w", "y"), "backward": ("y", "w", "x"), "gradient": ("x", "y", "w")}
"""Per product: what it reads and makes, as axes of `tilings.AXES_OF` (gradients lie like the tensors they belong to)."""

SUMMED = {"forward": "i", "backward": "o", "gradient": "b"}
"""Per product: the loop whose cut leaves partial sums."""


Areas = Mapping[str, Areas3]
"""The areas of one layer's products, by product; the first layer has no backward. Cuts may leave each product with another part."""


def areas_of(network: Network, batch: int) -> tuple[Areas, ...]:
    """Return the areas of a network's layers at a batch size."""
    found = [_areas_of(layer, batch) for layer in network]
    del found[0]["backward"]
    return tuple(found)


def _areas_of(layer: Layer, batch: int) -> dict[str, Areas3]:
    x, w, y = batch * layer.reads, layer.weights, batch * layer.makes
    return {"forward": (x, w, y), "gradient": (x, y, w), "backward": (y, w, x)}


@dataclass(frozen=True, slots=True)
class LayerTilings:
    """Tilings of the tensors around a layer."""

    x: str
    dx: str
    w: str
    y: str
    dy: str

    def of(self, product: str) -> tuple[str, str, str]:
        """Return the tilings of what a product reads and makes."""
        match product:
            case "forward":
                return self.x, self.w, self.y
            case "backward":
                return self.dy, self.w, self.dx
            case _:
                return self.x, self.dy, self.w

    def joined(self, deeper: LayerTilings) -> LayerTilings:
        """Return the composition with the tilings of a later cut."""
        pairs = zip((self.x, self.dx, self.w, self.y, self.dy), (deeper.x, deeper.dx, deeper.w, deeper.y, deeper.dy), strict=True)
        return LayerTilings(*(first + second for first, second in pairs))


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """Tilings of every layer, the form of each of its products, and the bytes that all devices together receive."""

    layers: tuple[LayerTilings, ...]
    forms: tuple[dict[str, str], ...] = field(repr=False)
    total: float


class Search:
    """The dynamic programming over a chain of given areas, for one set of tables.

    `sums` allows cuts that leave partial sums; without them a product runs only along its other two loops.
    """

    def __init__(self, tables: Tables, areas: Sequence[Areas], *, sums: bool = True) -> None:
        self.tables = tables
        self.areas = tuple(areas)
        self.loops = {name: FORMS if sums else FORMS.replace(loop, "") for name, loop in SUMMED.items()}
        self.cost = cache(self._cost)

    def terms(self, product: str, areas: Areas3) -> tuple[tuple[str, ...], Floats, Floats, Floats]:
        """Return the forms of a product, and in bytes: fetching what it reads [tiling, form] (two), storing the result [form, tiling]."""
        kept = [n for n, form in enumerate(self.tables.forms) if all(loop in self.loops[product] for loop in form)]
        a, b, c = ROLES[product]
        fetch, store = self.tables.fetch, self.tables.store
        scale = [BYTES * area for area in areas]
        forms = tuple(self.tables.forms[n] for n in kept)
        return forms, fetch[a][:, kept] * scale[0], fetch[b][:, kept] * scale[1], store[c][kept] * scale[2]

    def _cost(self, product: str, areas: Areas3) -> Floats:
        """Return a product's bytes for all tilings, [first, second, made]: of the cheapest form (SoyBean, equation 2)."""
        forms, first, second, made = self.terms(product, areas)
        best = np.full((len(first), len(second), made.shape[1]), np.inf)
        for number in range(len(forms)):
            np.minimum(best, (first[:, number, None] + second[None, :, number])[:, :, None] + made[number], out=best)
        return best

    def form_of(self, product: str, areas: Areas3, tilings: tuple[str, str, str]) -> str:
        """Return the cheapest form of a product under given tilings."""
        a, b, c = (self.tables.tilings.index(tiling) for tiling in tilings)
        forms, first, second, made = self.terms(product, areas)
        return forms[int(np.argmin(first[a] + second[b] + made[:, c]))]

    def run(self) -> ChainPlan:
        """Return the cheapest plan; of equals the first in the order of `tables.tilings`."""
        count = len(self.tables.tilings)
        best = np.zeros((count, count))
        trail = []
        for areas in self.areas:
            backward = np.zeros((count,) * 3) if "backward" not in areas else self.cost("backward", areas["backward"])
            through = best[:, None, None, :] + backward.transpose(1, 0, 2)  # [x, w, dy, dx]
            chosen_dx = through.argmin(3)
            inner = through.min(3) + self.cost("gradient", areas["gradient"]).transpose(0, 2, 1)
            forward = self.cost("forward", areas["forward"]).reshape(count * count, count)
            best, chosen = _min_plus(forward, inner.reshape(count * count, count))
            trail.append((chosen, chosen_dx))
        return self._follow(best, trail)

    def _follow(self, best: Floats, trail: Sequence[tuple[NDArray[Any], NDArray[Any]]]) -> ChainPlan:
        names = self.tables.tilings
        y, dy = divmod(int(best.argmin()), len(names))
        layers = []
        for chosen, chosen_dx in reversed(trail):
            x, w = divmod(int(chosen[y, dy]), len(names))
            dx = int(chosen_dx[x, w, dy])
            layers.append(LayerTilings(names[x], names[dx], names[w], names[y], names[dy]))
            y, dy = x, dx
        return self.evaluate(tuple(reversed(layers)))

    def evaluate(self, layers: tuple[LayerTilings, ...]) -> ChainPlan:
        """Count given tilings."""
        total, forms = 0.0, []
        for layer, areas in zip(layers, self.areas, strict=True):
            found = {product: self.form_of(product, sizes, layer.of(product)) for product, sizes in areas.items()}
            for product, sizes in areas.items():
                total += float(self.cost(product, sizes)[tuple(map(self.tables.tilings.index, layer.of(product)))])
            forms.append(found)
        return ChainPlan(layers, tuple(forms), total)


def _min_plus(left: Floats, right: Floats) -> tuple[Floats, NDArray[Any]]:
    """Return, for [k, y] and [k, d], the smallest sum over k and where it is: [y, d]."""
    best = np.empty((left.shape[1], right.shape[1]))
    where = np.empty(best.shape, dtype=np.int64)
    rows, columns = np.ascontiguousarray(left.T), np.ascontiguousarray(right.T)
    for y, row in enumerate(rows):
        total = columns + row
        where[y] = total.argmin(1)
        best[y] = np.take_along_axis(total, where[y][:, None], 1)[:, 0]
    return best, where
