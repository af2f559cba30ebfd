"""The coordinator's loop: control messages, data messages and time go into the machine, its instructions are carried out.

Planning takes long: other threads wait for the planners' processes meanwhile (`bbgrap_coordinator.planning`), and another one writes what
must survive (`bbgrap_coordinator.storage`). Everything else is done here, on one thread. Laws: every message that had arrived at a moment
is handled before that moment is judged, so a busy coordinator does not take living agents for dead; and it is judged at last, so whoever
never stops sending does not stop the time.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from math import ceil

import zmq

from bbgrap.control import coordinator_instructions
from bbgrap.control.audit import peer_of
from bbgrap.control.coordinator import CoordinatorMachine
from bbgrap.control.coordinator_events import ChunkWritten, CoordinatorEvent, FromPeer, HostLinkBroken, MachineRead, Noticed, Planned, Tick
from bbgrap.errors import LocalProtocolError, OtherVersionError, RemoteProtocolError
from bbgrap.protocol.addresses import host_of
from bbgrap.protocol.client_messages import Cancel, Failed, Greeting, RunModel, StillWorking
from bbgrap.protocol.directions import TO_AGENT, TO_CLIENT, TO_COORDINATOR
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.key_messages import CreateToken, Enrol, Enrolled, KeyMessage, ListTokens, RevokeToken, RotateToken
from bbgrap.protocol.messages import Deploy, DeploymentFailed, Leave, Refused, Welcome
from bbgrap.transport.control_server import ControlServer
from bbgrap.transport.strangers import PeerWarnings
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap.transport.wakeup_queue import WakeupQueue
from bbgrap_coordinator.audit import AuditLog
from bbgrap_coordinator.comparing import compared
from bbgrap_coordinator.host import HostExecutor
from bbgrap_coordinator.input_files import IncomingRequests, InputFiles, InputsStored
from bbgrap_coordinator.key_questions import Answered, KeyQuestions, KeysWritten
from bbgrap_coordinator.key_refusals import SHUT_OUT, refused
from bbgrap_coordinator.keyring import KeyAnswer, KeyRing
from bbgrap_coordinator.models import ModelStore
from bbgrap_coordinator.no_keys import NoKeys
from bbgrap_coordinator.planning import PlanningQueues
from bbgrap_coordinator.storage import Storage

_TICK_S = 0.1
_MOST_LATE_S = 0.5
"""How long messages are taken for before time is judged all the same. ZeroMQ takes them from all connections in turns: by then it has
heard everybody. Chosen."""
_BATCH = 256
"""Messages handled before the other socket gets its turn."""

_KEY_EVENTS: Mapping[type[KeyMessage], coordinator_instructions.AuditEvent] = {
    Enrol: "enrolled",
    CreateToken: "token created",
    RevokeToken: "token revoked",
    RotateToken: "token rotated",
}

_MOST_BROKEN = 1000
"""Addresses of which is known what was said last."""
_SAID_AGAIN_S = 600.0

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
        planners: PlanningQueues,
        storage: Storage,
        audit: AuditLog,
        inputs: InputFiles,
        keys: KeyRing | NoKeys,
    ) -> None:
        """Use connections that belong to the thread of `run`; nothing is handled before. `inputs` takes large ones of sequences."""
        self._control = control
        self._plane = plane
        self._machine = machine
        self._models = models
        self._planners = planners
        self._storage = storage
        self._keys = keys
        self._audit = audit
        self._events: WakeupQueue[CoordinatorEvent | InputsStored | KeysWritten | None] = WakeupQueue()
        self._host = HostExecutor(plane, self._on_broken)
        self._incoming = IncomingRequests(inputs, self._events.put)
        self._questions = KeyQuestions(keys, control.connections, self._events.put)
        self._uploads = ThreadPoolExecutor(1, "uploads")
        self._storing: set[tuple[bytes, int]] = set()
        """Calls whose pieces of models are being written, or wait for that: they are not lost."""
        self._comparisons = ThreadPoolExecutor(1, "comparisons")
        self._warnings = PeerWarnings(_log)
        self._broken: dict[str, tuple[str, float]] = {}
        """What was said last of an address, and when; of the data plane's thread."""
        self._stopped = False

    def stop(self) -> None:
        """End `run`; may be called from a signal handler."""
        self._stopped = True
        self._events.put(None)

    def report(self, event: CoordinatorEvent) -> None:
        """Let the machine know of an event; may be called from any thread (planners, and whoever sees that a link of the host broke)."""
        self._events.put(event)

    def run(self) -> None:
        """Serve until stopped."""
        poller = zmq.Poller()
        poller.register(self._plane.fileno(), zmq.POLLIN)
        poller.register(self._control.socket, zmq.POLLIN)
        poller.register(self._control.channels.fileno(), zmq.POLLIN)
        poller.register(self._events.fileno(), zmq.POLLIN)
        due, late, more = time.monotonic() + _TICK_S, 0.0, False
        while not self._stopped:
            ready = dict(poller.poll(0 if more else max(0, ceil((due - time.monotonic()) * 1000))))
            more = (more or self._plane.fileno() in ready) and self._take_data()
            told = self._control.socket in ready or self._control.channels.fileno() in ready
            more = (told and self._take_control()) or more
            if self._events.fileno() in ready:
                self._take_events()
            now = time.monotonic()
            if now < due:
                continue
            late = late or now + _MOST_LATE_S  # from now on: this process may have been stopped until now
            if (not more and not (more := self._take_control())) or now >= late:
                self._on_time(now)
                due, late = time.monotonic() + _TICK_S, 0.0
        self._comparisons.shutdown(wait=False, cancel_futures=True)
        self._incoming.close()
        self._questions.close()

    def _on_time(self, now: float) -> None:
        self._handle(Tick(self._plane.moving()), now)
        self._control.channels.listen_again()
        self._control.end_connections()
        self._control.throttle()
        self._shut_out(self._keys.ended())

    def _write(self, chunk: coordinator_instructions.WriteChunk) -> None:
        """Store a piece of a model, in a thread of its own: requests do not wait for the disk."""
        written = self._models.write(chunk)
        self._events.put(written)
        if written.complete:
            self._models.sync(written.digest)

    def _read_machine(self) -> None:
        """Find out how this machine is, in another thread: it takes a quarter of a second."""
        from bbgrap.doctor.machine import read_machine

        self._events.put(MachineRead(read_machine(self._models.directory, host_of(self._machine.settings.data_address))))

    def _take_events(self) -> None:
        for event in self._events.take():
            if isinstance(event, Planned):
                self._storage.made(event.job)
            if isinstance(event, ChunkWritten):
                self._storing.discard((event.identity, event.call))
                if event.gone:
                    self._storage.keep_models(self._models.stored)
            if isinstance(event, InputsStored):
                message = self._incoming.stored(event)
                if message is not None and event.fault:
                    self._say(event.identity, Failed(message.call, Fault.BUSY, f"coordinator: {event.fault}; submit again later"))
                elif message is not None:
                    self._handle(FromPeer(event.identity, message))
            elif isinstance(event, KeysWritten):
                self._answer(self._questions.written(event))
            elif event is not None:
                self._handle(event)

    def _on_broken(self, address: str, reason: str) -> None:
        now = time.monotonic()
        said, when = self._broken.get(address, ("", 0.0))
        if said != reason or now - when > _SAID_AGAIN_S:  # for an agent that is away it is told every few seconds
            if len(self._broken) >= _MOST_BROKEN:
                self._broken.clear()
            self._broken[address] = reason, now
            _log.warning("data link to %s: %s", address, reason)
        self._events.put(HostLinkBroken(address))

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
                message = TO_COORDINATOR.decode(frames)
            except RemoteProtocolError as error:
                self._warnings.warn(self._keys.name_of(identity), f"messages are dropped: {error}")
                if isinstance(error, OtherVersionError):  # whatever it is told, it sees the version, and says so
                    self._say(identity, Refused(str(error), retry=False))
                continue
            if why := self._keys.refusal(identity, message):
                self._tell(coordinator_instructions.Audit("refused", peer_of(identity), {"message": type(message).__name__, "reason": why}))
                self._warnings.warn(self._keys.name_of(identity), f"refused: {why}")
                # Who was shut out has been told, and may have a new key already: then it says this again with that.
                self._say(identity, None if why == SHUT_OUT else refused(message, why))
            elif isinstance(message, KeyMessage):
                self._answer(self._questions.ask(identity, message))
            elif isinstance(message, RunModel) and self._incoming.concerns(message):
                # The machine sees it when its inputs are where they stay.
                if full := self._incoming.take(identity, message):
                    self._say(identity, Failed(message.call, Fault.BUSY, f"coordinator: {full}; submit again when some are answered"))
            else:
                if isinstance(message, Cancel):
                    self._incoming.cancel(identity, message.call)
                self._handle(FromPeer(identity, message))
        return True

    def _answer(self, answers: Sequence[Answered]) -> None:
        """Say what came of questions about keys."""
        for answered in answers:
            question = answered.question
            if not isinstance(question, ListTokens):
                failed = {"refused": answered.fault} if answered.fault else {}
                if not failed and not answered.is_known:
                    twins = (
                        ", with another key than before; if these are two machines, give one another --name" if answered.key_before else ""
                    )
                    self._handle(Noticed(f"{_KEY_EVENTS[type(question)]}: '{question.name}'{twins}"))
                self._tell(
                    coordinator_instructions.Audit(
                        _KEY_EVENTS[type(question)], peer_of(answered.identity), {"name": question.name, **failed}
                    )
                )
            self._say(answered.identity, answered.answer)
            self._shut_out(self._keys.ended())

    def _tell(self, audit: coordinator_instructions.Audit) -> None:
        """Write a line of the audit log, with the name of the key."""
        short = audit.who.get("id") or audit.who.get("client") or ""
        name = self._keys.name_of_short(short)
        self._audit.write(replace(audit, who={**audit.who, "key": name}) if name else audit)

    def _shut_out(self, keys: Sequence[bytes]) -> None:
        """End what goes on with keys that are not valid any more."""
        for key in keys:
            _log.info("%s is shut out", self._keys.name_of(key))
            farewell = TO_CLIENT.encode(Failed(0, Fault.ACCESS, SHUT_OUT))
            if self._keys.is_node(key):
                farewell = TO_AGENT.encode(Refused(SHUT_OUT, retry=False))
                for identity in self._control.identities(key):
                    self._handle(FromPeer(identity, Leave(SHUT_OUT)))
            self._control.disconnect(key, farewell)

    def _say(self, identity: bytes, answer: KeyAnswer | None) -> None:
        if isinstance(answer, Enrolled | Refused):
            self._control.send(identity, TO_AGENT.encode(answer))
        elif answer is not None:
            self._control.send(identity, TO_CLIENT.encode(answer))

    def _handle(self, event: CoordinatorEvent, now: float | None = None) -> None:
        """Let the machine know of an event, and then of what came of that at once: one after the other, however many there are."""
        events = deque([event])
        while events:
            try:
                instructions = self._machine.handle(events.popleft(), time.monotonic() if now is None else now)
            except RemoteProtocolError as error:
                _log.warning("dropped a message: %s", error)
                continue
            came = map(self._carry_out, instructions)
            events.extend(event for event in came if event is not None)

    def _carry_out(self, instruction: coordinator_instructions.CoordinatorInstruction) -> CoordinatorEvent | None:  # noqa: C901 - one branch per instruction
        """Do something; return what came of it at once."""
        match instruction:
            case coordinator_instructions.ToAgent():
                return self._say_to_agent(instruction)
            case coordinator_instructions.ToClient():
                self._say_to_client(instruction)
            case coordinator_instructions.StartRequest():
                return self._host.start(instruction)
            case coordinator_instructions.KeepState():
                self._host.keep_state(instruction)
            case coordinator_instructions.DropRequest():
                self._host.drop(instruction.request)
            case coordinator_instructions.HostDeploy():
                self._storage.loaded(instruction.epoch)
                self._host.install(instruction)
            case coordinator_instructions.HostRelease(epoch):
                self._storage.released(epoch)
                self._host.release(epoch)
            case coordinator_instructions.HostPings(peers):
                self._host.pings.allow(peers)
            case coordinator_instructions.WriteChunk(identity, chunk):
                self._storing.add((identity, chunk.call))
                self._uploads.submit(self._write, instruction)
            case coordinator_instructions.StartPlanning() | coordinator_instructions.StartStandby():
                self._planners.submit(instruction)
            case coordinator_instructions.CancelPlanning(job):
                self._planners.cancel(job)
            case (
                coordinator_instructions.SaveModel()
                | coordinator_instructions.SaveProfile()
                | coordinator_instructions.RemoveProfile()
                | coordinator_instructions.SavePlan()
                | coordinator_instructions.ForgetPlan()
            ):
                self._storage.carry_out(instruction)
            case coordinator_instructions.Compare():
                # Beside the requests: numpy may take long.
                self._comparisons.submit(lambda: self._events.put(compared(instruction)))
            case coordinator_instructions.ReadMachine():
                self._comparisons.submit(self._read_machine)
            case coordinator_instructions.Log():
                known = {"node": instruction.node, "model": instruction.model, "epoch": instruction.epoch, "request": instruction.request}
                _log.log(logging.WARNING if instruction.warns else logging.INFO, instruction.text, extra=known)
            case coordinator_instructions.Audit():
                self._tell(instruction)
        return None

    def _say_to_agent(self, say: coordinator_instructions.ToAgent) -> CoordinatorEvent | None:
        if isinstance(say.message, Welcome):
            self._storage.saw_agents()
        try:
            self._control.send(say.identity, TO_AGENT.encode(say.message))
        except LocalProtocolError as error:
            if not isinstance(say.message, Deploy):
                raise
            # A plan too large to be sent is a failed deployment, as if the agent had refused it.
            return FromPeer(say.identity, DeploymentFailed(say.message.epoch, str(error)))
        return None

    def _say_to_client(self, say: coordinator_instructions.ToClient) -> None:
        message = say.message
        if isinstance(message, Greeting):
            message = replace(message, channel=self._control.channels.invite(say.identity))
        if isinstance(message, StillWorking):  # the machine does not see what waits for the disk
            written = {
                call for identity, call in (*self._storing, *self._incoming.writing, *self._questions.writing) if identity == say.identity
            }
            message = replace(message, known=tuple(call for call in message.asked if call in message.known or call in written))
        try:
            frames = TO_CLIENT.encode(message)
        except LocalProtocolError as error:
            if isinstance(say.message, StillWorking):
                raise
            frames = TO_CLIENT.encode(Failed(say.message.call, Fault.EXECUTION, f"answer: {error}"))
        self._control.send(say.identity, frames)
