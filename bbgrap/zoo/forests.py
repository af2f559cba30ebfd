"""Forests of decision trees (`ai.onnx.ml`), as Scikit-learn, LightGBM and XGBoost export them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from bbgrap.graph.types import Attribute, Graph
from bbgrap.tdl.operators.estimators import DOMAIN
from bbgrap.zoo.builder import Builder

TARGETS = 4


def forest() -> Graph:
    """A regression by 100 trees of 8 levels: `input` [N, 20] to `output` [N, 4]."""
    b = Builder("forest", (1, 20))
    return b.graph(b.node("TreeEnsembleRegressor", "output", ["input"], (1, TARGETS), complete_trees(20, 100, 8), domain=DOMAIN))


def complete_trees(features: int, trees: int, levels: int) -> dict[str, Attribute]:
    """Return the attributes of a regressor of complete trees with random questions: node k goes on at 2k + 1 or 2k + 2."""
    random = np.random.default_rng(0)
    branches = (1 << levels) - 1
    numbers = range(2 * branches + 1)
    leaves = numbers[branches:]
    count = len(numbers) * trees

    def in_each(values: Iterable[int]) -> tuple[int, ...]:
        return tuple(values) * trees

    def of_each(values: Sequence[int]) -> tuple[int, ...]:
        return tuple(tree for tree in range(trees) for _ in values)

    return {
        "n_targets": TARGETS,
        "nodes_treeids": of_each(numbers),
        "nodes_nodeids": in_each(numbers),
        "nodes_featureids": tuple(random.integers(0, features, count).tolist()),
        "nodes_values": tuple(random.random(count, dtype=np.float32).tolist()),
        "nodes_modes": tuple("BRANCH_LEQ" if k < branches else "LEAF" for k in numbers) * trees,
        "nodes_truenodeids": in_each(2 * k + 1 if k < branches else 0 for k in numbers),
        "nodes_falsenodeids": in_each(2 * k + 2 if k < branches else 0 for k in numbers),
        "target_treeids": of_each(leaves),
        "target_nodeids": in_each(leaves),
        "target_ids": tuple(k % TARGETS for k in range(len(leaves) * trees)),
        "target_weights": tuple(random.standard_normal(len(leaves) * trees, np.float32).tolist()),
    }
