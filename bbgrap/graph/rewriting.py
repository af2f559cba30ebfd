"""Writing the nodes of a graph anew: what every rewriting of graphs begins with, goes on with and ends in."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from itertools import count
from operator import is_
from types import MappingProxyType

import numpy as np

from bbgrap.graph.types import Array, Attribute, DType, Graph, Node, TensorType
from bbgrap.graph.weights import make_weight


def unique_name(wanted: str, taken: Container[str]) -> str:
    """Return the wanted name, with a number added if it is in use."""
    candidates = (wanted if k == 1 else f"{wanted}_{k}" for k in count(1))
    return next(name for name in candidates if name not in taken)


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

    def constant(self, wanted: str, array: Array) -> str:
        """Add a weight; return its name."""
        name = self.name(wanted)
        self._weights[name] = make_weight(name, array)
        self.types[name] = self._weights[name].type
        return name

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
