import numpy as np
import onnx
import onnxruntime as ort
import pytest

from bbgrap.graph.onnx_io import read_model
from bbgrap.graph.onnx_narrow import SIGMOID_GRAIN, narrow_steps, sigmoid_grains

HALF, BRAIN = 2.0**-10, 2.0**-7


@pytest.mark.parametrize(
    ("body", "steps"),
    [
        ("y = Relu(x)  z = Neg(y)", (0.0, 0.0)),
        ("h = Cast<to=10>(x)  y = Cast<to=1>(h)  z = Relu(x)", (HALF, 0.0)),
        ("h = Cast<to=10>(x)  f = Cast<to=1>(h)  b = Cast<to=16>(f)  z = Cast<to=1>(b)  y = Neg(f)", (HALF, BRAIN)),
        ("w = Constant<value = float16[1] {2}>()  f = Cast<to=1>(w)  y = Mul(x, f)  h = Cast<to=10>(x)  z = Cast<to=1>(h)", (0.0, HALF)),
        (
            "t = Constant<value = bool {1}>()  z = Neg(x)"
            "  y = If (t) <then_branch = one () => (float[8] a) {h = Cast<to=10>(x)  a = Cast<to=1>(h)},"
            " else_branch = other () => (float[8] b) {b = Relu(x)}>",
            (HALF, 0.0),
        ),
        ("p = com.microsoft.Gelu(x)  h = Cast<to=10>(p)  y = Cast<to=1>(h)  z = com.microsoft.QuickGelu(y)", (HALF, HALF)),
    ],
    ids=["floats", "float16", "both", "weight", "body", "onnxruntime's own"],
)
def test_the_coarsest_float_on_the_way_is_found(tmp_path, body, steps):
    opsets = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
    onnx.save(onnx.parser.parse_model(f"{opsets} narrow (float[8] x) => (float[8] y, float[8] z) {{{body}}}"), tmp_path / "model.onnx")
    assert narrow_steps(read_model(tmp_path / "model.onnx")) == steps


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("y = Sigmoid(x)  z = Neg(y)", (True, False)),
        ("s = Sigmoid(x)  y = Concat<axis = 0>(x, s)  z = Transpose(s)", (True, True)),
        ("s = Sigmoid(x)  y = Mul(x, s)  z = Identity(y)", (False, False)),
    ],
    ids=["alone", "moved", "computed with"],
)
def test_sigmoids_are_found_where_they_are_moved_to(tmp_path, body, found):
    text = f'<ir_version: 8, opset_import: ["" : 17]> sigmoids (float[8] x) => (float[n] y, float[m] z) {{{body}}}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    assert sigmoid_grains(read_model(tmp_path / "model.onnx")) == tuple(SIGMOID_GRAIN * one for one in found)


def test_onnxruntimes_sigmoids_are_half_a_grain_from_the_exact_ones_and_no_finer_near_zero():
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 17]> sigmoids (float[n] x) => (float[n] y) {y = Sigmoid(x)}')
    x = np.linspace(-40, 20, 100_001, dtype=np.float32)
    (y,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    off = np.abs(y - 1 / (1 + np.exp(-x.astype(np.float64))))
    assert off.max() <= SIGMOID_GRAIN / 2
    assert off[x < -12].max() >= SIGMOID_GRAIN / 16
