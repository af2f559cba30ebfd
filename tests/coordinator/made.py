"""A plan by hand, small enough to be written many times."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bbgrap.compiler.artifacts import Artifacts, DeviceArtifacts, SegmentModel, WeightRef
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.control.saved_state import StoredPlan, StoredVariant
from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.graph.weights import digest_of
from bbgrap.planners.options import PlanOptions
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule

ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(12, dtype=np.float64).reshape(3, 4)[:, ::2],
    np.asfortranarray(np.arange(6).reshape(2, 3)),
    np.zeros((0, 4), np.int8),
    np.array(True),
    np.arange(3, dtype=np.uint8),
    np.arange(5, dtype=np.complex128),
    np.arange(5, dtype=np.float16),
]
BUFFERS = (BufferSpec("x", DType.FLOAT, None), BufferSpec("y", DType.FLOAT, (2, 2)))
DEVICE = Schedule(0, 1, BUFFERS, (LocalReceive(0, 1, (0,)), LocalRun(0, (0,), (1,)), LocalSend(1, 1, (LocalPart(1, None),))))
HOST = Schedule(1, 1, BUFFERS, (LocalSend(0, 0, (LocalPart(0, None),)), LocalReceive(1, 0, (1,))), (0,), (1,))
REPORT = {"planner": "none", "times": [1.5, None], "names": {"a": True}}


def variant(arrays: Sequence[Array], name: str = "one", skeleton: bytes = b"model", report: Mapping[str, Any] = REPORT) -> PlannedVariant:
    weights = {digest_of(array): array for array in arrays}
    references = {f"w{n}": WeightRef(digest_of(a), TensorType(DType.of(a.dtype), a.shape)) for n, a in enumerate(arrays)}
    segment = SegmentModel("s", hashlib.sha256(skeleton).hexdigest(), skeleton, ("x",), ("y",), references)
    return PlannedVariant(name, Artifacts((DeviceArtifacts(DEVICE, (segment,)),), HOST, weights), report)


def plan(job: int, *, quarantine: str = "", standby: bool = False, devices: int = 1) -> StoredPlan:
    """A plan of two variants, as it is saved."""
    key = hashlib.sha256(str(job).encode()).hexdigest()
    nodes = tuple((name, f"tcp://{name}:1") for name in "abc"[:devices])
    variants = (StoredVariant(job * 10, nodes, 0.5), StoredVariant(job * 10 + 1, nodes))
    options = None if standby else PlanOptions("auto", grid=(1, 2))
    shapes = {} if standby else {"x": (1, 3, 8, 8), "s": ()}
    return StoredPlan(job, key, key, shapes, options, "two agents", "tcp://127.0.0.1:3", variants, quarantine)
