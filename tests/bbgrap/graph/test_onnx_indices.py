import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cli.input_options import GivenInputs
from bbgrap.cli.inputs import read_inputs
from bbgrap.engine.reference import Reference
from bbgrap.graph.onnx_indices import index_limits
from bbgrap.graph.onnx_io import read_model
from tests.bbgrap.cli.models import write_model


@pytest.fixture
def model(tmp_path):
    """Words of 50, kinds of 7 in a table that lies along the other axis, a mask that is no index."""
    tables = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in (("words", (50, 4)), ("kinds", (4, 7)))]
    axes = numpy_helper.from_array(np.array([0]), "axes")
    nodes = [
        helper.make_node("Cast", ["ids"], ["longer"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["longer", "axes"], ["higher"]),
        helper.make_node("Gather", ["words", "higher"], ["word"]),
        helper.make_node("Gather", ["kinds", "kind"], ["chosen"], axis=1),
        helper.make_node("Gather", ["words", "kind"], ["again"]),
        helper.make_node("Gather", ["x", "mask"], ["own"]),
    ]
    ids = [("ids", TensorProto.INT32, ["L"]), ("kind", TensorProto.INT64, ["L"]), ("mask", TensorProto.INT64, ["L"])]
    outputs = [(name, TensorProto.FLOAT, None) for name in ("word", "chosen", "again", "own")]
    return write_model(tmp_path / "tables.onnx", nodes, [*ids, ("x", TensorProto.FLOAT, [2])], outputs, [*tables, axes])


def test_limits_are_the_sizes_of_tables(model):
    assert index_limits(read_model(model)) == {"ids": 50, "kind": 7}


def test_indices_are_drawn_from_the_whole_table_and_run(model):
    feeds = read_inputs(model, GivenInputs(tuple(f"{name}=500" for name in ("ids", "kind", "mask")))).feeds(0)
    assert [(feeds[name].min(), feeds[name].max()) for name in ("ids", "kind", "mask")] == [(0, 49), (0, 6), (0, 1)]
    assert len(Reference(model).run(feeds)) == 4
