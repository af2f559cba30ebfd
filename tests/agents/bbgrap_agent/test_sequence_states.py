"""What stays on an agent between the requests of a sequence."""

import numpy as np
import pytest
from bbgrap_agent.deployment import Deployment
from bbgrap_agent.executor import Executor
from bbgrap_agent.sequence_states import SequenceStates, bytes_for_states

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import DType
from bbgrap.protocol.data import Frame, Kind, SequenceStart, pack_number, unpack_number
from bbgrap.protocol.messages import Peer, RequestFailed
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule
from tests.inproc import InprocNetwork

ROW = BufferSpec("row", DType.FLOAT, (2,))
HOST = 1


def row(value):
    return (np.full(2, value, np.float32),)


@pytest.mark.parametrize(("asked", "memory_bytes", "room"), [(0, 4 << 30, 1 << 30), (0, 1, 0), (5, 1, 5)])
def test_states_take_a_part_of_the_memory_however_little_that_is(asked, memory_bytes, room):
    assert bytes_for_states(asked, memory_bytes) == room


def test_a_request_that_was_interrupted_is_repeated_from_the_last_whole_state():
    states = SequenceStates()
    states.keep((7, 1), 10, row(1))
    assert states.begin((7, 1), 10)[0].tolist() == [1, 1]
    states.keep((7, 1), 11, row(2))  # it ended here, and elsewhere did not
    assert states.begin((7, 1), 10)[0].tolist() == [1, 1]
    states.keep((7, 1), 12, row(3))
    assert states.begin((7, 1), 12)[0].tolist() == [3, 3]
    assert states.begin((7, 1), 10) is None
    assert states.nbytes == 0


def test_what_was_used_least_lately_makes_room_and_it_is_said():
    states = SequenceStates(limit=20)
    states.keep((7, 1), 10, row(1))
    states.keep((7, 2), 11, row(1))
    states.begin((7, 1), 10)
    states.keep((7, 3), 12, row(1))
    assert [states.begin((7, sequence), request) is None for sequence, request in ((1, 10), (2, 11), (3, 12))] == [False, True, False]
    assert "made room" in states.why((7, 2))
    assert not states.why((7, 1))
    states.keep((7, 4), 13, (np.zeros(100),))
    assert states.nbytes == 0


def test_a_state_of_more_than_half_of_the_memory_goes_on():
    states = SequenceStates(limit=12)
    states.keep((7, 1), 10, row(1))
    for before in range(10, 13):
        assert states.begin((7, 1), before) is not None
        states.keep((7, 1), before + 1, row(before))
        assert states.nbytes == 8
    assert not states.why((7, 1))
    assert states.begin((7, 1), 12) is None  # what was interrupted is computed anew


def test_a_fork_has_what_its_origin_has_without_a_copy():
    states = SequenceStates()
    (kept,) = row(1)
    states.keep((7, 1), 10, (kept,))
    states.share((7, 1), 2)
    states.share((7, 1), 0)
    assert states.begin((7, 1), 10) is None
    assert states.begin((7, 2), 10)[0] is kept
    states.drop_all(7)
    assert states.nbytes == 0


@pytest.mark.parametrize("payload", [b"", b"short", bytes(17), bytes([1, *[0] * 15, 2]), b"\xff" * 17])
def test_a_start_that_is_none_is_refused(payload):
    with pytest.raises(RemoteProtocolError):
        SequenceStart.parse(payload)
    with pytest.raises(RemoteProtocolError):
        unpack_number(payload)


def test_starts_come_back_as_they_were():
    ends = SequenceStart(2**63 - 1, 2**63 - 1, record=True)
    for start in (SequenceStart(1, 0, record=False), ends, SequenceStart(1, 5, record=False, reads=True)):
        assert SequenceStart.parse(start.to_bytes()) == start
    assert unpack_number(pack_number(5)) == 5


class Bench:
    """An executor as the only device, which adds up, and a host that the test plays."""

    def __init__(self):
        network = InprocNetwork()
        self.plane, self.host, self.stranger = network.plane(), network.plane(), network.plane()
        self.failures = []
        self.executor = Executor(self.plane, self.failures.append)
        self.host.connect(self.plane.address)
        self.stranger.connect(self.plane.address)

        def program(message, *, feeds):
            steps = (LocalReceive(message, HOST, (0,)), LocalRun(int(feeds), (0, 2) if feeds else (0,), (1,)))
            send = LocalSend(message + 1, HOST, (LocalPart(1, None),))
            schedule = Schedule(0, HOST, (ROW, ROW, ROW), (*steps, send), (2,) if feeds else (), (1,))
            peers = {n: Peer(n, "", plane.address) for n, plane in enumerate((self.plane, self.host))}
            segments = (lambda inputs: [inputs[0] + 0], lambda inputs: [inputs[0] + inputs[1]])
            return schedule, SlicePlan(schedule), peers, segments, ("first", "further")

        self.executor.install(Deployment(7, *program(1, feeds=False), further=Deployment(7, *program(3, feeds=True))))

    def run(self, request, sequence, before, value):
        self.begin(request, sequence, before)
        self.give(request, before, value)

    def begin(self, request, sequence, before):
        start = SequenceStart(sequence, before, record=False).to_bytes()
        self.host.send(self.plane.address, Frame(Kind.STATE, HOST, 7, request, 0).to_bytes(), start)
        self.step()

    def give(self, request, before, value):
        header = Frame(Kind.DATA, HOST, 7, request, 3 if before else 1).to_bytes()
        self.host.send(self.plane.address, header, np.full(2, value, np.float32).data.cast("B"))
        self.step()

    def step(self):
        while (arrival := self.plane.receive(0)) is not None:
            self.executor.accept(arrival)
        while any(running.can_go_on for running in self.executor._running.values()):
            self.executor._advance()

    def answers(self):
        came = []
        while (arrival := self.host.receive(0)) is not None:
            came.append(float(np.frombuffer(arrival.payload, np.float32)[0]))
        return came


def test_requests_go_on_from_each_other_and_sequences_do_not_meet():
    bench = Bench()
    bench.run(10, 1, 0, 5)
    bench.run(11, 2, 0, 100)
    bench.run(12, 1, 10, 1)
    bench.run(13, 2, 11, 1)
    bench.run(14, 1, 12, 1)
    assert bench.answers() == [5, 100, 6, 101, 7]


def test_a_request_waits_for_the_state_that_is_still_computed():
    """The host answers when it has the outputs: then a client may send the next request, or fork, before an agent is at its end."""
    bench = Bench()
    bench.begin(10, 1, 0)  # its input is on its way
    bench.host.send(bench.plane.address, Frame(Kind.KEEP, HOST, 7, 1, 0).to_bytes(), pack_number(2))
    bench.run(11, 1, 10, 1)
    bench.run(12, 2, 10, 20)
    assert bench.answers() == bench.failures == []
    bench.give(10, 0, 5)
    assert sorted(bench.answers()) == [5, 6, 25]


def test_a_request_whose_state_is_not_computed_after_all_fails_as_lost():
    bench = Bench()
    bench.begin(10, 1, 0)
    bench.run(11, 1, 10, 1)
    bench.executor.drop(7, 10)
    assert bench.failures == [RequestFailed(7, 11, "the state of sequence 1 is not here", lost=True)]
    bench.begin(12, 1, 0)
    bench.run(13, 1, 12, 1)
    bench.executor.remove(7)
    assert not bench.executor._running
    assert not bench.executor._awaiting
    assert bench.executor._states.nbytes == bench.executor._early.nbytes == 0
    assert len(bench.failures) == 1


def test_a_request_whose_state_is_not_there_fails_as_lost_and_its_messages_are_dropped():
    bench = Bench()
    bench.run(10, 1, 9, 5)
    assert bench.failures == [RequestFailed(7, 10, "the state of sequence 1 is not here", lost=True)]
    assert bench.answers() == []
    assert not bench.executor._running


def test_only_the_host_says_whose_a_state_is():
    bench = Bench()
    bench.run(10, 1, 0, 5)
    forget = Frame(Kind.KEEP, 0, 7, 1, 0).to_bytes()  # of a device that is not the host
    bench.host.send(bench.plane.address, forget, pack_number(0))
    bench.run(11, 1, 10, 1)
    share = Frame(Kind.KEEP, HOST, 7, 1, 0).to_bytes()
    bench.host.send(bench.plane.address, share, pack_number(2))
    bench.run(12, 2, 11, 10)
    bench.run(13, 1, 11, 1)
    assert bench.answers() == [5, 6, 16, 7]
    bench.host.send(bench.plane.address, share, pack_number(0))
    bench.run(14, 1, 13, 1)
    assert bench.failures[-1].request == 14
    bench.executor.remove(7)
    assert bench.executor._states.nbytes == 0
