"""What loading takes of an agent's memory at its worst moment."""

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from bbgrap_agent import loading
from bbgrap_agent.loading import load
from bbgrap_agent.weights import WeightStore
from onnx import TensorProto, helper

from bbgrap.compiler.artifacts import SegmentModel, WeightRef
from bbgrap.engine.sessions import make_session
from bbgrap.graph import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.messages import Deploy
from bbgrap.runtime.schedule import BufferSpec, LocalRun, Schedule

ROWS, SEGMENTS = 2048, 8
TYPE = TensorType(DType.FLOAT, (ROWS, ROWS))


def product(number: int) -> SegmentModel:
    """Return a segment that multiplies by 16 MiB of weights: less than what the allocator takes from the system piece by piece."""
    weight = np.full(TYPE.shape, number, np.float32)
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=TYPE.shape, data_location=TensorProto.EXTERNAL)
    for field, value in (("location", "weights"), ("offset", "0"), ("length", str(weight.nbytes))):
        entry = tensor.external_data.add()
        entry.key, entry.value = field, value
    rows = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, ROWS]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "product", rows[:1], rows[1:], [tensor])
    skeleton = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()
    weights = {"w": WeightRef(digest_of(weight), TYPE)}
    return SegmentModel(f"product {number}", hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), ("y",), weights)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says what a process takes, and only glibc keeps what is freed")
def test_copies_of_one_segment_at_a_time_are_in_memory(tmp_path, monkeypatch):
    store, segments = WeightStore(tmp_path), tuple(product(number) for number in range(SEGMENTS))
    for number, segment in enumerate(segments):
        assert store._write(segment.weights["w"].digest, np.full(TYPE.shape, number, np.float32))
    sizes = [taken()]

    def made(*arguments, **options):
        session = make_session(*arguments, **options)
        sizes.append(taken())
        return session

    monkeypatch.setattr(loading, "make_session", made)
    buffers = tuple(BufferSpec("row", DType.FLOAT, (1, ROWS)) for _ in range(SEGMENTS + 1))
    steps = tuple(LocalRun(number, (number,), (number + 1,)) for number in range(SEGMENTS))
    load(Deploy(1, (), Schedule(0, 1, buffers, steps, (0,), (SEGMENTS,)), segments), store, 1, "127.0.0.1")
    assert max(sizes) - sizes[0] < (SEGMENTS + 4) * TYPE.nbytes


def taken() -> int:
    """Return the bytes of this process that are in no file."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10
