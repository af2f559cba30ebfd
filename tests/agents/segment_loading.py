"""Segments of artifacts loaded without an agent's store of weights, and all devices run at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from bbgrap_agent.compiling import CompiledDeployment, SegmentLoader
from bbgrap_agent.deployment import Segment

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel
from bbgrap.compiler.simulate import simulate
from bbgrap.engine.kernels import load_segment
from bbgrap.engine.layout import SegmentCompiler
from bbgrap.engine.session_call import caller
from bbgrap.graph.onnx_layout import Boundary
from bbgrap.graph.types import Array
from bbgrap.runtime.schedule import check_schedule


def loader_of(artifacts: Artifacts) -> SegmentLoader:
    """Return what makes sessions of segments as an agent does; their references are what was shipped."""

    def filed(model: SegmentModel) -> tuple[bytes, dict[str, Array], None]:
        return model.skeleton, {name: artifacts.weights[ref.digest] for name, ref in model.weights.items()}, None

    def portable(model: SegmentModel) -> Segment:
        return caller(load_segment(model, artifacts.weights), model.inputs, model.outputs)

    def compiled(compiler: SegmentCompiler, boundary: Boundary, model: SegmentModel) -> Segment:
        return caller(compiler.build(boundary, threads=1), compiler.front.inputs, model.outputs)

    return SegmentLoader(filed, portable, compiled, portable)


def run(artifacts: Artifacts, feeds: Sequence[Array], loaded: Sequence[CompiledDeployment]) -> list[Array]:
    """Return the model's outputs, computed by what was loaded for each device."""
    devices = tuple(DeviceArtifacts(one.schedule, device.segments) for one, device in zip(loaded, artifacts.devices, strict=True))
    for device in devices:
        assert not check_schedule(device.schedule)

    def compute(one: CompiledDeployment, segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
        return one.segments[segment](inputs)

    shown = Artifacts(devices, artifacts.host, artifacts.weights)
    return simulate(shown, feeds, [partial(compute, one) for one in loaded], [one.slices for one in loaded])
