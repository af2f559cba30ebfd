"""Of what is sent in a row, halos leave before outputs, and over the slowest link first: they fly longest, and the rest is sent meanwhile.

Of the coordinator's inputs, those for others leave before those for the agent beside it, which would compete for its core with the
sending, however fast the ways are: on one machine this is the difference between one agent waiting and none. What the coordinator gets
is large and not urgent: halos leave before it. Else everybody begins with the device after its own: not all send to the first one at once.
Messages to one device stay in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from bbgrap.cluster import Cluster
from bbgrap.program.steps import DeviceProgram, Program, Send, Step


@dataclass(frozen=True)
class SlowestFirst:
    """Order what every device sends in a row by the links of a cluster."""

    cluster: Cluster

    def run(self, program: Program) -> Program:
        """Return a program with the same messages."""
        return replace(program, devices=tuple(self._ordered(device) for device in program.devices))

    def _ordered(self, device: DeviceProgram) -> DeviceProgram:
        steps: list[Step] = []
        for sending, steps_in_a_row in groupby(device.steps, lambda step: isinstance(step, Send)):
            row = list(steps_in_a_row)
            steps += self._by_urgency(device.device, row) if sending else row
        return replace(device, steps=tuple(steps))

    def _by_urgency(self, source: int, sends: Sequence[Step]) -> list[Step]:
        host, beside = self.cluster.host, self.cluster.beside_host

        def urgency(step: Step) -> tuple[bool, bool, float, int]:
            assert isinstance(step, Send)
            link = self.cluster.link(source, step.destination)
            to, after = step.destination, (step.destination - source) % host
            return to == host, source == host and to == beside, link.bandwidth_bytes_per_s, after

        return sorted(sends, key=urgency)
