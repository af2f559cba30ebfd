"""A model of one segment, and what planners make of it without planning."""

from __future__ import annotations

import numpy as np

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.control import coordinator_events as ce
from bbgrap.control import coordinator_instructions
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.uploads import offer_digest
from bbgrap.graph.types import DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.protocol import client_messages as c
from bbgrap.runtime.recording import Record, StepLabel
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule

SKELETON_DIGEST = "ab" * 32
FILE = c.ModelFile("m.onnx", "cd" * 32, 4)
MODEL = offer_digest((FILE,))
WEIGHT = np.arange(4, dtype=np.float32)


def artifacts(devices: int) -> Artifacts:
    """Each device runs one segment on its row of x."""
    row = BufferSpec("row", DType.FLOAT, (1, 2))
    ref = WeightRef(digest_of(WEIGHT), TensorType(DType.FLOAT, WEIGHT.shape))
    segment = SegmentModel("s", SKELETON_DIGEST, b"", ("x",), ("y",), {"w": ref})
    parts = tuple(
        DeviceArtifacts(
            Schedule(
                d,
                devices,
                (row, row),
                (LocalReceive(d, devices, (0,)), LocalRun(0, (0,), (1,)), LocalSend(100 + d, devices, (LocalPart(1, None),))),
            ),
            (segment,),
        )
        for d in range(devices)
    )
    box = [(((d, d + 1),), ((0, 2),)) for d in range(devices)]
    whole = BufferSpec("x", DType.FLOAT, (devices, 2))
    steps = (
        *(LocalSend(d, d, (LocalPart(0, box[d]),)) for d in range(devices)),
        *(LocalReceive(100 + d, d, (1 + d,)) for d in range(devices)),
        LocalJoin(devices + 1, tuple((LocalPart(1 + d, None), box[d]) for d in range(devices))),
    )
    host = Schedule(devices, devices, (whole, *[row] * devices, whole), steps, (0,), (devices + 1,))
    return Artifacts(parts, host, {digest_of(WEIGHT): WEIGHT})


def whole(devices: int, device: int) -> Artifacts:
    """One device runs the segment on all of x, the others do nothing."""
    rows = BufferSpec("rows", DType.FLOAT, (devices, 2))
    working = artifacts(devices).devices[device]
    steps = (LocalReceive(0, devices, (0,)), LocalRun(0, (0,), (1,)), LocalSend(100, devices, (LocalPart(1, None),)))
    parts = tuple(
        DeviceArtifacts(Schedule(d, devices, (rows, rows), steps), working.segments)
        if d == device
        else DeviceArtifacts(Schedule(d, devices, (), ()), ())
        for d in range(devices)
    )
    x = BufferSpec("x", DType.FLOAT, (devices, 2))
    host = Schedule(devices, devices, (x, x), (LocalSend(0, device, (LocalPart(0, None),)), LocalReceive(100, device, (1,))), (0,), (1,))
    return Artifacts(parts, host, artifacts(devices).weights)


def plan_of(job: coordinator_instructions.StartPlanning) -> ce.Planned:
    """What a planner makes: `auto` has other variants, the best node's beside the plan, or the whole model on every node."""
    devices = len(job.cluster.nodes)
    alone = tuple(PlannedVariant(f"single on {n.name}", whole(devices, d), {"planner": "single"}) for d, n in enumerate(job.cluster.nodes))
    planned = PlannedVariant(job.options.planner, artifacts(devices), {"planner": job.options.planner})
    if job.options.planner != "auto":
        return ce.Planned(job.job, (planned,))
    return ce.Planned(job.job, alone if job.options.objective == "throughput" else (planned, alone[0]))


def standby_of(job: coordinator_instructions.StartStandby) -> ce.Planned:
    """The whole model for one device."""
    return ce.Planned(job.job, (PlannedVariant("standby", whole(1, 0), {"planner": "standby", "memory_bytes": 1}),))


def record_of(device: int) -> Record:
    """What a device would have recorded: one step of a millisecond."""
    return Record(device, (StepLabel("compute", "s: y", 0),), ((1, 2, 1_000_002),), 4)
