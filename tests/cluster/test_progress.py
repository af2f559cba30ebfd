"""What takes long is told in bytes."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import BRINGING, FEEDING, Progress
from bbgrap.session import InferenceSession

pytestmark = pytest.mark.cluster


def test_a_large_model_is_brought_and_sent_on_in_bytes(shared, tmp_path):
    weight = np.random.default_rng().random((1000, 3000), np.float32)  # which no agent has yet
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3000])],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    told: list[Progress] = []
    session = InferenceSession(path, cluster=shared, options=PlanOptions("single"), on_progress=told.append)
    session.prepare()
    brought = [(each.done, each.total) for each in told if each.stage == BRINGING]
    assert brought == sorted(set(brought))
    assert brought[-1] == (path.stat().st_size, path.stat().st_size)
    fed = [(each.done, each.total) for each in told if each.stage == FEEDING]
    assert fed
    assert all(0 <= done <= total <= 2 * weight.nbytes for done, total in fed)  # the standby takes it, too
    assert max(done for done, _ in fed) >= 8 << 20


def test_bytes_are_written_in_megabytes():
    assert Progress(1, FEEDING, 1_500_000, 12_000_000).text == "sending weights 1.5 of 12.0 MB"
    assert Progress(1, "deploying", 1, 2).text == "deploying 1 of 2"
