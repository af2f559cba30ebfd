"""Models of estimators, as converters of Scikit-learn and its like write them: shapes are known, rows split, answers are the same bits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import write_graph
from bbgrap.graph.types import LONG, LongList
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.zoo import materialize
from bbgrap.zoo.forests import TARGETS, complete_trees
from tests.onnx_models import write_model

FEATURES = 5
ROWS = 23
OPTIONS = [PlanOptions(split="batch"), *map(PlanOptions, ("auto", "widest", "layerwise", "tofu", "soybean", "pipeline"))]
CONFIGURATIONS = [*product(OPTIONS, [2]), *product(OPTIONS[2:5], [5])]

Parts = tuple[list[NodeProto], list[str], dict[str, np.ndarray]]


def estimator(op: str, reads: list[str], makes: list[str], **attributes: Any) -> NodeProto:
    return helper.make_node(op, reads, makes, domain="ai.onnx.ml", **attributes)


def of_trees() -> Parts:
    """What is missing is replaced, columns are scaled, a forest votes, and its scores are made chances."""
    trees = {k.replace("target_", "class_"): v for k, v in complete_trees(FEATURES, 6, 4).items() if k != "n_targets"}
    nodes = [
        estimator("Imputer", ["x"], ["full"], imputed_value_floats=[0.25] * FEATURES, replaced_value_float=float("nan")),
        estimator("Scaler", ["full"], ["scaled"], offset=[0.1] * FEATURES, scale=[1.5] * FEATURES),
        estimator("TreeEnsembleClassifier", ["scaled"], ["label", "raw"], classlabels_strings=list("abcd"), **trees),
        estimator("Normalizer", ["raw"], ["scores"], norm="L1"),
    ]
    return nodes, ["label", "scores"], {}


def of_neighbours() -> Parts:
    """The labels of the three nearest of 9 points are looked up, and columns are chosen."""
    nodes = [
        helper.make_node("MatMul", ["x", "points"], ["near"]),
        helper.make_node("TopK", ["near", "three"], ["_", "places"]),
        estimator("ArrayFeatureExtractor", ["labels", "places"], ["row"]),
        helper.make_node("Reshape", ["row", "by_three"], ["votes"]),
        estimator("ArrayFeatureExtractor", ["x", "columns"], ["chosen"]),
        estimator("FeatureVectorizer", ["chosen", "near"], ["both"], inputdimensions=[2, 9]),
    ]
    random = np.random.default_rng(3)
    weights = {
        "points": random.standard_normal((FEATURES, 9)).astype(np.float32),
        "three": np.array([3]),
        "labels": np.arange(9).reshape(1, 9) % 4,
        "by_three": np.array([-1, 3]),
        "columns": np.array([3, 1]),
    }
    return nodes, ["votes", "both"], weights


def of_vectors() -> Parts:
    """Support vectors of three classes, and a linear model of what they say."""
    random = np.random.default_rng(4)
    numbers = {
        "support_vectors": random.standard_normal(6 * FEATURES).tolist(),
        "coefficients": random.standard_normal(12).tolist(),
        "rho": [0.1, 0.2, 0.3],
        "vectors_per_class": [2, 2, 2],
        "classlabels_ints": [0, 1, 2],
        "kernel_params": [0.5, 0.0, 3.0],
        "kernel_type": "RBF",
    }
    nodes = [
        estimator("SVMClassifier", ["x"], ["label", "scores"], **numbers),
        estimator("LinearRegressor", ["scores"], ["y"], coefficients=[0.5, -0.25, 2.0], intercepts=[1.0], targets=1),
        estimator("LabelEncoder", ["label"], ["value"], keys_int64s=[0, 1, 2], values_floats=[0.5, 1.5, 2.5]),
        estimator("OneHotEncoder", ["label"], ["columns"], cats_int64s=[0, 1, 2]),
        estimator("Binarizer", ["x"], ["positive"], threshold=0.0),
    ]
    return nodes, ["y", "value", "columns", "positive"], {}


def saved(folder: Path, parts: Parts) -> Path:
    nodes, outputs, weights = parts
    return write_model(folder / "model.onnx", nodes, {"x": ["N", FEATURES]}, outputs, weights, opset=18, domains={"ai.onnx.ml": 3})


def equal(got: Any, want: Any) -> bool:
    return got.dtype == want.dtype and got.shape == want.shape and bool((got == want).all())


@pytest.mark.parametrize("make", [of_trees, of_neighbours, of_vectors])
def test_rows_split_and_answers_are_the_same_bits(make: Callable[[], Parts], tmp_path: Path) -> None:
    path = saved(tmp_path, make())
    x = np.random.default_rng(5).standard_normal((ROWS, FEATURES)).astype(np.float32)
    x[::4, 1] = np.nan if make is of_trees else 0.5
    want = make_session(path, threads=1).run(None, {"x": x})
    graph = load_graph(path, {"x": x.shape})
    assert None not in all_descriptions(graph).values()
    divided = 0
    for options, devices in CONFIGURATIONS:
        compiled = plan_graph(graph, Cluster.even(devices), options).compiled
        divided += len(compiled.plan.devices_used) > 1
        artifacts = export(compiled.optimized)
        got = simulate(artifacts, [x], local_kernels(artifacts))
        assert all(map(equal, got, want)), f"{options.planner}, {devices} devices"
    assert divided > len(CONFIGURATIONS) // 2


@pytest.mark.parametrize("make", [of_trees, of_neighbours, of_vectors])
def test_shapes_are_those_that_onnxruntime_makes(make: Callable[[], Parts], tmp_path: Path) -> None:
    nodes, _, weights = make()
    inner = [name for node in nodes for name in node.output if name != "_"]
    path = saved(tmp_path, (nodes, inner, weights))
    for rows in (1, 7):
        x = np.zeros((rows, FEATURES), np.float32)
        made = [np.shape(array) for array in make_session(path, threads=1).run(inner, {"x": x})]
        graph = load_graph(path, {"x": x.shape})
        assert [graph.types[name].shape for name in graph.outputs] == made


def test_long_lists_are_kept_as_arrays_and_written_as_they_were(tmp_path: Path) -> None:
    trees = complete_trees(FEATURES, 4, 10)
    path = saved(tmp_path, ([estimator("TreeEnsembleRegressor", ["x"], ["y"], **trees)], ["y"], {}))
    graph = load_graph(path, {"x": (3, FEATURES)})
    again = load_graph(path, {"x": (3, FEATURES)})
    (node,) = graph.nodes
    assert node == again.nodes[0]
    assert hash(node.attributes["nodes_values"]) == hash(again.nodes[0].attributes["nodes_values"])
    assert node.attributes["nodes_truenodeids"] != node.attributes["nodes_falsenodeids"]
    (written,) = onnx.load_model_from_string(write_graph(graph, weights="inline").data).graph.node
    (stored,) = onnx.load(path).graph.node
    for name, value in trees.items():
        kept = node.attributes[name]
        assert isinstance(kept, LongList) == (isinstance(value, tuple) and not isinstance(value[0], str) and len(value) >= LONG)
        one, other = (next(a for a in proto.attribute if a.name == name) for proto in (written, stored))
        assert one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


def test_trees_are_not_asked_for_gigabytes(tmp_path: Path) -> None:
    trees = {**complete_trees(FEATURES, 1, 1), "n_targets": 1 << 28}
    path = saved(tmp_path, ([estimator("TreeEnsembleRegressor", ["x"], ["y"], **trees)], ["y"], {}))
    assert load_graph(path, {"x": (3, FEATURES)}).types["y"].shape is None


def test_a_table_of_many_rows_is_worth_dividing_and_one_row_is_not() -> None:
    for rows, used in ((20_000, 2), (1, 1)):
        forecast = plan_graph(load_graph(materialize("forest"), {"input": (rows, 20)}), Cluster.even(2), PlanOptions("auto"))
        assert len(forecast.compiled.plan.devices_used) == used
        assert load_graph(materialize("forest"), {"input": (rows, 20)}).types["output"].shape == (rows, TARGETS)
