"""What onnxruntime adds to a model, though it is so without: an older one does not know all of it."""

import onnx
from onnx import helper

from bbgrap.engine.load import load_graph
from bbgrap.graph.onnx_defaults import drop_defaults
from bbgrap.zoo import materialize


def attribute(name, value):
    return helper.make_attribute(name, value)


def test_attributes_with_other_values_stay():
    nodes = [helper.make_node("Own", ["x"], ["y"], domain="d", one=1, far=2.5, word=b"as it is", unknown=7)]
    body = helper.make_graph(nodes, "g", [], [])
    defaults = {name: attribute(name, value).SerializeToString() for name, value in (("one", 1), ("far", 2.0), ("word", b"as it is"))}
    drop_defaults(body, {("d", "Own"): {**defaults, "required": b""}})
    assert {a.name for a in body.node[0].attribute} == {"far", "unknown"}
    drop_defaults(body, {("d", "Other"): defaults})
    assert len(body.node[0].attribute) == 2


def test_what_is_shipped_of_a_decoder_says_no_more_than_its_file():
    path = materialize("tiny-llama")
    file = onnx.load(path).graph
    past = {value.name: (1, 2, 4, 16) for value in file.input if value.name.startswith("past")}
    graph = load_graph(path, {"input_ids": (1, 3), "attention_mask": (1, 7), **past})
    said = {a.name for node in file.node if node.op_type == "GroupQueryAttention" for a in node.attribute}
    found = [node.attributes.keys() for node in graph.nodes if node.op == "GroupQueryAttention"]
    assert found
    assert all(names <= said for names in found)
