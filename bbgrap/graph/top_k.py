"""The largest elements of an output instead of all: what a decoder's next word is chosen from, taken where its logits are.

    logits [.., V]  ──►  block 0: Slice ── TopK ─────────────────┐
                         block 1: Slice ── TopK ── places + V/G ─┼─ Concat ── TopK ──────►  logits.values   [.., k]
                         ...                                     └─ Concat ── GatherElements  logits.indices  [.., k]

Law: these are what `TopK` of the whole output gives, to the bit: the largest first, of equal ones that with the smallest index (NaN
aside). Blocks are in the order of their indices, and so are candidates of one value within a block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from bbgrap.errors import ModelError
from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import DType, Graph, Node

FEWEST_BLOCKS = 12
"""Blocks that an output is taken apart into. Chosen: 2, 3, 4, 6 or 12 nodes get equally many, and a node's part is off by half a block, 4 %
of the output, from its share. A block costs some 10 µs."""

ORDERED = {kind: kind for kind in (DType.FLOAT, DType.DOUBLE, DType.INT32, DType.INT64)} | {DType.FLOAT16: DType.FLOAT}
"""Element types that are ordered, and as what: onnxruntime takes the largest of these only, and every half is a float."""

OLDEST_OPSET = 13
"""The standard's version from which on the operators are those that are used here."""


def blocks_for(nodes: int) -> int:
    """Return how many blocks suit a number of nodes: the fewest of at least `FEWEST_BLOCKS` that equal nodes get equally many of."""
    return nodes * -(-FEWEST_BLOCKS // nodes)


def top_names(name: str) -> tuple[str, str]:
    """Return the names of the outputs that take the place of one: its largest elements, and where they are along the last axis."""
    return f"{name}.values", f"{name}.indices"


def check_top(model: str, name: str, dtype: DType, rank: int | None, opset: int) -> None:
    """Check that the largest elements of an output can be taken.

    Raises:
        ModelError: if not.
    """
    who = f"top '{name}' of model '{model}'"
    if dtype not in ORDERED or not rank:
        kinds = ", ".join(sorted(kind.name.lower() for kind in ORDERED))
        raise ModelError(f"{who}: expected an output of {kinds} with a last axis, got {dtype.name.lower()} of rank {rank}")
    if opset < OLDEST_OPSET:
        raise ModelError(f"{who}: expected opset {OLDEST_OPSET} or newer, got {opset}; convert the model")


def with_top(graph: Graph, top: Mapping[str, int], blocks: int) -> Graph:
    """Return a graph whose outputs named in `top` are replaced by their so many largest elements along the last axis, and their places.

    Args:
        graph: The model; its other outputs stay.
        top: Outputs, and how many elements of each; all of a shorter axis.
        blocks: Into how many pieces the last axis is taken apart, for nodes to share; as many as it is long if that is less.

    Raises:
        ModelError: if a name is none of the outputs, or there is nothing that could be ordered.
    """
    for name, count in top.items():
        graph = _with_one(graph, name, count, blocks)
    return graph


def _with_one(graph: Graph, name: str, count: int, blocks: int) -> Graph:
    if name not in graph.outputs:
        raise ModelError(f"top '{name}' of model '{graph.name}': it is no output; the outputs are {', '.join(graph.outputs)}")
    kind = graph.types[name]
    check_top(graph.name, name, kind.dtype, None if kind.shape is None else len(kind.shape), graph.opsets.get("", 0))
    if not kind.known_shape[-1]:
        raise ModelError(f"top '{name}' of model '{graph.name}': expected a last axis with elements, got {kind}")
    if taken := [made for made in top_names(name) if made in graph.types]:
        raise ModelError(f"top '{name}' of model '{graph.name}': a value is called '{taken[0]}' already; rename it")
    tail = _Tail(graph, name)
    tail.add(count, min(blocks, kind.known_shape[-1]))
    outputs = tuple(made for output in graph.outputs for made in (top_names(name) if output == name else (output,)))
    return replace(tail.graph(), outputs=outputs)


class _Tail(Rewriter):
    """A graph with further nodes behind an output."""

    def __init__(self, graph: Graph, name: str) -> None:
        super().__init__(graph)
        self.nodes += graph.nodes
        self.output = name
        self.kind = graph.types[name]
        self.ordered = ORDERED[self.kind.dtype]
        self._still_moving = self.moves(name) - {len(self.kind.known_shape) - 1}

    def add(self, count: int, blocks: int) -> None:
        """Add all of them."""
        size, kind, is_cast = self.kind.known_shape[-1], self.ordered, self.ordered is not self.kind.dtype
        borders = [size * number // blocks for number in range(blocks + 1)]
        axis, source, made = self._int("axis", -1), self.output, top_names(self.output)
        if is_cast:
            (source,) = self._node("Cast", "float", (source,), {f"{source}.top.float": (kind, size)}, to=kind.value)
        values, places, width = list[str](), list[str](), 0
        for number, (start, stop) in enumerate(pairwise(borders)):
            most = min(count, stop - start)
            bounds = (self._int(f"start{number}", start), self._int(f"stop{number}", stop), axis)
            block = self._node("Slice", f"block{number}", (source, *bounds), {f"{self.output}.top.block{number}": (kind, stop - start)})[0]
            value, found = self._top(f"best{number}", block, most, (f"{block}.values", f"{block}.indices"))
            offset = self._int(f"offset{number}", start)
            places += self._node("Add", f"place{number}", (found, offset), {f"{block}.places": (DType.INT64, most)})
            values.append(value)
            width += most
        (candidates,) = self._node("Concat", "candidates", values, {f"{self.output}.top.candidates": (kind, width)}, axis=-1)
        (where,) = self._node("Concat", "places", places, {f"{self.output}.top.places": (DType.INT64, width)}, axis=-1)
        values_made = f"{self.output}.top.values" if is_cast else made[0]
        best, chosen = self._top("best", candidates, min(count, size), (values_made, f"{self.output}.top.chosen"))
        self._node("GatherElements", "indices", (where, chosen), {made[1]: (DType.INT64, min(count, size))}, axis=-1)
        if is_cast:
            self._node("Cast", "values", (best,), {made[0]: (self.kind.dtype, min(count, size))}, to=self.kind.dtype.value)

    def _top(self, label: str, source: str, count: int, made: tuple[str, str]) -> tuple[str, ...]:
        types = {made[0]: (self.ordered, count), made[1]: (DType.INT64, count)}
        return self._node("TopK", label, (source, self._int(f"{label}.k", count)), types, axis=-1)

    def _node(
        self, op: str, label: str, operands: Sequence[str], made: Mapping[str, tuple[DType, int]], **attributes: int
    ) -> tuple[str, ...]:
        """Add a node that makes values of so many elements along the last axis; return their names."""
        shape = self.kind.known_shape[:-1]
        names = tuple(self.new(name, dtype, (*shape, width), self._still_moving) for name, (dtype, width) in made.items())
        self.nodes.append(Node(f"{self.output}.top.{label}", op, tuple(operands), names, attributes))
        return names

    def _int(self, label: str, value: int) -> str:
        return self.integers(f"{self.output}.top.{label}", (value,))
