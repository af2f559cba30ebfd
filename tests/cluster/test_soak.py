"""Many requests at once: none is lost, and every answer is its own (the whole soak: `benchmarks/soak.py`)."""

import pytest

from bbgrap.errors import ExecutionError
from benchmarks.soak import SMOOTH, Soak, soak

pytestmark = pytest.mark.cluster


class Answering:
    """Stands in for a session."""

    def __init__(self, answer):
        self.answer = answer

    def get_inputs(self):
        return [type("Input", (), {"name": "x"})]

    def run(self, names, feeds):
        return [self.answer(feeds["x"])]


def test_three_hundred_requests_32_at_once(pair):
    found = soak(pair, requests=300, in_flight=32, warm_up=100)
    assert (found["answered"], found["lost"], found["faults"]) == (300, 0, [])
    assert found["resident_bytes"].keys() == {"client", "coordinator", "agent0", "agent1"}


def test_a_stranger_s_answer_is_found():
    first = SMOOTH.answer(SMOOTH.feed(0))
    work = Soak(Answering(lambda x: first), SMOOTH)
    work.run(3, in_flight=2)
    assert (work.answered, work.failed) == (1, 2)
    assert sorted(work.faults) == ["request 1: the answer is not its own", "request 2: the answer is not its own"]


def test_a_lost_request_is_counted():
    def fail(x):
        raise ExecutionError("gone")

    work = Soak(Answering(fail), SMOOTH)
    work.run(2, in_flight=1)
    assert (work.answered, work.faults) == (0, ["request 0: ExecutionError: gone", "request 1: ExecutionError: gone"])
