"""A model in a current opset answers as the old one, in onnxruntime."""

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_opset import NEWEST_OPSET, OLDEST_OPSET, TARGET_OPSET, as_old_as_its_operators, normalize_opset
from bbgrap.graph.onnx_read import describe, read_model
from tests.examples import examples

OLDEST = 7
"""onnxruntime has kernels of older opsets for some operators only."""


def floats(*shape):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def whole(*values):
    return np.array(values, np.int64)


MAP, SEQUENCE = floats(2, 4, 6, 5), floats(3, 2, 4)
STATISTICS = (floats(4), floats(4), floats(4), np.abs(floats(4)) + 1)
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}
BYTES = np.arange(24, dtype=np.uint8).reshape(2, 12)
SCALE, ZERO = np.array(0.1, np.float32), np.array(3, np.uint8)
BOXES = np.array([[0, 0, 4, 4], [1, 1, 3, 5]], np.float32)
NEW_ROWS = floats(2, 4, 2, 5)
ROWS = np.array([[[[0] * 5, [3] * 5]] * 4] * 2, np.int64)

FORMS = [
    ("ArgMax", 7, (MAP,), {"axis": 1}),
    ("ArgMin", 7, (MAP,), {"axis": 2, "keepdims": 0}),
    ("AveragePool", 7, (MAP,), WINDOW | {"count_include_pad": 1}),
    ("AveragePool", 10, (MAP,), WINDOW | {"ceil_mode": 1}),
    ("BatchNormalization", 7, (MAP, *STATISTICS), {"epsilon": 1e-3}),
    ("Clip", (7, 10), (MAP,), {"min": -0.2, "max": 0.3}),
    ("Clip", (7, 10), (MAP,), {"max": 0.3}),
    ("Clip", 11, (MAP, SCALE), {}),
    ("Constant", 7, (), {"value": numpy_helper.from_array(MAP)}),
    ("DepthToSpace", 7, (MAP,), {"blocksize": 2}),
    ("DequantizeLinear", 10, (BYTES, SCALE, ZERO), {}),
    ("Dropout", 7, (MAP,), {}),
    ("GRU", 7, (SEQUENCE, floats(1, 15, 4), floats(1, 15, 5)), {"hidden_size": 5}),
    ("GatherND", 11, (MAP, whole(0, 1, 1, 3).reshape(2, 2)), {}),
    *((op, 7, (MAP,), attributes) for op in ("Softmax", "LogSoftmax", "Hardmax") for attributes in ({}, *({"axis": a} for a in range(4)))),
    *((op, 11, (MAP,), {"axis": -2}) for op in ("Softmax", "LogSoftmax", "Hardmax")),
    ("Hardmax", 7, (floats(0, 4),), {}),
    ("LSTM", 7, (SEQUENCE, floats(1, 20, 4), floats(1, 20, 5)), {"hidden_size": 5}),
    ("MaxPool", 7, (MAP,), WINDOW),
    ("MaxPool", 10, (MAP,), WINDOW | {"dilations": [2, 1]}),
    ("Pad", (7, 10), (MAP,), {"pads": [0, 0, 1, 2, 0, 0, 2, 1], "value": 0.5}),
    ("Pad", (7, 10), (MAP,), {"pads": [0, 0, 1, 2, 0, 0, 2, 1], "mode": "reflect"}),
    ("Pad", 11, (MAP, whole(0, 0, 1, 2, 0, 0, -2, 1), SCALE), {}),
    ("QuantizeLinear", 10, (MAP, SCALE, ZERO), {}),
    ("RNN", 7, (SEQUENCE, floats(1, 5, 4), floats(1, 5, 5)), {"hidden_size": 5}),
    ("ReduceSum", 7, (MAP,), {"axes": [1, 3], "keepdims": 0}),
    ("ReduceSum", 7, (MAP,), {}),
    ("Reshape", 7, (MAP, whole(0, -1, 3)), {}),
    ("Resize", (10, 10), (MAP, np.array([1, 1, 2.3, 1.7], np.float32)), {"mode": "linear"}),
    ("RoiAlign", 10, (MAP, BOXES, whole(0, 1)), {"output_height": 2, "output_width": 3}),
    ("Scan", 9, (SEQUENCE,), {"num_scan_inputs": 1}),
    ("ScatterElements", 11, (MAP, ROWS, NEW_ROWS), {"axis": 2}),
    ("ScatterND", 11, (MAP, whole(0, 1).reshape(2, 1), floats(2, 4, 6, 5)), {}),
    ("Shape", 7, (MAP,), {}),
    ("Slice", (7, 9), (MAP,), {"starts": [1, -5], "ends": [4, 100], "axes": [1, 3]}),
    ("Slice", 10, (MAP, whole(-1, 4), whole(-100, 0), whole(2, 3), whole(-2, -3)), {}),
    ("Split", 7, (MAP,), {"axis": 1, "split": [1, 3]}),
    ("Split", 7, (MAP,), {"axis": 1}),
    ("Squeeze", 7, (floats(2, 1, 3),), {"axes": [1]}),
    ("TopK", (7, 9), (MAP,), {"axis": 2, "k": 3}),
    ("TopK", 10, (MAP, whole(3)), {"axis": 2}),
    ("Unsqueeze", 7, (MAP,), {"axes": [0, 3]}),
    *(("Upsample", (7, 8), (MAP,), {"scales": [1.0, 1.0, 2.3, 1.7], "mode": mode}) for mode in ("nearest", "linear")),
    *(("Upsample", (9, 9), (MAP, np.array([1, 1, 2.3, 1.7], np.float32)), {"mode": mode}) for mode in ("nearest", "linear")),
]
"""An operator; the first and the last opset that have it so; what it reads, and its attributes."""

RESULTS = {"Split": 2, "TopK": 2, "LSTM": 3, "GRU": 2, "RNN": 2}


def old_model(op, opset, arrays, attributes, inside, results=1):
    """One operator, which may be in a body; what it reads but first are constants."""
    names, made = [f"x{k}" for k in range(len(arrays))], [f"y{k}" for k in range(results)]
    nodes = [helper.make_node(op, names, made, **attributes, **({"body": scanned()} if op == "Scan" else {}))]
    outputs = [onnx.ValueInfoProto(name=name) for name in made]
    weights = [numpy_helper.from_array(array, name) for name, array in zip(names[1:], arrays[1:], strict=True)]
    if inside:
        body = helper.make_graph(nodes, "body", [], outputs)
        weights.append(numpy_helper.from_array(np.array(True), "yes"))
        nodes = [helper.make_node("If", ["yes"], [f"z{k}" for k in range(results)], then_branch=body, else_branch=body)]
        outputs = [onnx.ValueInfoProto(name=name) for name in nodes[0].output]
    kinds = [helper.np_dtype_to_tensor_dtype(array.dtype) for array in arrays[:1]]
    given = [helper.make_tensor_value_info("x0", kind, arrays[0].shape) for kind in kinds]
    proto = helper.make_model(helper.make_graph(nodes, "old", given, outputs, weights), opset_imports=[helper.make_opsetid("", opset)])
    proto.ir_version = 8
    return describe("old", proto, {})


def scanned():
    row, mark = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("row", "mark"))
    return helper.make_graph([helper.make_node("Softmax", ["row"], ["mark"])], "scanned", [row], [mark])


def answers(model, arrays):
    return make_session(model.detached()[0], threads=1, optimize=False).run(None, {"x0": arrays[0]} if arrays else {})


def assert_as_before(model, arrays):
    current = normalize_opset(model)
    assert current.opsets[""] == TARGET_OPSET
    for got, want in zip(answers(current, arrays), answers(model, arrays), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a body"])
@pytest.mark.parametrize(("op", "opsets", "arrays", "attributes"), FORMS, ids=[f"{row[0]}-{k}" for k, row in enumerate(FORMS)])
def test_an_operator_means_what_it_meant(op, opsets, arrays, attributes, inside):
    first, last = opsets if isinstance(opsets, tuple) else (opsets, OLDEST_OPSET - 1)
    for opset in range(first, last + 1):
        assert_as_before(old_model(op, opset, arrays, attributes, inside, RESULTS.get(op, 1)), arrays)


def test_every_operator_whose_form_changed_is_among_them():
    def form(schema):
        defaults = {name: attribute.default_value.SerializeToString() for name, attribute in schema.attributes.items()}
        return defaults, [item.name for item in schema.inputs], [item.name for item in schema.outputs]

    names = {schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain} | {"Upsample"}
    changed = set()
    for name in names:
        forms = []
        for opset in range(OLDEST, TARGET_OPSET + 1):
            try:
                forms.append((opset, form(onnx.defs.get_schema(name, opset))))
            except onnx.defs.SchemaError:
                continue
        if any(opset < OLDEST_OPSET and one != forms[-1][1] for opset, one in forms):
            changed.add(name)
    assert changed == {row[0] for row in FORMS}


FACTORS = st.one_of(st.sampled_from([1.0, 2.0, 3.0, 0.5, 0.25]), st.floats(0.125, 4, width=32))


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a body"])
@settings(max_examples=examples(60))
@given(
    st.sampled_from(["nearest", "linear"]), st.tuples(st.integers(1, 17), st.integers(1, 17)), st.tuples(FACTORS, FACTORS), st.booleans()
)
def test_a_resize_takes_the_elements_that_it_took(inside, mode, sizes, factors, grows):
    scales = np.array([1, 1, *factors], np.float32)
    if grows:
        scales = np.maximum(scales, 1)
    assume(all(size * scale >= 1 for size, scale in zip(sizes, scales[2:], strict=True)))
    if mode == "nearest" and scales.min() < 1 < scales.max():  # a step that makes no other size is none
        assume(all(scale == 1 or int(size * scale) != size for size, scale in zip(sizes, scales[2:], strict=True)))
    arrays = (floats(1, 2, *sizes), scales)
    for op, opset in (("Resize", 10), *((("Upsample", 9),) if grows else ())):
        assert_as_before(old_model(op, opset, arrays, {"mode": mode}, inside), arrays)


@pytest.mark.parametrize("factors", [(2.3, 1.7), (0.6, 0.3), (2.3, 0.3)])
def test_a_resize_whose_scales_are_computed(factors):
    """As exporters compute them of sizes."""
    model = old_model("Resize", 10, (floats(1, 2, 7, 9), np.array([1, 1, *factors], np.float32)), {"mode": "nearest"}, inside=False)
    model.proto.graph.node[0].input[1] = "scales"
    model.proto.graph.node.insert(0, helper.make_node("Identity", ["x1"], ["scales"]))
    assert_as_before(model, (floats(1, 2, 7, 9),))


@pytest.mark.parametrize("opset", range(OLDEST, 12))
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a body"])
def test_a_model_that_reads_the_mask_of_a_dropout_stays_old(opset, inside):
    model = old_model("Dropout", opset, (MAP,), {}, inside, results=2)
    assert normalize_opset(model) is model


def test_new_models_stay():
    model = old_model("Relu", OLDEST_OPSET, (MAP,), {}, inside=False)
    assert normalize_opset(model) is model


@pytest.mark.parametrize("inside", [False, True], ids=["", "in a body"])
def test_a_model_newer_than_its_operators_is_called_as_old_as_they_are(inside):
    """Its operators run, but onnxruntime (1.32) has no `QuantizeLinear` of opset 28, which dividing it may add."""
    latest = onnx.defs.onnx_opset_version()
    model = old_model("Relu", latest, (MAP,), {}, inside)
    current = as_old_as_its_operators(model)
    assert current.opsets[""] == NEWEST_OPSET < latest
    as_old = old_model("Relu", NEWEST_OPSET, (MAP,), {}, inside)  # onnxruntime 1.28 loads no newer one
    np.testing.assert_array_equal(answers(current, (MAP,)), answers(as_old, (MAP,)))
    changed = max((s for s in onnx.defs.get_all_schemas() if not s.domain), key=lambda schema: schema.since_version)
    newest = old_model(changed.name, changed.since_version, (MAP,), {}, inside)
    assert as_old_as_its_operators(newest) is newest
    assert as_old_as_its_operators(old_model("Relu", NEWEST_OPSET, (MAP,), {}, inside)).opsets[""] == NEWEST_OPSET


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_of_two_versions_of_the_standard_operators_the_last_counts(domain, tmp_path):
    """For onnxruntime, too. Converters of estimators write one version twice, and the ONNX converter would make one of the two new."""
    nodes = [helper.make_node("Squeeze", ["x"], ["y"], axes=[0])]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4])]
    graph = helper.make_graph(nodes, "twice", given, [onnx.ValueInfoProto(name="y")])
    path = tmp_path / "m.onnx"
    opsets = [helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("", 17), helper.make_opsetid(domain, 12)]
    path.write_bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
    assert make_session(path, threads=1).run(None, {"x": floats(1, 4)})[0].shape == (4,)
    model = read_model(path)
    assert model.opsets[""] == 12
    current = normalize_opset(model)
    assert current.opsets[""] == TARGET_OPSET
    assert make_session(current.detached()[0], threads=1).run(None, {"x": floats(1, 4)})[0].shape == (4,)
