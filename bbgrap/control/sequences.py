"""Sequences of requests, each of which goes on from the state that the one before has left on the agents.

    request 1 ── any variant, state comes with it ──► home: the variant with the state ◄── requests 2, 3, ... run there
    the home is lost ──► another variant runs requests 1, 2, ... again, as one where the model takes that ──► the newest one is answered

A state is known by the number of the run that has left it. Agents keep the one before, too, until the next run begins, so whatever was
interrupted is repeated from the last whole state. Laws: the requests of a sequence run one at a time, in order; a request is part of the
sequence once it is answered, and not before; the inputs that are kept are bounded in bytes, and a sequence whose inputs are gone ends with
its state. Sequences do not outlive the coordinator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as List
from dataclasses import replace

from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import CoordinatorInstruction, KeepState, StartRequest
from bbgrap.control.joined_requests import joined
from bbgrap.control.loading import Loading
from bbgrap.control.plans import ServedPlan, Variant
from bbgrap.control.request import Request
from bbgrap.control.request_statistics import RequestStatistics
from bbgrap.control.sequence import RequestInputs, Sequence, given_of, keep
from bbgrap.protocol.client_messages import EndSequence, ForkSequence, RunModel
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import TensorHeader
from bbgrap.runtime.schedule import Schedule

NO_PROGRAM = (
    "request {}: nothing that is loaded takes it, with its shapes and what came before it; states are read on nodes with whole models,"
    " which need all inputs since the first"
)
NOT_KEPT = "what held it is gone, and its inputs are not kept"

MAX_SEQUENCES = 16_384
"""At once; the one that is idle for longest makes room."""
MAX_KEPT_BYTES = 256 << 20
"""Of inputs that are kept for all sequences in memory; of those on disk `DISK_FOR_MEMORY` times as many. Chosen: a million requests of some
words each."""
IDLE_S = 600.0
"""After how long without a request a sequence ends: its client may be gone."""
BACK_WITHIN_S = 10.0
"""How long a state whose inputs are not kept is waited for that is on an agent that is away. Chosen: one that was stopped is used again by
then."""
MAX_LOSSES = 3
"""How often agents may have no room for the state of one request: more does not come by trying."""


class Sequences:
    """The sequences of all clients, the least lately used first.

    Invariants: `_kept` is the sum of what is kept of all of them, between two events `most_kept` at most.
    """

    def __init__(self, loading: Loading, statistics: RequestStatistics) -> None:
        """Start without any; what is computed anew is counted in `statistics`."""
        self._loading = loading
        self._statistics = statistics
        self._known: dict[tuple[RoutingId, int], Sequence] = {}
        self._kept = 0
        self.most_kept = MAX_KEPT_BYTES

    def __len__(self) -> int:
        return len(self._known)

    def by_model(self) -> Counter[str]:
        """Return how many there are of each model, by digest."""
        return Counter(sequence.model for sequence in self._known.values())

    # --- what clients want --------------------------------------------------------------------------------------------------------

    def admit(
        self, client: RoutingId, message: RunModel, plan: ServedPlan, now: float
    ) -> tuple[Sequence | tuple[Fault, str], list[CoordinatorInstruction]]:
        """Return the sequence of a request, or why it cannot be one of it."""
        known = self._known.get((client, message.sequence))
        what = f"sequence {message.sequence} of model {plan.model[:8]}"
        if not plan.state:
            return (Fault.INPUT, f"{what}: its plan was asked for without state; prepare the model with it"), []
        if known is not None and known.is_open:
            # Who has heard the first answer to a request that arrived twice need not know of the second, nor who asks for the same again.
            fault = Fault.BUSY if known.is_repeated or message.step <= known.steps else Fault.INPUT
            return (fault, f"{what}: its request before is not answered yet; they run one after the other"), []
        if message.reads and (not message.step or message.inputs):
            return (Fault.INPUT, f"{what}: its state is read after a request of it, and without inputs"), []
        # Its client has not heard the answer, or it arrives twice.
        again = known is not None and message.step == known.steps - 1
        if not message.step:
            done = [] if known is None else self._end(known)
            sequence = Sequence(next(self._loading.epochs), client, message.sequence, plan.key, plan.model, now, [], is_repeated=again)
            return self._enter(sequence, now), [*done, *self._make_room()]
        if known is None:
            return (Fault.STATE_LOST, f"{what}: the coordinator does not know it, or not any more; begin it again"), []
        known.is_repeated = again
        if again:
            known.steps -= 1
            if known.given is not None:
                self._kept -= known.given.pop().price
        if message.step != known.steps or plan.key != known.plan:
            return (Fault.INPUT, f"{what}: expected request {known.steps} of it, on the plan of the first one; got {message.step}"), []
        return self._enter(known, now), []

    def take(self, client: RoutingId, message: ForkSequence | EndSequence, now: float) -> list[CoordinatorInstruction]:
        """Do what a client wants of a sequence besides requests."""
        if isinstance(message, ForkSequence):
            return self._fork(client, message, now)
        # A request of it that runs is answered all the same.
        known = self._known.get((client, message.sequence))
        return [] if known is None else self._end(known)

    def _fork(self, client: RoutingId, message: ForkSequence, now: float) -> list[CoordinatorInstruction]:
        """Let another sequence go on from where one is; if that is not known, the other one's next request is told so."""
        known, taken = (self._known.get((client, name)) for name in (message.sequence, message.other))
        if known is None or (taken is not None and taken.is_open) or message.sequence == message.other:
            return []
        done = [] if taken is None else self._end(taken)
        given = None if known.given is None else list(known.given)
        other = replace(known, number=next(self._loading.epochs), name=message.other, given=given, is_open=False, used=now)
        other.go_back()
        self._enter(other, now)
        other.is_open = False
        self._kept += sum(each.price for each in given or ())
        shared = [KeepState(known.epoch, known.number, other.number)] if self._loading.by_epoch.get(known.epoch) is not None else []
        self._forget_inputs()
        return [*done, *shared, *self._make_room()]

    def overdue(self, now: float) -> list[CoordinatorInstruction]:
        """Forget what is idle for long."""
        idle = [s for s in self._known.values() if not s.is_open and now - s.used > IDLE_S]
        return [instruction for sequence in idle for instruction in self._end(sequence)]

    def _enter(self, sequence: Sequence, now: float) -> Sequence:
        """Let a sequence be the one used last."""
        key = sequence.client, sequence.name
        self._known.pop(key, None)
        self._known[key] = sequence
        sequence.used, sequence.is_open, sequence.losses = now, True, 0
        return sequence

    def _make_room(self) -> list[CoordinatorInstruction]:
        """End the sequence that is idle for longest of the client that has most: who has few keeps them."""
        if len(self._known) <= MAX_SEQUENCES:
            return []
        most, _ = Counter(sequence.client for sequence in self._known.values()).most_common(1)[0]
        idle = next((s for s in self._known.values() if s.client == most and not s.is_open), None)
        return [] if idle is None else self._end(idle)

    def _end(self, sequence: Sequence) -> list[CoordinatorInstruction]:
        self._known.pop((sequence.client, sequence.name), None)
        self._drop_inputs(sequence)
        return self._left_behind(sequence)

    def _left_behind(self, sequence: Sequence) -> list[CoordinatorInstruction]:
        return [KeepState(sequence.epoch, sequence.number)] if self._loading.by_epoch.get(sequence.epoch) is not None else []

    # --- where they run -----------------------------------------------------------------------------------------------------------

    def home(self, sequence: Sequence) -> Variant | None:
        """Return the variant that has the state, if it can be reached or will be soon."""
        home = self._loading.by_epoch.get(sequence.epoch)
        return home if home is not None and home.is_ready and _has_state(home, sequence) and not home.plan.quarantine else None

    def homes(self, epoch: int) -> int:
        """Return how many sequences have their state on a variant."""
        return sum(sequence.epoch == epoch for sequence in self._known.values())

    def is_left_by(self, request: int) -> bool:
        """Whether a run that was answered leaves a state that is wanted: agents may compute it for longer than the outputs."""
        return any(sequence.state == request for sequence in self._known.values())

    def is_lost(self, sequence: Sequence, now: float) -> bool:
        """Whether the state is gone, or was being made anew, and what it was made of is gone, too."""
        if not sequence.steps or sequence.given is not None:
            return False
        return sequence.seen < sequence.steps or (self.home(sequence) is None and not self.waits_for_home(sequence, now))

    def waits_for_home(self, sequence: Sequence, now: float) -> bool:
        """Whether the state cannot be made anew, and may still be where nothing runs now: an agent is silent, or its plan not run."""
        home = self._loading.by_epoch.get(sequence.epoch)
        if home is None or sequence.given is not None or not _has_state(home, sequence):
            return False
        return bool(home.plan.quarantine) if home.is_ready else bool(home.away) and now - min(home.away.values()) <= BACK_WITHIN_S

    def start(self, request: Request, sequence: Sequence, variant: Variant) -> list[CoordinatorInstruction]:
        """Run on a variant what comes next of a sequence: an old request while its state is made anew, then this one."""
        left: list[CoordinatorInstruction] = []
        if not _has_state(variant, sequence):
            left = self._left_behind(sequence) if sequence.epoch != variant.epoch else []
            sequence.place(variant.epoch)
        sequence.go_back()
        again = (sequence.given or [])[sequence.seen :]
        is_own = not again
        reads = is_own and request.message.reads
        given, sequence.running = given_of(request.message), 0 if reads else 1
        if again:
            given, sequence.running = joined(again, variant.planned.artifacts.joinings if sequence.joins else {})
            counts = self._statistics.of_model(request.plan)
            counts.recovered += sequence.seen == 0
            counts.replayed += sequence.running
        usual = bool(sequence.seen) and is_own
        sequence.arriving_bytes = 0 if usual else sum(map(len, given.payload))
        record = request.message.record and is_own
        begin = StartRequest(variant.epoch, request.number, given.inputs, given.payload, record, sequence.number, sequence.state, reads)
        return [*left, begin]

    def ran(self, request: Request, sequence: Sequence) -> bool:
        """Note that a run has left its state; whether it was that of the request itself, and of no old one."""
        sequence.before = sequence.state, sequence.seen
        sequence.state, sequence.seen = request.number, sequence.seen + sequence.running
        return sequence.seen > sequence.steps or not sequence.running

    def answered(self, request: Request, sequence: Sequence, variant: Variant) -> None:
        """Let a request be part of its sequence, that ended on a variant, if it does not only read its state."""
        message = request.message
        if message.reads:
            return
        variant.went_on += sequence.before[0] > 0
        sequence.steps += 1
        if sequence.given is not None and self._known.get((sequence.client, sequence.name)) is sequence:
            given = RequestInputs(message.inputs, keep(message.payload))
            sequence.given.append(given)
            self._kept += given.price
            self._forget_inputs()

    def lost(self, sequence: Sequence) -> bool:
        """Note that an agent does not have the state; whether it can be made anew."""
        sequence.place(sequence.epoch)  # others may still have their part: they are told to forget it when it is made anew elsewhere
        sequence.losses += 1
        return sequence.losses < MAX_LOSSES and (sequence.given is not None or not sequence.steps)

    # --- inputs -------------------------------------------------------------------------------------------------------------------

    def _forget_inputs(self) -> None:
        """Keep no more than may be kept: what is idle for longest goes first, and of what is being made anew nothing until it is there."""
        for sequence in sorted(self._known.values(), key=lambda s: s.is_open) if self._kept > self.most_kept else ():
            if self._kept <= self.most_kept:
                break
            if not sequence.is_made_anew:
                self._drop_inputs(sequence)

    def _drop_inputs(self, sequence: Sequence) -> None:
        self._kept -= sum(each.price for each in sequence.given or ())
        sequence.given = None


def fits(variant: Variant, sequence: Sequence, request: Request) -> bool:
    """Whether a variant runs all requests of a sequence, from its beginning or, if it has its state, from there on."""
    artifacts = variant.planned.artifacts
    if artifacts.further is None or (request.message.reads and artifacts.reading is None):
        return False
    at_home = _has_state(variant, sequence)
    if sequence.steps and sequence.given is None and not at_home:
        return False
    coming = sequence.coming(request.message, at_home=at_home)
    begins = not at_home or not sequence.seen
    return all(_takes(artifacts.host if begins and not n else artifacts.further, given.inputs) for n, given in enumerate(coming))


def _has_state(variant: Variant, sequence: Sequence) -> bool:
    """Whether a variant has a sequence's state; a worker that ended since has taken it along, and that says nothing about room."""
    return sequence.epoch == variant.epoch and 0 < sequence.state >= variant.emptied


def _takes(schedule: Schedule, inputs: List[TensorHeader]) -> bool:
    """Whether a program is for inputs of these shapes."""
    specs = [schedule.buffers[buffer] for buffer in schedule.feeds]
    return len(specs) == len(inputs) and all(
        spec.shape is None or spec.shape == header.shape for spec, header in zip(specs, inputs, strict=True)
    )
