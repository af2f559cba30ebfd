"""Measuring this machine: how fast it does every kind of work, and what working together costs it.

Laws: nothing is assumed about the model to come; every figure comes from repeated runs after a warm-up; the whole takes a few
seconds; rates count a multiply and an add as two operations.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bbgrap.cluster.types import NodeProfile, Speed
from bbgrap.doctor.cgroups import free_memory_bytes
from bbgrap.errors import ExecutionError
from bbgrap.protocol.messages import Join
from bbgrap.transport.tls import TlsIdentity
from bbgrap.work import KINDS
from bbgrap_agent.kernels import kernel_samples
from bbgrap_agent.overheads import message_samples, segment_samples
from bbgrap_agent.speed_fitting import Check, Sample, fit
from bbgrap_agent.throttling import FREE, look

BUDGET_S = 4.0
"""Time for kernels; making the sessions, and what working together costs take about as long again."""

_OVERHEADS = 0.15
"""Part of the budget for segments, and as much for messages."""

NEEDED_BYTES = 224 << 20
"""What measuring takes: 150 MiB measured, and files of up to 48 MiB, which may be in memory, too."""

_log = logging.getLogger("bbgrap.agent")


def measure_machine(join: Join, check: Check, identity: TlsIdentity | None = None) -> NodeProfile:
    """Measure this machine, without its links; requests that run meanwhile disturb it, and it them. `identity`: of its data plane.

    Raises:
        ExecutionError: if there is too little memory for it: the system would end this process.
    """
    if (free := free_memory_bytes()) < NEEDED_BYTES:
        raise ExecutionError(f"it takes {NEEDED_BYTES >> 20} MiB of memory, and {free >> 20} MiB are left here")
    samples = work_samples(join.threads, check, identity)
    return NodeProfile(
        join.name,
        cores=join.cores,
        threads=join.threads,
        memory_bytes=join.memory_bytes,
        work=fitted(samples),
    )


def work_samples(threads: int, check: Check, identity: TlsIdentity | None) -> dict[str, list[Sample]]:
    """Return measured pieces of work by kind, of every kind that can be measured; as they last where this process is held back."""
    samples = kernel_samples(threads, BUDGET_S, check)
    samples["segment"] = segment_samples(threads, _OVERHEADS * BUDGET_S)
    check()
    samples["message"] = message_samples(_OVERHEADS * BUDGET_S, identity)
    throttling = look(threads)
    if throttling.part < FREE:
        _log.info("this process runs %.0f %% of the time, %.1f ms at a stretch", 100 * throttling.part, 1e3 * throttling.stretch_s)
    return {kind: [replace(s, seconds=throttling.sustained(s.seconds)) for s in of] for kind, of in samples.items()}


def fitted(samples: Mapping[str, Sequence[Sample]]) -> tuple[Speed, ...]:
    """Return a speed for every kind of work; what is of no other kind is taken for element-wise."""
    speeds = {kind: fit(kind, of) for kind, of in samples.items() if of}
    speeds["other"] = replace(speeds["elementwise"], kind="other")
    return tuple(speeds[kind] for kind in KINDS)
