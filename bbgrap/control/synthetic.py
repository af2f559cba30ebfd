"""Synthetic requests: inputs of ones that time the variants of a new deployment, one at a time and in turns, before it serves.

Laws: what a model does with such inputs ends no deployment; one that does not take them serves without having been timed.
"""

from __future__ import annotations

from collections.abc import Iterator

from bbgrap.control.coordinator_events import Instruction, Log, StartRequest
from bbgrap.control.deployments import Deployments
from bbgrap.control.plans import Deployment
from bbgrap.control.variants import PROBE_WITHIN_S, TIMING_S, Timing
from bbgrap.protocol.tensors import synthetic_inputs


class SyntheticRequests:
    """Who is timed; the requests in flight are the probes of deployments."""

    def __init__(self, deployments: Deployments, numbers: Iterator[int]) -> None:
        """Start without any; `numbers` are those of requests."""
        self._deployments = deployments
        self._numbers = numbers

    def begin(self, deployment: Deployment, now: float) -> list[Instruction]:
        """Begin to time the variants of a deployment that is loaded, if it has more than one."""
        deployment.tracker.move("all deployed")
        if len(deployment.variants) == 1:
            return []
        deployment.inputs = synthetic_inputs(deployment.variants[0].host)
        epochs = [variant.epoch for variant in deployment.variants] if deployment.inputs else []
        deployment.timing = Timing(epochs, now + TIMING_S)
        return self._deployments.progress(deployment)

    def go_on(self, deployment: Deployment, now: float) -> list[Instruction]:
        """Time the next variant, unless one is being timed; once all are, let the deployment serve."""
        timing = deployment.timing
        if timing is not None and timing.probe is not None:
            return []
        epoch = None if timing is None else timing.next(now)
        if timing is not None and deployment.inputs is not None and epoch is not None:
            number = next(self._numbers)
            timing.begin(number, epoch, now)
            return [StartRequest(epoch, number, *deployment.inputs)]
        deployment.tracker.move("measured")
        deployment.inputs = None
        if timing is None:
            return []
        deployment.policy.begin(timing.medians())
        return [Log(deployment.measured_text())]

    def done(self, number: int, now: float) -> None:
        """Take the time of a request, if it is one of these."""
        for deployment, timing in self._timed():
            if timing.probe is not None and timing.probe.number == number:
                timing.end(now)
                self._deployments.touched[deployment.plan] = None

    def failed(self, number: int) -> list[Instruction]:
        """Stop timing where a request failed, if it is one of these: this model does not take them."""
        done: list[Instruction] = []
        for deployment, timing in self._timed():
            probe = timing.probe
            if probe is not None and probe.number == number:
                timing.give_up()
                self._deployments.touched[deployment.plan] = None
                done += self._deployments.abandon(probe.epoch, number)
        return done

    def overdue(self, now: float) -> list[Instruction]:
        """Stop timing where a request takes too long."""
        probes = [timing.probe for _, timing in self._timed() if timing.probe is not None]
        return [done for probe in probes if now - probe.started > PROBE_WITHIN_S for done in self.failed(probe.number)]

    def _timed(self) -> list[tuple[Deployment, Timing]]:
        return [(d, d.timing) for d in self._deployments.by_epoch.values() if d.timing is not None]
