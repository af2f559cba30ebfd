"""The host's part of a request, on the in-process data plane."""

import time

import numpy as np
import pytest
from bbgrap_coordinator.host import HostExecutor

from bbgrap.control.coordinator_events import RequestBroke, RequestDone
from bbgrap.control.coordinator_instructions import HostDeploy, StartRequest
from bbgrap.graph.types import DType
from bbgrap.protocol.data import Frame, Kind, unpack_number
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import Peer, TensorHeader
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalPart, LocalReceive, LocalSend, Schedule
from bbgrap.transport.framing import Arrival
from tests.inproc import InprocNetwork

X = np.arange(4, dtype=np.float32)
HEADER = TensorHeader("x", DType.FLOAT, (4,))
WHOLE = BufferSpec("x", DType.FLOAT, (4,))
SCHEDULE = Schedule(
    2,
    2,
    (WHOLE, WHOLE, BufferSpec("y", DType.FLOAT, (4,))),
    (LocalSend(0, 0, (LocalPart(0, (((1, 3),),)),)), LocalReceive(1, 1, (1,)), LocalJoin(2, ((LocalPart(1, None), None),))),
    (0,),
    (2,),
)
PEERS = (Peer(0, "agent0", "a"), Peer(1, "agent1", "b"))


@pytest.fixture
def network():
    return InprocNetwork()


@pytest.fixture
def agents(network):
    return network.plane(), network.plane()


@pytest.fixture
def host(network, agents):
    plane = network.plane()
    host = HostExecutor(plane)
    host.install(HostDeploy(7, SCHEDULE, tuple(Peer(d, f"agent{d}", agent.address) for d, agent in enumerate(agents))))
    for agent in agents:
        agent.connect(plane.address)
    host.plane = plane
    return host


def start(host, header=HEADER, content=X):
    return host.start(StartRequest(7, 5, (header,), (content.data.cast("B"),)))


def test_inputs_are_scattered_and_the_others_are_started(host, agents):
    assert start(host) is None
    first, second = (agent.receive(0) for agent in agents)
    assert Frame.parse(first.header) == Frame(Kind.DATA, 2, 7, 5, 0)
    assert np.frombuffer(first.payload, np.float32).tolist() == [1, 2]
    assert Frame.parse(second.header) == Frame(Kind.START, 2, 7, 5, 0)
    assert [agent.receive(0) for agent in agents] == [None, None]


def test_outputs_are_gathered(host, agents):
    start(host)
    agents[1].send(host.plane.address, Frame(Kind.DATA, 1, 7, 5, 1).to_bytes(), (X * 2).data.cast("B"))
    done = host.accept(host.plane.receive(0))
    assert isinstance(done, RequestDone)
    assert (done.request, done.outputs) == (5, (TensorHeader("y", DType.FLOAT, (4,)),))
    assert np.frombuffer(done.payload[0], np.float32).tolist() == [0, 2, 4, 6]


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        (b"short", b""),
        (Frame(Kind.DATA, 0, 7, 5, 1).to_bytes(), bytes(16)),
        (Frame(Kind.DATA, 1, 7, 5, 9).to_bytes(), bytes(16)),
        (Frame(Kind.DATA, 1, 7, 5, 1).to_bytes(), bytes(15)),
        (Frame(Kind.DATA, 1, 8, 5, 1).to_bytes(), bytes(16)),
        (Frame(Kind.DATA, 1, 7, 6, 1).to_bytes(), bytes(16)),
    ],
)
def test_what_nobody_expects_is_dropped(host, agents, header, payload):
    start(host)
    agents[1].send(host.plane.address, header, payload)
    assert host.accept(host.plane.receive(0)) is None


def test_a_wrong_input_breaks_the_request(host):
    broke = start(host, TensorHeader("x", DType.FLOAT, (5,)))
    assert broke == RequestBroke(5, Fault.INPUT, "input 'x': the plan is for float[4], got float[5]")
    assert host.start(StartRequest(7, 5, (), ())).fault is Fault.INPUT
    assert host.start(StartRequest(7, 5, (HEADER,), (b"short",))).fault is Fault.INPUT


def test_a_released_deployment_runs_nothing(host):
    start(host)
    host.release(7)
    host.release(7)
    assert start(host).reason == "deployment 7 has ended, submit again"


def test_only_payloads_of_running_requests_get_memory(host):
    def admitted(size, *, source=1, epoch=7, request=5, message=1):
        return host.plane.admit(Frame(Kind.DATA, source, epoch, request, message).to_bytes(), size, "")

    assert not admitted(16)
    start(host)
    assert admitted(16)
    assert not any([admitted(17), admitted(16, source=0), admitted(16, epoch=6), admitted(16, request=4), admitted(16, message=2)])
    assert not host.plane.admit(b"x", 16, "")


def test_a_recorded_request_is_begun_with_that_word_and_followed_by_the_clock(host, agents):
    assert host.start(StartRequest(7, 5, (HEADER,), (X.data.cast("B"),), record=True)) is None
    for agent, kinds in zip(agents, ([Kind.RECORD, Kind.DATA], [Kind.RECORD]), strict=True):
        came = [Frame.parse(agent.receive(0).header) for _ in kinds]
        assert came == [Frame(kind, 2, 7, 5, 0) for kind in kinds]
    agents[1].send(host.plane.address, Frame(Kind.DATA, 1, 7, 5, 1).to_bytes(), (X * 2).data.cast("B"))
    before = time.perf_counter_ns()
    done = host.accept(host.plane.receive(0))
    assert np.frombuffer(done.payload[0], np.float32).tolist() == [0, 2, 4, 6]
    assert [(label.lane, label.number, label.peer) for label in done.record.labels] == [
        ("send", 0, 0),
        ("receive", 1, 1),
        ("compute", None, None),
    ]
    assert (done.record.device, done.record.clock_error_ns) == (2, 0)
    assert done.record.times[0][0] < before < done.record.times[-1][2] < time.perf_counter_ns()
    for agent in agents:
        shown = agent.receive(0)
        assert Frame.parse(shown.header) == Frame(Kind.CLOCK, 2, 7, 5, 0)
        assert before < unpack_number(shown.payload) < time.perf_counter_ns()


def test_the_clock_is_shown_to_the_devices_of_a_deployment(host, agents):
    for epoch, source in ((8, 0), (7, 2), (7, 9)):
        agents[0].send(host.plane.address, Frame(Kind.CLOCK, source, epoch, 5, 3).to_bytes(), bytes(8))
        assert host.accept(host.plane.receive(0)) is None
    assert agents[0].receive(0) is None
    agents[0].send(host.plane.address, Frame(Kind.CLOCK, 0, 7, 5, 3).to_bytes(), bytes(8))
    assert host.accept(host.plane.receive(0)) is None
    shown = agents[0].receive(0)
    assert Frame.parse(shown.header) == Frame(Kind.CLOCK, 2, 7, 5, 3)
    assert unpack_number(shown.payload) <= time.perf_counter_ns()


def test_an_unrecorded_request_has_no_record(host, agents):
    start(host)
    agents[1].send(host.plane.address, Frame(Kind.DATA, 1, 7, 5, 1).to_bytes(), X.data.cast("B"))
    assert host.accept(host.plane.receive(0)).record is None
    assert [Frame.parse(agents[1].receive(0).header).kind, agents[1].receive(0)] == [Kind.START, None]


def test_pings_are_answered_while_measuring_is_allowed(host, agents):
    first, second = agents
    ping = Frame(Kind.PING, 0, 0, 3, 50).to_bytes()

    def ask(agent):
        agent.send(host.plane.address, ping, agent.address.encode())
        assert host.accept(host.plane.receive(0)) is None
        return agent.receive(0)

    assert ask(first) is None
    host.pings.allow((Peer(0, "agent0", first.address),))
    pong = ask(first)
    assert Frame.parse(pong.header) == Frame(Kind.PONG, 0, 0, 3, 0)
    assert len(pong.payload) == 50
    assert ask(second) is None
    host.pings.allow(())
    assert ask(first) is None


def test_a_broken_link_is_told_of(network):
    plane, told = network.plane(), []
    HostExecutor(plane, on_broken=lambda *broken: told.append(broken))
    plane.on_broken("tcp://there:1", "why")
    assert told == [("tcp://there:1", "why")]


def test_an_answer_counts_only_over_the_connection_of_the_device_that_it_claims_to_be_of(network, agents):
    host = HostExecutor(plane := network.plane())
    prints = ("first's", "second's")
    host.install(HostDeploy(7, SCHEDULE, tuple(Peer(d, f"agent{d}", agent.address, prints[d]) for d, agent in enumerate(agents))))
    start(host)
    header, content = Frame(Kind.DATA, 1, 7, 5, 1).to_bytes(), (X * 2).tobytes()
    for forger in ("first's", "", "stranger"):
        assert not plane.admit(header, 16, forger)
        assert host.accept(Arrival(header, content, "somewhere", forger)) is None
    for agent in agents:
        while agent.receive(0) is not None:
            pass
    clock = Frame(Kind.CLOCK, 1, 7, 5, 1).to_bytes()
    host.accept(Arrival(clock, b"", "somewhere", "first's"))
    assert agents[1].receive(0) is None
    host.accept(Arrival(clock, b"", "somewhere", "second's"))
    assert Frame.parse(agents[1].receive(0).header).kind is Kind.CLOCK
    assert isinstance(host.accept(Arrival(header, content, "somewhere", "second's")), RequestDone)
