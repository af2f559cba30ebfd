"""The executor on the in-process data plane: what runs when, and what is dropped."""

import itertools
import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from bbgrap_agent import early_messages
from bbgrap_agent.deployment import Deployment
from bbgrap_agent.executor import Executor

from bbgrap.graph.types import DType
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import Peer, Recorded, RequestFailed
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalPart, LocalReceive, LocalRun, LocalSend, Schedule
from bbgrap.transport.framing import Arrival
from tests.inproc import InprocNetwork

ROW = BufferSpec("row", DType.FLOAT, (2,))
HOST, PEER = 2, 1


class Bench:
    """An executor as device 0 beside a peer and a host that the test plays."""

    def __init__(self, kernel=lambda inputs: [inputs[0] + inputs[1]]):
        network = InprocNetwork()
        self.plane, self.peer, self.host = network.plane(), network.plane(), network.plane()
        self.failures = []
        self.ran = []
        self.records = []
        self.clock = itertools.count(0, 10)
        self.executor = Executor(
            self.plane,
            lambda said: (self.records if isinstance(said, Recorded) else self.failures).append(said),
            lambda: next(self.clock),
        )
        self.peer.connect(self.plane.address)
        self.host.connect(self.plane.address)
        schedule = Schedule(
            0,
            HOST,
            (ROW, ROW, ROW),
            (
                LocalReceive(1, HOST, (0,)),
                LocalReceive(2, PEER, (1,)),
                LocalRun(0, (0, 1), (2,)),
                LocalSend(3, HOST, (LocalPart(2, None),)),
            ),
        )

        def segment(inputs):
            self.ran.append(float(inputs[0][0]))
            return kernel(inputs)

        self.schedule, self.segment = schedule, segment
        self.peers = {n: Peer(n, "", plane.address) for n, plane in enumerate((self.plane, self.peer, self.host))}
        self.executor.install(Deployment(7, schedule, SlicePlan(schedule), self.peers, (segment,), ("first",)))

    def send(self, sender, source, request, message, value, epoch=7):
        sender.send(
            self.plane.address, Frame(Kind.DATA, source, epoch, request, message).to_bytes(), np.full(2, value, np.float32).data.cast("B")
        )

    def step(self):
        """Do what the loop does, until nothing is left to do."""
        while True:
            arrival = self.plane.receive(0)
            if arrival is not None:
                self.executor.accept(arrival)
            elif not any(running.can_go_on for running in self.executor._running.values()):
                return
            self.executor._advance()

    def answers(self):
        came = {}
        while (arrival := self.host.receive(0)) is not None:
            came[Frame.parse(arrival.header).request] = np.frombuffer(arrival.payload, np.float32).tolist()
        return came


def test_a_request_runs_when_its_messages_are_there():
    bench = Bench()
    bench.send(bench.host, HOST, 1, 1, 10)
    bench.step()
    assert bench.answers() == {}
    bench.send(bench.peer, PEER, 1, 2, 1)
    bench.step()
    assert bench.answers() == {1: [11, 11]}
    assert bench.executor._running == {}


def test_a_neighbour_may_be_faster_than_the_host():
    bench = Bench()
    bench.send(bench.peer, PEER, 1, 2, 1)
    bench.step()
    assert bench.ran == []
    bench.send(bench.host, HOST, 1, 1, 10)
    bench.step()
    assert bench.answers() == {1: [11, 11]}
    assert bench.executor._early.nbytes == 0


def test_the_oldest_request_that_can_go_on_does():
    bench = Bench()
    for request in (1, 2, 3):
        bench.send(bench.host, HOST, request, 1, request)
    bench.send(bench.peer, PEER, 3, 2, 0)
    bench.step()
    assert bench.ran == [3]
    bench.send(bench.peer, PEER, 2, 2, 0)
    bench.send(bench.peer, PEER, 1, 2, 0)
    for _ in range(2):
        bench.executor.accept(bench.plane.receive(0))
    bench.step()
    assert bench.ran == [3, 1, 2]


def test_a_kernel_error_fails_the_request_and_nothing_else():
    def kernel(inputs):
        if inputs[0][0] == 5:
            raise RuntimeError("bad\n  luck")
        return [inputs[0]]

    bench = Bench(kernel)
    for request, value in ((1, 5), (2, 6)):
        bench.send(bench.host, HOST, request, 1, value)
        bench.send(bench.peer, PEER, request, 2, 0)
    bench.step()
    assert bench.failures == [RequestFailed(7, 1, "segment 'first': bad luck")]
    assert bench.answers() == {2: [6, 6]}


def test_a_kernel_that_breaks_the_plan_fails_the_request():
    bench = Bench(lambda inputs: [inputs[0][:1]])
    bench.send(bench.host, HOST, 1, 1, 5)
    bench.send(bench.peer, PEER, 1, 2, 0)
    bench.step()
    (failed,) = bench.failures
    assert "the plan says float[2], the kernel gave float32[1]" in failed.reason


def test_dropped_requests_and_removed_deployments_are_forgotten():
    bench = Bench()
    bench.send(bench.host, HOST, 1, 1, 10)
    bench.send(bench.host, HOST, 2, 1, 10)
    bench.step()
    bench.executor.drop(7, 1)
    bench.send(bench.peer, PEER, 1, 2, 1)
    bench.send(bench.host, HOST, 1, 1, 10)
    bench.step()
    assert bench.ran == []
    bench.executor.remove(7)
    bench.send(bench.peer, PEER, 2, 2, 1)
    bench.step()
    assert bench.ran == []
    assert bench.executor._running == {}


def test_what_is_void_is_not_begun_when_it_comes_late():
    bench = Bench()
    bench.executor.drop_before(2)
    for request in (1, 2):
        bench.send(bench.host, HOST, request, 1, 10)
        bench.send(bench.peer, PEER, request, 2, 1)
    bench.step()
    assert bench.ran == [10]
    assert bench.executor._running == {}


def test_early_messages_of_one_sender_push_out_its_own_only(monkeypatch):
    monkeypatch.setattr(early_messages, "MAX_SENDER_BYTES", 20_000)
    bench = Bench()
    bench.send(bench.peer, PEER, 500, 2, 1)
    bench.step()
    for request in range(100):  # the same device, it says, but over a connection from elsewhere
        header = Frame(Kind.DATA, PEER, 7, request, 2).to_bytes()
        bench.executor.accept(Arrival(header, np.ones(2, np.float32).data.cast("B"), "6.6.6.6"))
    assert bench.executor._early.nbytes < 30_000
    assert [(failed.epoch, failed.request) for failed in bench.failures] == [(7, request) for request in range(len(bench.failures))]
    assert "busy" in bench.failures[0].reason
    bench.send(bench.host, HOST, 500, 1, 10)
    bench.step()
    assert bench.answers() == {500: [11, 11]}


def test_a_deployment_is_ready_while_a_kernel_runs():
    """It is said to be loaded at once: what comes of that is neither refused nor dropped, and waits for the kernel only."""
    running, go_on = threading.Event(), threading.Event()

    def kernel(inputs):
        running.set()
        assert go_on.wait(60)
        return [inputs[0] + inputs[1]]

    bench = Bench(kernel)
    thread = threading.Thread(target=bench.executor.run)
    thread.start()
    try:
        bench.send(bench.host, HOST, 1, 1, 10)
        bench.send(bench.peer, PEER, 1, 2, 1)
        assert running.wait(60)
        bench.executor.install_soon(replace(bench.executor._deployments[7], epoch=8))
        assert bench.executor._admits(Frame(Kind.DATA, HOST, 8, 2, 1).to_bytes(), ROW.dtype.numpy.itemsize * 2, "")
        bench.send(bench.host, HOST, 2, 1, 20, epoch=8)
        bench.send(bench.peer, PEER, 2, 2, 2, epoch=8)
        go_on.set()
        came, until = {}, time.monotonic() + 60
        while len(came) < 2 and time.monotonic() < until:
            came |= bench.answers()
            time.sleep(0.01)
    finally:
        go_on.set()
        bench.executor.stop()
        thread.join()
    assert came == {1: [11, 11], 2: [22, 22]}
    assert not bench.executor._coming


def test_data_for_an_epoch_that_is_not_deployed_is_not_kept():
    bench = Bench()
    for request in range(100):
        bench.send(bench.peer, PEER, request, 2, 1, epoch=8)
    bench.step()
    assert bench.executor._early.nbytes == 0


def test_requests_that_run_are_bounded(monkeypatch):
    monkeypatch.setattr("bbgrap_agent.executor.MAX_RUNNING", 13)
    monkeypatch.setattr("bbgrap_agent.executor.MAX_RUNNING_IN_ALL", 20)
    bench = Bench()
    bench.executor.install(replace(bench.executor._deployments[7], epoch=8))
    bench.executor.install(replace(bench.executor._deployments[7], epoch=9))
    for epoch in (7, 8):
        for request in range(14):
            bench.send(bench.host, HOST, request, 1, 1, epoch=epoch)
    bench.step()
    assert sorted(bench.executor._running) == [*((7, request) for request in range(13)), *((8, request) for request in range(7))]
    assert [(failed.epoch, failed.request) for failed in bench.failures] == [(7, 13), *((8, request) for request in range(7, 14))]
    assert bench.failures[0].reason == "busy: 13 requests run on this agent"
    bench.send(bench.host, HOST, 13, 1, 1)
    bench.step()
    assert len(bench.failures) == 8, "it is told once"
    bench.send(bench.peer, PEER, 0, 2, 1)
    bench.send(bench.host, HOST, 99, 1, 1)
    bench.step()
    assert bench.answers() == {0: [2, 2]}
    assert (7, 99) in bench.executor._running


def test_a_broken_link_is_told_of():
    network, told = InprocNetwork(), []
    plane = network.plane()
    Executor(plane, lambda said: None, on_broken=lambda *broken: told.append(broken))
    plane.on_broken("tcp://there:1", "why")
    assert told == [("tcp://there:1", "why")]


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"", b""),
        (b"x" * 32, b"y"),
        (Frame(Kind.DATA, PEER, 7, 1, 99).to_bytes(), b""),
        (Frame(Kind.DATA, PEER, 7, 1, 1).to_bytes(), bytes(8)),
        (Frame(Kind.DATA, HOST, 7, 1, 1).to_bytes(), bytes(7)),
        (Frame(Kind.DATA, HOST, 8, 1, 1).to_bytes(), bytes(8)),
        (Frame(Kind.PING, 5, 0, 1, 100).to_bytes(), b"tcp://elsewhere:1"),
        (Frame(Kind.PONG, 5, 0, 1, 100).to_bytes(), b""),
    ],
)
def test_what_nobody_expects_is_dropped(header, payload, caplog):
    bench = Bench()
    for _ in range(3):
        bench.peer.send(bench.plane.address, header, payload)
    bench.step()
    assert bench.ran == []
    assert bench.failures == []
    assert len(caplog.records) <= 1
    bench.send(bench.host, HOST, 2, 1, 10)
    bench.send(bench.peer, PEER, 2, 2, 1)
    bench.step()
    assert bench.answers() == {2: [11, 11]}


def test_pings_of_known_peers_are_answered_with_the_size_they_ask_for():
    bench = Bench()
    bench.executor.pings.allow([Peer(1, "b", bench.peer.address)])
    bench.peer.send(bench.plane.address, Frame(Kind.PING, 0, 0, 5, 1000).to_bytes(), bench.peer.address.encode())
    bench.step()
    answer = bench.peer.receive(0)
    assert Frame.parse(answer.header) == Frame(Kind.PONG, 0, 0, 5, 0)
    assert len(answer.payload) == 1000


def test_only_payloads_that_the_schedule_has_get_memory():
    bench = Bench()

    peer = Peer(PEER, "b", bench.peer.address)

    def admitted(size, kind=Kind.DATA, source=PEER, epoch=7, message=2):
        return bench.plane.admit(Frame(kind, source, epoch, 1, message).to_bytes(), size, "")

    assert admitted(8)
    assert not any([admitted(9), admitted(8, source=HOST), admitted(8, epoch=8), admitted(8, message=3), admitted(8, Kind.PONG)])
    assert not bench.plane.admit(b"x", 8, "")
    bench.executor.begin_pings([peer])
    bench.executor.send_ping(peer, 1, 1000, lambda number: None)
    assert admitted(1000, Kind.PONG)
    bench.executor.end_pings([peer], [1])
    assert not admitted(1000, Kind.PONG)


class LockedBench(Bench):
    """The same where each device has a fingerprint, and the connection that a message came over is said by the test."""

    def __init__(self):
        super().__init__()
        self.executor.remove(7)
        prints = ("mine", "peer's", "host's")
        peers = {device: replace(peer, fingerprint=prints[device]) for device, peer in self.peers.items()}
        self.executor.install(Deployment(8, self.schedule, SlicePlan(self.schedule), peers, (self.segment,), ("first",)))

    def come(self, peer, kind, source, message=0, content=b"", request=1):
        self.executor.accept(Arrival(Frame(kind, source, 8, request, message).to_bytes(), content, "somewhere", peer))
        self.step()


def test_a_message_counts_only_over_the_connection_of_the_device_that_it_claims_to_be_of(caplog):
    row = np.ones(2, np.float32).tobytes()
    bench = LockedBench()
    for kind in (Kind.START, Kind.RECORD, Kind.DATA):
        for forger in ("peer's", "mine", "", "stranger"):
            bench.come(forger, kind, HOST, 1, row if kind is Kind.DATA else b"")
    assert not bench.executor._running
    bench.come("host's", Kind.DATA, HOST, 1, row)
    for forger in ("host's", "mine", ""):
        bench.come(forger, Kind.DATA, PEER, 2, row)
        bench.come(forger, Kind.DATA, PEER, 2, row, request=2)  # too early, so it would be kept
    assert bench.ran == []
    assert bench.executor._early.nbytes == 0
    assert "claims to be of device" in caplog.text
    bench.come("peer's", Kind.DATA, PEER, 2, row)
    assert bench.ran == [1.0]
    assert bench.answers() == {1: [2, 2]}
    header = Frame(Kind.DATA, PEER, 8, 3, 2).to_bytes()
    assert bench.plane.admit(header, 8, "peer's")
    assert not bench.plane.admit(header, 8, "host's")


def test_only_who_was_asked_gives_a_pong():
    bench, heard = LockedBench(), []
    bench.executor.send_ping(Peer(PEER, "b", bench.peer.address, "peer's"), 5, 100, heard.append)
    header = Frame(Kind.PONG, 0, 0, 5, 0).to_bytes()
    assert not bench.plane.admit(header, 100_000, "host's")
    assert bench.plane.admit(header, 100_000, "peer's")
    for peer in ("host's", "", "peer's", "peer's"):
        bench.executor.accept(Arrival(header, bytes(100), "somewhere", peer))
        assert heard == ([5] if peer == "peer's" else [])


def test_a_clock_is_that_of_the_host():
    bench = LockedBench()
    bench.come("host's", Kind.RECORD, HOST)
    clock = (5).to_bytes(8, "little")
    bench.come("peer's", Kind.CLOCK, HOST, 0, clock)
    assert bench.host.receive(0) is None
    bench.come("host's", Kind.CLOCK, HOST, 0, clock)
    assert Frame.parse(bench.host.receive(0).header).kind is Kind.CLOCK
