"""A request of a client, from when it came until it is answered.

The answer to a traced one waits until every agent that took part has said when it did what, or for some seconds. Law: only agents that take
part are listened to, each for its own device, and of messages with devices that are there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.control.coordinator_events import RequestDone
from bbgrap.control.plans import Caller, Death, ServedPlan
from bbgrap.control.sequence import Sequence
from bbgrap.errors import RemoteProtocolError
from bbgrap.protocol.client_messages import RunModel
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


@dataclass(eq=False, slots=True)
class Request:
    """A request of a client; `epoch` is that of the variant it runs on, 0 if it waits; `lost` are the agents that its runs have lost.

    `blamed` is the agent whose worker a run of it has ended; `former` are the numbers of its latest runs that were taken back. It is `held`
    until a time, in seconds, or until something is heard of an agent; `overtook` is how many had ended on each agent when it was started
    there.
    """

    number: int
    caller: Caller
    message: RunModel
    plan: ServedPlan
    deadline: float
    asked: float
    """When its client said it or asked after it last, in seconds."""
    epoch: int = 0
    lost: list[str] = field(default_factory=list)
    broken: int = 0
    """How often a link between two agents has broken under it."""
    stalls: int = 0
    """How often nothing went on with it; that has ended nobody."""
    blamed: str = ""
    deaths: list[Death] = field(default_factory=list)
    """Of workers that its runs have ended."""
    former: tuple[int, ...] = ()
    held: tuple[str, float] | None = None
    overtook: dict[str, int] = field(default_factory=dict)
    sequence: Sequence | None = None
    trace: OpenTrace | None = None
    """Of the run that goes on, if it is traced."""
    came: int = 0
    """Its first number: one that runs again keeps its place among those that wait."""
    is_drawn: bool = False
    """Whether it is verified when it has been answered."""

    @property
    def is_computed(self) -> bool:
        """Whether only its records are missing."""
        return self.trace is not None and self.trace.done is not None

    @property
    def interruptions(self) -> int:
        """How many of its runs have lost an agent, or stalled."""
        return len(self.lost) + self.stalls

    @property
    def bytes(self) -> int:
        """What its inputs take until it is answered."""
        return sum(len(part) for part in self.message.payload)
