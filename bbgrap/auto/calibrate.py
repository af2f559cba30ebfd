"""From measured requests to a cost model that agrees with them: a factor per machine and graph node, and one per machine for messages.

What is needed of a plan for that, what its segments hold and were predicted to take, is a small value, so nobody has to keep graph and
programs until the measurements are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from bbgrap.cluster import Cluster
from bbgrap.cluster.speeds import speeds_together, typical_seconds
from bbgrap.compiler.compile import Compiled
from bbgrap.compiler.predict import ANY_NODE, MESSAGES, NOT_CALIBRATED, Calibration, Predictor
from bbgrap.costmodel.timeline import Lane, Span, Timeline
from bbgrap.program.steps import Apply, Compute
from bbgrap.report.trace import SegmentTime

LEAST, MOST = 0.05, 20.0
"""Bounds of a factor: what lies beyond was no measurement of that segment."""

PROMINENT = 0.1
"""Part of a machine's kernels from which a segment tells of its nodes whatever it took."""

APART = 2.0
"""How many times the machine's median factor that of a smaller segment may be, or the reverse: what is further away is a message that was
sent meanwhile, or memory that was touched for the first time, and would not grow with the piece. Chosen (decision 10)."""

LONG_WAY = 2.0
"""How many times longer than an end is busy with a message its bytes may be on their way, if it is to tell how busy ends are: chosen."""

SAME_MACHINE = 1.5
"""A machine whose new profile predicts more than so many times as much or as little is another one, or does other things besides: what was
measured on it is forgotten. Within that, profiles differ by chance, and what was measured counts. Chosen."""


@dataclass(frozen=True, slots=True)
class SegmentForecast:
    """The graph nodes of a segment, and what was predicted of it without corrections: its kernels, and all else.

    All else are start-up, copies, and what messages take of the machine's core meanwhile.
    """

    nodes: tuple[str, ...]
    kernels_s: float
    rest_s: float


Segments = tuple[tuple[SegmentForecast, ...], ...]
"""By device and number."""


@dataclass(frozen=True, slots=True)
class MachineFactors:
    """What was measured of one model on one machine: factors by graph node, `ANY_NODE` and perhaps `MESSAGES` among them.

    `typical_s` is what the machine was predicted to take for typical work then (`bbgrap.cluster.speeds.typical_seconds`).
    """

    typical_s: float
    factors: Mapping[str, float] = field(default_factory=dict)


def segments_of(compiled: Compiled) -> Segments:
    """Return what a plan's segments hold and are predicted to take."""
    plain, program = Predictor(compiled.plan.cluster), compiled.optimized
    lasts = {(s.device, s.segment): s.stop_s - s.start_s for s in plain.timeline(program).spans if s.segment is not None}
    found = []
    for device in program.devices[: program.host]:
        segments: list[SegmentForecast] = []
        for step in device.steps:
            if isinstance(step, Compute):
                applied = [op for op in step.ops if isinstance(op, Apply)]
                kernels = sum(plain.op_seconds(program, device, op) for op in applied)
                nodes = tuple(dict.fromkeys(op.node for op in applied))
                segments.append(SegmentForecast(nodes, kernels, lasts[device.device, len(segments)] - kernels))
        found.append(tuple(segments))
    return tuple(found)


def message_factors(cluster: Cluster, timeline: Timeline) -> Mapping[int, float]:
    """Return how long a measured request's nodes were busy with messages among each other, per predicted second, by device.

    A sender is busy as long as it sends; a receiver from when it has asked for the message and the message is there. When that is, only the
    link's profile says. So messages that are long on their way do not count: an error in it would be taken for work, and a sender that
    waits for its network interface is not busy with messages as such.
    """
    plain = Predictor(cluster).network
    took: dict[int, float] = {}
    expected: dict[int, float] = {}
    sends, asked = _by_message(timeline, "send"), _by_message(timeline, "wait")
    for message, received in _by_message(timeline, "receive").items():
        sent = sends.get(message)
        if sent is None or cluster.host in {sent.device, received.device}:
            continue
        way = (sent.device, received.device, received.bytes)
        link = plain.link(sent.device, received.device)
        lasts_s = received.bytes / link.bandwidth_bytes_per_s
        if lasts_s > LONG_WAY * plain.handling(received.device, *way):
            continue
        begun_s = max(asked.get(message, received).start_s, sent.stop_s + link.latency_s + lasts_s)
        for device, seconds in ((sent.device, sent.stop_s - sent.start_s), (received.device, max(0.0, received.stop_s - begun_s))):
            took[device] = took.get(device, 0.0) + seconds
            expected[device] = expected.get(device, 0.0) + plain.handling(device, *way)
    return {device: _bounded(took[device] / expected[device]) for device in took}


def _by_message(timeline: Timeline, lane: Lane) -> Mapping[int, Span]:
    return {span.message: span for span in timeline.spans if span.lane == lane and span.message is not None}


def calibrated(
    names: Sequence[str],
    segments: Segments,
    times: Iterable[SegmentTime],
    messages: Mapping[int, float],
    before: Calibration = NOT_CALIBRATED,
) -> Calibration:
    """Return corrections under which a plan's segments take the measured times; `names` are the machines of its devices.

    `messages` are the factors of messages by device; one that has sent and received none keeps what was known.

    A segment's factor goes to all its nodes, in proportion to what was predicted of them; of a node that is in several (instalments)
    all count together. Start-up and copies keep their times. Nodes of which a machine has measured nothing get the machine's median
    factor, so that other plans of the model profit, too. What was known `before` and not measured again stays.
    """
    factors = dict(before.factors)
    found: dict[int, list[tuple[SegmentForecast, float]]] = {}
    """By device: segments, and what their kernels took."""
    for time in times:
        if time.device < len(segments) and time.segment < len(segments[time.device]):
            segment = segments[time.device][time.segment]
            if segment.kernels_s:
                found.setdefault(time.device, []).append((segment, max(0.0, time.median_s - segment.rest_s)))
    for device, measured in found.items():
        factors |= {(names[device], node): factor for node, factor in _factors(measured).items()}
    factors |= {(names[device], MESSAGES): factor for device, factor in messages.items() if device < len(names)}
    return Calibration(factors)


def _factors(measured: Sequence[tuple[SegmentForecast, float]]) -> dict[str, float]:
    """Return the factors of one machine, by node; `ANY_NODE` is their median over segments."""
    usual = median(_bounded(took / segment.kernels_s) for segment, took in measured)
    prominent_s = PROMINENT * sum(took for _, took in measured)
    took_s: dict[str, float] = {}
    predicted_s: dict[str, float] = {}
    for segment, took in measured:
        for node in segment.nodes:
            took_s[node] = took_s.get(node, 0.0) + took
            predicted_s[node] = predicted_s.get(node, 0.0) + segment.kernels_s
    found = {node: _bounded(took / predicted_s[node]) for node, took in took_s.items()}
    near = {node: f if took_s[node] > prominent_s else min(APART * usual, max(usual / APART, f)) for node, f in found.items()}
    return {**near, ANY_NODE: usual}


def measured_on(machines: Mapping[str, MachineFactors], cluster: Cluster) -> Calibration:
    """Return what was measured on the machines that are there, as factors of what their profiles of today predict.

    What messages take hardly depends on a machine's speed at typical work.
    """
    factors: dict[tuple[str, str], float] = {}
    for node, speeds in zip(cluster.nodes, speeds_together(cluster.nodes), strict=True):
        known = machines.get(node.name)
        change = typical_seconds(speeds) / known.typical_s if known and known.typical_s else 0.0
        if known and 1 / SAME_MACHINE <= change <= SAME_MACHINE:
            factors |= {(node.name, of): factor if of == MESSAGES else _bounded(factor / change) for of, factor in known.factors.items()}
    return Calibration(factors)


def completed(calibration: Calibration, cluster: Cluster) -> Calibration:
    """Return a calibration in which machines of which nothing is known have the median factors of the others.

    Most of an error is the model's, not the machine's: with factors of 1, a machine would look fast because nobody has looked at it.
    """
    by_node: dict[str, list[float]] = {}
    for (_, node), factor in calibration.factors.items():
        by_node.setdefault(node, []).append(factor)
    shared = {node: median(of) for node, of in by_node.items()}
    unknown = {node.name for node in cluster.nodes} - {name for name, _ in calibration.factors}
    return Calibration({**calibration.factors, **{(name, node): factor for name in sorted(unknown) for node, factor in shared.items()}})


def factors_of(calibration: Calibration, cluster: Cluster) -> dict[str, MachineFactors]:
    """Return a calibration by machine, for those of the cluster that it speaks of."""
    by_machine: dict[str, dict[str, float]] = {}
    for (name, node), factor in calibration.factors.items():
        by_machine.setdefault(name, {})[node] = factor
    speeds = speeds_together(cluster.nodes)
    return {
        node.name: MachineFactors(typical_seconds(of), by_machine[node.name])
        for node, of in zip(cluster.nodes, speeds, strict=True)
        if node.name in by_machine
    }


def _bounded(factor: float) -> float:
    return min(MOST, max(LEAST, factor))
