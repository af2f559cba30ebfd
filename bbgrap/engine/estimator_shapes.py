"""Shapes of what estimators make (`ai.onnx.ml`: trees, support vectors, linear models, and what prepares features for them).

Neither onnx nor onnxruntime infers any. Most follow from the shape that is read; how many columns an estimator writes depends on its
attributes in ways that only its kernel knows, so it is asked with few rows.

    X [N, C] ──► labels [N], scores [N, E]         E of a run with two rows, N of the model

Law: what does not have the form that is expected stays unknown, and the model tells when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from bbgrap.engine.told_numbers import run_alone
from bbgrap.graph.types import STORABLE, DType, Graph, LongList, Node, TensorType
from bbgrap.tdl.operators.estimators import DOMAIN, ESTIMATORS

_Shape = tuple[int, ...]

_KEEPING = frozenset({"Binarizer", "CategoryMapper", "Imputer", "LabelEncoder", "Normalizer", "Scaler"})
"""Operators whose output has the shape of what they read."""

_ROWS = 2
"""That an estimator is asked with: unlike 1, it cannot be mistaken for what has no rows."""

MOST_TARGETS = 1 << 20
"""Columns that trees are asked for; a file of a hundred bytes can ask for any number. Chosen."""


def is_estimator(node: Node) -> bool:
    """Tell whether this module may know the shapes that a node makes."""
    if node.op == "CDist":
        return node.domain == "com.microsoft"
    return node.domain == DOMAIN and (node.op in _KEEPING or node.op in ESTIMATORS or node.op in _RULES)


def estimator_shapes(graph: Graph, node: Node, remembered: dict[tuple[object, ...], tuple[_Shape, ...] | None]) -> list[_Shape] | None:
    """Return the shapes of a node's outputs in use, or None if they cannot be told.

    Args:
        graph: whose types of what the node reads are known as far as they can be.
        node: `is_estimator`.
        remembered: what was asked before, by what decides about it.
    """
    shapes = [graph.types[name].shape if name else None for name in node.inputs]
    known = [shape for shape in shapes if shape is not None]
    if not known or len(known) < len(shapes):
        return None
    if node.op in _KEEPING:
        return [known[0]]
    if node.op in _RULES:
        made = _RULES[node.op](node, known)
        return None if made is None else [made]
    if len(known[0]) != 2:
        return None
    key = (node.name, node.op, known[0][1])
    if key not in remembered:
        remembered[key] = _asked(graph, node, known[0][1])
    found = remembered[key]
    return None if found is None else [(known[0][0], *shape[1:]) for shape in found]


def _asked(graph: Graph, node: Node, columns: int) -> tuple[_Shape, ...] | None:
    """Return the shapes that an estimator makes of two rows; None if it cannot run so, or makes something else than rows."""
    name, outputs = node.inputs[0], tuple(name for name in node.outputs if name)
    kind, targets = graph.types[name].dtype, node.attributes.get("n_targets", 1)
    if kind not in STORABLE or kind is DType.STRING or not isinstance(targets, int) or targets > MOST_TARGETS:
        return None
    types = {name: TensorType(kind, (_ROWS, columns)), **{output: replace(graph.types[output], shape=None) for output in outputs}}
    alone = Graph(graph.name, (node,), (name,), outputs, {}, types, graph.opsets, graph.ir_version)
    made = run_alone(alone, {name: np.zeros((_ROWS, columns), kind.numpy)})
    found = None if made is None else tuple(array.shape for array in made)
    return found if found is not None and all(shape[:1] == (_ROWS,) for shape in found) else None


def _of_columns(_: Node, shapes: Sequence[_Shape]) -> _Shape | None:
    """`ArrayFeatureExtractor`: columns by index; of a list, one row."""
    return (*(shapes[0][:-1] or (1,)), prod(shapes[1])) if len(shapes) == 2 and shapes[0] else None


def _of_parts(_: Node, shapes: Sequence[_Shape]) -> _Shape | None:
    """`FeatureVectorizer`: columns side by side."""
    same = all(len(shape) == 2 and shape[0] == shapes[0][0] for shape in shapes)
    return (shapes[0][0], sum(shape[1] for shape in shapes)) if same else None


def _of_categories(node: Node, shapes: Sequence[_Shape]) -> _Shape | None:
    """`OneHotEncoder`: a column for each category."""
    given = (node.attributes.get(name, ()) for name in ("cats_int64s", "cats_strings"))
    counts = [len(value) for value in given if isinstance(value, (tuple, LongList)) and len(value)]
    return (*shapes[0], counts[0]) if len(counts) == 1 else None


def _of_pairs(_: Node, shapes: Sequence[_Shape]) -> _Shape | None:
    """`CDist`: every row with every other."""
    return (shapes[0][0], shapes[1][0]) if [len(shape) for shape in shapes] == [2, 2] else None


_RULES: dict[str, Callable[[Node, Sequence[_Shape]], _Shape | None]] = {
    "ArrayFeatureExtractor": _of_columns,
    "CDist": _of_pairs,
    "FeatureVectorizer": _of_parts,
    "OneHotEncoder": _of_categories,
}
