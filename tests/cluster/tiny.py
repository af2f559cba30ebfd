"""A tiny model in two halves, built by hand: what the planner would make of it, small enough to check by eye.

y = 4 * smooth(smooth(x)) over 8 rows x 4 columns, smooth(x)[i] = x[i-1] + x[i] + x[i+1] with zeros outside, device 0 has rows 0-3.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import time

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.prepare import PreparedVariant
from bbgrap.engine.variants import serves_streams
from bbgrap.errors import PlanError
from bbgrap.graph.types import Array, DType, Graph, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.planners.options import PlanOptions
from bbgrap.planners.plan import Plan
from bbgrap.runtime.schedule import Box, BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule

OPSET = 17
WEIGHT_ELEMENTS = int(os.environ.get("TINY_WEIGHT", "1024"))


def smooth(x: Array) -> Array:
    padded = np.pad(x, ((1, 1), (0, 0)))
    return padded[:-2] + padded[1:-1] + padded[2:]


def expected(x: Array) -> Array:
    return 4 * smooth(smooth(x))


def model_bytes() -> bytes:
    """The unpartitioned model: what the fake planner's programs compute, with their weight, and the gather that fails of large numbers."""
    rows: list[int | str] = ["rows", 4]
    big = np.zeros(WEIGHT_ELEMENTS, np.float32)
    big[0] = 4.0
    ends = {f"e{i}": np.array([i - 2 if i < 2 else 1 << 40], np.int64) for i in range(3)}
    constants = {f"b{i}": np.array([i], np.int64) for i in range(3)} | ends
    constants |= {"axis": np.array([0], np.int64), "zero": np.array(0, np.int64), "table": np.ones(1000, np.float32), "w": big}
    constants["pads"] = np.array([1, 0, 1, 0], np.int64)
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
        helper.make_node("Cast", ["top"], ["index"], to=TensorProto.INT64),
        helper.make_node("Gather", ["table", "index"], ["picked"], name="poisoned_gather"),
        *_smoothing("x", "first"),
        helper.make_node("Mul", ["first", "picked"], ["checked"]),
        *_smoothing("checked", "second"),
        helper.make_node("ReduceSum", ["w"], ["scale"], keepdims=0),
        helper.make_node("Mul", ["second", "scale"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, rows)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, rows)],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    return _serialized(graph)


def _smoothing(source: str, result: str) -> list[onnx.NodeProto]:
    slices = [helper.make_node("Slice", [f"{source}p", f"b{i}", f"e{i}", "axis"], [f"{source}{i}"]) for i in range(3)]
    pad = helper.make_node("Pad", [source, "pads"], [f"{source}p"])
    return [pad, *slices, helper.make_node("Sum", [f"{source}{i}" for i in range(3)], [result])]


def _serialized(graph: onnx.GraphProto) -> bytes:
    return bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8).SerializeToString())


def _segment(name: str, rows: int, *, scaled: bool, poison: bool) -> tuple[SegmentModel, dict[str, Array]]:
    """Smooth `rows + 2` rows to `rows`; `scaled` adds the sum of a weight's elements, 1.0, times 3 to one."""
    nodes = [helper.make_node("Slice", ["x", f"b{i}", f"e{i}", "axis"], [f"s{i}"]) for i in range(3)] + [
        helper.make_node("Sum", ["s0", "s1", "s2"], ["sum"])
    ]
    constants = {"axis": np.array([0], np.int64)}
    for i in range(3):
        constants |= {f"b{i}": np.array([i], np.int64), f"e{i}": np.array([i + rows], np.int64)}
    weights: dict[str, Array] = {}
    if scaled:
        big = np.zeros(WEIGHT_ELEMENTS, np.float32)
        big[0] = 4.0
        weights["w"] = big
        nodes += [
            helper.make_node("ReduceSum", ["w"], ["scale"], keepdims=0),
            helper.make_node("Mul", ["sum", "scale"], ["out"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["sum"], ["out"]))
    if poison:
        # Fails at run time for any value but the wanted one: gathers at an index that is computed from the data.
        constants["zero"] = np.array(0, np.int64)
        nodes += [
            helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
            helper.make_node("Cast", ["top"], ["index"], to=TensorProto.INT64),
            helper.make_node("Gather", ["table", "index"], ["picked"], name="poisoned_gather"),
            helper.make_node("Mul", ["out", "picked"], ["final"]),
        ]
        constants["table"] = np.ones(1000, np.float32)
    last = "final" if poison else "out"
    tensors = [numpy_helper.from_array(array, key) for key, array in constants.items()]
    for key, array in weights.items():
        tensor = TensorProto(name=key, data_type=TensorProto.FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for field, value in (("location", "weights"), ("offset", "0"), ("length", str(array.nbytes))):
            entry = tensor.external_data.add()
            entry.key, entry.value = field, value
        tensors.append(tensor)
    graph = helper.make_graph(
        nodes,
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows + 2, 4])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [rows, 4])],
        tensors,
    )
    skeleton = _serialized(graph)
    refs = {key: WeightRef(digest_of(array), TensorType(DType.FLOAT, array.shape)) for key, array in weights.items()}
    return SegmentModel(name, hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), (last,), refs), {
        digest_of(array): array for array in weights.values()
    }


def artifacts(devices: int, rows: int) -> Artifacts:
    """Split `rows` evenly; every device smooths twice and exchanges one row with each neighbour in between."""
    return _over([rows * d // devices for d in range(devices + 1)])


def whole(devices: int, rows: int, device: int) -> Artifacts:
    """All rows on one of the devices."""
    return _over([0] * (device + 1) + [rows] * (devices - device))


def _over(bounds: list[int]) -> Artifacts:
    devices, rows = len(bounds) - 1, bounds[-1]
    parts, weights = [], dict[str, Array]()
    host_steps: list[LocalStep] = []
    working = [device for device in range(devices) if bounds[device + 1] > bounds[device]]
    for device in range(devices):
        part, own = _device(device, devices, bounds) if device in working else (DeviceArtifacts(Schedule(device, devices, (), ()), ()), {})
        parts.append(part)
        weights |= own
    host_steps += [LocalSend(d, d, (LocalPart(0, _padded_box(bounds, d, rows)),)) for d in working]
    host_steps += [LocalReceive(100 + d, d, (1 + d,)) for d in working]
    host_steps.append(LocalJoin(devices + 1, tuple((LocalPart(1 + d, None), _box((bounds[d], bounds[d + 1]))) for d in working)))
    pieces = tuple(BufferSpec(f"y{d}", DType.FLOAT, (bounds[d + 1] - bounds[d], 4)) for d in range(devices))
    buffers = (BufferSpec("x", DType.FLOAT, (rows, 4)), *pieces, BufferSpec("y", DType.FLOAT, (rows, 4)))
    return Artifacts(tuple(parts), Schedule(devices, devices, buffers, tuple(host_steps), (0,), (devices + 1,)), weights)


def _box(rows: tuple[int, int]) -> Box:
    return ((rows,), ((0, 4),))


def _padded_box(bounds: list[int], device: int, rows: int) -> Box:
    return _box((max(0, bounds[device] - 1), min(rows, bounds[device + 1] + 1)))


def _device(device: int, devices: int, bounds: list[int]) -> tuple[DeviceArtifacts, dict[str, Array]]:
    """Buffers: 0 received rows, 1 zeros around them, 2 smoothed, 3 and 4 rows of the neighbours, 5 with halo, 6 result, 7 a zero row."""
    rows = bounds[device + 1] - bounds[device]
    above, below = bounds[device] > 0, bounds[device + 1] < bounds[-1]
    first, w1 = _segment(f"first{device}", rows, scaled=False, poison=True)
    second, w2 = _segment(f"second{device}", rows, scaled=True, poison=False)
    zeros = _zeros_segment()
    specs = [
        BufferSpec("x", DType.FLOAT, (rows + above + below, 4)),
        BufferSpec("padded", DType.FLOAT, (rows + 2, 4)),
        BufferSpec("smooth", DType.FLOAT, (rows, 4)),
        BufferSpec("above", DType.FLOAT, (1, 4)),
        BufferSpec("below", DType.FLOAT, (1, 4)),
        BufferSpec("halo", DType.FLOAT, (rows + 2, 4)),
        BufferSpec("y", DType.FLOAT, (rows, 4)),
        BufferSpec("zero", DType.FLOAT, (1, 4)),
    ]
    steps: list[LocalStep] = [LocalReceive(device, devices, (0,)), LocalRun(2, (0,), (7,))]
    edge = [] if above else [(LocalPart(7, None), _box((0, 1)))]
    edge += [] if below else [(LocalPart(7, None), _box((rows + 1, rows + 2)))]
    start = 0 if above else 1
    steps.append(LocalJoin(1, ((LocalPart(0, None), _box((start, start + rows + above + below))), *edge)))
    steps.append(LocalRun(0, (1,), (2,)))
    if above:
        steps.append(LocalSend(200 + device, device - 1, (LocalPart(2, _box((0, 1))),)))
    if below:
        steps.append(LocalSend(300 + device, device + 1, (LocalPart(2, _box((rows - 1, rows))),)))
    if above:
        steps.append(LocalReceive(300 + device - 1, device - 1, (3,)))
    if below:
        steps.append(LocalReceive(200 + device + 1, device + 1, (4,)))
    top, bottom = LocalPart(3 if above else 7, None), LocalPart(4 if below else 7, None)
    steps.append(LocalJoin(5, ((top, _box((0, 1))), (LocalPart(2, None), _box((1, rows + 1))), (bottom, _box((rows + 1, rows + 2))))))
    steps += [LocalRun(1, (5,), (6,)), LocalSend(100 + device, devices, (LocalPart(6, None),))]
    return DeviceArtifacts(Schedule(device, devices, tuple(specs), tuple(steps)), (first, second, zeros)), w1 | w2


def _zeros_segment() -> SegmentModel:
    zero = numpy_helper.from_array(np.zeros((1, 4), np.float32), "z")
    graph = helper.make_graph(
        [helper.make_node("Identity", ["z"], ["out"])],
        "zeros",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, [1, 4])],
        [zero],
    )
    skeleton = _serialized(graph)
    return SegmentModel("zeros", hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), ("out",), {})


def prepare(graph: Graph, cluster: Cluster, options: PlanOptions) -> tuple[PreparedVariant, ...]:
    """Stand in for `bbgrap.engine.prepare.prepare_graph`: knows one model."""
    plan = Plan(options.planner, graph, cluster, {})
    return tuple((planned, plan) for planned in planned_variants(graph.types["x"].known_shape[0], cluster, options))


def planned_variants(rows: int, cluster: Cluster, options: PlanOptions) -> tuple[PlannedVariant, ...]:
    if rows < len(cluster.nodes):
        raise PlanError(f"tiny: {rows} rows cannot be split over {len(cluster.nodes)} nodes")
    if rows == 666:
        time.sleep(3)
    if rows == 777:
        for _ in range(2):  # as onnxruntime does when it prepares a large model: no other thread of this process runs meanwhile
            ctypes.PyDLL(None).usleep(2_500_000)
            time.sleep(0.6)
    report = {"planner": options.planner, "agents": len(cluster.nodes), "model": "tiny"}
    whole_on_each = tuple(
        PlannedVariant(f"single on {node.name}", whole(len(cluster.nodes), rows, d), {**report, "planner": "single"})
        for d, node in enumerate(cluster.nodes)
    )
    if serves_streams(options):
        return whole_on_each
    planned = PlannedVariant(options.planner, artifacts(len(cluster.nodes), rows), report)
    return (planned, *whole_on_each[:1]) if options.planner == "auto" else (planned,)
