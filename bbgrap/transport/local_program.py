"""What one device of a deployment, an agent or the host, exchanges with the others when it runs its schedule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bbgrap.errors import RemoteProtocolError
from bbgrap.graph.types import Array
from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.message_layout import MessageLayout, layouts_received, layouts_sent, pack, unpack
from bbgrap.protocol.messages import Peer
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import LocalSend, Schedule
from bbgrap.transport.framing import Arrival
from bbgrap.transport.tcp import TcpDataPlane


@dataclass(frozen=True)
class LocalProgram:
    """A schedule, and the devices that it exchanges messages with.

    Invariants: `peers` are by their device; `slices` are those of the schedule.
    """

    epoch: int
    schedule: Schedule
    slices: SlicePlan
    peers: Mapping[int, Peer]
    received: Mapping[int, MessageLayout] = field(init=False)
    sent: Mapping[int, MessageLayout] = field(init=False)

    def __post_init__(self) -> None:
        """Look up once what every message is."""
        object.__setattr__(self, "received", layouts_received(self.schedule))
        object.__setattr__(self, "sent", layouts_sent(self.schedule))

    def is_from(self, device: int, fingerprint: str) -> bool:
        """Whether a device is the peer with this fingerprint: what a message says of its source is worth nothing by itself."""
        peer = self.peers.get(device)
        return peer is not None and peer.fingerprint == fingerprint

    def check_source(self, device: int, fingerprint: str) -> None:
        """Refuse what a device claims to have sent and another peer has.

        Raises:
            RemoteProtocolError: if it has.
        """
        if not self.is_from(device, fingerprint):
            raise RemoteProtocolError(f"a message that claims to be of device {device} came over the connection of another node")

    def admits(self, frame: Frame, size: int, fingerprint: str) -> bool:
        """Whether a payload of so many bytes may be what the schedule expects, and comes from who is to send it."""
        layout = self.received.get(frame.message)
        return layout is not None and layout.peer == frame.source and self.is_from(frame.source, fingerprint) and layout.admits(size)

    def parts_in(self, frame: Frame, arrival: Arrival) -> list[Array]:
        """Return the parts that a message brings.

        Raises:
            RemoteProtocolError: if the schedule does not have it, or it is not from the device that it names.
        """
        layout = self.received.get(frame.message)
        if layout is None or layout.peer != frame.source:
            raise RemoteProtocolError(f"data message {frame.message} from device {frame.source}: the schedule does not have it")
        self.check_source(frame.source, arrival.peer)
        return unpack(layout, arrival.payload)

    def send(self, plane: TcpDataPlane, request: int, step: LocalSend, arrays: Mapping[int, Array]) -> None:
        """Send the parts of a step out of these arrays, which are those of the buffers by number.

        Raises:
            ModelError: if an array is not what the schedule says.
        """
        payload = pack(self.sent[step.message], self.slices.sent(step, arrays))
        header = Frame(Kind.DATA, self.schedule.device, self.epoch, request, step.message).to_bytes()
        plane.send(self.peers[step.destination].address, header, *payload)
