"""Values that are no arrays: split models say the same of them as plain onnxruntime, over two and three devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph
from bbgrap.engine.session_call import run_values
from bbgrap.engine.sessions import make_session
from bbgrap.graph import DType, Graph
from bbgrap.graph.onnx_read import read_model
from bbgrap.graph.onnx_types import array_of_content
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan, Tile, whole_output
from bbgrap.protocol.values import Numbers
from bbgrap.runtime.schedule import LocalReceive
from bbgrap.session.signature import Signature
from bbgrap.session.values import unpacked_output
from tests.program_laws import compile_checked
from tests.value_models import CASES, Case, plain_answers, same, sequences_inside_and_outside

OPTIONS = [
    *(PlanOptions(split=split) for split in ("rows", "channels", "batch", "inputs")),
    *(PlanOptions(planner=planner) for planner in ("widest", "tofu", "pipeline", "single")),
]
CROSSING = {"sequences_inside_and_outside", "a_sequence_read_twice", "numbers_that_numpy_lacks", "texts_in_a_sequence"}
"""Cases that have such a value between two nodes."""


def scattered(graph: Graph, devices: int) -> Artifacts:
    """Give every node to another device than the node before it, so that every value crosses."""
    cluster = Cluster.even(devices)
    tiles = {node.name: (Tile(k % devices, whole_output(graph, node)),) for k, node in enumerate(graph.nodes)}
    return export(compile_checked(Plan("scattered", graph, cluster, tiles), all_descriptions(graph), "exact").optimized)


def partitions(graph: Graph) -> Iterator[tuple[str, Artifacts]]:
    for devices in (2, 3):
        yield f"scattered over {devices}", scattered(graph, devices)
        for options in OPTIONS:
            compiled = plan_graph(graph, Cluster.even(devices), options).compiled
            yield f"{options.planner}, {options.split}, {devices} devices", export(compiled.optimized)


def packed_between_devices(artifacts: Artifacts) -> int:
    """Count the packed values that devices receive from each other."""
    return sum(
        device.schedule.buffers[buffer].dtype is DType.UINT8 and device.schedule.buffers[buffer].shape is None
        for device in artifacts.devices
        for step in device.schedule.steps
        if isinstance(step, LocalReceive) and step.source != device.schedule.host
        for buffer in step.buffers
    )


@pytest.mark.parametrize("make", CASES)
def test_a_model_with_such_values_says_the_same_split(make: Callable[[], Case], tmp_path: Path) -> None:
    proto, feed = make()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    signature = Signature.of(read_model(path))
    arrays = signature.check_feed(feed)
    wanted = plain_answers(path, dict(feed))
    graph = load_graph(path, dict(zip([arg.name for arg in signature.inputs], signature.shapes_of(arrays), strict=True)))
    crossed = 0
    for label, artifacts in partitions(graph):
        crossed += packed_between_devices(artifacts)
        found = simulate(artifacts, arrays, local_kernels(artifacts))
        for arg, array, want in zip(signature.outputs, found, wanted, strict=True):
            got = unpacked_output(array) if arg.is_packed else array
            assert same(got, want), f"{label}: '{arg.name}' differs"
    assert crossed or make.__name__ not in CROSSING, "no device sent such a value to another"


def test_values_are_run_as_onnxruntime_runs_them() -> None:
    proto, feed = sequences_inside_and_outside()
    session = make_session(proto.SerializeToString(), threads=1)
    names = ["longer", "y"]
    assert same(run_values(session, names, dict(feed)), session.run(names, feed))


@pytest.mark.parametrize("kind", [object, str])
def test_texts_become_numbers_of_16_bits(kind: type) -> None:
    nodes = [helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT), helper.make_node("Cast", ["f"], ["y"], to=TensorProto.BFLOAT16)]
    given = helper.make_tensor_value_info("s", TensorProto.STRING, [2, 2])
    made = [helper.make_tensor_value_info(*end, [2, 2]) for end in (("f", TensorProto.FLOAT), ("y", TensorProto.BFLOAT16))]
    model = helper.make_model(helper.make_graph(nodes, "g", [given], made), opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    session = make_session(model.SerializeToString(), threads=1)
    floats, shorter = run_values(session, ["f", "y"], {"s": np.array([["1", "2.5"], ["-3", "1e3"]], kind)})
    assert isinstance(shorter, Numbers)
    assert np.array_equal(floats, [[1, 2.5], [-3, 1000]])
    assert np.array_equal(array_of_content(shorter.code, shorter.shape, shorter.content).astype(np.float32), floats)
