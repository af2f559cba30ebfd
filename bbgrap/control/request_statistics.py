"""What operators want to know afterwards: how requests ended and how long they took, what happened, and who is gone.

Laws: all of it is bounded; a request costs a few additions; nothing here decides anything.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bbgrap.control.audit import Ending, RunCounts
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.request import Request
from bbgrap.protocol.limits import MAX_TEXT_BYTES
from bbgrap.protocol.status_messages import LATENCY_BUCKETS_S, ClusterEvent, EventKind, Latency, NodeStatus
from bbgrap.runtime.recording import Record

MAX_EVENTS = 200
"""Events that are kept; the oldest makes room."""
MAX_COUNTED = 256
"""Models that are counted one by one; further ones together."""
MAX_GONE = 32
"""Agents that are gone and still shown; the one that went first makes room."""
MAX_RECORDED = 16
"""Variants of which the latest recorded request is kept."""
MAX_RECORDED_STEPS = 20_000
"""Steps of a recorded request that is kept; of a longer one nothing is."""
OTHERS = "0" * 64
"""The digest that stands for all models that are counted together."""


@dataclass(slots=True)
class RequestCounts:
    """How the requests of a model ended; times in seconds."""

    name: str
    ended: dict[str, int] = field(default_factory=lambda: {"done": 0, "failed": 0, "cancelled": 0, "refused": 0})
    buckets: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS_S) + 1))
    seconds: float = 0.0
    queued_s: float = 0.0
    recovered: int = 0
    """Sequences whose state was begun to be computed anew."""
    replayed: int = 0
    """Requests that ran again for it."""

    @property
    def latency(self) -> Latency:
        """How long those that are done took."""
        return Latency(tuple(self.buckets), self.seconds)


@dataclass(frozen=True, slots=True)
class LatestRecord:
    """The latest request that was recorded on a variant, and when, in seconds since 1970."""

    records: tuple[Record, ...]
    at: float


class RequestStatistics:
    """What has happened since the coordinator started.

    Invariants: at most `MAX_COUNTED` models have counts of their own; the numbers of events grow by one.
    """

    def __init__(self, settings: Settings, began: float) -> None:
        """Start with nothing; `began` is now, by the clock of events."""
        self._settings = settings
        self._began = began
        self._number = 0
        self.events: deque[ClusterEvent] = deque(maxlen=MAX_EVENTS)
        self.counts: dict[str, RequestCounts] = {}
        self.runs = RunCounts()
        """The same of each client, for the audit log."""
        self.gone: dict[str, NodeStatus] = {}
        self.recorded: dict[int, LatestRecord] = {}

    def time(self, now: float) -> float:
        """Return a moment in seconds since 1970."""
        return self._settings.started + now - self._began

    def of_model(self, plan: ServedPlan) -> RequestCounts:
        """Return the counts of a plan's model."""
        found = self.counts.get(plan.model)
        if found is None:
            key = plan.model if len(self.counts) < MAX_COUNTED else OTHERS
            found = self.counts.setdefault(key, RequestCounts(plan.files[0].name if key != OTHERS else "other models"))
        return found

    def count(self, client: RoutingId, plan: ServedPlan, how: Ending) -> RequestCounts:
        """Count how a request of a client ended; return the counts of its model."""
        self.runs.ended(client, plan, how)
        counts = self.of_model(plan)
        counts.ended[how] += 1
        return counts

    def ended(self, request: Request, how: Ending, now: float, started: float | None) -> None:
        """Count a request; `started` is when it began to run."""
        counts = self.count(request.caller[0], request.plan, how)
        if how == "done" and started is not None:
            came = request.deadline - request.message.deadline_s
            counts.buckets[bisect_left(LATENCY_BUCKETS_S, now - came)] += 1
            counts.seconds += now - came
            counts.queued_s += started - came

    def record(self, variant: Variant, records: tuple[Record, ...], now: float) -> None:
        """Keep when every device did what for a request."""
        self.recorded.pop(variant.epoch, None)
        if sum(len(record.times) for record in records) <= MAX_RECORDED_STEPS:
            self.recorded[variant.epoch] = LatestRecord(records, self.time(now))
        while len(self.recorded) > MAX_RECORDED:
            del self.recorded[next(iter(self.recorded))]

    def note(self, instructions: Iterable[CoordinatorInstruction], now: float) -> None:
        """Keep what is told of as an event."""
        for told in instructions:
            if isinstance(told, Log) and told.event is not None:
                self._number += 1
                text = told.text.encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
                self.events.append(ClusterEvent(self._number, self.time(now), told.event, text, told.node, told.model, told.epoch))

    def went(self, node: NodeStatus, how: EventKind, now: float) -> None:
        """Keep an agent as it was, until it is back."""
        self.gone.pop(node.name, None)
        self.gone[node.name] = replace(node, state=how, since=self.time(now), busy=0.0, running=0, unreachable=())
        for name in list(self.gone)[:-MAX_GONE]:
            del self.gone[name]

    def events_after(self, number: int) -> tuple[ClusterEvent, ...]:
        """Return the events that came after one, the oldest first. A number of an earlier coordinator, above all of them, means all."""
        after = number if number <= self._number else 0
        return tuple(event for event in self.events if event.number > after)
