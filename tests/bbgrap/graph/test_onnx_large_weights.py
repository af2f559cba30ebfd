"""Large weights of a file are read apart: what is read is the same as of the whole, and what is unusual is read as a whole."""

from io import BytesIO

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, TensorProto, helper, numpy_helper

from bbgrap.errors import ModelError
from bbgrap.graph import onnx_large_weights
from bbgrap.graph.onnx_io import read_model
from bbgrap.graph.onnx_large_weights import FileWithoutWeights, read_without_weights

LARGE = 64


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(onnx_large_weights, "LARGE_BYTES", LARGE)


def model_of(tensors):
    nodes = [helper.make_node("Identity", [tensor.name], [f"{tensor.name}.out"]) for tensor in tensors]
    outputs = [helper.make_tensor_value_info(f"{tensor.name}.out", tensor.data_type, list(tensor.dims)) for tensor in tensors]
    graph = helper.make_graph(nodes, "g", [], outputs, tensors, doc_string="of weights")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="a test")


def bare(content):
    return read_without_weights(BytesIO(content), len(content))


KINDS = st.sampled_from(["f4", "f8", "f2", "i8", "i4", "i1", "u1", "u8", "?"])
ARRAYS = st.tuples(KINDS, st.lists(st.integers(0, 6), max_size=3)).map(
    lambda drawn: np.random.default_rng(len(drawn[1])).integers(0, 2, drawn[1]).astype(drawn[0])
)


def parsed(content):
    try:
        return ModelProto.FromString(content)
    except DecodeError:
        return None


def together(content):
    """Return the model that a file is read as, with its weights in their places, and the names of those that were apart."""
    file = bare(content)
    proto, weights = parsed(file.content), file.weights
    for tensor in () if proto is None else proto.graph.initializer:
        if tensor.name in weights:
            assert not weights[tensor.name].flags.writeable
            assert content[file.offsets[tensor.name] :].startswith(weights[tensor.name].tobytes())
            del tensor.external_data[:]
            tensor.ClearField("data_location")
            tensor.raw_data = weights[tensor.name].tobytes()
    return proto, weights.keys()


quick = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@quick
@given(st.lists(ARRAYS, min_size=1, max_size=5))
def test_what_is_read_apart_is_what_the_file_has(arrays):
    tensors = [numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(arrays)]
    content = model_of(tensors).SerializeToString()
    proto, apart = together(content)
    assert apart == {tensor.name for tensor in tensors if tensor.ByteSize() > LARGE and tensor.raw_data}
    assert proto == parsed(content)


@quick
@given(st.integers(0, 300), st.integers(0, 3), st.binary(max_size=3))
def test_a_damaged_file_is_read_as_what_the_protobuf_library_makes_of_it(place, gone, put):
    whole = model_of([numpy_helper.from_array(np.arange(20, dtype=kind), f"w{kind}") for kind in ("f4", "i8")]).SerializeToString()
    content = whole[:place] + put + whole[place + gone :]
    assert together(content)[0] == parsed(content)


def test_a_model_is_read_with_the_same_weights(tmp_path):
    arrays = {"large": np.arange(4096, dtype=np.float32).reshape(64, 64), "small": np.ones(3, np.float32)}
    path = tmp_path / "m.onnx"
    path.write_bytes(model_of([numpy_helper.from_array(array, name) for name, array in arrays.items()]).SerializeToString())
    model = read_model(path)
    assert model.files == ()
    assert model.weights.keys() == {"large"}
    np.testing.assert_array_equal(model.weights["large"], arrays["large"])


def typed(**fields):
    tensor = numpy_helper.from_array(np.ones(64, np.float32), "w")
    for name, value in fields.items():
        setattr(tensor, name, value)
    return model_of([tensor]).SerializeToString()


TWICE = model_of([numpy_helper.from_array(np.full(64, value, np.float32), "w") for value in (1, 2)]).SerializeToString()
NUMBERS = model_of([TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[64], float_data=[1.0] * 64)]).SerializeToString()


@pytest.mark.parametrize(
    "content",
    [
        typed(data_type=TensorProto.BFLOAT16),
        typed(data_location=TensorProto.EXTERNAL),
        typed(data_type=TensorProto.DOUBLE),
        typed(data_type=0),
        typed()[:-200],
        typed() + b"\x0b",
        typed() + b"\x3a\xff\xff\xff\xff\x7f",
        typed() + b"\xff" * 12,
        TWICE,
        NUMBERS,
        b"no protobuf at all, and longer than what is large: " * 4,
    ],
    ids=["bfloat16", "elsewhere", "sizes", "no type", "cut", "group", "beyond", "no number", "twice", "numbers", "text"],
)
def test_what_is_unusual_is_read_as_a_whole(content):
    assert bare(content) == FileWithoutWeights(content, {}, {})


def test_a_file_that_is_cut_short_is_refused_as_before(tmp_path):
    path = tmp_path / "m.onnx"
    path.write_bytes(typed()[:-200])
    with pytest.raises(ModelError, match="it is not an ONNX file, or it is cut short"):
        read_model(path)
