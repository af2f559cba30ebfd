"""Files that onnxruntime has optimised before: what it has named, it names again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.engine.load import load_graph
from bbgrap.engine.reference import Reference
from bbgrap.graph.onnx_lengths import rename_lengths
from tests.partition import plain_outputs

F = TensorProto.FLOAT
NAMES = ("gemm_input_shape", "gemm_output_shape")


def optimised_before(*, half: bool) -> onnx.ModelProto:
    """A product with a bias that onnxruntime joined, with the lengths that it wrote for it, and one that it will join."""
    kind = np.float16 if half else np.float32
    random = np.random.default_rng(1)
    weights = {name: random.standard_normal(shape).astype(kind) for name, shape in {"v": (8, 6), "w": (6, 4), "b": (4,), "c": (6,)}.items()}
    lengths = {"gemm_input_shape": np.array([-1, 8]), "gemm_output_shape": np.array([-1, 3, 6])}
    nodes = [
        helper.make_node("Reshape", ["x", "gemm_input_shape"], ["rows"], name="gemm_input_reshape"),
        helper.make_node("Gemm", ["rows", "v", "c"], ["made"]),
        helper.make_node("Reshape", ["made", "gemm_output_shape"], ["words"], name="gemm_output_reshape"),
        helper.make_node("MatMul", ["words", "w"], ["product"]),
        helper.make_node("Add", ["product", "b"], ["y"]),
    ]
    element = TensorProto.FLOAT16 if half else F
    x, y = helper.make_tensor_value_info("x", element, ["n", 3, 8]), helper.make_tensor_value_info("y", element, ["n", 3, "k"])
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(a, n) for n, a in (weights | lengths).items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("half", [False, True])
def test_what_onnxruntime_wrote_is_joined_further(half: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(optimised_before(half=half), path)
    feed = {"x": np.random.default_rng(2).standard_normal((2, 3, 8)).astype(np.float16 if half else np.float32)}
    graph = load_graph(path, {"x": (2, 3, 8)})
    assert [node.op for node in graph.nodes].count("Gemm") == 2
    assert all(graph.types[name].shape is not None for node in graph.nodes for name in node.outputs)
    (want,) = Reference(path).run(feed)
    np.testing.assert_allclose(plain_outputs(graph, list(feed.values()))[0], want, rtol=1e-2 if half else 1e-5, atol=1e-2 if half else 1e-5)


def test_names_that_somebody_else_knows_stay() -> None:
    known = helper.make_tensor_value_info(NAMES[0], TensorProto.INT64, [1])
    lengths = [numpy_helper.from_array(np.array([4]), name) for name in (*NAMES, f"{NAMES[1]}_token_7")]
    branch = helper.make_graph(
        [helper.make_node("Reshape", ["x", NAMES[1]], ["r"])], "then", [], [helper.make_tensor_value_info("r", F, [4])]
    )
    nodes = [
        helper.make_node("Reshape", ["x", NAMES[0]], ["a"]),
        helper.make_node("If", ["q"], ["b"], then_branch=branch, else_branch=branch),
        helper.make_node("Reshape", ["x", f"{NAMES[1]}_token_7"], ["kept.gemm_output_shape_token_7"]),
    ]
    graph = helper.make_graph(nodes, "g", [known], [], lengths)
    rename_lengths(graph)
    assert [tensor.name for tensor in graph.initializer] == [*NAMES, "kept.kept.gemm_output_shape_token_7"]
    assert [node.input[1] for node in graph.node if node.op_type == "Reshape"] == [NAMES[0], "kept.kept.gemm_output_shape_token_7"]
