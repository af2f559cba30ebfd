"""Mixtures of experts in a second form, whose experts can be on different machines; the first form is what the file has.

    MoE, QMoE       asks the best experts of every word, and adds up their answers: experts on several machines would be partial sums

    MoE, QMoE       of experts that answer with a unit vector each: what the kernel mixes with, [words, experts], to the bit
    Greater ...     the numbers of the experts that are asked, [words, k], in ascending order, and what each is mixed with
    ChosenExperts   the answer of each, [words, k, features]
    Mul, Add        of them, in that order

`ChosenExperts` looks experts up as `Gather` does rows of a table, and makes zeros for the number of none. A machine that has some of them
makes zeros for the others, so that sums of such answers are exact. It is no operator of onnxruntime: its pieces are mixtures that ask
one expert (`bbgrap.tdl.operators.experts`).

Law: both forms have the same bits, but for `QMoE` of several words that ask more than two experts. `MoE` adds answers by the numbers of
experts, `QMoE` by how many words of the call ask each. Its last bits depend on all words, so they are others where words are split, too.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from bbgrap.graph.rewriting import Rewriter
from bbgrap.graph.types import Array, Attribute, DType, Graph, Node

CHOSEN_EXPERTS = "ChosenExperts"
OWN_DOMAIN = "bbgrap"
"""Of operators that plans speak of, and that no file has."""

_MICROSOFT = "com.microsoft"
_OPSET = 13
"""From which on all operators written here are known."""
_MIXTURES = {"MoE": 8, "QMoE": 14}
"""By operator, before which operand those of its experts end; what follows mixes."""
_X, _SCORES, _FIRST_OF_EXPERTS = 0, 1, 2
_ROUTING = frozenset({"k", "normalize_routing_weights"})
_NOBODY = -1
"""The number of an expert that is none: where fewer are asked than could be."""
_BITS, _ZERO_OF_8_BITS = "expert_weight_bits", 128


def with_experts_apart(graph: Graph) -> Graph:
    """Return a graph with its mixtures of 32-bit floats in the second form; the same graph if it has none."""
    return _Writer(graph).run(_Writer.write)


class _Writer(Rewriter):
    """Writes nodes in place of mixtures."""

    def _is_known(self, node: Node) -> bool:
        """Tell whether a node is a mixture whose words and experts are known, and its experts are weights."""
        if node.domain != _MICROSOFT or node.op not in _MIXTURES:
            return False
        kinds = [self.types[name] for name in node.inputs if name]
        experts = [name for name in node.inputs[_FIRST_OF_EXPERTS : _MIXTURES[node.op]] if name]
        return (
            self.source.opsets.get("", 0) >= _OPSET
            and all(kind.shape is not None and 0 not in kind.shape for kind in kinds)
            and self.types[node.inputs[_X]].dtype is DType.FLOAT
            and all(name in self.source.weights for name in experts)
            and not node.attributes.get("use_sparse_mixer", 0)
        )

    def write(self, node: Node) -> bool:
        """Write the second form of a mixture; its last node keeps its name."""
        if not self._is_known(node):
            return False
        name, (x, scores), made = node.name, node.inputs[:_FIRST_OF_EXPERTS], node.first_output
        words, _ = self.shape(scores)
        asked, features = node.attributes.get("k", 1), self.shape(x)[-1]
        assert isinstance(asked, int), "onnxruntime takes integers only"
        moving = frozenset({0} if self.moves(scores) & {0} or self.moves(x) else ())
        if len(self.shape(x)) > 2:
            flat = self.integers(f"{name}.rows shape", (words, features))
            x = self.made(f"{name}.rows", "Reshape", (x, flat), shape=(words, features), moving=moving)
        numbers, mixed_with = self._asked(node, asked, moving)

        answers = self.new(f"{name}.answers", DType.FLOAT, (words, asked, features), moving)
        attributes = {**node.attributes, "k": 1} | ({_BITS: node.attributes.get(_BITS, 4)} if node.op == "QMoE" else {})
        operands = (x, numbers, *node.inputs[_FIRST_OF_EXPERTS : _MIXTURES[node.op]])
        self.nodes.append(Node(answers, CHOSEN_EXPERTS, operands, (answers,), attributes, OWN_DOMAIN))
        mixed = self.made(f"{name}.mixed", "Mul", (answers, mixed_with), moving=moving)
        parts = [self._part(mixed, place, moving) for place in range(asked)]
        total = parts[0]
        for place, part in enumerate(parts[1:], 1):
            total = self.made(f"{name}.sum {place}", "Add", (total, part))
        self.nodes.append(Node(name, "Reshape", (total, self.integers(f"{name}.shape", self.shape(made))), (made,)))
        return True

    def _asked(self, node: Node, asked: int, moving: frozenset[int]) -> tuple[str, str]:
        """Write which experts words ask, [words, k], and what their answers are mixed with, [words, k, 1]."""
        name, scores = node.name, node.inputs[_SCORES]
        words, experts = self.shape(scores)
        weights = self._weights_of_mixing(node)
        zero = self.constant(f"{name}.zero", np.zeros((), np.float32))
        is_asked = self.made(f"{name}.is asked", "Greater", (weights, zero), dtype=DType.BOOL)
        downwards = self.constant(f"{name}.downwards", np.arange(experts, 0, -1, dtype=np.float32)[None])
        ranks = self.made(f"{name}.ranks", "Where", (is_asked, downwards, zero), dtype=DType.FLOAT, shape=(words, experts), moving=moving)
        ranked = self.new(f"{name}.ranked", DType.FLOAT, (words, asked), moving)
        best = self.new(f"{name}.best", DType.INT64, (words, asked), moving)
        self.nodes.append(Node(ranked, "TopK", (ranks, self.integers(f"{name}.k", (asked,))), (ranked, best), {"axis": 1}))
        is_one = self.made(f"{name}.is one", "Greater", (ranked, zero), dtype=DType.BOOL)
        nobody = self.constant(f"{name}.nobody", np.array(_NOBODY))
        numbers = self.made(f"{name}.numbers", "Where", (is_one, best, nobody), dtype=DType.INT64)
        chosen = self.made(f"{name}.mixed with", "GatherElements", (weights, best), {"axis": 1}, shape=(words, asked), moving=moving)
        last = self.integers(f"{name}.last", (2,))
        return numbers, self.made(f"{name}.factors", "Unsqueeze", (chosen, last), shape=(words, asked, 1), moving=moving)

    def _weights_of_mixing(self, node: Node) -> str:
        """Write what the kernel mixes answers with, [words, experts], zeros for experts that are not asked.

        It is asked of the kernel itself, which has its own exponential: expert e does not read, and answers with the unit vector e.
        """
        scores = node.inputs[_SCORES]
        finite = self.made(f"{node.name}.finite", "Sign", (scores,))  # something of the right shape, of which zero times is zero
        count = self.shape(scores)[1]
        made = _unit_experts_of_bytes(count) if node.op == "QMoE" else _unit_experts(count)
        operands = [finite, scores, *("" if array is None else self.constant(f"{node.name}.unit {of}", array) for of, array in made)]
        beside = node.inputs[_MIXTURES[node.op] :]
        if any(beside):
            operands += [*[""] * (_MIXTURES[node.op] - len(operands)), *beside]
        attributes: dict[str, Attribute] = {name: value for name, value in node.attributes.items() if name in _ROUTING}
        attributes |= {"activation_type": "relu"} | ({_BITS: 8} if node.op == "QMoE" else {})
        moving = self.moves(scores)
        return self.made(f"{node.name}.weights", node.op, operands, attributes, shape=self.shape(scores), moving=moving, domain=_MICROSOFT)

    def _part(self, mixed: str, place: int, moving: frozenset[int]) -> str:
        words, _, features = self.shape(mixed)
        number = self.constant(f"{mixed} {place}.place", np.array(place))
        return self.made(f"{mixed} {place}", "Gather", (mixed, number), {"axis": 1}, shape=(words, features), moving=moving)


def _unit_experts(count: int) -> Iterator[tuple[str, Array | None]]:
    yield "inner", np.zeros((count, 1, count), np.float32)
    yield "inner bias", None
    yield "outer", np.zeros((count, count, 1), np.float32)
    yield "bias", np.eye(count, dtype=np.float32)


def _unit_experts_of_bytes(count: int) -> Iterator[tuple[str, Array | None]]:
    yield "inner", np.full((count, 1, count), _ZERO_OF_8_BITS, np.uint8)
    yield "inner scale", np.ones((count, 1), np.float32)
    yield "inner bias", None
    yield "outer", np.full((count, count, 1), _ZERO_OF_8_BITS, np.uint8)
    yield "outer scale", np.ones((count, count), np.float32)
    yield "bias", np.eye(count, dtype=np.float32)
