"""A traced request: its answer waits until every agent that took part has said when it did what, or for some seconds.

Law: only agents that take part are listened to, each for its own device, and of messages with devices that are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.control.coordinator_events import RequestDone
from bbgrap.errors import RemoteProtocolError
from bbgrap.runtime.recording import Record

RECORDS_WITHIN_S = 5.0
"""How long after the answer to a request its records may come."""


@dataclass(slots=True)
class OpenTrace:
    """What has come of one run of a traced request; `devices` are the agents that take part, and which devices they are.

    `host` is the coordinator's device number, the largest.
    """

    devices: dict[str, int]
    host: int
    records: dict[int, Record] = field(default_factory=dict)
    done: RequestDone | None = None
    since: float = 0.0
    """When it was done, in seconds."""

    def take(self, number: int, name: str, record: Record) -> None:
        """Take an agent's record of a request; one that comes twice counts once.

        Raises:
            RemoteProtocolError: if it is of another device than the agent's, or has a device as a peer that is not there.
        """
        if self.devices.get(name) != record.device:
            raise RemoteProtocolError(f"request {number}: a record of device {record.device} came from an agent that is another one")
        if (peer := max((label.peer or 0 for label in record.labels), default=0)) > self.host:
            raise RemoteProtocolError(f"request {number}: the record of '{name}' speaks of device {peer}; there are 0 to {self.host}")
        self.records[record.device] = record

    def complete(self) -> tuple[RequestDone, tuple[Record, ...]] | None:
        """Return the answer to the request and all records, by device, the host's last, if they are there."""
        if self.done is None or self.done.record is None or len(self.records) < len(self.devices):
            return None
        return self.done, (*(record for _, record in sorted(self.records.items())), self.done.record)

    def late(self, now: float, deadline: float) -> RequestDone | None:
        """Return the answer if it has waited too long for records, or would miss its deadline for them."""
        return self.done if now > min(self.since + RECORDS_WITHIN_S, deadline) else None
