"""Laws of a message beyond the types of its fields."""

from __future__ import annotations

from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.protocol.limits import is_digest
from bbgrap.protocol.messages import Deploy
from bbgrap.runtime.schedule import LocalReceive, LocalRun, LocalSend, Schedule


def check_deploy(deploy: Deploy) -> tuple[str, ...]:
    """List every way in which a deployment does not fit together: peers, segments and schedule. The schedule itself is checked before."""
    schedule, faults = deploy.schedule, _program_faults(deploy, deploy.schedule)
    if deploy.further is not None:
        faults += [*_program_faults(deploy, deploy.further), *_state_faults(schedule, deploy.further)]
    if not 0 <= schedule.device < schedule.host:
        faults.append(f"device {schedule.device}: an agent's device number is below the host's, {schedule.host}")
    # Their number first: a host of device 10^9 is not worth a list of as many.
    if len(deploy.peers) != schedule.host + 1 or any(peer.device != place for place, peer in enumerate(deploy.peers)):
        faults.append(f"peers: expected devices 0 to {schedule.host} in order")
    return (*faults, *(f"segment '{s.name}': a digest is no SHA-256" for s in deploy.segments if not all(map(is_digest, digests_of(s)))))


def _program_faults(deploy: Deploy, schedule: Schedule) -> list[str]:
    faults = []
    for step in schedule.steps:
        if not isinstance(step, LocalRun):
            continue
        if step.segment >= len(deploy.segments):
            faults.append(f"segment {step.segment}: there are {len(deploy.segments)}")
            continue
        segment = deploy.segments[step.segment]
        if (len(step.inputs), len(step.outputs)) != (len(segment.inputs), len(segment.outputs)):
            faults.append(f"segment '{segment.name}': the schedule and the model differ in their number of inputs or outputs")
    return faults


def _state_faults(first: Schedule, further: Schedule) -> list[str]:
    """List how what a request leaves is not what the next one begins with, and messages that both programs have."""
    faults = []
    if (first.device, first.host) != (further.device, further.host) or first.feeds:
        faults.append(f"device {first.device}: its programs are not those of the requests of a sequence")
    held = [further.buffers[b] for b in further.feeds if b < len(further.buffers)]
    for schedule in (first, further):
        kept = [schedule.buffers[b] for b in schedule.results if b < len(schedule.buffers)]
        if [spec.dtype for spec in kept] != [spec.dtype for spec in held]:
            faults.append(f"device {first.device}: a request leaves {len(kept)} tensors of state, the next one begins with {len(held)}")
    if both := messages_of(first) & messages_of(further):
        faults.append(f"device {first.device}: message {min(both)} is in both programs")
    return faults


def messages_of(schedule: Schedule) -> frozenset[int]:
    """Return the numbers of the messages that a schedule sends or receives."""
    return frozenset(step.message for step in schedule.steps if isinstance(step, LocalSend | LocalReceive))


def digests_of(segment: SegmentModel) -> tuple[str, ...]:
    """Return the digest of a segment and those of its weights."""
    return segment.digest, *(ref.digest for ref in segment.weights.values())
