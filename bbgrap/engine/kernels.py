"""Running the segments of a deployment with onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnxruntime as ort

from bbgrap.compiler.artifacts import Artifacts, SegmentModel
from bbgrap.engine.session_call import caller
from bbgrap.engine.sessions import make_session
from bbgrap.graph import Array
from bbgrap.runtime.execution import Kernel


def load_segment(model: SegmentModel, weights: Mapping[str, Array]) -> ort.InferenceSession:
    """Load one segment for one thread; `weights` are slices by digest."""
    arrays = {name: weights[ref.digest] for name, ref in model.weights.items()}
    return make_session(model.skeleton, weights=arrays, threads=1, segment=not model.whole)


def local_kernels(artifacts: Artifacts) -> list[Kernel]:
    """Load the segments of every device into this process and return one kernel per device, for `simulate`."""
    return [_kernel(device.segments, artifacts.weights) for device in artifacts.devices]


def _kernel(segments: Sequence[SegmentModel], weights: Mapping[str, Array]) -> Kernel:
    calls = [caller(load_segment(segment, weights), segment.inputs, segment.outputs) for segment in segments]
    return lambda segment, inputs: calls[segment](inputs)
