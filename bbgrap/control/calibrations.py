"""What requests of each model took on each machine, as corrections of the cost model; and which machine has become slow.

Laws: factors are kept per model (the digest of its files) and machine, bounded in number; with another profile of the machine they change
so that the same times are predicted, as far as the profile is faster or slower at all work alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from bbgrap.auto.calibrate import MachineFactors, Segments, calibrated, completed, factors_of, measured_on
from bbgrap.cluster.types import Cluster
from bbgrap.compiler.predict import Calibration
from bbgrap.control.coordinator_events import KeepCalibration
from bbgrap.report.trace import SegmentTime

MAX_MODELS = 200
"""Models whose factors are kept; the one least recently measured makes room."""

MAX_MACHINES = 64
"""Machines per model, likewise."""

SLOWER = 0.25
"""How much more than the others a node must have slowed down for its rows to be moved. Chosen: rows move in steps of a few per cent, and
a redeployment costs a search."""

Key = TypeVar("Key")

SegmentSeconds = Mapping[tuple[int, int], float]
"""Seconds of segments, by device and number."""


class Calibrations:
    """All that was measured.

    Invariants: at most `MAX_MODELS` models, the last one measured last, with at most `MAX_MACHINES` machines each.
    """

    def __init__(self, kept: Mapping[str, Mapping[str, MachineFactors]] | None = None) -> None:
        """Start with what was kept from earlier."""
        self._models = {model: dict(machines) for model, machines in (kept or {}).items()}

    def of(self, model: str, cluster: Cluster) -> Calibration:
        """Return what is known of a model on the machines of a cluster; nothing, or something about each of them."""
        return completed(measured_on(self._models.get(model, {}), cluster), cluster)

    def take(
        self, model: str, cluster: Cluster, segments: Segments, times: SegmentSeconds, messages: Mapping[int, float]
    ) -> KeepCalibration:
        """Correct what is known by what the segments of a plan took, and by the factors of its messages, by device."""
        names = [node.name for node in cluster.nodes]
        measured = (SegmentTime(device, number, "", seconds) for (device, number), seconds in times.items())
        known = self._models.pop(model, {})
        calibration = calibrated(names, segments, measured, messages, measured_on(known, cluster))
        for name, factors in factors_of(calibration, cluster).items():
            known.pop(name, None)
            known[name] = factors
        while len(known) > MAX_MACHINES:
            del known[next(iter(known))]
        self._models[model] = known
        while len(self._models) > MAX_MODELS:
            del self._models[next(iter(self._models))]
        return KeepCalibration(model, dict(known))


def medians_of(recorded: Iterable[Mapping[Key, float]]) -> Mapping[Key, float]:
    """Return the medians over some requests, of what was measured of each."""
    times: dict[Key, list[float]] = {}
    for request in recorded:
        for key, seconds in request.items():
            times.setdefault(key, []).append(seconds)
    return {key: median(of) for key, of in times.items()}


def slowed(before: SegmentSeconds, now: SegmentSeconds, devices: Sequence[str]) -> tuple[str, float] | None:
    """Return the device that has slowed down most against the others, and how much; None if it is not enough to move rows."""
    common = sorted(before.keys() & now.keys())
    ratios: dict[int, float] = {}
    for device in sorted({device for device, _ in common}):
        then = sum(before[key] for key in common if key[0] == device)
        if then > 0:
            ratios[device] = sum(now[key] for key in common if key[0] == device) / then
    if len(ratios) < 2:
        return None
    worst = max(ratios, key=lambda device: ratios[device])
    others = median(ratio for device, ratio in ratios.items() if device != worst)
    return (devices[worst], ratios[worst] / others) if ratios[worst] > (1 + SLOWER) * others else None
