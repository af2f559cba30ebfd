"""The agent: a control thread that keeps the membership, a loader that prepares deployments, an executor that runs requests.

    control (main thread)   coordinator's messages, heartbeats, the state machine
    loader                  weights and sessions: everything that takes long
    executor                data plane and kernels

Heartbeats go on whatever the other two do. Laws: the state machine is used by the control thread only; other threads hand it events
through the mailbox.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import zmq

from bbgrap.errors import BbgrapError, RemoteProtocolError
from bbgrap.protocol import agent_machine as machine
from bbgrap.protocol.codec import TO_AGENT, TO_COORDINATOR
from bbgrap.protocol.messages import Deploy, Join, Peer, WeightChunk
from bbgrap.transport.control import ControlClient
from bbgrap.transport.data import ZmqDataPlane
from bbgrap.transport.mailbox import Mailbox
from bbgrap_agent.executor import Executor
from bbgrap_agent.loading import load
from bbgrap_agent.probe import measure
from bbgrap_agent.weights import WeightStore

_log = logging.getLogger("bbgrap.agent")


class Agent:
    """One agent in this process.

    Invariants: after `run` returns, all its threads have ended.
    """

    def __init__(self, control: ControlClient, plane: ZmqDataPlane, join: Join, store: WeightStore) -> None:
        """Take over the connections; nothing is sent before `run`."""
        self._control = control
        self._plane = plane
        self._join = join
        self._store = store
        self._events: Mailbox[machine.Event] = Mailbox()
        self._machine = machine.AgentMachine(join, time.monotonic())
        self._executor = Executor(plane, lambda epoch, request, reason: self._events.put(machine.Broke(epoch, request, reason)))
        self._loader = ThreadPoolExecutor(1, "loader")
        self._fault: str | None = None

    def stop(self, reason: str) -> None:
        """Leave politely; may be called from a signal handler."""
        self._events.put(machine.Stop(reason))

    def run(self) -> str:
        """Work until stopped or refused; return the reason of a refusal, or an empty text."""
        thread = threading.Thread(target=self._execute, name="executor", daemon=True)
        thread.start()
        try:
            self._serve()
        finally:
            self._loader.shutdown(wait=False, cancel_futures=True)
            self._executor.stop()
            thread.join(2)
            self._control.close()
        return self._fault or ""

    def _execute(self) -> None:
        try:
            self._executor.run()
        except Exception:
            # Without its executor an agent is of no use; the operator's supervisor starts it again.
            _log.exception("the executor failed")
            self._fault = "the executor failed"
            self._events.put(machine.Stop("the executor failed"))

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._events.fileno(), zmq.POLLIN)
        poller.register(self._control.socket, zmq.POLLIN)
        due = time.monotonic()
        while self._fault is None:
            poller.poll(max(0, round((due - time.monotonic()) * 1000)))
            for event in self._events.take():
                self._handle(event)
            socket = self._control.socket
            self._receive()
            if time.monotonic() >= due:
                self._handle(machine.Tick())
                due = time.monotonic() + self._machine.next_tick_s
            if socket is not self._control.socket:
                poller.unregister(socket)
                poller.register(self._control.socket, zmq.POLLIN)

    def _receive(self) -> None:
        while self._fault is None and (frames := self._control.receive()) is not None:
            try:
                self._handle(machine.Received(TO_AGENT.decode(frames)))
            except RemoteProtocolError as error:
                _log.warning("dropped a message of the coordinator: %s", error)

    def _handle(self, event: machine.Event) -> None:
        for instruction in self._machine.handle(event, time.monotonic()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: machine.Instruction) -> None:  # noqa: C901 - one branch per instruction
        executor = self._executor
        match instruction:
            case machine.Say(message):
                self._control.send(TO_COORDINATOR.encode(message))
            case machine.CheckWeights(epoch, digests):
                self._later(lambda: machine.WeightsChecked(epoch, self._store.missing(digests)))
            case machine.StoreChunk(chunk):
                self._later(lambda: self._store_chunk(chunk))
            case machine.Load(deploy):
                self._later(lambda: self._load(deploy))
            case machine.Unload(epoch):
                executor.post(lambda: executor.remove(epoch))
            case machine.Drop(epoch, request):
                executor.post(lambda: executor.drop(epoch, request))
            case machine.AllowPings(peers):
                executor.post(lambda: executor.allow_pings(peers))
            case machine.StartMeasuring(measurement, peers):
                self._later(lambda: self._measure(measurement, peers))
            case machine.Reconnect():
                self._control.reopen()
            case machine.Tell(text):
                _log.info(text)
            case machine.Quit(fault):
                self._fault = self._fault or fault

    def _later(self, work: Callable[[], machine.Event]) -> None:
        """Do something that takes long in the loader's thread; what it returns comes back as an event."""
        self._loader.submit(lambda: self._events.put(work()))

    def _store_chunk(self, chunk: WeightChunk) -> machine.Event:
        try:
            received, complete = self._store.add(chunk)
        except (RemoteProtocolError, MemoryError) as error:
            return machine.WeightArrived(chunk.digest, 0, complete=False, fault=str(error) or "out of memory")
        return machine.WeightArrived(chunk.digest, received, complete)

    def _load(self, deploy: Deploy) -> machine.Event:
        began = time.monotonic()
        try:
            deployment = load(deploy, self._store, self._join.threads)
        except (BbgrapError, MemoryError) as error:
            return machine.Loaded(deploy.epoch, 0.0, str(error) or "out of memory")
        installed = threading.Event()

        def install() -> None:
            self._executor.install(deployment)
            installed.set()

        self._executor.post(install)
        installed.wait()
        return machine.Loaded(deploy.epoch, time.monotonic() - began)

    def _measure(self, measurement: int, peers: tuple[Peer, ...]) -> machine.Event:
        try:
            return machine.MeasuringDone(measurement, measure(self._join, peers, self._executor))
        except (BbgrapError, MemoryError) as error:
            return machine.MeasuringDone(measurement, None, str(error) or "out of memory")
