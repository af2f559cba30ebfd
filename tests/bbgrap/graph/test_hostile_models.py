"""Models that try to crash, hang or fill their reader get clear words; those that are only odd answer as onnxruntime does."""

from collections.abc import Mapping

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, helper

from bbgrap import backend
from bbgrap.engine.load import load_graph
from bbgrap.errors import BbgrapError, ModelError
from bbgrap.graph import onnx_limits
from bbgrap.graph.onnx_limits import check_limits
from bbgrap.graph.onnx_read import read_model
from bbgrap.graph.types import LONG
from tests import hostile_models as models
from tests.hostile.large import ALL as HOSTILE
from tests.onnx_models import model_of
from tests.reading_hostile_models import Reading, read_all

SECONDS = 10.0
"""2 s alone on this machine for the slowest, which is a file of 25 MB."""

TIMES, BESIDES = 32, 96 << 20
"""Memory: times the file, and what libraries take for themselves. Of a list of numbers a byte each, Python makes 8 to 36 bytes each."""


SLOW = {
    "chain of 200,001 nodes",
    "attribute of 5 million entries",
    "constant of 5 million entries in an attribute",
    "10^7 empty strings",
    "attribute of 10^7 entries",
    "constant of 10^7 entries in an attribute",
}
"""What takes half a second and more."""
NAMES = [pytest.param(name, marks=pytest.mark.broad if name in SLOW else ()) for name in HOSTILE]


@pytest.fixture(scope="module")
def readings(request) -> Mapping[str, list[Reading]]:
    asked = [item.callspec.params["name"] for item in request.session.items if getattr(item, "originalname", "") == "test_hostile_model"]
    found: dict[str, list[Reading]] = {name: [] for name in asked}
    for reading in read_all(asked):
        found[reading.name].append(reading)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_hostile_model(readings, name):
    read, loaded = readings[name]
    wanted = HOSTILE[name].said
    assert read.raised in {"", "ModelError"}, read
    assert loaded.raised == ("ModelError" if wanted else ""), loaded
    assert wanted in loaded.text
    for reading in (read, loaded):
        assert reading.seconds < SECONDS, reading
        assert reading.grown < TIMES * reading.size + BESIDES, reading


@pytest.mark.parametrize(("counted", "lengths"), [("_LONG_ENTRIES", [LONG, LONG + 1]), ("_ENTRIES", [LONG - 1] * 3)])
def test_lists_that_are_attributes_are_counted_together(monkeypatch, counted, lengths):
    """Those of many numbers take less memory for each, so there may be more of them."""
    nodes = [models.relu("x", f"y{k}") for k in range(len(lengths))]
    for node, length in zip(nodes, lengths, strict=True):
        node.attribute.add(name="axes", type=AttributeProto.INTS).ints.extend([0] * length)
    proto, what = models.plain(nodes), getattr(onnx_limits, counted)
    monkeypatch.setitem(onnx_limits._MOST, what, sum(lengths))
    check_limits(proto)
    monkeypatch.setitem(onnx_limits._MOST, what, sum(lengths) - 1)
    with pytest.raises(ModelError, match=f"{sum(lengths)} {what}"):
        check_limits(proto)


@pytest.mark.broad
def test_limits_are_of_whole_models():
    """Each just within its limit passes, and just beyond it is refused, wherever it is."""
    check_limits(models.chain(onnx_limits.MAX_NODES))
    check_limits(models.nested(onnx_limits.MAX_BODIES))
    check_limits(models.declared_rank(onnx_limits.MAX_RANK))
    check_limits(models.doubling(16))
    check_limits(models.doubling(onnx_limits.MAX_CALLS, 1))
    name = "n" * onnx_limits.MAX_NAME_BYTES
    check_limits(models.plain([models.relu("x", name), models.relu(name, "y")]))
    inside = models.branching(models.body_of(models.relu("x", name + "n")))
    for proto, said in (
        (models.nested(onnx_limits.MAX_BODIES + 1), "bodies inside bodies"),
        (models.declared_rank(onnx_limits.MAX_RANK + 1), "64 axes, got 65"),
        (models.doubling(onnx_limits.MAX_CALLS + 1, 1), "more than 100 deep"),
        (models.doubling(17), "nodes, those in bodies and functions included"),
        (inside, "more than 65536 bytes"),
        (models.model([models.relu("x", name)], {"x": (4,)}, [name]), "output 'n.*': its name has more than 1024 bytes"),
    ):
        with pytest.raises(ModelError, match=said):
            check_limits(proto)


def test_weights_that_are_no_numbers_answer_as_in_onnxruntime():
    odd = np.array([[np.nan, np.inf], [-np.inf, 1e-45]], np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "w"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Softmax", ["c"], ["y"]),
    ]
    proto = model_of(nodes, {"x": [2, 2]}, {"y": [2, 2]}, {"w": odd})
    x = np.array([[1, 0], [np.inf, 2]], np.float32)
    (expected,) = ort.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    (found,) = backend.prepare(proto).run([x])
    np.testing.assert_array_equal(found, expected)


SMALL = [
    models.plain([models.add()], [models.weight([4], models.DATA[:4].tobytes())]),
    models.convolving(group=1, pads=[1, 1]),
    models.nested(3),
    models.doubling(3),
    models.with_sparse(models.sparse([4])),
    models.endless(),
    models.long_constant(3),
    models.strings(3, 3),
]


@given(st.sampled_from(SMALL), st.data())
def test_damaged_models_are_taken_or_refused(tmp_path_factory, proto, data):
    content = bytearray(proto.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4), "damages")):
        place = data.draw(st.integers(0, len(content) - 1), "place")
        match data.draw(st.sampled_from(("flip", "cut", "insert", "repeat")), "damage"):
            case "flip":
                content[place] ^= 1 << data.draw(st.integers(0, 7), "bit")
            case "cut":
                del content[place : place + data.draw(st.integers(1, 8), "length")]
            case "insert":
                content[place:place] = data.draw(st.binary(min_size=1, max_size=6), "bytes")
            case _:
                content[place:place] = content[place : place + data.draw(st.integers(1, 64), "length")]
        content = content or bytearray(b"\0")
    path = tmp_path_factory.mktemp("damaged") / "model.onnx"
    path.write_bytes(content)
    for read in (read_model, lambda path: load_graph(path, {})):
        try:
            read(path)
        except BbgrapError:
            continue
