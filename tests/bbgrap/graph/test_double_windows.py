import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, save

from bbgrap.engine.double import double_answer
from bbgrap.engine.sessions import make_session
from bbgrap.graph.onnx_io import read_model
from tests.onnx_models import model_of


def checked(folder, kind: str, shapes, attributes) -> bool:
    """Whether onnxruntime runs an operator; if so, the answer in 64 bits is there, and as near as 32 bits are."""
    names = [f"i{place}" for place in range(len(shapes))]
    node = helper.make_node(kind, names, ["y"], **attributes)
    model = model_of([node], dict(zip(names, shapes, strict=True)), {"y": None}, opset=19)
    random = np.random.default_rng(len(shapes[0]))
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in zip(names, shapes, strict=True)}
    try:
        (wanted,) = make_session(model.SerializeToString(), threads=1).run(None, feeds)
    except Exception:  # attributes that do not go together
        return False
    if not wanted.size:
        return False
    save(model, folder / "windows.onnx")
    exact = double_answer(read_model(folder / "windows.onnx"), feeds)
    assert exact is not None
    assert exact[0].dtype == np.float64
    assert np.abs(exact[0] - wanted).max(initial=0.0) <= 1e-6 * max(1.0, np.abs(wanted).max(initial=0.0))
    return True


@st.composite
def windows(draw):
    axes = draw(st.integers(1, 3))
    numbers = {"kernel_shape": (1, 4), "strides": (1, 3), "dilations": (1, 2)}
    found = {name: [draw(st.integers(*bounds)) for _ in range(axes)] for name, bounds in numbers.items()}
    match draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none"])):
        case "pads":
            found["pads"] = [draw(st.integers(0, 2)) for _ in range(2 * axes)]
        case "none":
            pass
        case how:
            found["auto_pad"] = how
    return [draw(st.integers(3, 7)) for _ in range(axes)], found


@given(windows(), st.booleans(), st.booleans())
def test_average_pools_are_onnxruntimes(tmp_path_factory, drawn, include, ceil):
    sizes, attributes = drawn
    if "auto_pad" in attributes:  # onnxruntime (1.32) takes dilated windows for others then; there is no answer in 64 bits
        attributes = attributes | {"dilations": [1] * len(sizes)}
    assume(
        checked(
            tmp_path_factory.getbasetemp(), "AveragePool", [(2, 3, *sizes)], attributes | {"count_include_pad": include, "ceil_mode": ceil}
        )
    )


@given(windows(), st.sampled_from([1, 2]), st.booleans(), st.integers(0, 1), st.integers(0, 1))
def test_transposed_convolutions_are_onnxruntimes(tmp_path_factory, drawn, groups, biased, extra, larger):
    sizes, attributes = drawn
    shapes = [(2, 4, *sizes), (4, 3, *attributes["kernel_shape"]), *([(3 * groups,)] if biased else [])]
    if larger and "auto_pad" not in attributes:
        strides = attributes["strides"]
        attributes = attributes | {"output_shape": [size * stride for size, stride in zip(sizes, strides, strict=True)]}
        del attributes["strides"], attributes["dilations"]
        attributes |= {"strides": strides}
        attributes.pop("pads", None)
    elif extra:
        attributes = attributes | {"output_padding": [min(extra, stride - 1) for stride in attributes["strides"]]}
    assume(checked(tmp_path_factory.getbasetemp(), "ConvTranspose", shapes, attributes | {"group": groups}))
