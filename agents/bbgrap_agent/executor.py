"""The thread that owns the data plane and runs requests.

    receive -> deliver -> advance the oldest request that can go on -> receive ...

A request begins with the host's first message. Several requests run interleaved: while the oldest waits for a message, the next one does
one step at a time. Laws: only this thread touches the data plane (`wake` apart); an error in a kernel ends its request, not
the agent; whatever comes over the network is dropped unless the schedule expects it, and is bounded in bytes.
"""

from __future__ import annotations

import logging
import queue
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from bbgrap.errors import BbgrapError, RemoteProtocolError
from bbgrap.graph.types import Array
from bbgrap.protocol.data import Frame, Kind, SequenceStart, unpack_number
from bbgrap.protocol.messages import BytesLike, Peer, Recorded, RequestFailed
from bbgrap.runtime.execution import Execution, Kernel, SendParts
from bbgrap.runtime.recording import Clock
from bbgrap.transport.framing import Arrival, OnBroken, nobody_listens
from bbgrap.transport.pings import MAX_PONG_BYTES, PingAnswers, question
from bbgrap.transport.strangers import PeerWarnings
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap_agent.deployment import Deployment
from bbgrap_agent.early_messages import EarlyMessages, RequestKey
from bbgrap_agent.progress import WorkerProgress
from bbgrap_agent.recording import Recorder
from bbgrap_agent.running_kernel import KernelStoppedError, RunningKernel
from bbgrap_agent.sequence_states import SequenceStates

MAX_RUNNING = 64
"""Requests of one deployment that run at a time, or four a device if these are more: twice what a coordinator has in flight. The rest is
refused as busy. Chosen."""
MAX_RUNNING_IN_ALL = 256
MAX_ENDED = 1024
"""Ended requests remembered, so that their late messages are known as such: more than are in flight. Each costs some 300 bytes."""

SPIN_S = 200e-6
"""How long to wait busily for the next message of a request that runs."""

_OF_REQUESTS = frozenset({Kind.DATA, Kind.START, Kind.RECORD, Kind.STATE})
_NOBODY: tuple[str, Callable[[int], None]] = ("", lambda number: None)

_log = logging.getLogger("bbgrap.agent")


@dataclass(slots=True)
class _Running:
    deployment: Deployment
    execution: Execution
    send: SendParts
    compute: Kernel
    sequence: int = 0
    can_go_on: bool = True
    heirs: list[int] = field(default_factory=list)
    """Sequences that are to have the state that it leaves, too; 0: nobody is to have it."""


class Executor:
    """Runs requests until `stop`.

    Invariants: `_coming` are deployments that are installed before the next message is taken; a request is in at most one of `_running`,
    `_early` and `_ended`. One in `_awaiting` goes on from another one in `_running`:
    the host answers when it has the outputs, and an agent may still compute the state then.
    """

    def __init__(
        self,
        plane: TcpDataPlane,
        say: Callable[[RequestFailed | Recorded], None],
        clock: Clock = time.perf_counter_ns,
        *,
        on_broken: OnBroken = nobody_listens,
        progress: WorkerProgress | None = None,
        states: SequenceStates | None = None,
    ) -> None:
        """Own a data plane; `say` is called from this thread with what the coordinator is to hear.

        `on_broken(address, reason)` is called from a thread of the data plane: messages to that address may be lost. Which kernel runs is
        shown in `progress`.
        """
        self.plane = plane
        self._progress = progress
        plane.admit = self._admits
        plane.on_broken = on_broken
        self._say = say
        self._states = states or SequenceStates()
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._deployments: dict[int, Deployment] = {}
        self._coming: dict[int, Deployment] = {}
        self._running: dict[RequestKey, _Running] = {}
        self._awaiting: dict[RequestKey, SequenceStart] = {}
        self._early = EarlyMessages()
        self._ended: OrderedDict[RequestKey, None] = OrderedDict()
        self._void_before = 0
        self._kernel = RunningKernel()
        self._recorder = Recorder(plane, clock, say)
        self.pings = PingAnswers(plane)
        self._awaited: dict[int, tuple[str, Callable[[int], None]]] = {}
        self._warnings = PeerWarnings(_log)
        self._stopped = False

    # --- from other threads -------------------------------------------------------------------------------------------------------

    def post(self, command: Callable[[], None]) -> None:
        """Have a function called in the executor's thread, soon."""
        self._commands.put(command)
        self.plane.wake()

    def install_soon(self, deployment: Deployment) -> None:
        """Make a deployment ready for requests; all that is told to come after this finds it so, though a kernel may be running."""
        self._coming[deployment.epoch] = deployment
        self.post(lambda: self.install(deployment))

    def drop_soon(self, epoch: int, request: int) -> None:
        """Forget a request, in whose kernel the executor may be."""
        self._kernel.stop(lambda key: key == (epoch, request))
        self.post(lambda: self.drop(epoch, request))

    def drop_before_soon(self, request: int) -> None:
        """Forget the requests with lower numbers, and begin none of them: nobody waits for them any more."""
        self._kernel.stop(lambda key: key[1] < request)
        self.post(lambda: self.drop_before(request))

    def stop(self) -> None:
        """End `run`."""
        self.post(self._stop)

    # --- in the executor's thread ---------------------------------------------------------------------------------------------------

    def install(self, deployment: Deployment) -> None:
        """Make a deployment ready for requests."""
        self._deployments[deployment.epoch] = deployment
        for device in deployment.destinations:
            self.plane.connect(deployment.peers[device].address, deployment.peers[device].fingerprint)
        self._coming.pop(deployment.epoch, None)

    def remove(self, epoch: int) -> None:
        """Forget a deployment and its requests."""
        deployment = self._deployments.pop(epoch, None)
        if deployment is None:
            return
        for key in [key for key in (*self._awaiting, *self._running) if key[0] == epoch]:
            self._end(key)
        self._early.drop_all(epoch)
        self._recorder.drop_all(epoch)
        self._states.drop_all(epoch)
        for device in deployment.destinations:
            self.plane.disconnect(deployment.peers[device].address)

    def drop(self, epoch: int, request: int) -> None:
        """Forget a request."""
        self._end((epoch, request))
        self._recorder.drop((epoch, request))

    def drop_before(self, request: int) -> None:
        """Forget the requests with lower numbers, and begin none of them."""
        self._void_before = request
        for key in [key for key in (*self._awaiting, *self._running) if key[1] < request]:
            self.drop(*key)

    def begin_pings(self, peers: Iterable[Peer]) -> None:
        """Make pings to some peers possible; calls are counted."""
        for peer in peers:
            self.plane.connect(peer.address, peer.fingerprint)

    def send_ping(self, peer: Peer, number: int, size: int, on_pong: Callable[[int], None], own_size: int = 0) -> None:
        """Ask for an answer of so many bytes; the number of the question comes back to `on_pong`, in this thread, if one comes.

        The question itself has at least `own_size` bytes.
        """
        self._awaited[number] = (peer.fingerprint, on_pong)
        self.plane.send(peer.address, Frame(Kind.PING, 0, 0, number, size).to_bytes(), question(self.plane.address, own_size))

    def end_pings(self, peers: Iterable[Peer], numbers: Iterable[int]) -> None:
        """Undo one `begin_pings`, and await no answers to these questions any more."""
        for peer in peers:
            self.plane.disconnect(peer.address)
        for number in numbers:
            self._awaited.pop(number, None)

    def run(self) -> None:
        """Work until stopped."""
        while not self._stopped:
            busy = any(running.can_go_on for running in self._running.values())
            arrival = self.plane.receive(0 if busy else None, SPIN_S if self._running or self._recorder.busy else 0.0)
            while not self._commands.empty():
                self._commands.get()()
            if arrival is not None:  # after the commands: what it belongs to may be installed by one
                self.accept(arrival)
            self._advance()
        self.plane.close()

    def accept(self, arrival: Arrival) -> None:
        """Take a message, or drop it if nobody expects it."""
        try:
            frame = Frame.parse(arrival.header)
            running = self._running.get((frame.epoch, frame.request)) if frame.kind is Kind.DATA else None
            if running is not None:
                self._deliver(running, frame, arrival)
            elif frame.kind in _OF_REQUESTS:
                self._take(frame, arrival)
            elif frame.kind is Kind.KEEP:
                deployment = self._deployments.get(frame.epoch)
                if deployment is not None and frame.source == deployment.schedule.host and deployment.is_from(frame.source, arrival.peer):
                    self._share((frame.epoch, frame.request), unpack_number(arrival.payload))
            elif frame.kind is Kind.PING:
                self.pings.answer(frame, arrival.payload, arrival.peer)
            elif frame.kind is Kind.CLOCK:
                deployment = self._deployments.get(frame.epoch)
                if deployment is not None and deployment.is_from(frame.source, arrival.peer):
                    self._recorder.on_clock(frame, arrival.payload)
            else:
                peer, on_pong = self._awaited.get(frame.request, _NOBODY)
                if peer == arrival.peer and self._awaited.pop(frame.request, None) is not None:
                    on_pong(frame.request)
        except RemoteProtocolError as error:
            self._warnings.warn(arrival.sender, f"messages are dropped: {error}")

    def _take(self, frame: Frame, arrival: Arrival) -> None:
        """Take a message of a request that does not run; one of the host begins it."""
        key = (frame.epoch, frame.request)
        deployment = self._deployments.get(frame.epoch)
        if deployment is None or frame.request < self._void_before or key in self._ended or key in self._running:
            return
        deployment.check_source(frame.source, arrival.peer)
        if frame.source == deployment.schedule.host and key not in self._awaiting:
            start = SequenceStart.parse(arrival.payload) if frame.kind is Kind.STATE else None
            running = self._begin(key, deployment, start, recorded=frame.kind is Kind.RECORD or (start is not None and start.record))
            if running is not None and frame.kind is Kind.DATA:
                self._deliver(running, frame, arrival)
        elif frame.kind is Kind.DATA:
            parts = deployment.parts_in(frame, arrival)
            for other in self._early.keep(key, (arrival.sender, frame.source), frame.message, parts, len(arrival.payload)):
                self._say(RequestFailed(*other, f"busy: device {frame.source} is too far ahead of the host; its messages were forgotten"))

    def _deliver(self, running: _Running, frame: Frame, arrival: Arrival) -> None:
        running.execution.deliver(frame.message, running.deployment.parts_in(frame, arrival))
        running.can_go_on = True

    def _admits(self, header: BytesLike, size: int, peer: str) -> bool:
        """Whether a large payload belongs to something that is deployed here, and comes from who is to send it."""
        try:
            frame = Frame.parse(header)
        except RemoteProtocolError:
            return False
        if frame.kind is Kind.PONG:
            asked = self._awaited.get(frame.request)
            return asked is not None and asked[0] == peer and size <= MAX_PONG_BYTES
        deployment = self._deployments.get(frame.epoch) or self._coming.get(frame.epoch)
        return deployment is not None and deployment.admits(frame, size, peer)

    def _begin(self, key: RequestKey, deployment: Deployment, start: SequenceStart | None, *, recorded: bool) -> _Running | None:
        """Begin a request, with what came for it before; None if too many run, or the state is gone that it goes on from."""
        if self._is_full(deployment):
            self._end(key)
            self._say(RequestFailed(*key, f"busy: {len(self._running)} requests run on this agent"))
            return None
        held: Sequence[Array] = ()
        if start is not None and (key[0], start.before) in self._running:
            self._awaiting[key] = start
            return None
        if start is not None:
            owner = (key[0], start.sequence)
            found = self._states.begin(owner, start.before)
            then = deployment.reading if start.reads else deployment.further
            if start.before and (found is None or then is None):
                self._end(key)
                self._say(RequestFailed(*key, f"the state of sequence {start.sequence} is not here{self._states.why(owner)}", lost=True))
                return None
            if start.before and then is not None and found is not None:
                deployment, held = then, found
        if recorded:
            execution: Execution = self._recorder.begin(key, deployment, held)
        else:
            execution = Execution(deployment.schedule, held, deployment.slices)
        compute = self._kernel.stoppable(deployment.compute, key)
        compute = compute if self._progress is None else self._progress.shown(compute, *key)
        running = self._running[key] = _Running(deployment, execution, partial(deployment.send, self.plane, key[1]), compute)
        running.sequence = 0 if start is None else start.sequence
        for message, parts in self._early.take(key):
            running.execution.deliver(message, parts)
        return running

    def _share(self, owner: RequestKey, sequence: int) -> None:
        """Let another sequence have the state of one, too, and what a request that runs is to leave; 0: forget it."""
        self._states.share(owner, sequence)
        for (epoch, _), running in self._running.items():
            if (epoch, running.sequence) == owner:
                running.heirs.append(sequence)

    def _is_full(self, deployment: Deployment) -> bool:
        if len(self._running) < MAX_RUNNING:
            return False
        most = max(MAX_RUNNING, 4 * len(deployment.peers))
        return len(self._running) >= MAX_RUNNING_IN_ALL or sum(key[0] == deployment.epoch for key in self._running) >= most

    def _end(self, key: RequestKey) -> None:
        self._running.pop(key, None)
        self._awaiting.pop(key, None)
        self._early.take(key)
        self._ended[key] = None
        if len(self._ended) > MAX_ENDED:
            self._ended.popitem(last=False)
        for other in [other for other, start in self._awaiting.items() if (other[0], start.before) == key]:
            start, deployment = self._awaiting.pop(other), self._deployments.get(other[0])
            if deployment is not None:
                self._begin(other, deployment, start, recorded=start.record)

    def _advance(self) -> None:
        """Let the oldest request that can go on do so; a younger one does a single step before messages are looked for again."""
        for place, (key, running) in enumerate(self._running.items()):
            if running.can_go_on:
                self._step(key, running, None if place == 0 else 1)
                return

    def _step(self, key: RequestKey, running: _Running, limit: int | None) -> None:
        execution = running.execution
        before = execution.position
        try:
            finished = execution.advance(running.compute, running.send, limit=limit)
        except KernelStoppedError:
            self.drop(*key)
            return
        except (BbgrapError, ValueError, KeyError, IndexError, TypeError, MemoryError) as error:
            self._end(key)
            self._recorder.drop(key)
            self._say(RequestFailed(*key, str(error)))
            return
        if finished:
            if running.sequence:
                owner = (key[0], running.sequence)
                self._states.keep(owner, key[1], execution.results())
                for sequence in running.heirs:
                    self._states.share(owner, sequence)
            self._end(key)
            self._recorder.give(key)
        running.can_go_on = limit is not None and execution.position != before

    def _stop(self) -> None:
        self._stopped = True
