import numpy as np
import pytest
from onnx import TensorProto, helper

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.engine.reference import Reference
from bbgrap.graph.onnx_indices import index_limits
from bbgrap.graph.onnx_io import read_model
from tests.onnx_models import write_model


@pytest.fixture
def model(tmp_path):
    """Words of 50, kinds of 7 in a table that lies along the other axis, a mask that is no index."""
    weights = {"words": np.ones((50, 4), np.float32), "kinds": np.ones((4, 7), np.float32), "axes": np.array([0])}
    nodes = [
        helper.make_node("Cast", ["ids"], ["longer"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["longer", "axes"], ["higher"]),
        helper.make_node("Gather", ["words", "higher"], ["word"]),
        helper.make_node("Gather", ["kinds", "kind"], ["chosen"], axis=1),
        helper.make_node("Gather", ["words", "kind"], ["again"]),
        helper.make_node("Gather", ["x", "mask"], ["own"]),
    ]
    inputs, outputs = {"ids": ["L"], "kind": ["L"], "mask": ["L"], "x": [2]}, dict.fromkeys(("word", "chosen", "again", "own"))
    kinds = {"ids": TensorProto.INT32, "kind": TensorProto.INT64, "mask": TensorProto.INT64}
    return write_model(tmp_path / "tables.onnx", nodes, inputs, outputs, weights, kinds=kinds)


def test_limits_are_the_sizes_of_tables(model):
    assert index_limits(read_model(model)) == {"ids": 50, "kind": 7}


def test_indices_are_drawn_from_the_whole_table_and_run(model):
    feeds = read_inputs(model, GivenInputs(tuple(f"{name}=500" for name in ("ids", "kind", "mask")))).feeds(0)
    assert [(feeds[name].min(), feeds[name].max()) for name in ("ids", "kind", "mask")] == [(0, 49), (0, 6), (0, 1)]
    assert len(Reference(model).run(feeds)) == 4
