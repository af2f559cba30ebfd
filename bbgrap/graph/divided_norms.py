"""Normalisations of maps in a second form, whose statistics are partial sums; the first form is what the file has.

    InstanceNormalization     reads all of its channel, so that rows cannot be cut

    ReduceMean, Sub           m of every line (along the last axis), d = x - m
    Mul, ReduceMean           v of every line, the mean of d * d
    ReduceMean                of m, and of v + m * m, over all lines of the channel: the partial sums, which travel together
    ...                       a = scale / sqrt(variance + epsilon), b = bias + (m - mean) * a, a few numbers for every line
    Mul, Add                  d * a + b

Group normalisation, as exporters write it, is a Reshape to [N, G, -1], InstanceNormalization, a Reshape back, and Mul and Add per channel.
All five are replaced.

A group of few lines, as a sound has one for each channel, counts as one line. Its m is a partial sum, too, and takes an exchange of its
own; the mean of d, which travels with that of d * d, says what m is off by.

Law: answers are as close to 64-bit floats as onnxruntime's own, also where means are large and deviations small: d is a difference
of neighbours, and what is computed of lines is computed in 64-bit floats. But they have other bits, so the caller says which nodes must
keep theirs. There are more passes over x than in onnxruntime's kernel, so a machine that has all of x keeps the first form.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import Array, Attribute, DType, Graph, Node

LEAST_LINE = 4
"""Elements of a line from which on its statistics are few beside it: chosen."""
LEAST_LINES = 8
"""Lines of a group. The mean of a line is off by its rounding, that of several by less than onnxruntime's mean of all elements: chosen."""
LONG_LINE = 64
"""Elements of a line from which on fewer will do: chosen."""

_LEAST_RANK = 3
_AXES_AS_INPUT = 18
"""The opset from which `ReduceMean` takes its axes as an input."""
_EPSILON = 1e-5
"""What the standard says where a node says nothing."""


@dataclass(frozen=True, slots=True)
class _Norm:
    """A normalisation of x, [N, C, ...], in groups of channels; `nodes` make up all of it, in order.

    `scale` and `bias` are those of every channel, in 64-bit floats.
    """

    nodes: tuple[Node, ...]
    x: str
    groups: int
    scale: Array
    bias: Array
    epsilon: float

    @property
    def y(self) -> str:
        """What it makes."""
        return self.nodes[-1].first_output


def with_divided_norms(graph: Graph, kept: Collection[str]) -> Graph:
    """Return a graph with its normalisations in the second form, but for nodes that are `kept`; the same graph if there are none."""
    found = (norm for node in graph.nodes if (norm := _norm_at(graph, node)) is not None)
    norms = [norm for norm in found if not any(node.name in kept for node in norm.nodes)]
    last = {norm.nodes[-1].name: norm for norm in norms}
    gone = {node.name for norm in norms for node in norm.nodes}

    def write(writer: _Writer, node: Node) -> bool:
        if node.name in last:
            writer.write(last[node.name])
        return node.name in gone

    return _Writer(graph).run(write)


def _norm_at(graph: Graph, node: Node) -> _Norm | None:
    """Return the normalisation around an InstanceNormalization; None if there is none that can be rewritten."""
    if node.op != "InstanceNormalization" or node.domain or graph.types[node.inputs[0]].dtype is not DType.FLOAT:
        return None
    around = _grouped(graph, node)
    nodes = (node,) if around is None else (around[0], node, around[1])
    x, groups = nodes[0].inputs[0], graph.types[node.inputs[0]]
    numbers = [graph.constant(name) for name in node.inputs[1:]]
    shape = graph.types[x].shape
    if shape is None or groups.shape is None or len(shape) < _LEAST_RANK or any(n is None or not np.isfinite(n).all() for n in numbers):
        return None
    count = groups.known_shape[1]
    lines = prod(shape[1:-1]) // max(count, 1)
    if 0 in shape or not (_has_long_lines(graph, x) if lines < LEAST_LINES else shape[-1] >= LEAST_LINE):
        return None
    scale, bias = (np.repeat(np.asarray(number, np.float64), shape[1] // count) for number in numbers)
    epsilon = node.attributes.get("epsilon", _EPSILON)
    assert isinstance(epsilon, float), "onnxruntime takes floats only"
    norm = _Norm(nodes, x, count, scale, bias, epsilon)
    return norm if around is None else _with_factors(graph, norm, shape)


def _has_long_lines(graph: Graph, x: str) -> bool:
    """Whether lines are long, and not groups that a Reshape has made of maps, of which rows are no piece."""
    made = graph.producers.get(x)
    return graph.types[x].known_shape[-1] >= LONG_LINE and (made is None or made.op != "Reshape")


def _grouped(graph: Graph, node: Node) -> tuple[Node, Node] | None:
    """Return the Reshape before, which makes groups of whole channels, and the one after, which takes them apart again."""
    before, after = graph.producers.get(node.inputs[0]), _only_reader(graph, node.first_output)
    if (
        before is None
        or after is None
        or (before.op, after.op) != ("Reshape", "Reshape")
        or _only_reader(graph, node.inputs[0]) is not node
    ):
        return None
    shape, middle = graph.types[before.inputs[0]].shape, graph.types[node.inputs[0]].shape
    if shape is None or middle is None or len(shape) < _LEAST_RANK or shape != graph.types[after.first_output].shape or 0 in shape:
        return None
    return (before, after) if shape[0] == middle[0] and shape[1] % middle[1] == 0 else None


def _only_reader(graph: Graph, name: str) -> Node | None:
    readers = graph.consumers.get(name, ())
    return readers[0] if len(readers) == 1 and name not in graph.outputs else None


def _with_factors(graph: Graph, norm: _Norm, shape: tuple[int, ...]) -> _Norm:
    """Take in a product and a sum with a number for each channel, where they follow."""
    for op in ("Mul", "Add"):
        node = _only_reader(graph, norm.y)
        others = [] if node is None or node.op != op else [name for name in node.inputs if name != norm.y]
        number = _per_channel(graph.constant(others[0]), shape) if len(others) == 1 else None
        if node is None or number is None:
            continue
        scale, bias = (norm.scale * number, norm.bias * number) if op == "Mul" else (norm.scale, norm.bias + number)
        norm = replace(norm, nodes=(*norm.nodes, node), scale=scale, bias=bias)
    return norm


def _per_channel(number: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Return a finite number for each channel of a map to which an array broadcasts; None if that is not so."""
    if number is None or number.ndim > len(shape) or not np.isfinite(number).all():
        return None
    extents = (1,) * (len(shape) - number.ndim) + number.shape
    if extents[1] not in (1, shape[1]) or prod(extents) != extents[1]:
        return None
    return np.broadcast_to(number.reshape(-1).astype(np.float64), shape[1:2])


class _Writer(Rewriter):
    """Writes nodes in place of normalisations."""

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self._has_axes_as_input = graph.opsets.get("", 0) >= _AXES_AS_INPUT

    def write(self, norm: _Norm) -> None:
        """Write the second form of a normalisation; its last node keeps its name."""
        name, shape = norm.nodes[-1].name, self.shape(norm.x)
        is_apart = norm.groups in (1, shape[1])  # one axis then tells groups from channels
        x, map_ = norm.x, shape if is_apart else (shape[0], norm.groups, shape[1] // norm.groups, *shape[2:])
        if not is_apart:
            moving = frozenset(axis + (axis > 1) for axis in self.moves(x))
            x = self.made(f"{name}.groups", "Reshape", (x, self.integers(f"{name}.groups shape", map_)), shape=map_, moving=moving)
        over = tuple(axis for axis in range(1, len(map_) - 1) if axis > 1 or norm.groups == 1)
        channels = (*map_[1 : 2 if is_apart else 3], *(1,) * (len(shape) - 2))

        few = prod(map_[axis] for axis in over) < LEAST_LINES
        d, away, variance = self._of_groups(name, x, (*over, len(map_) - 1)) if few else self._of_lines(name, x, over)
        guarded = self.made(f"{name}.guarded", "Add", (variance, self.constant(f"{name}.epsilon", np.array(norm.epsilon))))
        deviation = self.made(f"{name}.deviation", "Sqrt", (guarded,))
        scale, bias = (self.constant(f"{name}.{of}", getattr(norm, of).reshape(channels)) for of in ("scale", "bias"))
        factor = self.made(f"{name}.factor", "Div", (scale, deviation))
        moved = self.made(f"{name}.moved", "Mul", (away, factor))
        shift = self.made(f"{name}.shift", "Add", (moved, bias))
        a, b = (self._cast(value, DType.FLOAT) for value in (factor, shift))
        scaled = self.made(f"{name}.scaled", "Mul", (d, a))
        last = Node(name, "Add", (scaled, b), (norm.y,))
        if not is_apart:
            total = self.made(f"{name}.total", "Add", (scaled, b))
            last = Node(name, "Reshape", (total, self.integers(f"{name}.shape", shape)), (norm.y,))
        self.nodes.append(last)

    def _of_lines(self, name: str, x: str, over: tuple[int, ...]) -> tuple[str, str, str]:
        """Return differences from the means of lines, how far these are from those of groups, and the variances of groups."""
        near, d, squares = self._centred(name, x, (len(self.shape(x)) - 1,))
        near = self._cast(near, DType.DOUBLE)
        product = self.made(f"{name}.product", "Mul", (near, near))
        moment = self.made(f"{name}.moment", "Add", (squares, product))
        mean = self._mean(f"{name}.mean", near, over)
        moments = self._mean(f"{name}.moments", moment, over)
        return d, self.made(f"{name}.away", "Sub", (near, mean)), self._variance(name, moments, mean)

    def _of_groups(self, name: str, x: str, over: tuple[int, ...]) -> tuple[str, str, str]:
        """Return the same of groups that are one line each; their means are off by their rounding, which the mean of differences says."""
        _, d, squares = self._centred(name, x, over)
        rest = self._cast(self._mean(f"{name}.rest", d, over), DType.DOUBLE)
        return d, self.made(f"{name}.away", "Neg", (rest,)), self._variance(name, squares, rest)

    def _centred(self, name: str, x: str, over: tuple[int, ...]) -> tuple[str, str, str]:
        """Return means, the differences from them, and the means of their squares, in 64-bit floats."""
        near = self._mean(f"{name}.near", x, over)
        d = self.made(f"{name}.apart", "Sub", (x, near))
        square = self.made(f"{name}.square", "Mul", (d, d))
        return near, d, self._cast(self._mean(f"{name}.squares", square, over), DType.DOUBLE)

    def _variance(self, name: str, moments: str, mean: str) -> str:
        off = self.made(f"{name}.off", "Mul", (mean, mean))
        rough = self.made(f"{name}.rough variance", "Sub", (moments, off))
        return self.made(f"{name}.variance", "Relu", (rough,))

    def _cast(self, x: str, dtype: DType) -> str:
        return self.made(f"{x} as {dtype.name.lower()}", "Cast", (x,), {"to": dtype.value}, dtype=dtype)

    def _mean(self, wanted: str, x: str, over: tuple[int, ...]) -> str:
        shape = tuple(1 if axis in over else size for axis, size in enumerate(self.shape(x)))
        axes: dict[str, Attribute] = {} if self._has_axes_as_input else {"axes": over}
        inputs = (x, self.integers(f"{wanted} axes", over)) if self._has_axes_as_input else (x,)
        return self.made(wanted, "ReduceMean", inputs, {**axes, "keepdims": 1}, shape=shape, moving=self.moves(x) - {*over})
