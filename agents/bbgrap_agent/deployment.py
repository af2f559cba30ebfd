"""A deployment as the executor needs it: its programs, segments and peers, and the messages that they exchange."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from bbgrap.errors import ExecutionError, RemoteProtocolError
from bbgrap.graph.types import Array
from bbgrap.protocol.data import Frame, Headers
from bbgrap.protocol.message_layout import MessageLayout, layouts_received, layouts_sent, pack, unpack
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import LocalSend, Schedule
from bbgrap.transport.data import Arrival, DataPlane

Segment = Callable[[Sequence[Array]], Sequence[Array]]
"""A loaded segment; its inputs and outputs are in the order of `Run`."""


@dataclass(frozen=True)
class Deployment:
    """A deployment as the executor needs it.

    Invariants: `addresses` are the data planes of all devices, in device order, the host last; `fingerprints` are those of their
    certificates, all "" on a plain data plane. `further` is what it is for requests of a sequence that go on from state,
    `reading` for those that tell it.
    """

    epoch: int
    schedule: Schedule
    segments: tuple[Segment, ...]
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    slices: SlicePlan
    fingerprints: tuple[str, ...] = ()
    further: Deployment | None = None
    reading: Deployment | None = None
    received: Mapping[int, MessageLayout] = field(init=False)
    sent: Mapping[int, MessageLayout] = field(init=False)
    headers: Headers = field(init=False)

    def __post_init__(self) -> None:
        """Look up once what every message is."""
        object.__setattr__(self, "fingerprints", self.fingerprints or ("",) * len(self.addresses))
        object.__setattr__(self, "received", layouts_received(self.schedule))
        object.__setattr__(self, "sent", layouts_sent(self.schedule))
        object.__setattr__(self, "headers", Headers(self.schedule.device, self.epoch, self.sent))

    @property
    def destinations(self) -> tuple[int, ...]:
        """The devices it sends to."""
        also = () if self.further is None else self.further.destinations
        return tuple(sorted({*also, *(layout.peer for layout in self.sent.values())}))

    def layout(self, message: int) -> MessageLayout | None:
        """Return what a message that comes here is, of whichever program."""
        known = self.received.get(message)
        return known if known is not None or self.further is None else self.further.received.get(message)

    def is_from(self, device: int, fingerprint: str) -> bool:
        """Whether a device is the peer with this fingerprint: what a message says of its source is worth nothing by itself."""
        return device < len(self.fingerprints) and self.fingerprints[device] == fingerprint

    def parts_in(self, frame: Frame, arrival: Arrival) -> list[Array]:
        """Return the parts that a message brings.

        Raises:
            RemoteProtocolError: if the schedule does not have it, or it is not from the device that it names.
        """
        layout = self.layout(frame.message)
        if layout is None or layout.peer != frame.source:
            raise RemoteProtocolError(f"data message {frame.message} from device {frame.source}: the schedule does not have it")
        self.check_source(frame.source, arrival.peer)
        return unpack(layout, arrival.payload)

    def check_source(self, device: int, fingerprint: str) -> None:
        """Refuse what a device claims to have sent and another peer has.

        Raises:
            RemoteProtocolError: if it has.
        """
        if not self.is_from(device, fingerprint):
            raise RemoteProtocolError(f"a message that claims to be of device {device} came over the connection of another node")

    def send(self, plane: DataPlane, request: int, step: LocalSend, arrays: Mapping[int, Array]) -> None:
        """Send the parts of a step out of these arrays, which are those of the buffers by number.

        Raises:
            ModelError: if an array is not what the schedule says.
        """
        payload = pack(self.sent[step.message], self.slices.sent(step, arrays))
        plane.send(self.addresses[step.destination], self.headers.of(step.message, request), *payload)

    def compute(self, segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run a segment.

        Raises:
            ExecutionError: if it fails; the message names the segment.
        """
        try:
            return self.segments[segment](inputs)
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise ExecutionError(f"segment '{self.names[segment]}': {' '.join(str(error).split())[:2000]}") from error
