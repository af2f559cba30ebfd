"""The host's part of requests: scatter the inputs, gather the outputs.

The coordinator is the last device of every deployment. Laws: every device that takes part gets exactly one first message per request, its
inputs or a bare start, and before it the word to record, or of which sequence it is, if that is so;
what arrives for a request that is not running is dropped.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from bbgrap.control.coordinator_events import RequestBroke, RequestDone
from bbgrap.control.coordinator_instructions import HostDeploy, KeepState, StartRequest
from bbgrap.errors import BbgrapError, ExecutionError, RemoteProtocolError
from bbgrap.graph.types import Array, DType
from bbgrap.protocol.data import Frame, Kind, SequenceStart, pack_number
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import BytesLike, TensorHeader
from bbgrap.protocol.tensors import decode_array, encode_array
from bbgrap.runtime.execution import Execution, SlicePlan
from bbgrap.runtime.recording import RecordedExecution, labels_of
from bbgrap.runtime.schedule import Schedule
from bbgrap.transport.framing import Arrival, OnBroken, nobody_listens
from bbgrap.transport.local_program import LocalProgram
from bbgrap.transport.pings import PingAnswers
from bbgrap.transport.strangers import PeerWarnings
from bbgrap.transport.tcp import TcpDataPlane

_log = logging.getLogger("bbgrap.coordinator")


@dataclass(frozen=True)
class _HostProgram(LocalProgram):
    """A schedule of the host, for the devices that take part; as on agents, `further` is for requests that go on from state."""

    further: _HostProgram | None = None
    reading: _HostProgram | None = None
    """For those that only tell it."""

    @cached_property
    def bare(self) -> tuple[int, ...]:
        """The devices that get no input."""
        return tuple(sorted(self.peers.keys() - {layout.peer for layout in self.sent.values()}))

    def program(self, start: StartRequest) -> _HostProgram:
        """Return what the host does for a request."""
        then = self.reading if start.reads else self.further
        return self if then is None or not start.before else then


@dataclass(frozen=True, slots=True)
class _Running:
    program: _HostProgram
    execution: Execution


class HostExecutor:
    """Runs the host's schedules on the coordinator's thread.

    Invariants: a running request's deployment is installed.
    """

    def __init__(self, plane: TcpDataPlane, on_broken: OnBroken = nobody_listens) -> None:
        """Use a data plane that belongs to the same thread.

        `on_broken(address, reason)` is called from a thread of the data plane: messages to that address may be lost.
        """
        self._plane = plane
        self.pings = PingAnswers(plane)
        plane.admit = self._admits
        plane.on_broken = on_broken
        self._deployments: dict[int, _HostProgram] = {}
        self._running: dict[int, _Running] = {}
        self._warnings = PeerWarnings(_log)

    def install(self, deploy: HostDeploy) -> None:
        """Connect to the devices of a deployment."""
        peers = {peer.device: peer for peer in deploy.peers}

        def program(schedule: Schedule, *others: _HostProgram | None) -> _HostProgram:
            return _HostProgram(deploy.epoch, schedule, SlicePlan(schedule), peers, *others)

        others = (None if schedule is None else program(schedule) for schedule in (deploy.further, deploy.reading))
        self._deployments[deploy.epoch] = program(deploy.schedule, *others)
        for peer in deploy.peers:
            self._plane.connect(peer.address, peer.fingerprint)

    def release(self, epoch: int) -> None:
        """Forget a deployment and its requests."""
        deployment = self._deployments.pop(epoch, None)
        if deployment is None:
            return
        for number in [number for number, running in self._running.items() if running.program.epoch == epoch]:
            del self._running[number]
        for peer in deployment.peers.values():
            self._plane.disconnect(peer.address)

    def drop(self, request: int) -> None:
        """Forget a request."""
        self._running.pop(request, None)

    def start(self, start: StartRequest) -> RequestDone | RequestBroke | None:
        """Begin a request; returns its end if it ends at once."""
        deployment = self._deployments.get(start.epoch)
        if deployment is None:
            return RequestBroke(start.request, Fault.EXECUTION, f"deployment {start.epoch} has ended, submit again")
        program = deployment.program(start)
        schedule = program.schedule
        try:
            feeds = _feeds(schedule, start)
            if start.record:
                execution: Execution = RecordedExecution(schedule, time.perf_counter_ns, feeds, program.slices)
            else:
                execution = Execution(schedule, feeds, program.slices)
        except BbgrapError as error:
            return RequestBroke(start.request, Fault.INPUT, str(error))
        running = self._running[start.request] = _Running(program, execution)
        kind, devices = (Kind.RECORD, tuple(program.peers)) if start.record else (Kind.START, program.bare)
        payload: tuple[bytes, ...] = ()
        if start.sequence:
            kind, devices = Kind.STATE, tuple(program.peers)
            payload = (SequenceStart(start.sequence, start.before, start.record, start.reads).to_bytes(),)
        for device in devices:
            header = Frame(kind, schedule.device, start.epoch, start.request, 0).to_bytes()
            self._plane.send(program.peers[device].address, header, *payload)
        return self._advance(start.request, running)

    def keep_state(self, keep: KeepState) -> None:
        """Tell the devices of a deployment whose a state is, too, or that it is nobody's any more."""
        deployment = self._deployments.get(keep.epoch)
        if deployment is None:
            return
        for peer in deployment.peers.values():
            header = Frame(Kind.KEEP, deployment.schedule.device, keep.epoch, keep.sequence, 0).to_bytes()
            self._plane.send(peer.address, header, pack_number(keep.other))

    def accept(self, arrival: Arrival) -> RequestDone | RequestBroke | None:
        """Take a message; returns the end of its request if this was the last one."""
        try:
            frame = Frame.parse(arrival.header)
            if frame.kind is Kind.CLOCK:
                deployment = self._deployments.get(frame.epoch)
                if deployment is not None and deployment.is_from(frame.source, arrival.peer):
                    self._show_clock(deployment, frame.request, frame.message, frame.source)
                return None
            if frame.kind is Kind.PING:
                self.pings.answer(frame, arrival.payload, arrival.peer)
            running = self._running.get(frame.request)
            if frame.kind is not Kind.DATA or running is None or running.program.epoch != frame.epoch:
                return None
            running.execution.deliver(frame.message, running.program.parts_in(frame, arrival))
        except RemoteProtocolError as error:
            self._warnings.warn(arrival.sender, f"messages are dropped: {error}")
            return None
        return self._advance(frame.request, running)

    def _admits(self, header: BytesLike, size: int, peer: str) -> bool:
        """Whether a large payload belongs to a request that runs."""
        try:
            frame = Frame.parse(header)
        except RemoteProtocolError:
            return False
        running = self._running.get(frame.request)
        return running is not None and running.program.epoch == frame.epoch and running.program.admits(frame, size, peer)

    def _advance(self, request: int, running: _Running) -> RequestDone | RequestBroke | None:
        program, schedule = running.program, running.program.schedule
        try:
            if not running.execution.advance(_no_kernel, partial(program.send, self._plane, request)):
                return None
            results = running.execution.results()
        except (BbgrapError, ValueError, KeyError, IndexError, TypeError, MemoryError) as error:
            self._running.pop(request, None)
            return RequestBroke(request, Fault.EXECUTION, f"coordinator: {error}")
        self._running.pop(request, None)
        record = None
        if isinstance(running.execution, RecordedExecution):
            record = running.execution.record(labels_of(schedule))
            for device in program.peers:
                self._show_clock(program, request, 0, device)
        names = [schedule.buffers[b].name for b in schedule.results]
        headers = tuple(TensorHeader(name, DType.of(array.dtype), array.shape) for name, array in zip(names, results, strict=True))
        return RequestDone(request, headers, tuple(encode_array(array) for array in results), record)

    def _show_clock(self, program: LocalProgram, request: int, number: int, device: int) -> None:
        """Tell a device of a deployment what the clock of records shows now."""
        header = Frame(Kind.CLOCK, program.schedule.device, program.epoch, request, number).to_bytes()
        self._plane.send(program.peers[device].address, header, pack_number(time.perf_counter_ns()))


def _no_kernel(segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
    raise ExecutionError(f"the host's schedule runs segment {segment} on {len(inputs)} inputs, but the host computes nothing")


def _feeds(schedule: Schedule, start: StartRequest) -> list[Array]:
    if not len(start.inputs) == len(start.payload) == len(schedule.feeds):
        raise RemoteProtocolError(
            f"request: expected {len(schedule.feeds)} inputs, got {len(start.inputs)} with {len(start.payload)} contents"
        )
    feeds = []
    for header, content, buffer in zip(start.inputs, start.payload, schedule.feeds, strict=True):
        spec = schedule.buffers[buffer]
        if header.dtype is not spec.dtype or (spec.shape is not None and header.shape != spec.shape):
            got = f"{header.dtype.name.lower()}{list(header.shape)}"
            raise RemoteProtocolError(
                f"input '{header.name}': the plan is for {spec.dtype.name.lower()}{list(spec.shape or ())}, got {got}"
            )
        feeds.append(decode_array(header.dtype, header.shape, content))
    return feeds
