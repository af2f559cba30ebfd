"""Answering measuring messages, on whatever data plane: those of the peers that may ask just now, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import BytesLike, Peer
from bbgrap.transport.tcp import TcpDataPlane

MAX_PONG_BYTES = 4 << 20
"""The largest answer to a ping."""
LONG_BYTES = 10 << 10
"""More than any packet holds. Over a tunnel that loses long packets a link passes short messages, and no tensor."""
_ADDRESS_BYTES = 256

_CONTENT = memoryview(bytes(MAX_PONG_BYTES))


def question(address: str, size: int = 0) -> BytesLike:
    """Return the payload of a `PING` from an address: that, and zeros up to a size in bytes."""
    return address.encode().ljust(size, b"\0")


class PingAnswers:
    """Answers pings on one data plane; used by the thread that owns it.

    Invariants: the plane is connected to the addresses that may ask, which are known with their fingerprints.
    """

    def __init__(self, plane: TcpDataPlane) -> None:
        self._plane = plane
        self._peers: dict[str, str] = {}

    def allow(self, peers: Sequence[Peer]) -> None:
        """Let these peers send, and answer their pings, and those of no others from now on."""
        before, self._peers = self._peers, {peer.address: peer.fingerprint for peer in peers}
        self._plane.allow(self._peers.values())
        for address, fingerprint in self._peers.items():  # first, so that no connection that is still wanted is closed
            self._plane.connect(address, fingerprint)
        for address in before:
            self._plane.disconnect(address)

    def answer(self, ping: Frame, payload: BytesLike, fingerprint: str = "") -> None:
        """Answer a `PING` of a peer with as many bytes as it asks for, if the address in its payload is its own and may ask."""
        address = bytes(payload[:_ADDRESS_BYTES]).rstrip(b"\0").decode("ascii", "replace")
        if self._peers.get(address) == fingerprint:
            self._plane.send(address, Frame(Kind.PONG, 0, 0, ping.request, 0).to_bytes(), _CONTENT[: min(ping.message, MAX_PONG_BYTES)])
