"""Models that compute every image by itself, and models that do not: the answer of onnxruntime in micro-batches has the last word."""

import numpy as np
import onnx.parser
import pytest

from bbgrap.engine.images import image_seconds
from bbgrap.engine.sessions import make_session
from bbgrap.zoo import materialize, names

APART = {
    "one after the other": "y = Relu(x)",
    "strided": "y = MaxPool <kernel_shape = [1, 1], strides = [2, 2]> (x)",
    "images merged with rows and back": "s = Constant <value_ints = [-1, 4]> () f = Reshape(x, s) g = Softmax <axis = 1> (f) "
    "h = Shape(x) y = Reshape(g, h)",
    "a constant repeated for every image": "n = Shape <start = 0, end = 1> (x) t = Constant <value_ints = [3, 4, 4]> () "
    "s = Concat <axis = 0> (n, t) c = Constant <value_float = 2.0> () e = Expand(c, s) y = Concat <axis = 1> (x, e)",
    "there and back": "t = Transpose <perm = [1, 2, 0, 3]> (x) y = Transpose <perm = [2, 0, 1, 3]> (t)",
}
MIXED = {
    "a mean over images": "a = Constant <value_ints = [0]> () m = ReduceMean(x, a) y = Sub(x, m)",
    "a softmax over images": "y = Softmax <axis = 0> (x)",
    "every image with every other": "f = Flatten(x) t = Transpose(f) p = MatMul(f, t) a = Constant <value_ints = [1]> () "
    "m = ReduceSum(p, a) y = Add(f, m)",
    "divided by their number": "n = Shape <start = 0, end = 1> (x) c = Cast <to = 1> (n) y = Div(x, c)",
    "sums of those before": "a = Constant <value_int = 0> () y = CumSum(x, a)",
    "the last one first": "b = Constant <value_ints = [-1]> () e = Constant <value_ints = [-100]> () a = Constant <value_ints = [0]> () "
    "t = Constant <value_ints = [-1]> () y = Slice(x, b, e, a, t)",
    "numbered": "z = Constant <value_int = 0> () o = Constant <value_int = 1> () n = Shape <start = 0, end = 1> (x) "
    "u = Squeeze(n) r = Range(z, u, o) c = Cast <to = 1> (r) s = Constant <value_ints = [-1, 1, 1, 1]> () q = Reshape(c, s) y = Add(x, q)",
}
ELSEWHERE = {
    "images along another axis": "y = Transpose <perm = [1, 0, 2, 3]> (x)",
    "images merged with rows": "s = Constant <value_ints = [-1, 4]> () y = Reshape(x, s)",
    "no images left": "y = ReduceMean <keepdims = 0> (x)",
}
BATCH, MICROBATCH = 6, 2


def saved(body, folder):
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3, 4, 4] x) => (float y) {{ {body} }}'
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def agrees_in_microbatches(path, images):
    """Whether onnxruntime answers the same for the whole batch and for its micro-batches."""
    session = make_session(path.read_bytes())
    (whole,) = session.run(None, {"x": images})
    parts = [session.run(None, {"x": images[start : start + MICROBATCH]})[0] for start in range(0, len(images), MICROBATCH)]
    together = np.concatenate(parts) if parts[0].ndim else np.stack(parts)
    return together.shape == whole.shape and np.allclose(together, whole, rtol=1e-6)


@pytest.mark.parametrize("body", APART.values(), ids=APART)
def test_batches_whose_images_do_not_meet_are_divided(body, tmp_path):
    path = saved(body, tmp_path)
    assert agrees_in_microbatches(path, np.random.default_rng(0).random((BATCH, 3, 4, 4), dtype=np.float32))
    seconds = image_seconds(path, {"x": (BATCH, 3, 4, 4)})
    assert seconds is not None
    assert seconds >= 0


@pytest.mark.parametrize("body", MIXED.values(), ids=MIXED)
def test_batches_whose_images_meet_are_not(body, tmp_path):
    path = saved(body, tmp_path)
    assert not agrees_in_microbatches(path, np.random.default_rng(0).random((BATCH, 3, 4, 4), dtype=np.float32))
    assert image_seconds(path, {"x": (BATCH, 3, 4, 4)}) is None


@pytest.mark.parametrize("body", ELSEWHERE.values(), ids=ELSEWHERE)
def test_nor_are_those_whose_answers_are_not_along_the_first_axis(body, tmp_path):
    assert image_seconds(saved(body, tmp_path), {"x": (BATCH, 3, 4, 4)}) is None


@pytest.mark.parametrize("batch", [2, 3, 7])
def test_whatever_the_batch(batch, tmp_path):
    assert image_seconds(saved(APART["there and back"], tmp_path), {"x": (batch, 3, 4, 4)}) is not None
    assert image_seconds(saved(MIXED["a softmax over images"], tmp_path), {"x": (batch, 3, 4, 4)}) is None


def test_the_images_of_well_known_networks_do_not_meet():
    for name in ("tiny", "mobilenet_v2", "unet", "yolo"):
        assert name in names()
        path = materialize(name)
        shape = {"tiny": (3, 32, 32), "mobilenet_v2": (3, 224, 224), "unet": (3, 256, 256), "yolo": (3, 640, 640)}[name]
        assert image_seconds(path, {"input": (5, *shape)})
