"""The agent: a control thread that keeps the membership, a loader that prepares deployments, an executor that runs requests.

    control (main thread)   coordinator's messages, heartbeats, the state machine
    loader                  weights and sessions: everything that takes long
    executor                data plane and kernels

Heartbeats go on whatever the other two do. Laws: the state machine is used by the control thread only; other threads hand it events
through a queue that wakes it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import zmq

from bbgrap.control import agent_events as events
from bbgrap.control.agent import AgentMachine
from bbgrap.errors import BbgrapError, RemoteProtocolError
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.codec import TO_AGENT, TO_COORDINATOR
from bbgrap.protocol.messages import (
    AnswerPings,
    Deploy,
    Join,
    LinkBroken,
    LinksMeasured,
    Measure,
    Measured,
    MeasureLinks,
    Recorded,
    RequestFailed,
    TryLinks,
    WeightChunk,
)
from bbgrap.transport.control import ControlClient
from bbgrap.transport.data import DataPlane
from bbgrap.transport.wakeup_queue import WakeupQueue
from bbgrap_agent.executor import Executor
from bbgrap_agent.links import measure_links
from bbgrap_agent.loading import load, reachable
from bbgrap_agent.probe import measure_machine
from bbgrap_agent.weights import WeightStore

_log = logging.getLogger("bbgrap.agent")


class Agent:
    """One agent in this process.

    Invariants: after `run` returns, all its threads have ended.
    """

    def __init__(self, control: ControlClient, plane: DataPlane, join: Join, store: WeightStore, *, compiling: bool = True) -> None:
        """Take over the connections; nothing is sent before `run`. `compiling`: adapt what is deployed to this machine's CPU."""
        self._control = control
        self._plane = plane
        self._join = join
        self._store = store
        self._compiling = compiling
        self._events: WakeupQueue[events.Event] = WakeupQueue()
        self._machine = AgentMachine(join, time.monotonic())
        self._executor = Executor(
            plane,
            lambda epoch, request, reason: self._events.put(events.Outcome(RequestFailed(epoch, request, reason))),
            lambda epoch, request, record: self._events.put(events.Outcome(Recorded(epoch, request, record))),
            on_broken=lambda address, reason: self._events.put(events.Outcome(LinkBroken(address, reason))),
        )
        self._loader = ThreadPoolExecutor(1, "loader")
        self._fault: str | None = None

    def stop(self, reason: str) -> None:
        """Leave politely; may be called from a signal handler."""
        self._events.put(events.Stop(reason))

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
        except Exception:  # without its executor an agent is of no use; the operator's supervisor starts it again
            _log.exception("the executor failed")
            self._fault = "the executor failed"
            self._events.put(events.Stop("the executor failed"))

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
            now = time.monotonic()  # what has arrived until then is handled before it is judged, however long the loader stops this thread
            self._receive()
            if now >= due:
                self._handle(events.Tick(), now)
                due = time.monotonic() + self._machine.next_tick_s
            if socket is not self._control.socket:
                poller.unregister(socket)
                poller.register(self._control.socket, zmq.POLLIN)

    def _receive(self) -> None:
        while self._fault is None and (frames := self._control.receive()) is not None:
            try:
                self._handle(events.Received(TO_AGENT.decode(frames)))
            except RemoteProtocolError as error:
                _log.warning("dropped a message of the coordinator: %s", error)

    def _handle(self, event: events.Event, now: float | None = None) -> None:
        for instruction in self._machine.handle(event, time.monotonic() if now is None else now):
            self._carry_out(instruction)

    def _carry_out(self, instruction: events.Instruction) -> None:  # noqa: C901 - one branch per instruction
        executor = self._executor
        match instruction:
            case events.Say(message):
                self._control.send(TO_COORDINATOR.encode(message))
            case events.CheckWeights(epoch, digests):
                self._later(lambda: self._check(epoch, digests), lambda fault: events.Loaded(epoch, 0.0, fault))
            case events.StoreChunk(chunk):
                self._later(
                    lambda: self._store_chunk(chunk), lambda fault: events.WeightArrived(chunk.digest, 0, complete=False, fault=fault)
                )
            case events.Load(deploy):
                self._later(lambda: self._load(deploy), lambda fault: events.Loaded(deploy.epoch, 0.0, fault))
            case events.Unload(epoch):
                executor.post(lambda: executor.remove(epoch))
            case events.Drop(epoch, request):
                executor.post(lambda: executor.drop(epoch, request))
            case events.Perform(message):
                self._perform(message)
            case events.Reconnect():
                self._control.reopen()
            case events.Log(text):
                _log.info(text)
            case events.Quit(fault):
                self._fault = self._fault or fault

    def _perform(self, message: Measure | MeasureLinks | TryLinks | AnswerPings) -> None:
        executor = self._executor
        match message:
            case AnswerPings(peers):
                executor.post(lambda: executor.allow_pings(peers))
            case Measure(measurement):
                self._later(
                    lambda: events.Outcome(Measured(measurement, measure_machine(self._join), "")),
                    lambda fault: events.Outcome(Measured(measurement, None, fault)),
                )
            case TryLinks():
                raise NotImplementedError  # said by nobody yet
            case MeasureLinks(measurement, peers):
                others = reachable(peers, host_of(self._control.address))
                self._later(
                    lambda: events.Outcome(LinksMeasured(measurement, measure_links(others, executor), "")),
                    lambda fault: events.Outcome(LinksMeasured(measurement, (), fault)),
                )

    def _later(self, work: Callable[[], events.Event], failed: Callable[[str], events.Event]) -> None:
        """Do something that takes long in the loader's thread; what it returns, or `failed` of its error, comes back as an event."""

        def safely() -> None:
            try:
                self._events.put(work())
            except (BbgrapError, MemoryError) as error:
                self._events.put(failed(str(error) or "out of memory"))
            except Exception as error:  # a bug or a broken disk ends this work with a reason: the coordinator waits for it
                _log.exception("the loader failed")
                self._events.put(failed(f"{type(error).__name__}: {error}"))

        self._loader.submit(safely)

    def _check(self, epoch: int, digests: tuple[str, ...]) -> events.Event:
        return events.WeightsChecked(epoch, self._store.missing(digests))

    def _store_chunk(self, chunk: WeightChunk) -> events.Event:
        return events.WeightArrived(chunk.digest, *self._store.add(chunk))

    def _load(self, deploy: Deploy) -> events.Event:
        began = time.monotonic()
        deployment = load(deploy, self._store, self._join.threads, host_of(self._control.address), compiling=self._compiling)
        installed = threading.Event()

        def install() -> None:
            self._executor.install(deployment)
            installed.set()

        self._executor.post(install)
        installed.wait()
        return events.Loaded(deploy.epoch, time.monotonic() - began)
