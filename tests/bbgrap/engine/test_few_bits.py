"""Products of few bits that round what they read to bytes: pieces have the bits that the whole has, so none is rounded otherwise."""

from math import sqrt

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.planners.options import PlanOptions
from tests.value_models import plain_answers

ROWS, WIDTH, INNER, BLOCK = 38, 64, 256, 32


def saved(path, level):
    """Save two products with biases, and an activation of five nodes between them, of which onnxruntime makes one with the first bias."""
    random = np.random.default_rng(0)
    weights = {"root": np.float32(sqrt(2)), "one": np.float32(1), "half": np.float32(0.5)}
    nodes = []

    def product(x, made, inner, columns):
        blocks = inner // BLOCK
        weights[f"{made}.w"] = random.integers(0, 256, (columns, blocks, BLOCK // 2)).astype(np.uint8)
        weights[f"{made}.s"] = (random.uniform(0.5, 1.5, columns * blocks) / sqrt(21 * inner)).astype(np.float32)
        weights[f"{made}.b"] = random.standard_normal(columns).astype(np.float32)
        told = {"K": inner, "N": columns, "bits": 4, "block_size": BLOCK, "accuracy_level": level}
        operands = [x, f"{made}.w", f"{made}.s"]
        nodes.append(helper.make_node("MatMulNBits", operands, [f"{made}.p"], domain="com.microsoft", **told))
        nodes.append(helper.make_node("Add", [f"{made}.p", f"{made}.b"], [made]))

    product("x", "h", WIDTH, INNER)
    steps = (("Div", "h", "root"), ("Erf", "h.Div"), ("Add", "h.Erf", "one"), ("Mul", "h", "h.Add"), ("Mul", "h.Mul", "half"))
    for number, (op, *reads) in enumerate(steps):
        nodes.append(helper.make_node(op, reads, ["g" if number == len(steps) - 1 else f"h.{op}"]))
    product("g", "y", INNER, WIDTH)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, ROWS, WIDTH]) for name in "xy"]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "few bits", ends[:1], ends[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path, random.standard_normal((1, ROWS, WIDTH)).astype(np.float32)


@pytest.mark.parametrize("split", ["rows", "channels"])
def test_pieces_round_as_the_whole_does(split, tmp_path):
    path, x = saved(tmp_path / "model.onnx", 4)
    plan = plan_graph(load_graph(path, {}), Cluster.even(3), PlanOptions(planner="bbgrap", split=split))
    artifacts = export(plan.compiled.optimized)
    (found,) = simulate(artifacts, [x], local_kernels(artifacts))
    assert np.array_equal(found, plain_answers(path, {"x": x})[0])
