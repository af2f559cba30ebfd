"""Laws of a message beyond the types of its fields."""

from __future__ import annotations

from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.protocol.limits import is_digest
from bbgrap.protocol.messages import Deploy
from bbgrap.runtime.schedule import LocalRun


def check_deploy(deploy: Deploy) -> tuple[str, ...]:
    """List every way in which a deployment does not fit together: peers, segments and schedule. The schedule itself is checked before."""
    schedule, faults = deploy.schedule, []
    if not 0 <= schedule.device < schedule.host:
        faults.append(f"device {schedule.device}: an agent's device number is below the host's, {schedule.host}")
    # Their number first: a host of device 10^9 is not worth a list of as many.
    if len(deploy.peers) != schedule.host + 1 or any(peer.device != place for place, peer in enumerate(deploy.peers)):
        faults.append(f"peers: expected devices 0 to {schedule.host} in order")
    for step in schedule.steps:
        if not isinstance(step, LocalRun):
            continue
        if step.segment >= len(deploy.segments):
            faults.append(f"segment {step.segment}: there are {len(deploy.segments)}")
            continue
        segment = deploy.segments[step.segment]
        if (len(step.inputs), len(step.outputs)) != (len(segment.inputs), len(segment.outputs)):
            faults.append(f"segment '{segment.name}': the schedule and the model differ in their number of inputs or outputs")
    return (*faults, *(f"segment '{s.name}': a digest is no SHA-256" for s in deploy.segments if not all(map(is_digest, digests_of(s)))))


def digests_of(segment: SegmentModel) -> tuple[str, ...]:
    """Return the digest of a segment and those of its weights."""
    return segment.digest, *(ref.digest for ref in segment.weights.values())
