"""Calls that are given up, and such that are long on their way: the coordinator is played by the test over a real socket."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
import zmq

from bbgrap.control import client as machine
from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.client_messages import (
    Ask,
    Cancel,
    Greeting,
    Hello,
    ListNodes,
    MeasureNodes,
    Nodes,
    Progress,
    RunModel,
    RunResult,
    StillWorking,
)
from bbgrap.protocol.directions import TO_CLIENT, TO_COORDINATOR
from bbgrap.session.connection import Connection
from bbgrap.session.stops import StoppedError
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.credentials import Credentials


class Coordinator(threading.Thread):
    """Greets, keeps every question until `answering` is set, and notes what it hears."""

    def __init__(self):
        super().__init__(daemon=True)
        self.server = ControlServer(zmq.Context.instance(), "tcp://127.0.0.1:0")
        self.address = self.server.address
        self.cancelled, self.answering, self.ended = {}, threading.Event(), threading.Event()
        self.asked = threading.Semaphore(0)
        self.telling = threading.Event()
        self.ran = []
        self.start()

    def run(self):
        kept = []
        while not self.ended.is_set():
            if self.answering.is_set():
                for who, call in kept:
                    self.server.send(who, TO_CLIENT.encode(Nodes(call, ())))
                kept.clear()
            if self.server.socket.poll(10) and (came := self.server.receive()) is not None:
                for answer in self.heard(came[0], TO_COORDINATOR.decode(came[1]), kept):
                    self.server.send(came[0], TO_CLIENT.encode(answer))
        self.server.close()

    def heard(self, who, message, kept):
        """Note a message, and return what is answered at once."""
        match message:
            case Hello(call=call):
                return [Greeting(call, "0")]
            case ListNodes(call=call):
                kept.append((who, call))
                self.asked.release()
                return [Progress(call, "measuring", 1, 2)] * self.telling.is_set()
            case Cancel(call=call):
                self.cancelled.setdefault(call, threading.Event()).set()
                self.asked.release()
            case RunModel(call=call):
                self.ran.append(call)
                return [RunResult(call, 1, (), ())]
            case Ask(calls=calls):
                return [StillWorking(calls, tuple(call for _, call in kept))]
        return []


@pytest.fixture
def coordinator():
    played = Coordinator()
    yield played
    played.ended.set()
    played.join()


def test_a_call_ends_when_its_thread_is_told_to_stop_and_the_coordinator_hears_it(coordinator):
    told = threading.Event()
    with Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection:
        threading.Timer(0.05, told.set).start()
        with pytest.raises(StoppedError), connection.stops.when(told.is_set):
            connection.nodes()
        assert coordinator.asked.acquire(timeout=5)  # the question
        assert coordinator.asked.acquire(timeout=5)  # without any further call of the client
        assert set(coordinator.cancelled) == {2}
        with pytest.raises(StoppedError), connection.stops.when(told.is_set):
            connection.nodes()
        assert not coordinator.asked.acquire(timeout=0.05), "what is stopped already says nothing"
        coordinator.answering.set()
        assert connection.nodes() == ()


def test_a_name_that_no_message_has_is_refused_before_it_is_sent(coordinator):
    with (
        Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection,
        pytest.raises(UsageError, match="at most 200 bytes"),
    ):
        connection.ask(MeasureNodes(connection.number(), "x" * 2000), Nodes)


def test_only_the_thread_that_is_told_stops(coordinator):
    """The other one leads: it looks after the socket for both, and goes on until it is answered."""
    told, answers = threading.Event(), []
    with Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection:
        leader = threading.Thread(target=lambda: answers.append(connection.nodes()))
        leader.start()
        assert coordinator.asked.acquire(timeout=5)
        threading.Timer(0.05, told.set).start()
        with pytest.raises(StoppedError), connection.stops.when(told.is_set):
            connection.nodes()
        assert coordinator.asked.acquire(timeout=5)
        assert coordinator.asked.acquire(timeout=5)
        assert (set(coordinator.cancelled), answers) == ({3}, [])
        coordinator.answering.set()
        leader.join(5)
    assert answers == [()]


def test_what_is_waited_for_ends_when_the_connection_is_closed(coordinator):
    with Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection, ThreadPoolExecutor() as pool:
        waiting = [pool.submit(connection.nodes) for _ in range(3)]
        for _ in waiting:
            assert coordinator.asked.acquire(timeout=5)
        began = time.monotonic()
        connection.close()
        for each in waiting:
            with pytest.raises(ClusterUnavailableError, match="it was closed; connect again"):
                each.result(5)
        assert time.monotonic() - began < 0.5


def test_who_is_told_of_progress_may_ask_something_meanwhile(coordinator):
    coordinator.answering.set()
    coordinator.telling.set()
    with Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection:
        heard = []

        def ask(progress):
            coordinator.telling.clear()
            heard.append((progress.text, connection.ask(ListNodes(connection.number()), Nodes, timeout_s=5).nodes))

        assert connection.ask(ListNodes(connection.number()), Nodes, ask).nodes == ()
    assert heard == [("measuring 1 of 2", ())]


def test_a_slow_listener_keeps_its_thread_from_no_answer(coordinator, monkeypatch):
    """What had come meanwhile was heard too late: the coordinator was taken for silent, and asked again."""
    monkeypatch.setattr(machine, "REOPEN_S", 0.4)
    coordinator.telling.set()

    def slow(progress):
        coordinator.answering.set()
        time.sleep(1)

    with Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection:
        assert connection.ask(ListNodes(connection.number()), Nodes, slow).nodes == ()
    assert coordinator.asked.acquire(timeout=1)
    assert not coordinator.asked.acquire(timeout=0.1)


def test_a_listener_that_fails_ends_its_own_call(coordinator):
    """Another thread leads, and goes on until it is answered."""
    answers = []

    def fails(progress):
        raise ArithmeticError(progress.text)

    with Connection(coordinator.address, credentials=Credentials(insecure=True)) as connection:
        leader = threading.Thread(target=lambda: answers.append(connection.nodes()))
        leader.start()
        assert coordinator.asked.acquire(timeout=5)
        coordinator.telling.set()
        with pytest.raises(ArithmeticError, match="measuring 1 of 2"):
            connection.ask(ListNodes(connection.number()), Nodes, fails, timeout_s=5)
        assert coordinator.asked.acquire(timeout=5)
        assert coordinator.asked.acquire(timeout=5)
        assert set(coordinator.cancelled) == {3}
        coordinator.answering.set()
        leader.join(5)
    assert answers == [()]


PIECE_BYTES = 64 << 10


class SlowLink(threading.Thread):
    """Passes on what goes to an address, at most so many bytes a second, and what comes back at once."""

    def __init__(self, address, bytes_per_s):
        super().__init__(daemon=True)
        self.to, self.pause_s, self.connections = split_address(address), PIECE_BYTES / bytes_per_s, 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.start()

    def run(self):
        with suppress(OSError):
            while True:
                near = self.listener.accept()[0]
                near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
                far = socket.create_connection(self.to)
                self.connections += 1
                threading.Thread(target=self.carry, args=(near, far, self.pause_s), daemon=True).start()
                threading.Thread(target=self.carry, args=(far, near, 0.0), daemon=True).start()

    def carry(self, one, other, pause_s):
        with suppress(OSError), one, other:
            while piece := one.recv(PIECE_BYTES):
                other.sendall(piece)
                time.sleep(pause_s)


@pytest.mark.faults
def test_a_large_request_arrives_over_a_slow_link_and_once(coordinator, monkeypatch):
    """It is on its way for longer than a connection may be silent; all that is said meanwhile waits behind it."""
    monkeypatch.setattr(machine, "REOPEN_S", 1.0)
    link = SlowLink(coordinator.address, 8 << 20)
    with Connection(link.address, credentials=Credentials(insecure=True)) as connection:
        request = RunModel(connection.number(), "ab" * 32, 60.0, (), (bytes(24 << 20),))
        assert connection.try_call(request, RunResult, timeout_s=30.0).epoch == 1
    assert (len(coordinator.ran), link.connections) == (1, 1)
    link.listener.close()
