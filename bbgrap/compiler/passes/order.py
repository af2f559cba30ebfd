"""Of what is sent in a row, halos leave before outputs, and over the slowest link first: they fly longest, and the rest is sent meanwhile.

Of the coordinator's inputs, those for others leave before those for the agent beside it, which would compete for its core with the
sending, however fast the ways are: on one machine this is the difference between one agent waiting and none. What the coordinator gets
is large and not urgent: halos leave before it. Else everybody begins with the device after its own: not all send to the first one at once.
Messages to one device stay in order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

from bbgrap.cluster import Cluster
from bbgrap.program.steps import DeviceProgram, Program, Send, Step

Urgency = tuple[bool, bool, float, int]
"""To the host last, beside it later, over the slowest link first, then from the device after the sender's own."""


@dataclass(frozen=True)
class SlowestFirst:
    """Order what every device sends in a row by the links of a cluster."""

    cluster: Cluster

    def __call__(self, program: Program) -> Program:
        """Return a program with the same messages."""
        return replace(program, devices=tuple(self._ordered(device) for device in program.devices))

    def _ordered(self, device: DeviceProgram) -> DeviceProgram:
        urgency = self._urgency(device.device)
        steps: list[Step] = []
        for sending, steps_in_a_row in groupby(device.steps, lambda step: isinstance(step, Send)):
            row = list(steps_in_a_row)
            steps += sorted(row, key=urgency) if sending else row
        return replace(device, steps=tuple(steps))

    def _urgency(self, source: int) -> Callable[[Step], Urgency]:
        """Return what a device's messages are sorted by."""
        host, beside = self.cluster.host, self.cluster.beside_host

        @cache
        def to(destination: int) -> Urgency:
            link, after = self.cluster.link(source, destination), (destination - source) % host
            return destination == host, source == host and destination == beside, link.bandwidth_bytes_per_s, after

        def urgency(step: Step) -> Urgency:
            assert isinstance(step, Send)
            return to(step.destination)

        return urgency
