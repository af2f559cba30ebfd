"""Writing the nodes of a graph anew: what every rewriting of graphs begins with, goes on with and ends in."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count, pairwise
from operator import is_
from types import MappingProxyType
from typing import Self

import numpy as np

from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight


def unique_name(wanted: str, taken: Container[str]) -> str:
    """Return the wanted name, with a number added if it is in use."""
    candidates = (wanted if k == 1 else f"{wanted}_{k}" for k in count(1))
    return next(name for name in candidates if name not in taken)


_SLICE_WITH_INPUTS = 10
"""The opset from which `Slice` takes starts and ends as inputs."""


def trimmed(names: Iterable[str]) -> tuple[str, ...]:
    """Return names without the empty ones at their end."""
    result = list(names)
    while result and not result[-1]:
        result.pop()
    return tuple(result)


class Rewriter:
    """A graph that is written node by node; whoever rewrites it puts the old nodes into `nodes`, or others in their places.

    Names that it adds follow from those that are there, so that equal graphs get equal ones.
    """

    def __init__(self, graph: Graph) -> None:
        """Begin with no nodes, and with all that is known of the values of a graph."""
        self.source = graph
        self.nodes: list[Node] = []
        self.types = dict(graph.types)
        self._weights = dict(graph.weights)
        self._moving = dict(graph.moving)
        self._names = dict.fromkeys((*graph.types, *graph.node_by_name))
        self._derived: dict[str, str] = {}
        self.instead: dict[str, str] = {}
        """What rules have written to be read in place of values."""
        self.can_slice = graph.opsets.get("", 0) >= _SLICE_WITH_INPUTS

    def run(self, *rules: Callable[[Self, Node], bool]) -> Graph:
        """Return the graph with what rules have written in place of nodes, each the first that returns true; else a node stays."""
        for node in self.source.nodes:
            if not any(rule(self, node) for rule in rules):
                self.nodes.append(node)
        return self.graph()

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value that has one."""
        return self.types[value].known_shape

    def name(self, wanted: str) -> str:
        """Return a name for a further node or value."""
        name = unique_name(wanted, self._names)
        self._names[name] = None
        return name

    def new(self, wanted: str, dtype: DType, shape: tuple[int, ...], moving: frozenset[int] = frozenset()) -> str:
        """Return the name of a new value of this type, some axes of which may move."""
        name = self.name(wanted)
        self.types[name] = TensorType(dtype, shape)
        self._moving |= {name: moving} if moving else {}
        return name

    def moves(self, value: str) -> frozenset[int]:
        """Return the moving axes of a value."""
        return self._moving.get(value, frozenset())

    def constant(self, wanted: str, array: Array, dtype: DType | None = None) -> str:
        """Add a weight, with its type where numpy's does not say it all; return its name."""
        name = self.name(wanted)
        self._weights[name] = make_weight(name, array, dtype)
        self.types[name] = self._weights[name].type
        return name

    def derived(self, source: str, how: str, make: Callable[[Array], Array], dtype: DType | None = None) -> str:
        """Add a weight that is made of another one, if it is not there yet; return its name."""
        wanted = f"{source} {how}"
        if wanted not in self._derived:
            self._derived[wanted] = self.constant(wanted, make(self.source.weights[source].array), dtype)
        return self._derived[wanted]

    def integers(self, wanted: str, values: Sequence[int]) -> str:
        """Add a weight that is a list of integers; return its name."""
        return self.constant(wanted, np.array(values, np.int64))

    def made(
        self,
        wanted: str,
        op: str,
        inputs: Sequence[str],
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
        *,
        dtype: DType | None = None,
        shape: tuple[int, ...] | None = None,
        moving: frozenset[int] | None = None,
        domain: str = "",
    ) -> str:
        """Add a node and the value that it makes, of one name; return that.

        Unless said otherwise, it has the element type of the first operand and the shape to which all broadcast, and those of its axes move
        that move in an operand of as many axes.
        """
        kind = self.types[inputs[0]].dtype if dtype is None else dtype
        extents = np.broadcast_shapes(*map(self.shape, inputs)) if shape is None else shape
        if moving is None:
            moving = frozenset[int]().union(*(self.moves(name) for name in inputs if len(self.shape(name)) == len(extents)))
        name = self.new(wanted, kind, extents, moving)
        self.nodes.append(Node(name, op, tuple(inputs), (name,), {**attributes}, domain))
        return name

    def slices(self, wanted: str, x: str, axis: int, bounds: Sequence[int], outputs: Sequence[str]) -> None:
        """Add one `Slice` for each part of an axis between bounds; each is a plain copy."""
        numbers = {"axis": axis, "step": 1, **{f"at{bound}": bound for bound in bounds}}
        names = {label: self.integers(f"{wanted}.{label}", (value,)) for label, value in numbers.items()}
        for k, (output, (start, stop)) in enumerate(zip(outputs, pairwise(bounds), strict=True)):
            inputs = (x, names[f"at{start}"], names[f"at{stop}"], names["axis"], names["step"])
            self.nodes.append(Node(self.name(f"{wanted}.{k}"), "Slice", inputs, (output,)))

    def graph(self) -> Graph:
        """Return what was written, without types and weights that nothing mentions any more; the same graph if nothing is new."""
        if len(self.nodes) == len(self.source.nodes) and all(map(is_, self.nodes, self.source.nodes)):
            return self.source
        read = {name for node in self.nodes for name in node.reads} | set(self.source.outputs)
        known = read.union(self.source.inputs, *(node.outputs for node in self.nodes))
        return replace(
            self.source,
            nodes=tuple(self.nodes),
            types={name: kind for name, kind in self.types.items() if name in known},
            weights={name: weight for name, weight in self._weights.items() if name in read},
            moving={name: axes for name, axes in self._moving.items() if name in known},
        )
