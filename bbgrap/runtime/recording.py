"""When each step of a request was done, on one device: what is noted while it runs, and how the clocks of two machines compare.

    reached      started                 stopped
       | waiting    | receiving, computing, sending |         one step; only a receive has to wait

Nothing here reads a clock: it is given. A request that is not recorded is an `Execution` and pays nothing for this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Literal

from bbgrap.graph.types import Array, TensorType
from bbgrap.runtime.execution import Execution, Kernel, SendParts, SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalReceive, LocalRun, LocalSend, LocalStep, Schedule, part_shape

Clock = Callable[[], int]
"""Nanoseconds since some moment, never going back."""

MAX_STEPS = 100_000
"""Steps of one record: a bound on what is taken from the network; a schedule of GPT-2 over eight nodes has about 3,000."""

MAX_LABEL = 160
"""Characters of a step's name; longer ones end in `...`."""


@dataclass(frozen=True, slots=True)
class StepLabel:
    """What a step is: `number` is that of the segment or the message, `peer` the other device of a message, `bytes` what it carries.

    `bytes` of what is received are those that came; of what is sent those that the schedule says, 0 where only the run tells. A `LocalJoin`
    is a computation without a number.
    """

    lane: Literal["compute", "send", "receive"]
    name: str
    number: int | None = None
    peer: int | None = None
    bytes: int = 0


@dataclass(frozen=True, slots=True)
class Record:
    """One request on one device: for each step when it was reached, started and stopped, in nanoseconds of one clock.

    `clock_error_ns` says how far that clock may be from the coordinator's.
    """

    device: int
    labels: tuple[StepLabel, ...]
    times: tuple[tuple[int, int, int], ...]
    clock_error_ns: int = 0

    def moved(self, trip: RoundTrip) -> Record:
        """Return the record in the time of the clock that was asked; what would lie before its beginning is put there."""
        offset = trip.offset_ns
        times = tuple((max(0, a + offset), max(0, b + offset), max(0, c + offset)) for a, b, c in self.times)
        return replace(self, times=times, clock_error_ns=trip.error_ns)


def check_record(record: Record) -> tuple[str, ...]:
    """List every way in which a record that came from elsewhere is none."""
    if len(record.labels) != len(record.times) or len(record.times) > MAX_STEPS:
        return (f"device {record.device}: expected as many labels as times, at most {MAX_STEPS}",)
    if any(later < earlier for earlier, later in pairwise(chain.from_iterable(record.times))):
        return (f"device {record.device}: its steps do not follow each other in time",)
    return ()


class RecordedExecution(Execution):
    """An execution that notes when it does what.

    Invariants: `times` has an entry for every step before `position`.
    """

    def __init__(self, schedule: Schedule, clock: Clock, feeds: Sequence[Array] = (), slices: SlicePlan | None = None) -> None:
        """Start before the first step, as an `Execution` does."""
        super().__init__(schedule, feeds, slices)
        self.times: list[tuple[int, int, int]] = []
        self._clock = clock
        self._reached: int | None = None
        self._came: dict[int, int] = {}
        """Bytes of tensors by message."""

    def deliver(self, message: int, parts: Sequence[Array]) -> None:
        """Hand over a message that arrived, and note its size."""
        super().deliver(message, parts)
        self._came.setdefault(message, sum(part.nbytes for part in parts))

    def advance(self, kernel: Kernel, send: SendParts, *, limit: int | None = None) -> bool:
        """Do as an `Execution` does, step by step."""
        stop = len(self.schedule.steps) if limit is None else min(len(self.schedule.steps), self.position + limit)
        while self.position < stop:
            before, started = self.position, self._clock()
            if self._reached is None:
                self._reached = started
            super().advance(kernel, send, limit=1)
            if self.position == before:
                return False
            self.times.append((self._reached, started, self._clock()))
            self._reached = None
        return self.finished

    def record(self, labels: Sequence[StepLabel]) -> Record:
        """Return what was noted, once finished; `labels` are those of the schedule."""
        came = (replace(label, bytes=self._came[label.number or 0]) if label.lane == "receive" else label for label in labels)
        return Record(self.schedule.device, tuple(came), tuple(self.times))


@dataclass(frozen=True, slots=True)
class RoundTrip:
    """A question to another clock: sent and answered in nanoseconds of the own one, in between the other one showed `theirs_ns`.

    The other clock was read somewhere between, so half of the way there and back bounds the error (the rule of NTP, RFC 5905 section 8).
    """

    sent_ns: int
    theirs_ns: int
    came_ns: int

    @property
    def offset_ns(self) -> int:
        """What to add to the own clock for the other one."""
        return self.theirs_ns - (self.sent_ns + self.came_ns) // 2

    @property
    def error_ns(self) -> int:
        """How far the offset may be wrong."""
        return (self.came_ns - self.sent_ns + 1) // 2 + 1


def labels_of(schedule: Schedule, segments: Sequence[str] = ()) -> tuple[StepLabel, ...]:
    """Return what the steps of a schedule are; `segments` are the names of its segments, in order."""
    return tuple(_label(schedule, step, segments) for step in schedule.steps)


def _label(schedule: Schedule, step: LocalStep, segments: Sequence[str]) -> StepLabel:
    buffers = schedule.buffers
    match step:
        case LocalReceive():
            specs = [buffers[b] for b in step.buffers]
            size = sum(TensorType(spec.dtype, spec.shape).nbytes for spec in specs)
            return StepLabel("receive", _names(specs), step.message, step.source, size)
        case LocalSend():
            specs = [buffers[part.buffer] for part in step.parts]
            size = sum(TensorType(spec.dtype, part_shape(spec, part)).nbytes for spec, part in zip(specs, step.parts, strict=True))
            return StepLabel("send", _names(specs), step.message, step.destination, size)
        case LocalRun():
            made = _names([buffers[b] for b in step.outputs])
            return StepLabel("compute", _short(f"{segments[step.segment]}: {made}"), step.segment)
        case LocalJoin():
            return StepLabel("compute", _short(f"join: {buffers[step.output].name}"))


def _names(specs: Sequence[BufferSpec]) -> str:
    return _short(", ".join(dict.fromkeys(spec.name for spec in specs)))


def _short(name: str) -> str:
    return name if len(name) <= MAX_LABEL else f"{name[: MAX_LABEL - 3]}..."
