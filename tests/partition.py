"""Running a partition in this process and comparing every tensor in it with plain onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bbgrap.cluster import Cluster
from bbgrap.compiler.artifacts import Artifacts
from bbgrap.compiler.assembly import box_within
from bbgrap.compiler.compile import Compiled
from bbgrap.compiler.export import export
from bbgrap.compiler.simulate import simulate
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.engine.kernels import local_kernels
from bbgrap.engine.load import load_graph
from bbgrap.engine.prepare import plan_graph, prepare_graph
from bbgrap.engine.sessions import make_session
from bbgrap.graph import Array, Graph
from bbgrap.graph.onnx_io import write_graph
from bbgrap.planners.bbgrap import all_descriptions
from bbgrap.planners.options import PlanOptions, TransferType
from bbgrap.planners.registry import make_plan
from bbgrap.program.steps import DeviceProgram, Program
from bbgrap.runtime.execution import Kernel
from bbgrap.runtime.schedule import LocalRun, extract
from bbgrap.shapemap import ShapeMap
from tests.program_laws import compile_checked


def prepare(model: Path, shapes: Mapping[str, tuple[int, ...]], cluster: Cluster, options: PlanOptions) -> tuple[PlannedVariant, ...]:
    """Load a model and return the ways to run it on a cluster."""
    return tuple(planned for planned, _ in prepare_graph(load_graph(model, shapes), cluster, options))


def compiled(graph: Graph, cluster: Cluster, options: PlanOptions, transfers: TransferType = "exact") -> Compiled:
    """Plan and compile with every law checked between passes."""
    descriptions = all_descriptions(graph)
    return compile_checked(make_plan(graph, cluster, options, descriptions), descriptions, transfers)


def all_values(graph: Graph, feeds: Sequence[Array]) -> dict[str, Array]:
    """Return every tensor of a model, as plain onnxruntime computes it with all of them as outputs."""
    inner = tuple(o for node in graph.nodes for o in node.outputs if o)
    exposed = replace(graph, outputs=inner)
    session = make_session(write_graph(exposed, weights="inline").data, threads=1)
    found = session.run(list(inner), dict(zip(graph.inputs, feeds, strict=True)))
    return {**dict(zip(graph.inputs, feeds, strict=True)), **dict(zip(inner, found, strict=True))}


def plain_outputs(graph: Graph, feeds: Sequence[Array]) -> list[Array]:
    """Return the model's outputs from plain onnxruntime."""
    session = make_session(write_graph(graph, weights="inline").data, threads=1)
    return list(session.run(list(graph.outputs), dict(zip(graph.inputs, feeds, strict=True))))


def assert_close(got: Array, want: Array, label: str, rtol: float = 1e-5, scale: float | None = None) -> None:
    """Compare relative to the largest magnitude in the whole tensor: of `want`, or given as `scale` where that is a region of it."""
    assert got.shape == want.shape, f"{label}: shape {got.shape}, expected {want.shape}"
    if got.dtype.kind != "f":
        assert np.array_equal(got, want), label
        return
    scale = max(float(np.abs(want).max(initial=0.0)) if scale is None else scale, 1e-6)
    worst = float(np.abs(got.astype(np.float64) - want).max(initial=0.0)) / scale
    assert worst <= rtol, f"{label}: relative error {worst:.3g}"


def run_checked(program: Program, feeds: Sequence[Array], values: Mapping[str, Array], rtol: float = 1e-5) -> list[Array]:
    """Simulate a program and compare every tensor that leaves a segment with its region of the unpartitioned model's tensor."""
    artifacts = export(program)
    kernels = [_checked(kernel, program.devices[n], artifacts, values, rtol) for n, kernel in enumerate(local_kernels(artifacts))]
    return simulate(artifacts, feeds, kernels)


def _checked(kernel: Kernel, device: DeviceProgram, artifacts: Artifacts, values: Mapping[str, Array], rtol: float) -> Kernel:
    schedule = artifacts.devices[device.device].schedule
    buffers = list(device.buffers.values())
    runs = {step.segment: step for step in schedule.steps if isinstance(step, LocalRun)}

    def run(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
        outputs = kernel(segment, inputs)
        for number, array in zip(runs[segment].outputs, outputs, strict=True):
            buffer = buffers[number]
            if buffer.part is not None:
                continue  # a partial result: only the sum has something to be compared with
            whole = values[buffer.value]
            want = extract(whole, box_within(buffer.region, ShapeMap.full(whole.shape)))
            label = f"device {device.device}, segment {segment}, '{buffer.value}' {buffer.region}"
            assert_close(array, want, label, rtol, float(np.abs(whole).max(initial=0.0)))
        return outputs

    return run


def assert_partition_agrees(graph: Graph, cluster: Cluster, options: PlanOptions, rtol: float = 1e-5) -> Compiled:
    """Plan, compile, simulate and compare at every cut tensor and at the outputs."""
    random = np.random.default_rng(1)
    feeds = [random.standard_normal(graph.types[n].known_shape).astype(graph.types[n].dtype.numpy) for n in graph.inputs]
    values = all_values(graph, feeds)
    result = plan_graph(graph, cluster, options).compiled
    outputs = run_checked(result.optimized, feeds, values, rtol)
    for name, got in zip(graph.outputs, outputs, strict=True):
        assert_close(got, values[name], f"output '{name}'", rtol)
    return result
