"""The coordinator's loop: control messages, data messages and time go into the machine, its instructions are carried out.

Planning takes long: another thread waits for the planner's process meanwhile (`bbgrap_coordinator.planning`). Everything else is done here,
on one thread. Laws: every message that had arrived at a moment is handled before that moment is judged, so a busy coordinator does not take
living agents for dead.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import ceil
from pathlib import Path

import zmq

from bbgrap.cluster.types import Cluster
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.coordinator_events import (
    CancelPlanning,
    DropRequest,
    Event,
    ForgetPlan,
    FromPeer,
    HostDeploy,
    HostPings,
    HostRelease,
    Instruction,
    Log,
    PlanFailed,
    Planned,
    SaveModel,
    SavePlan,
    SaveProfile,
    StartPlanning,
    StartRequest,
    StartStandby,
    Tick,
    ToAgent,
    ToClient,
    WriteChunk,
)
from bbgrap.control.planned import PlannedVariant
from bbgrap.errors import BbgrapError, LocalProtocolError, RemoteProtocolError
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import Failed, Fault, StillWorking
from bbgrap.protocol.codec import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.messages import Deploy, DeploymentFailed
from bbgrap.transport.complaints import Complaints
from bbgrap.transport.control import ControlServer
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.wakeup_queue import WakeupQueue
from bbgrap_coordinator.host import Host
from bbgrap_coordinator.models import ModelGoneError, ModelStore

Prepare = Callable[[Path, Mapping[str, tuple[int, ...]], Cluster, PlanOptions], tuple[PlannedVariant, ...]]

_TICK_S = 0.25
_BATCH = 256
"""Messages handled before the other socket gets its turn."""

_log = logging.getLogger("bbgrap.coordinator")


class Server:
    """One coordinator in this process.

    Invariants: machine, host and sockets are used by the thread that calls `run` only.
    """

    def __init__(
        self,
        control: ControlServer,
        plane: TcpDataPlane,
        machine: CoordinatorMachine,
        models: ModelStore,
        prepare: Prepare,
    ) -> None:
        """Take over the connections; nothing is handled before `run`."""
        self._control = control
        self._plane = plane
        self._machine = machine
        self._models = models
        self._prepare = prepare
        self._host = Host(plane, control.channels.memory)
        self._events: WakeupQueue[Event | None] = WakeupQueue()
        self._planner = ThreadPoolExecutor(1, "planner")
        self._complaints = Complaints(_log)
        self._stopped = False

    def stop(self) -> None:
        """End `run`; may be called from a signal handler."""
        self._stopped = True
        self._events.put(None)

    def run(self) -> None:
        """Serve until stopped."""
        poller = zmq.Poller()
        poller.register(self._plane.fileno(), zmq.POLLIN)
        poller.register(self._control.socket, zmq.POLLIN)
        poller.register(self._control.channels.fileno(), zmq.POLLIN)
        poller.register(self._events.fileno(), zmq.POLLIN)
        due, more = time.monotonic() + _TICK_S, False
        while not self._stopped:
            ready = dict(poller.poll(0 if more else max(0, ceil((due - time.monotonic()) * 1000))))
            more = (more or self._plane.fileno() in ready) and self._take_data()
            told = self._control.socket in ready or self._control.channels.fileno() in ready
            more = (told and self._take_control()) or more
            if self._events.fileno() in ready:
                for event in self._events.take():
                    if event is not None:
                        self._handle(event)
            now = time.monotonic()
            if not more and now >= due and not (more := self._take_control()):
                self._handle(Tick(), now)
                self._control.channels.give_back()
                due = time.monotonic() + _TICK_S
        self._planner.shutdown(wait=False, cancel_futures=True)
        self._plane.close()
        self._control.close()

    def _take_data(self) -> bool:
        for _ in range(_BATCH):
            arrival = self._plane.receive(0)
            if arrival is None:
                return False
            ended = self._host.accept(arrival)
            if ended is not None:
                self._handle(ended)
        return True

    def _take_control(self) -> bool:
        for _ in range(_BATCH):
            received = self._control.receive()
            if received is None:
                return False
            identity, frames = received
            try:
                self._handle(FromPeer(identity, TO_COORDINATOR.decode(frames)))
            except RemoteProtocolError as error:
                self._complaints.about(identity.hex()[:12], f"messages are dropped: {error}")
        return True

    def _handle(self, event: Event, now: float | None = None) -> None:
        try:
            instructions = self._machine.handle(event, time.monotonic() if now is None else now)
        except RemoteProtocolError as error:
            _log.warning("dropped a message: %s", error)
            return
        for instruction in instructions:
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:  # noqa: C901 - one branch per instruction
        match instruction:
            case ToAgent():
                self._say_to_agent(instruction)
            case ToClient():
                self._say_to_client(instruction)
            case StartRequest():
                ended = self._host.start(instruction)
                if ended is not None:
                    self._handle(ended)
            case DropRequest():
                self._host.drop(instruction.request)
            case HostDeploy():
                self._host.install(instruction)
            case HostRelease():
                self._host.release(instruction.epoch)
            case HostPings(peers):
                self._host.allow_pings(peers)
            case WriteChunk():
                self._handle(self._models.write(instruction))
            case StartPlanning():
                self._planner.submit(lambda: self._events.put(self._plan(instruction)))
            case Log(text):
                _log.info(text)
            case StartStandby() | CancelPlanning() | SaveModel() | SaveProfile() | SavePlan() | ForgetPlan():
                raise NotImplementedError  # said by nobody yet

    def _say_to_agent(self, say: ToAgent) -> None:
        try:
            self._control.send(say.identity, TO_AGENT.encode(say.message))
        except LocalProtocolError as error:
            if not isinstance(say.message, Deploy):
                raise
            # A plan too large to be sent is a failed deployment, as if the agent had refused it.
            self._handle(FromPeer(say.identity, DeploymentFailed(say.message.epoch, str(error))))

    def _say_to_client(self, say: ToClient) -> None:
        try:
            frames = TO_CLIENT.encode(say.message)
        except LocalProtocolError as error:
            if isinstance(say.message, StillWorking):
                raise
            frames = TO_CLIENT.encode(Failed(say.message.call, Fault.EXECUTION, f"answer: {error}"))
        self._control.send(say.identity, frames)

    def _plan(self, job: StartPlanning) -> Event:
        """Have a model planned, in a thread of its own."""
        try:
            with self._models.folder(job.files) as path:
                return Planned(job.job, self._prepare(path, job.shapes, job.cluster, job.options))
        except ModelGoneError as error:
            _log.warning("%s", error)
            return PlanFailed(job.job, Fault.UNKNOWN_MODEL, str(error), error.gone)
        except BbgrapError as error:
            return PlanFailed(job.job, Fault.of(error), str(error))
        except Exception as error:
            # A bug in a planner ends this request, not the coordinator.
            _log.exception("planning of deployment %d failed", job.job)
            return PlanFailed(job.job, Fault.PLAN, f"planner: {type(error).__name__}: {error}; the coordinator's log has the traceback")
