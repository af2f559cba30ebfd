"""Answering measuring messages, on whatever data plane: those of the peers that may ask just now, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from bbgrap.protocol.data import Frame, Kind
from bbgrap.protocol.messages import BytesLike, Peer
from bbgrap.transport.data import DataPlane

MAX_PONG_BYTES = 4 << 20
"""The largest answer to a ping."""

_CONTENT = memoryview(bytes(MAX_PONG_BYTES))


class PingAnswers:
    """Answers pings on one data plane; used by the thread that owns it.

    Invariants: the plane is connected to the addresses that may ask.
    """

    def __init__(self, plane: DataPlane) -> None:
        """Answer nobody."""
        self._plane = plane
        self._addresses: frozenset[str] = frozenset()

    def allow(self, peers: Sequence[Peer]) -> None:
        """Answer the pings of these peers, and of no others, from now on."""
        before, self._addresses = self._addresses, frozenset(peer.address for peer in peers)
        for address in self._addresses:  # first, so that no connection that is still wanted is closed
            self._plane.connect(address)
        for address in before:
            self._plane.disconnect(address)

    def answer(self, ping: Frame, payload: BytesLike) -> None:
        """Answer a `PING` with as many bytes as it asks for, if the address in its payload may ask."""
        address = bytes(payload[:256]).decode("ascii", "replace")
        if address in self._addresses:
            self._plane.send(address, Frame(Kind.PONG, 0, 0, ping.request, 0).to_bytes(), _CONTENT[: min(ping.message, MAX_PONG_BYTES)])
