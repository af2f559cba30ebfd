"""The agent's main process: the membership, and a nanny for the process that computes.

    main thread    coordinator's messages, heartbeats, the state machine, the worker's start and end
    worker, pipe   threads that read from and write to the worker (`bbgrap_agent.worker`)

Heartbeats go on whatever the worker does. Laws: the state machine and the nanny are used by the main thread only; other threads hand it
events through a queue that wakes it; nothing that is heavy or may crash is done, or imported, here.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import zmq

from bbgrap.cluster.types import NodeProfile
from bbgrap.control import agent_events as events
from bbgrap.control.agent import AgentMachine
from bbgrap.control.to_coordinator import Reconnect, ToCoordinator
from bbgrap.errors import LocalProtocolError, OtherVersionError, RemoteProtocolError
from bbgrap.own_code import full_version
from bbgrap.protocol.agent_directions import FROM_AGENT, TO_AGENT
from bbgrap.protocol.inspection import Inspect, Inspected
from bbgrap.protocol.key_messages import Enrolled
from bbgrap.transport.control_client import ControlClient
from bbgrap.transport.tls import TlsIdentity
from bbgrap.transport.wakeup_queue import WakeupQueue
from bbgrap_agent.nanny import Nanny, WorkerEnded
from bbgrap_agent.own_address import AddressWatch
from bbgrap_agent.worker_settings import WorkerSettings

LOOK_S = 0.1
"""How often the nanny looks what the worker does."""

_log = logging.getLogger("bbgrap.agent")


class Agent:
    """One agent: this process and its worker.

    Invariants: after `run` returns, the worker has ended; there is a machine once a worker was ready, which says what this machine is.
    """

    def __init__(
        self,
        control: ControlClient,
        listener: socket.socket,
        settings: WorkerSettings,
        profile: NodeProfile | None,
        identity: TlsIdentity | None = None,
        watch: AddressWatch | None = None,
    ) -> None:
        """Take over the connections; nothing is started or sent before `run`. With an identity the data plane is locked.

        It leaves when `watch` has found another address of this machine.
        """
        self._control = control
        self._profile = profile
        self._inbox: WakeupQueue[events.FromWorker | WorkerEnded | events.Stop | Inspected] = WakeupQueue()
        self._nanny = Nanny(listener, settings, self._inbox.put, identity)
        self._machine: AgentMachine | None = None
        self._fault: str | None = None
        self._dropped = ""
        self._settings = settings
        self._watch = watch
        self._inspecting: threading.Thread | None = None

    def stop(self, reason: str) -> None:
        """Leave politely; may be called from a signal handler."""
        self._inbox.put(events.Stop(reason))

    def run(self) -> str:
        """Work until stopped or refused; return the reason of a refusal, or an empty text."""
        try:
            self._serve()
        finally:
            self._nanny.stop()
            self._control.close()
        return self._fault or ""

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._inbox.fileno(), zmq.POLLIN)
        poller.register(self._control.socket, zmq.POLLIN)
        look = tick = time.monotonic()
        while self._fault is None:
            self._nanny.start_if_due(time.monotonic())
            if self._nanny.replaced:
                self._fault = self._nanny.replaced
                self._take(events.Stop(self._fault))
                break
            due = look if self._machine is None else min(look, tick)
            poller.poll(max(0, round((due - time.monotonic()) * 1000)))
            for event in self._inbox.take():
                self._take(event)
            socket = self._control.socket
            now = time.monotonic()  # what has arrived until then is handled before it is judged, however long this thread was stopped
            self._receive()
            if now >= due:
                heartbeat = self._nanny.look(now)
                self._fault = self._control.refused or self._fault
                if self._watch is not None and self._watch.look(now):
                    self._take(events.Stop("its machine has another address"))
                look = time.monotonic() + LOOK_S
                if self._machine is not None and now >= tick:
                    self._handle(events.AgentTick(heartbeat, self._control.has_received()), now)
                    tick = time.monotonic() + self._machine.next_tick_s
            if socket is not self._control.socket:
                poller.unregister(socket)
                poller.register(self._control.socket, zmq.POLLIN)

    def _receive(self) -> None:
        while self._fault is None and (frames := self._control.receive()) is not None:
            try:
                message = TO_AGENT.decode(frames)
                if not isinstance(message, Enrolled):  # a late answer
                    self._handle(events.Received(message))
            except RemoteProtocolError as error:
                if isinstance(error, OtherVersionError):  # the coordinator was upgraded; perhaps this machine was, too
                    self._nanny.look_for_code(time.monotonic())
                if str(error) != self._dropped:  # one of another version says the like twice a second
                    self._dropped = str(error)
                    _log.warning("dropped a message of the coordinator, and says so of the like no more: %s", error)

    def _take(self, event: events.FromWorker | WorkerEnded | events.Stop | Inspected) -> None:
        match event:
            case events.Stop():
                if self._machine is None:
                    self._fault = self._fault or ""
                self._handle(event)
            case WorkerEnded():
                died = self._nanny.ended(event, time.monotonic())
                if died is not None:
                    self._handle(died)
                self._fault = self._nanny.fault or self._fault
            case events.WorkerReady(introduction):
                self._nanny.ready()
                _log.info("the worker is ready, with %d threads", introduction.threads)
                if self._machine is None:
                    self._machine = AgentMachine(replace(introduction, profile=self._profile, version=full_version()), time.monotonic())
                else:
                    self._handle(event)
            case _:
                try:
                    self._handle(event)
                except LocalProtocolError as error:  # the worker runs models of strangers, and may say anything at any time
                    self._nanny.end_worker(f"it said what it must not say now: {error}")

    def _handle(self, event: events.AgentEvent, now: float | None = None) -> None:
        if self._machine is None:
            return
        for instruction in self._machine.handle(event, time.monotonic() if now is None else now):
            self._carry_out(instruction)

    def _carry_out(self, instruction: events.AgentInstruction) -> None:
        match instruction:
            case ToCoordinator(message):
                self._control.send(FROM_AGENT.encode(message))
            case Inspect(inspection):
                self._read_machine(inspection)
            case Reconnect():
                self._control.reopen()
            case events.LogLine(text):
                _log.info(text)
            case events.Quit(fault):
                self._fault = self._fault or fault
            case _:
                self._nanny.tell(instruction)

    def _read_machine(self, inspection: int) -> None:
        """Look how this machine is, in a thread of its own; one look at a time."""
        if self._inspecting is None or not self._inspecting.is_alive():
            self._inspecting = threading.Thread(target=self._look, args=(inspection,), name="inspection", daemon=True)
            with suppress(RuntimeError):  # no thread is left: whoever asks goes without
                self._inspecting.start()

    def _look(self, inspection: int) -> None:
        from bbgrap.doctor.machine import read_machine  # here: most agents are never asked

        self._inbox.put(Inspected(inspection, read_machine(Path(self._settings.cache_dir), self._settings.host)))
