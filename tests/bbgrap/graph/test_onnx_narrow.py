import onnx
import pytest

from bbgrap.graph.onnx_io import read_model
from bbgrap.graph.onnx_narrow import narrow_steps

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
