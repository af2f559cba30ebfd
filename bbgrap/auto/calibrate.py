"""From measured segments to a cost model that agrees with them: one factor per machine and graph node."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median

from bbgrap.auto.forecast import Forecast
from bbgrap.program.predict import ANY_NODE, Calibration, Predictor
from bbgrap.program.steps import Apply, Compute
from bbgrap.program.trace import SegmentTime

LEAST, MOST = 0.05, 20.0
"""Bounds of a factor: what lies beyond was no measurement of that segment."""


def calibrated(forecast: Forecast, times: Iterable[SegmentTime]) -> Calibration:
    """Return corrections under which the forecast's segments take the measured times.

    A segment's factor goes to all its nodes, in proportion to what was predicted of them; start-up and copies keep their times. Nodes of
    which a machine has measured nothing get the machine's median factor, so that other plans of the model profit, too.
    """
    plain = Predictor(forecast.compiled.plan.cluster)
    program = forecast.compiled.optimized
    names = [node.name for node in forecast.compiled.plan.cluster.nodes]
    segments = [[step for step in device.steps if isinstance(step, Compute)] for device in program.devices]
    factors = dict(forecast.calibration.factors)
    found: dict[str, list[float]] = {}
    for time in times:
        if time.device >= len(names) or time.segment >= len(segments[time.device]):
            continue
        device, step = program.devices[time.device], segments[time.device][time.segment]
        kernels = sum(plain.op_seconds(program, device, op) for op in step.ops if isinstance(op, Apply))
        if not kernels:
            continue
        rest = plain.segment_seconds(program, device, step) - kernels
        factor = min(MOST, max(LEAST, (time.median_s - rest) / kernels))
        found.setdefault(names[time.device], []).append(factor)
        factors |= {(names[time.device], op.node): factor for op in step.ops if isinstance(op, Apply)}
    factors |= {(name, ANY_NODE): median(of) for name, of in found.items()}
    return Calibration(factors)
