"""Traced requests: an answer waits here until every agent that took part has said when it did what, or for some seconds.

Laws: only agents that take part are listened to, each for its own device; a request is answered once, or forgotten.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.control.coordinator_events import RequestDone
from bbgrap.errors import RemoteProtocolError
from bbgrap.runtime.recording import Record

RECORDS_WITHIN_S = 5.0
"""How long after the answer to a request its records may come."""


@dataclass(slots=True)
class _Awaited:
    devices: dict[str, int]
    records: dict[int, Record] = field(default_factory=dict)
    done: RequestDone | None = None
    since: float = 0.0


class Traces:
    """The traced requests that run, by number."""

    def __init__(self) -> None:
        """Start without any."""
        self._awaited: dict[int, _Awaited] = {}

    def begin(self, number: int, devices: dict[str, int]) -> None:
        """Expect records of a request from these agents, which are these devices."""
        self._awaited[number] = _Awaited(devices)

    def computed(self, done: RequestDone, now: float) -> None:
        """Keep the answer to a request until the records are there."""
        awaited = self._awaited[done.request]
        awaited.done, awaited.since = done, now

    def take(self, number: int, name: str, record: Record) -> None:
        """Take an agent's record of a request; one that comes twice counts once.

        Raises:
            RemoteProtocolError: if it is of another device than the agent's.
        """
        awaited = self._awaited.get(number)
        if awaited is None:
            return
        if awaited.devices.get(name) != record.device:
            raise RemoteProtocolError(f"request {number}: a record of device {record.device} came from an agent that is another one")
        awaited.records[record.device] = record

    def complete(self, number: int) -> tuple[RequestDone, tuple[Record, ...]] | None:
        """Return the answer and all records, by device, the host's last, if they are there."""
        awaited = self._awaited.get(number)
        if awaited is None or awaited.done is None or awaited.done.record is None or len(awaited.records) < len(awaited.devices):
            return None
        return awaited.done, (*(record for _, record in sorted(awaited.records.items())), awaited.done.record)

    def forget(self, number: int) -> None:
        """The request has been answered or given up."""
        self._awaited.pop(number, None)

    def overdue(self, now: float) -> list[RequestDone]:
        """Return the answers that have waited too long for records."""
        return [entry.done for entry in self._awaited.values() if entry.done is not None and now - entry.since > RECORDS_WITHIN_S]
