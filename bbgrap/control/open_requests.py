"""The requests that are open: each is in it from when it is accepted until its caller is answered.

Laws: a caller is answered exactly once, for what answers it also takes the request out; nothing is begun for a client that is gone.
"""

from __future__ import annotations

from collections.abc import Iterable

from bbgrap.control.audit import Ending
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, Log, ToClient
from bbgrap.control.coordinator_settings import Settings
from bbgrap.control.loading import OVERDUE_S, PATIENCE_S, Loading
from bbgrap.control.plans import Caller, ServedPlan
from bbgrap.control.request import Request
from bbgrap.control.request_statistics import RequestStatistics
from bbgrap.control.sequence import Sequence
from bbgrap.control.stalls import SLOWEST_LINK
from bbgrap.protocol.client_messages import Failed, RunModel
from bbgrap.protocol.faults import Fault

UNASKED_S = 10.0
"""How long a request waits for a client that does not ask after it. Chosen: clients ask twice a second, and are gone, or have another key
and have said it again, or are stopped."""


class OpenRequests:
    """Requests by their number, and what they take.

    Invariants: `bytes` are those of all inputs; `by_caller` has every request once. A request with an `epoch` is in the queue of that
    variant, another one in its plan's `waiting`.
    """

    def __init__(self, settings: Settings, loading: Loading, statistics: RequestStatistics) -> None:
        self._settings = settings
        self._loading = loading
        self._statistics = statistics
        self.by_number: dict[int, Request] = {}
        self.by_caller: dict[Caller, Request] = {}
        self.bytes = 0
        self.now = 0.0
        """When the event came that is being handled."""

    def find(self, number: int) -> Request | None:
        """Return the request of that number, or of which a run had it."""
        return self.by_number.get(number) or next((request for request in self.by_number.values() if number in request.former), None)

    def full(self, caller: Caller, message: RunModel, plan: ServedPlan) -> str:
        """Return why a request is not taken, or nothing.

        A client never holds more than what is left for others, so one alone takes half, and another one finds room.
        """
        size, settings = sum(map(len, message.payload)), self._settings
        mine = [request for request in self.by_number.values() if request.caller[0] == caller[0]]
        waiting, taken = sum(request.plan is plan and not request.epoch for request in mine), sum(request.bytes for request in mine)
        if waiting >= settings.max_waiting - len(plan.waiting):
            return f"{len(plan.waiting)} requests wait for this plan already, {waiting} of them of this client"
        if self.by_number and taken > settings.max_waiting_bytes - self.bytes - size:
            return f"the inputs of {len(self.by_number)} requests take {self.bytes:,} bytes already, {taken:,} of them of this client"
        return ""

    def add(self, caller: Caller, message: RunModel, plan: ServedPlan, sequence: Sequence | None) -> None:
        """Take a request into the queue of its plan."""
        number = next(self._loading.epochs)
        request = Request(number, caller, message, plan, self.now + message.deadline_s, self.now)
        request.sequence, request.came = sequence, number
        self.by_number[number] = self.by_caller[caller] = request
        self.bytes += request.bytes
        plan.waiting.append(number)
        plan.requests += 1
        plan.is_asked(caller[0], self.now)
        plan.outstanding += 1
        if plan.standby is not None:
            plan.standby.outstanding += 1
        self._loading.touch(plan)

    def asked_after(self, client: RoutingId, calls: Iterable[int]) -> None:
        """Note that a client still waits for these calls."""
        for call in calls:
            if (request := self.by_caller.get((client, call))) is not None:
                request.asked = self.now

    def forgotten(self) -> list[CoordinatorInstruction]:
        """Forget what waits and has not been asked after for long; a client that asks after it later is told so, and says it again."""
        waiting = [request for request in self.by_number.values() if not request.epoch]
        # What its client has said since is about as large, and its asking comes after that.
        gone = [request for request in waiting if self.now - request.asked > UNASKED_S + request.bytes / SLOWEST_LINK]
        done = [instruction for request in gone for instruction in self.close(request, "cancelled")]
        return [*done, Log(f"{len(gone)} requests are forgotten: no client asks after them any more")] if gone else []

    def renumber(self, request: Request) -> None:
        """Give a request a new number: late messages are not those of its next run."""
        self.by_number.pop(request.number)
        request.trace = None
        request.former = (*request.former[-3:], request.number)
        request.number = next(self._loading.epochs)
        self.by_number[request.number] = request

    def fail(self, number: int, fault: Fault, reason: str) -> list[CoordinatorInstruction]:
        """Answer a request with an error."""
        request = self.by_number[number]
        done = self.close(request, "failed")
        return [ToClient(request.caller[0], Failed(request.caller[1], fault, reason)), *done]

    def close(self, request: Request, how: Ending) -> list[CoordinatorInstruction]:
        """Forget a request here, and everywhere it may still run."""
        variant = self._loading.by_epoch.get(request.epoch)
        self._statistics.ended(request, how, self.now, None if variant is None else variant.queue.running[request.number])
        del self.by_number[request.number], self.by_caller[request.caller]
        if request.sequence is not None:
            request.sequence.is_open, request.sequence.used = False, self.now
        self.bytes -= request.bytes
        request.plan.outstanding -= 1
        if request.plan.standby is not None:
            request.plan.standby.outstanding -= 1
            if not request.plan.standby.is_proven:
                # A second copy may have been put off for it.
                self._loading.touch(request.plan.standby)
        self._loading.touch(request.plan)
        if variant is None:
            request.plan.waiting.remove(request.number)
            return []
        del variant.queue.running[request.number]
        self._loading.touch(variant.plan)
        if how == "done":
            return []
        return self._loading.abandon(variant, request.number, self.patience_with(request))

    def patience_with(self, request: Request) -> float:
        """Return how long a kernel may go on with a request that nobody wants there any more: never for longer than if it were wanted."""
        return min(PATIENCE_S, max(0.0, request.deadline - self.now) + OVERDUE_S)
