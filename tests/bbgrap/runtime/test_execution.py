"""What an execution makes does not depend on what came when."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bbgrap.graph.types import DType
from bbgrap.runtime.execution import Execution
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


@given(st.permutations([1, 2, 3]), st.lists(st.booleans(), min_size=3, max_size=3))
def test_messages_may_come_in_any_order(order, advance):
    sent = []
    execution = Execution(SCHEDULE)

    def kernel(segment, inputs):
        assert inputs[1].tolist() == inputs[0][1:5].tolist()
        return [inputs[0] * 10]

    def send(step, arrays):
        sent.append(arrays[5].tolist())

    there = set()
    for message, now in zip(order, advance, strict=True):
        execution.deliver(message, [np.full(2, message, np.float32)])
        there.add(message)
        if now:
            assert execution.advance(kernel, send) == (len(there) == 3)
    execution.advance(kernel, send)
    assert sent == [[10.0, 10.0, 20.0, 20.0, 30.0, 30.0]]
