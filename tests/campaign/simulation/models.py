"""Models of the simulation: what they take, what a planner makes of them, and the one right answer to every input.

A tensor is a text: an input, and what models have made of it. A segment whose inputs come from different requests makes `MIXED` of them.
The state of a sequence is what all of its inputs were, one after the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from bbgrap.cluster.types import Cluster
from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.control.planned_variant import SCALED_FROM, PlannedVariant
from bbgrap.control.uploads import offer_digest
from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.runtime.joined_requests import JoinedInput
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule

MIXED = "mixed"
SKELETON_DIGEST = "ab" * 32
BADLY = 8.0
"""How much slower a scaled plan is where the width does not suit it."""
MEMORY = 1 << 30
"""Of every agent, in bytes."""


@dataclass(frozen=True, slots=True)
class Model:
    """How long one machine computes, how long a whole load takes, in seconds; `trait` is what is wrong with it.

    Traits: "kills" ends any worker that runs it, "kills on load" any that loads it, "kills in parts" any that runs a part of it (a bug of
    what a planner made of it), "large" fits no node.
    """

    name: str
    seconds: float = 0.02
    load_s: float = 0.2
    weight_bytes: int = 16
    trait: str = ""

    @property
    def file(self) -> ModelFile:
        """Its only file."""
        return _file(self.name)

    @property
    def digest(self) -> str:
        """What the protocol calls it."""
        return _digest(self.name)

    def answer(self, token: str) -> str:
        """The right answer to an input."""
        return f"{self.name}({token})"


@cache
def _file(name: str) -> ModelFile:
    return ModelFile(f"{name}.onnx", name.encode().hex().ljust(64, "0")[:64], 4)


@cache
def _digest(name: str) -> str:
    return offer_digest((_file(name),))


def joined(buffers: Mapping[int, str], places: Sequence[int]) -> str:
    """Return what comes of tensors that meet."""
    if len(places) == 1:
        return buffers[places[0]]
    distinct = {buffers[place] for place in places}
    return distinct.pop() if len(distinct) == 1 else MIXED


def state_of(text: str) -> Array:
    """Return a state as agents keep it, uint8 [letters]."""
    return np.frombuffer(text.encode(), np.uint8)


def text_of(state: Array) -> str:
    """Return the text of a state."""
    return bytes(state).decode()


@cache
def _weight(name: str, part: str, size: int) -> tuple[str, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    """Return a weight and its digest."""
    seed = sum(f"{name}{part}".encode())
    weight = np.arange(seed, seed + size, dtype=np.uint32).astype(np.uint8) if size < 1 << 16 else np.full(size, seed % 251, np.uint8)
    return digest_of(weight), weight


@cache
def _segment(
    model: Model, part: str, share: float, inputs: int = 1, slower: float = 1.0
) -> tuple[SegmentModel, dict[str, np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]]:
    """Return a segment; its name says what it takes: model, share of it, and whether it is a part."""
    digest, weight = _weight(model.name, part, max(4, int(model.weight_bytes * share)))
    ref = WeightRef(digest, TensorType(DType.UINT8, weight.shape))
    name, inputs_of = f"{model.name}|{share * slower}|{part}", tuple(f"x{i}" for i in range(inputs))
    return SegmentModel(name, SKELETON_DIGEST, b"", inputs_of, ("y",), {"w": ref}), {digest: weight}


@cache
def rows(model: Model, devices: int, slower: float = 1.0) -> Artifacts:
    """Each device works on its rows, in two segments with an exchange with both neighbours between them."""
    row = BufferSpec("row", DType.FLOAT, (1, 2))
    share = 1 / (2 * devices)
    parts, weights = [], {}
    for d in range(devices):
        first, w1 = _segment(model, f"{d}/{devices}/first", share, 1, slower)
        halos = [other for other in (d - 1, d + 1) if 0 <= other < devices]
        second, w2 = _segment(model, f"{d}/{devices}/second", share, 1 + len(halos), slower)
        weights.update({**w1, **w2})
        steps = (
            LocalReceive(d, devices, (0,)),
            LocalRun(0, (0,), (1,)),
            *(LocalSend(200 + 10 * d + other, other, (LocalPart(1, None),)) for other in halos),
            *(LocalReceive(200 + 10 * other + d, other, (2 + place,)) for place, other in enumerate(halos)),
            LocalRun(1, (1, *range(2, 2 + len(halos))), (2 + len(halos),)),
            LocalSend(100 + d, devices, (LocalPart(2 + len(halos), None),)),
        )
        parts.append(DeviceArtifacts(Schedule(d, devices, (row,) * (3 + len(halos)), steps), (first, second)))
    whole_x = BufferSpec("x", DType.FLOAT, (devices, 2))
    host_steps = (
        *(LocalSend(d, d, (LocalPart(0, (((d, d + 1),), ((0, 2),))),)) for d in range(devices)),
        *(LocalReceive(100 + d, d, (1 + d,)) for d in range(devices)),
        LocalJoin(devices + 1, tuple((LocalPart(1 + d, None), (((d, d + 1),), ((0, 2),))) for d in range(devices))),
    )
    host = Schedule(devices, devices, (whole_x, *[row] * devices, whole_x), host_steps, (0,), (devices + 1,))
    return Artifacts(tuple(parts), host, weights)


@cache
def single(model: Model, devices: int, device: int) -> Artifacts:
    """One device runs all of it."""
    segment, weights = _segment(model, "all", 1.0)
    rows_of = BufferSpec("rows", DType.FLOAT, (devices, 2))
    steps = (LocalReceive(0, devices, (0,)), LocalRun(0, (0,), (1,)), LocalSend(100, devices, (LocalPart(1, None),)))
    parts = tuple(
        DeviceArtifacts(Schedule(d, devices, (rows_of, rows_of), steps), (segment,))
        if d == device
        else DeviceArtifacts(Schedule(d, devices, (), ()), ())
        for d in range(devices)
    )
    host = Schedule(
        devices, devices, (rows_of, rows_of), (LocalSend(0, device, (LocalPart(0, None),)), LocalReceive(100, device, (1,))), (0,), (1,)
    )
    return Artifacts(parts, host, weights)


FURTHER = 10_000
"""What the messages of further requests of a sequence have beyond those of the first."""
ANY = BufferSpec("x", DType.UINT8, None)
"""An input of any length."""


def with_state(plan: PlannedVariant, *, joins: bool) -> PlannedVariant:
    """Return a plan whose devices keep what came before; where it `joins`, several requests may run again as one."""
    artifacts = plan.artifacts
    joinings = {"x": JoinedInput("row", 0)} if joins else {}
    devices = tuple(
        replace(part, schedule=_keeping(part.schedule), further=_going_on(part.schedule), segments=_whole(part.segments))
        for part in artifacts.devices
    )
    host = _of_any_length(artifacts.host)
    return replace(plan, artifacts=Artifacts(devices, host, artifacts.weights, _with_other_messages(host), joinings))


def _of_any_length(schedule: Schedule) -> Schedule:
    return replace(schedule, buffers=(ANY, *schedule.buffers[1:]))


def _with_other_messages(schedule: Schedule) -> Schedule:
    """Return a schedule whose messages are not those of the first requests of sequences."""
    steps = tuple(
        replace(step, message=FURTHER + step.message) if isinstance(step, LocalSend | LocalReceive) else step for step in schedule.steps
    )
    return replace(schedule, steps=steps)


def _keeping(schedule: Schedule) -> Schedule:
    """Return what a device does that keeps what it receives first."""
    return replace(_of_any_length(schedule), results=(0,)) if schedule.steps else schedule


def _going_on(schedule: Schedule) -> Schedule:
    """Return what a device does that puts what it receives first behind what it has kept."""
    if not schedule.steps:
        return schedule
    first, *others = _with_other_messages(schedule).steps
    assert isinstance(first, LocalReceive)
    held, came = len(schedule.buffers), len(schedule.buffers) + 1
    pieces = tuple((LocalPart(buffer, None), None) for buffer in (held, came))
    steps: tuple[LocalStep, ...] = (replace(first, buffers=(came,)), LocalJoin(0, pieces), *others)
    return replace(schedule, buffers=(ANY, *schedule.buffers[1:], ANY, ANY), steps=steps, feeds=(held,), results=(0,))


def _whole(segments: tuple[SegmentModel, ...]) -> tuple[SegmentModel, ...]:
    return tuple(replace(segment, whole=not cost_of(segment.name)[2]) for segment in segments)


@cache
def standby_of(model: Model, *, keeps_state: bool, joins: bool) -> PlannedVariant:
    """The whole model for one device."""
    memory = 2 * MEMORY if model.trait == "large" else model.weight_bytes
    made = PlannedVariant("standby", single(model, 1, 0), {"planner": "standby", "memory_bytes": memory})
    return with_state(made, joins=joins) if keeps_state else made


def variants_of(model: Model, cluster: Cluster, planner: str, objective: str) -> tuple[PlannedVariant, ...]:
    """Return what a planner makes of a model; nothing if it fits no node of these."""
    count = len(cluster.nodes)
    if model.trait == "large":
        return () if count < 2 else (PlannedVariant("rows", rows(model, count), {"planner": "rows"}),)
    alone = [PlannedVariant(f"single on {n.name}", single(model, count, d), {"planner": "single"}) for d, n in enumerate(cluster.nodes)]
    if objective == "throughput":
        return tuple(alone)
    split = PlannedVariant("rows", rows(model, count), {"planner": "rows"})
    return (split,) if planner != "auto" else (split, alone[0])


def scaled(model: Model, cluster: Cluster, base: PlannedVariant, width: int) -> tuple[PlannedVariant, ...]:
    """Return a plan like that of another shape; it suits every third width badly, and is slower than one node there."""
    artifacts = rows(model, len(cluster.nodes), BADLY if width % 3 == 0 else 1.0)
    return (PlannedVariant(base.name, artifacts, {"planner": "rows", SCALED_FROM: {"x": [2, 2]}}),)


@cache
def cost_of(segment: str) -> tuple[str, float, bool]:
    """Return the model of a segment, its share of the computing, and whether it is only a part of the model."""
    name, share, part = segment.split("|")
    return name, float(share), part != "all"
