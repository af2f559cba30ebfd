"""All devices of a deployment in one process: the oracle of the tests, and what `bbgrap simulate` runs.

Devices take turns, each going on until it needs a message that has not been sent; messages arrive at once, rounded as they would be
on the wire. Compute is given, so the same walk serves onnxruntime, an interpreter, or a recorder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from bbgrap.compiler.artifacts import Artifacts
from bbgrap.errors import ProgramError
from bbgrap.graph import Array
from bbgrap.program.encodings import carried
from bbgrap.runtime.execution import Execution, Kernel, SendParts, SlicePlan
from bbgrap.runtime.schedule import LocalSend


def simulate(
    artifacts: Artifacts, feeds: Sequence[Array], kernels: Sequence[Kernel], slices: Sequence[SlicePlan | None] | None = None
) -> list[Array]:
    """Run one request of a model without state and return its outputs.

    Args:
        artifacts: what would be deployed.
        feeds: the model's inputs, in order.
        kernels: one per device, running its segments by number.
        slices: one per device, if its buffers are not plain.

    Raises:
        ProgramError: if devices wait for each other for ever.
    """
    return simulate_step(artifacts, feeds, [()] * len(artifacts.devices), kernels, slices)[0]


def simulate_step(
    artifacts: Artifacts,
    feeds: Sequence[Array],
    state: Sequence[Sequence[Array]],
    kernels: Sequence[Kernel],
    slices: Sequence[SlicePlan | None] | None = None,
) -> tuple[list[Array], list[list[Array]]]:
    """Run one request of a sequence; `state` is what every device has kept of the one before. Return the outputs, and what they keep now.

    Raises:
        ProgramError: if devices wait for each other for ever.
    """
    host = artifacts.host
    chosen = slices or [None] * len(artifacts.devices)
    runs = [Execution(d.schedule, kept, c) for d, kept, c in zip(artifacts.devices, state, chosen, strict=True)] + [Execution(host, feeds)]

    def sender(run: Execution) -> SendParts:
        def send(step: LocalSend, arrays: Mapping[int, Array]) -> None:
            runs[step.destination].deliver(step.message, [carried(part, step.wire) for part in run.slices.sent(step, arrays)])

        return send

    while not all(run.finished for run in runs):
        before = [run.position for run in runs]
        for run, kernel in zip(runs, [*kernels, _no_kernel], strict=True):
            run.advance(kernel, sender(run))
        if [run.position for run in runs] == before:
            waiting = [f"device {n} for message {run.awaited.message}" for n, run in enumerate(runs) if run.awaited is not None]
            raise ProgramError(f"simulation: nothing moves any more, waiting: {', '.join(waiting)}")
    return runs[-1].results(), [run.results() for run in runs[:-1]]


def _no_kernel(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
    raise ProgramError(f"host: it computes nothing, but was asked to run segment {segment}")
