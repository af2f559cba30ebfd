"""When a nanny ends its worker."""

import pytest
from bbgrap_agent.progress import WorkerActivity
from bbgrap_agent.worker_timeouts import ALL_APART_S, APART_S, EARLIER_S, LOAD_S, WorkerTimeouts

from bbgrap.compiler.artifacts import SegmentModel, WeightRef
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol.messages import Deploy
from bbgrap.runtime.schedule import Schedule

KERNEL = WorkerActivity(1, 7, since_ns=5, steps=3)
WEIGHT = WeightRef("ab" * 32, TensorType(DType.FLOAT, (100_000_000,)))

DROPPED_S = 0.5


class Looks:
    def __init__(self):
        self.now = 0.0
        self.timeouts = WorkerTimeouts(self.now)

    def until_lost(self, doing, *, at_most_s, stopped=False):
        """Look again and again; return after how long, and why, it is lost."""
        began = self.now
        while self.now - began < at_most_s:
            self.now += 0.1
            if reason := self.timeouts.look(doing, self.now, stopped=stopped):
                return self.now - began, reason
        return None


def test_a_kernel_may_take_for_ever_while_somebody_waits():
    assert Looks().until_lost(KERNEL, at_most_s=1000) is None


def test_a_kernel_of_a_dropped_request_has_half_a_second():
    looks = Looks()
    looks.until_lost(KERNEL, at_most_s=10)
    looks.timeouts.drop(1, 7, DROPPED_S)
    seconds, reason = looks.until_lost(KERNEL, at_most_s=10)
    assert DROPPED_S <= seconds < DROPPED_S + 0.2
    assert reason == "a kernel of request 7 did not end within its deadline"


def test_a_dropped_request_whose_kernels_end_is_let_be():
    looks = Looks()
    looks.timeouts.drop(1, 7, DROPPED_S)
    for step in range(20):
        assert looks.until_lost(WorkerActivity(1, 7, since_ns=step, steps=step), at_most_s=0.4) is None
    assert looks.until_lost(WorkerActivity(1, 8, since_ns=100), at_most_s=10) is None


def test_time_in_which_the_worker_or_this_process_was_stopped_does_not_count():
    looks = Looks()
    looks.timeouts.drop(1, 7, DROPPED_S)
    assert looks.until_lost(KERNEL, at_most_s=30, stopped=True) is None
    assert looks.until_lost(KERNEL, at_most_s=0.05) is None
    looks.now += 30
    assert looks.timeouts.look(KERNEL, looks.now, stopped=False) == ""
    assert looks.until_lost(KERNEL, at_most_s=1) is not None


@pytest.mark.parametrize(
    ("device", "devices", "weights", "allowed"),
    [
        (0, 3, {}, LOAD_S),
        (0, 3, {"w": WEIGHT, "same": WEIGHT}, LOAD_S + 20),
        (2, 3, {}, LOAD_S + 2 * APART_S),
        (19, 20, {}, LOAD_S + 19 / 20 * ALL_APART_S),
    ],
)
def test_a_load_has_time_by_its_weights_and_its_device(device, devices, weights, allowed):
    looks = Looks()
    segment = SegmentModel("s", "cd" * 32, b"", ("x",), ("y",), weights)
    looks.timeouts.allow(Deploy(3, (), Schedule(device, devices, (), ()), (segment,)))
    seconds, reason = looks.until_lost(WorkerActivity(loading=3, loading_since_ns=9), at_most_s=200)
    assert allowed <= seconds < allowed + 0.3
    assert reason == f"the load of epoch 3 did not end within {allowed:.0f} s"


@pytest.mark.parametrize(("patience_s", "expected_s"), [(2.0, 2.0), (60.0, EARLIER_S)])
def test_a_request_of_an_earlier_membership_has_until_its_deadline_if_the_coordinator_knows_it(patience_s, expected_s):
    looks = Looks()
    looks.timeouts.drop_before(8)
    looks.timeouts.drop(1, 7, patience_s)
    seconds, _ = looks.until_lost(KERNEL, at_most_s=100)
    assert expected_s <= seconds < expected_s + 0.3
