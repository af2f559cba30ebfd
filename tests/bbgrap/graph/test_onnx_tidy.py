"""Graphs that onnxruntime takes and the ONNX rules do not foresee: unsorted, sparse, with weights that nobody reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bbgrap.engine.load import load_graph
from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_read import read_model
from bbgrap.graph.onnx_tidy import bodies_of, drop_unread, leave_out_single_splits, make_dense, sort_nodes
from tests.partition import plain_outputs

F = TensorProto.FLOAT


def chain(order: list[int]) -> onnx.GraphProto:
    """A chain of nodes, written in another order; every third one reads the one before in a body."""
    nodes = []
    for k in range(len(order)):
        if k % 3 == 2:
            made = {op: [helper.make_tensor_value_info(f"{op}{k}", F, [4])] for op in ("Neg", "Abs")}
            bodies = [helper.make_graph([helper.make_node(op, [f"v{k}"], [f"{op}{k}"])], op, [], made[op]) for op in made]
            nodes.append(helper.make_node("If", ["c"], [f"v{k + 1}"], then_branch=bodies[0], else_branch=bodies[1]))
        else:
            nodes.append(helper.make_node("Sigmoid", [f"v{k}"], [f"v{k + 1}"]))
    inputs = [helper.make_tensor_value_info("v0", F, [4]), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    output = helper.make_tensor_value_info(f"v{len(order)}", F, [4])
    return helper.make_graph([nodes[k] for k in order], "chain", inputs, [output])


def saved(graph: onnx.GraphProto, folder: Path) -> Path:
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    return folder / "model.onnx"


@given(st.permutations(range(9)))
def test_nodes_are_sorted(order: list[int]) -> None:
    graph = chain(order)
    sort_nodes(graph)
    assert [node.output[0] for node in graph.node] == [f"v{k + 1}" for k in range(9)]


def test_sorted_nodes_keep_their_order() -> None:
    nodes = [helper.make_node("Relu", ["x"], [name]) for name in "cab"]
    graph = helper.make_graph(nodes, "g", [], [])
    sort_nodes(graph)
    assert [node.output[0] for node in graph.node] == ["c", "a", "b"]


def test_a_circle_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["b"])]
    values = [helper.make_tensor_value_info(name, F, [2]) for name in "xb"]
    with pytest.raises(ModelError, match="node 'first' depends on its own output"):
        read_model(saved(helper.make_graph(nodes, "g", values[:1], values[1:]), tmp_path))


def test_an_unsorted_file_runs_as_in_onnxruntime(tmp_path: Path) -> None:
    path = saved(chain([8, 3, 1, 0, 2, 7, 6, 5, 4]), tmp_path)
    feed = {"v0": np.array([-2, -1, 1, 2], np.float32), "c": np.array(True)}
    (want,) = make_session(path, threads=1).run(None, feed)
    (got,) = plain_outputs(load_graph(path, {}), list(feed.values()))
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("flat", [True, False])
def test_sparse_weights_become_dense(flat: bool, tmp_path: Path) -> None:
    dense = np.zeros((3, 4), np.float32)
    dense[0, 1], dense[2, 3] = 5, -2
    values = numpy_helper.from_array(np.array([5, -2], np.float32), "w")
    indices = numpy_helper.from_array(np.array([1, 11]) if flat else np.array([[0, 1], [2, 3]]), "i")
    x, y = helper.make_tensor_value_info("x", F, [2, 3]), helper.make_tensor_value_info("y", F, [2, 4])
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y])
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    path = saved(graph, tmp_path)
    feed = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    (want,) = make_session(path, threads=1).run(None, feed)
    (got,) = plain_outputs(load_graph(path, {}), list(feed.values()))
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(got, feed["x"] @ dense)


def test_sparse_weights_with_indices_outside_are_refused() -> None:
    graph = onnx.GraphProto()
    values, indices = numpy_helper.from_array(np.ones(1, np.float32), "w"), numpy_helper.from_array(np.array([12]), "i")
    graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [3, 4]))
    with pytest.raises(ModelError, match=r"weight 'w': its sparse form has indices that do not fit its shape \[3, 4\]"):
        make_dense(graph, lambda tensor: None)


def test_weights_that_only_a_body_reads_stay_and_unread_ones_go() -> None:
    graph = chain([0, 1, 2])
    for name in ("v2", "unread"):
        graph.initializer.append(numpy_helper.from_array(np.ones(4, np.float32), name))
    del graph.node[1:2]
    drop_unread(graph)
    assert [tensor.name for tensor in graph.initializer] == ["v2"]


@pytest.mark.parametrize(
    ("called", "given"), [("leaky", {}), ("leaky", {"slope": 0.5}), ("outer", {}), ("outer", {"passed": 0.4}), ("branching", {})]
)
def test_attributes_that_calls_of_functions_leave_out_are_the_defaults_that_the_functions_declare(
    called: str, given: dict[str, float], tmp_path: Path
) -> None:
    leaky, handed_on = helper.make_node("LeakyRelu", ["x"], ["y"]), helper.make_node("leaky", ["x"], ["y"], domain="f")
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    handed_on.attribute.add(name="slope", ref_attr_name="passed", type=onnx.AttributeProto.FLOAT)
    result = [helper.make_tensor_value_info("z", F, None)]
    body = helper.make_graph([helper.make_node("leaky", ["x"], ["z"], domain="f")], "body", [], result)
    yes = helper.make_node("Constant", [], ["yes"], value=numpy_helper.from_array(np.array(True)))
    nodes = [yes, helper.make_node("If", ["yes"], ["y"], then_branch=body, else_branch=body)]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    functions = [
        helper.make_function("f", "leaky", ["x"], ["y"], [leaky], opsets, attribute_protos=[helper.make_attribute("slope", 0.25)]),
        helper.make_function("f", "outer", ["x"], ["y"], [handed_on], opsets, attributes=["passed"]),
        helper.make_function("f", "branching", ["x"], ["y"], nodes, opsets),
    ]
    values = [helper.make_tensor_value_info(name, F, [3]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node(called, ["x"], ["y"], domain="f", **given)], "g", values[:1], values[1:])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10), path)
    x = np.array([-4, -1, 2], np.float32)
    (want,), (got,) = (make_session(model, threads=1).run(None, {"x": x}) for model in (path, read_model(path).detached()[0]))
    assert got.tolist() == want.tolist()


@pytest.mark.parametrize("defaults", [False, True], ids=["plain", "with a default"])
def test_operators_of_a_function_are_of_the_opset_of_the_model_as_in_onnxruntime(defaults: bool, tmp_path: Path) -> None:
    """Whatever the function imports: until opset 12, a `Softmax` was over all axes from the second on."""
    body = [helper.make_node("Softmax", ["x"], ["t"], axis=1), helper.make_node("LeakyRelu", ["t"], ["y"])]
    if defaults:
        body[1].attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    given = {"attribute_protos": [helper.make_attribute("slope", 0.25)]} if defaults else {}
    function = helper.make_function("f", "old", ["x"], ["y"], body, [helper.make_opsetid("", 12)], **given)
    values = [helper.make_tensor_value_info(name, F, [2, 3, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("old", ["x"], ["y"], domain="f")], "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9), path)
    model = read_model(path)
    assert model.operators == {("", "Softmax"), ("", "LeakyRelu")}
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    (want,), (got,) = (make_session(source, threads=1).run(None, {"x": x}) for source in (path, model.detached()[0]))
    np.testing.assert_array_equal(got, want)


def test_only_splits_into_pieces_of_one_lose_what_says_so() -> None:
    """Constants of two branches may have one name, and a body sees those outside."""

    def branch(name: str, size: int) -> onnx.GraphProto:
        told = helper.make_node("Constant", [], ["size"], value=numpy_helper.from_array(np.array(size)))
        splits = [helper.make_node("SplitToSequence", ["x", by], [f"{name}.{by}"], axis=0, keepdims=0) for by in ("size", "one", "ones")]
        return helper.make_graph([told, *splits], name, [], [])

    chosen = helper.make_node("If", ["c"], ["y"], then_branch=branch("then", 1), else_branch=branch("else", 2))
    constants = [numpy_helper.from_array(np.array(value), name) for name, value in (("one", 1), ("ones", [1, 1]))]
    graph = helper.make_graph([chosen], "g", [], [], constants)
    leave_out_single_splits(graph)
    left = [tuple(node.input[1:]) for body in bodies_of(graph.node[0]) for node in body.node if node.op_type == "SplitToSequence"]
    assert sorted(left) == [(), (), (), ("ones",), ("ones",), ("size",)]
