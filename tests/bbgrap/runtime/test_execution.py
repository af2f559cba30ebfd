"""An execution joins what is there while it waits, and the result does not depend on what came when."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.graph.types import DType
from bbgrap.runtime.execution import Execution, SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule

ROW = BufferSpec("row", DType.FLOAT, (2,))
BOTH = BufferSpec("both", DType.FLOAT, (4,))
ALL = BufferSpec("all", DType.FLOAT, (6,))


def at(start, stop):
    return (((start, stop),),)


SCHEDULE = Schedule(
    0,
    2,
    (ROW, ROW, ROW, ALL, BOTH, ALL),
    (
        LocalReceive(1, 2, (0,)),
        LocalReceive(2, 1, (1,)),
        LocalReceive(3, 1, (2,)),
        LocalJoin(3, ((LocalPart(0, None), at(0, 2)), (LocalPart(1, None), at(2, 4)), (LocalPart(2, at(0, 2)), at(4, 6)))),
        LocalJoin(4, ((LocalPart(3, at(1, 5)), None),)),
        LocalRun(0, (3, 4), (5,)),
        LocalSend(4, 2, (LocalPart(5, None),)),
    ),
)


class Counting(SlicePlan):
    """A slice plan that counts the joined arrays that were begun, and the pieces that were put there."""

    def __init__(self, schedule):
        super().__init__(schedule)
        self.begun = 0
        self.placed = []

    def begin(self, step):
        self.begun += 1
        return super().begin(step)

    def copier(self, step, part, box):
        copy = super().copier(step, part, box)

        def counted(joined, array):
            self.placed.append(part.buffer)
            copy(joined, array)

        return counted


@given(st.permutations([1, 2, 3]), st.lists(st.booleans(), min_size=3, max_size=3))
def test_pieces_are_copied_once_as_soon_as_there_is_time(order, advance):
    slices, sent = Counting(SCHEDULE), []
    execution = Execution(SCHEDULE, slices=slices)

    def kernel(segment, inputs):
        assert inputs[1].tolist() == inputs[0][1:5].tolist()
        return [inputs[0] * 10]

    def send(step, arrays):
        sent.append(arrays[5].tolist())

    there = set()
    for message, now in zip(order, advance, strict=True):
        execution.deliver(message, [np.full(2, message, np.float32)])
        there.add(message)
        if not now:
            continue
        finished = execution.advance(kernel, send)
        assert finished == (len(there) == 3)
        # Messages are taken in order, so those behind a missing one wait.
        taken = next((m - 1 for m in (1, 2, 3) if m not in there), 3)
        assert slices.placed == list(range(taken))
    execution.advance(kernel, send)
    assert sent == [[10.0, 10.0, 20.0, 20.0, 30.0, 30.0]]
    assert slices.begun == 1
    assert slices.placed == [0, 1, 2]


def test_only_joins_that_the_next_kernel_waits_for_are_begun():
    join = LocalJoin(3, ((LocalPart(1, None), at(0, 2)), (LocalPart(2, None), at(2, 4))))
    steps = (LocalReceive(1, 1, (0,)), LocalRun(0, (0,), (1,)), LocalReceive(2, 1, (2,)), join)
    assert [len(joins) for joins in SlicePlan(Schedule(0, 2, (ROW, ROW, ROW, BOTH), steps)).ahead] == [0, 0, 0, 0]
    steps = (*steps, LocalRun(1, (3,), (4,)))
    assert [len(joins) for joins in SlicePlan(Schedule(0, 2, (ROW, ROW, ROW, BOTH, BOTH), steps)).ahead] == [0, 0, 1, 1, 0]
