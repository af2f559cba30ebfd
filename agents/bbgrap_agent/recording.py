"""Requests that are recorded on this agent: their executions, and afterwards the comparison of clocks with the coordinator.

    host   -- RECORD -- data ...   CLOCK 0 ->            CLOCK 1 ->   ...   CLOCK 8 ->
    agent             steps ...             <- CLOCK 1             ...               the record, in the host's time

The clocks are compared once a request is over, over the data plane, so that this disturbs nothing that is recorded; the round trip that
took least counts. Laws: used by the executor's thread only; a request without recording never comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bbgrap.graph.types import Array
from bbgrap.protocol.data import Frame, Kind, pack_number, unpack_number
from bbgrap.protocol.messages import BytesLike, Recorded
from bbgrap.runtime.recording import Clock, RecordedExecution, RoundTrip, labels_of
from bbgrap.transport.tcp import TcpDataPlane
from bbgrap_agent.deployment import Deployment
from bbgrap_agent.early_messages import RequestKey

ROUND_TRIPS = 8
"""Questions to the host's clock after each recorded request. Measured on one machine: the best of 8 is within 10 % of the best of 100."""

MAX_RECORDINGS = 64
"""Recorded requests that a coordinator may leave unfinished; the oldest makes room."""


@dataclass(slots=True)
class _Recording:
    execution: RecordedExecution
    segments: tuple[str, ...]
    host: str
    asked: int = 0
    asked_ns: int = 0
    best: RoundTrip | None = None
    compared: bool = False


class Recorder:
    """The recordings of one executor.

    Invariants: the data plane is connected to the host of every recording.
    """

    def __init__(self, plane: TcpDataPlane, clock: Clock, say: Callable[[Recorded], None]) -> None:
        """Use the executor's data plane; `say` is called from its thread."""
        self._plane = plane
        self._clock = clock
        self._say = say
        self._recordings: dict[RequestKey, _Recording] = {}

    @property
    def busy(self) -> bool:
        """Whether an answer of a host's clock is awaited."""
        return any(recording.asked and not recording.compared for recording in self._recordings.values())

    def begin(self, key: RequestKey, deployment: Deployment, held: Sequence[Array]) -> RecordedExecution:
        """Return the execution of a request that is to be recorded; `held` is the state that it begins with."""
        if len(self._recordings) >= MAX_RECORDINGS:
            self.drop(next(iter(self._recordings)))
        execution = RecordedExecution(deployment.schedule, self._clock, held, deployment.slices)
        host = deployment.peers[deployment.schedule.host]
        self._recordings[key] = _Recording(execution, deployment.names, host.address)
        self._plane.connect(host.address, host.fingerprint)
        return execution

    def drop(self, key: RequestKey) -> None:
        """Forget a recording, if there is one."""
        recording = self._recordings.pop(key, None)
        if recording is not None:
            self._plane.disconnect(recording.host)

    def drop_all(self, epoch: int) -> None:
        """Forget the recordings of a deployment."""
        for key in [key for key in self._recordings if key[0] == epoch]:
            self.drop(key)

    def on_clock(self, frame: Frame, payload: BytesLike) -> None:
        """Take an answer of the host's clock, and ask again until there are enough.

        Raises:
            RemoteProtocolError: if it is no clock.
        """
        came_ns = self._clock()
        key = (frame.epoch, frame.request)
        recording = self._recordings.get(key)
        if recording is None or frame.source != recording.execution.schedule.host or frame.message != recording.asked:
            return
        theirs_ns = unpack_number(payload)
        if recording.asked:
            trip = RoundTrip(recording.asked_ns, theirs_ns, came_ns)
            recording.best = min(recording.best or trip, trip, key=lambda trip: trip.error_ns)
        if recording.asked == ROUND_TRIPS:
            recording.compared = True
            self.give(key)
            return
        recording.asked += 1
        header = Frame(Kind.CLOCK, recording.execution.schedule.device, *key, recording.asked).to_bytes()
        recording.asked_ns = self._clock()
        self._plane.send(recording.host, header, pack_number(recording.asked_ns))

    def give(self, key: RequestKey) -> None:
        """Hand over a record if its request is over and the clocks are compared."""
        recording = self._recordings.get(key)
        if recording is None or not recording.compared or recording.best is None or not recording.execution.finished:
            return
        self.drop(key)
        labels = labels_of(recording.execution.schedule, recording.segments)
        self._say(Recorded(*key, recording.execution.record(labels).moved(recording.best)))
