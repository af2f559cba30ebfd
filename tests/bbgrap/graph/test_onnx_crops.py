"""Crops become poolings of the same shape for the optimiser, and the same crops again after it."""

import numpy as np
import onnx
import pytest

from bbgrap.engine.sessions import make_session
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_crops import PooledCrop, crops_to_pools, pools_to_crops
from tests.onnx_models import model_of


def model(starts, ends, axes, steps=None, shape=(1, 8, 6, 5)):
    """Relu, Slice, Relu."""
    node = onnx.helper.make_node
    named = {"starts": starts, "ends": ends, "axes": axes} | ({} if steps is None else {"steps": steps})
    nodes = [node("Relu", ["x"], ["a"]), node("Slice", ["a", *named], ["b"], "crop"), node("Relu", ["b"], ["y"])]
    constants = {name: np.array(values, np.int64) for name, values in named.items()}
    return model_of(nodes, {"x": shape}, {"y": None}, constants).SerializeToString()


def answer(data):
    x = np.random.default_rng(0).standard_normal((1, 8, 6, 5)).astype(np.float32)
    return make_session(data, threads=1, optimize=False).run(None, {"x": x})[0]


@pytest.mark.parametrize(("starts", "ends", "axes"), [([1], [5], [2]), ([2, -4], [6, -1], [2, 3]), ([0], [2**40], [3]), ([-1], [9], [-2])])
def test_there_and_back(starts, ends, axes):
    data = model(starts, ends, axes)
    pooled, crops = crops_to_pools(data)
    assert [crop.result for crop in crops] == ["b"]
    assert [node.op_type for node in onnx.load_from_string(pooled).graph.node] == ["Relu", "MaxPool", "Relu"]
    assert answer(pooled).shape == answer(data).shape
    proto = onnx.load_from_string(pooled)
    pools_to_crops(proto.graph, crops, 8)
    assert np.array_equal(answer(proto.SerializeToString()), answer(data))


def test_what_takes_channels_or_jumps_stays():
    for data in (model([2], [6], [1]), model([0], [6], [2], [2]), model([3], [3], [2])):
        assert crops_to_pools(data)[1] == ()


def test_a_pooling_that_was_changed_or_lost_is_no_crop():
    pooled, crops = crops_to_pools(model([1], [5], [2]))
    proto = onnx.load_from_string(pooled)
    proto.graph.node[1].attribute.append(onnx.helper.make_attribute("pads", [1, 0, 0, 0]))
    with pytest.raises(ModelError, match="'b': the pooling in its place was changed"):
        pools_to_crops(proto.graph, crops, 8)
    del proto.graph.node[1]
    with pytest.raises(ModelError, match="lacks the crops b"):
        pools_to_crops(proto.graph, crops, 8)


def test_the_window_leaves_as_much_as_the_crop():
    assert PooledCrop("r", (1, 8, 30, 20), (1, 29), (0, 20)).kernel == (3, 1)
