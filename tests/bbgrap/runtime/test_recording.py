"""What is noted while a schedule runs, and how clocks are compared."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.graph.types import DType
from bbgrap.runtime.execution import Execution
from bbgrap.runtime.recording import MAX_LABEL, MAX_STEPS, Record, RecordedExecution, RoundTrip, StepLabel, check_record, labels_of
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule

ROW = BufferSpec("row", DType.FLOAT, (2,))
UNKNOWN = BufferSpec("u" * 400, DType.FLOAT, None)
SCHEDULE = Schedule(
    0,
    2,
    (ROW, BufferSpec("other", DType.FLOAT, (2,)), ROW, BufferSpec("both", DType.FLOAT, (4,))),
    (
        LocalReceive(1, 2, (0,)),
        LocalReceive(2, 1, (1,)),
        LocalRun(0, (0, 1), (2,)),
        LocalJoin(3, ((LocalPart(0, None), (((0, 2),),)), (LocalPart(2, None), (((2, 4),),)))),
        LocalSend(3, 2, (LocalPart(3, (((1, 4),),)), LocalPart(2, None))),
    ),
)


def kernel(segment, inputs):
    return [inputs[0] + inputs[1]]


def run(execution, order, limits=None):
    sent = []

    def send(step, arrays):
        sent.append((step.message, step.destination, [part.tolist() for part in execution.copies.sent(step, arrays)]))

    for message in order:
        execution.advance(kernel, send, limit=limits)
        execution.deliver(message, [np.full(2, message, np.float32)])
    while not execution.advance(kernel, send, limit=limits):
        pass
    return sent


@given(st.permutations([1, 2]), st.sampled_from([None, 1, 2]))
def test_a_recorded_execution_does_what_any_does_and_notes_when(order, limit):
    ticks = itertools.count(100, 10)
    recorded = RecordedExecution(SCHEDULE, lambda: next(ticks))
    assert run(recorded, order, limit) == run(Execution(SCHEDULE), order, limit)
    record = recorded.record(labels_of(SCHEDULE, ("first",)))
    assert check_record(record) == ()
    assert len(record.times) == len(SCHEDULE.steps)
    waited = [started > reached for reached, started, _ in record.times]
    # Before its message came, the execution stood at the first receive; at the second one only if it came that far before its message.
    assert waited == [True, order[0] == 1 and limit != 1, False, False, False]


def test_without_a_clock_there_is_no_look_at_one():
    assert not hasattr(Execution(SCHEDULE), "times")
    recorded = RecordedExecution(SCHEDULE, lambda: pytest.fail("looked at the clock"))
    assert not recorded.finished


def test_labels_say_what_steps_are():
    assert labels_of(SCHEDULE, ("device0.segment0",)) == (
        StepLabel("receive", "row", 1, 2, 8),
        StepLabel("receive", "other", 2, 1, 8),
        StepLabel("compute", "device0.segment0: row", 0),
        StepLabel("compute", "join: both"),
        StepLabel("send", "both, row", 3, 2, 20),
    )


def test_labels_of_unknown_sizes_and_long_names():
    (label,) = labels_of(Schedule(0, 1, (UNKNOWN,), (LocalReceive(0, 1, (0,)),)))
    assert label.bytes == 0
    assert len(label.name) == MAX_LABEL
    assert label.name.endswith("...")


@given(st.integers(-(10**15), 10**15), st.integers(0, 10**9), st.integers(0, 10**6), st.integers(0, 10**6))
def test_half_a_round_trip_bounds_the_error(offset, sent, there, back):
    trip = RoundTrip(sent, sent + there + offset, sent + there + back)
    assert abs(trip.offset_ns - offset) <= trip.error_ns


def test_records_are_moved_into_the_time_of_the_other_clock():
    record = Record(0, (StepLabel("compute", "s", 0),) * 2, ((10, 10, 20), (20, 20, 40)))
    moved = record.moved(RoundTrip(100, 1105, 110))
    assert moved.times == ((1010, 1010, 1020), (1020, 1020, 1040))
    assert moved.clock_error_ns == 6
    assert record.moved(RoundTrip(100, 80, 100)).times == ((0, 0, 0), (0, 0, 20))


@pytest.mark.parametrize(
    ("labels", "times"),
    [(1, ((0, 1, 2), (2, 2, 3))), (2, ((0, 1, 2), (1, 2, 3))), (1, ((5, 4, 6),)), (MAX_STEPS + 1, ((0, 0, 0),) * (MAX_STEPS + 1))],
)
def test_what_is_no_record_is_seen(labels, times):
    assert check_record(Record(0, (StepLabel("compute", "s"),) * labels, times)) != ()
