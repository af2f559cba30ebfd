"""Segments measured one by one: what a cluster would need that is larger than this machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import numpy as np

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel
from bbgrap.engine.kernels import load_segment
from bbgrap.graph import Array
from bbgrap.runtime.schedule import BufferSpec, LocalRun

RUNS = 5
"""Runs of a segment that are timed, after one that is not."""


def measured_segments(artifacts: Artifacts) -> list[dict[int, float]]:
    """Return the seconds of every segment by its number, per device: medians of runs on synthetic inputs in this process.

    Segments of the same content are run once. Devices are taken to be like this machine with one thread. The segments are run as they
    are shipped; agents compile them, which makes borders cheaper.
    """
    known: dict[str, float] = {}
    return [_of_device(device, artifacts.weights, known) for device in artifacts.devices]


def _of_device(device: DeviceArtifacts, weights: Mapping[str, Array], known: dict[str, float]) -> dict[int, float]:
    found = {}
    for step in device.schedule.steps:
        if isinstance(step, LocalRun):
            model = device.segments[step.segment]
            if model.digest not in known:
                specs = [device.schedule.buffers[buffer] for buffer in step.inputs]
                known[model.digest] = _median_s(model, weights, _synthetic(specs))
            found[step.segment] = known[model.digest]
    return found


def _synthetic(specs: Sequence[BufferSpec]) -> list[Array]:
    random = np.random.default_rng(0)
    shapes = [(spec.shape or (), spec.dtype.numpy) for spec in specs]
    return [random.standard_normal(shape).astype(kind) if kind.kind == "f" else np.ones(shape, kind) for shape, kind in shapes]


def _median_s(model: SegmentModel, weights: Mapping[str, Array], inputs: Sequence[Array]) -> float:
    session = load_segment(model, weights)
    feed = dict(zip(model.inputs, inputs, strict=True))
    session.run(None, feed)
    times = []
    for _ in range(RUNS):
        began = time.perf_counter()
        session.run(None, feed)
        times.append(time.perf_counter() - began)
    return statistics.median(times)
