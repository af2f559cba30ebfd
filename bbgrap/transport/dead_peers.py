"""Connections whose other side is gone without a word.

An idle connection is probed by the system (keepalive). One with data on its way is looked at here: the system itself would go on for a
quarter of an hour. TCP_USER_TIMEOUT is no help: it would also break the connection to a machine that computes too long to read. That one
acknowledges everything that fits, and afterwards has all that was sent (a zero window); so what counts is data that was sent and never
acknowledged, while no other word came either. Laws: nothing here waits; systems without TCP_INFO find out late, as they always did.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

LOOK_S = 0.1
"""How often to look at a connection that is being used."""
_SILENCE_S = 0.4
_ROUND_TRIPS = 8
_PROBES = 3
"""Questions to a full receiver that it may leave unanswered. Linux answers at most two a second."""

_INFO = struct.Struct("=8B24I4Q3I")
"""The head of Linux's `struct tcp_info`, since 4.6; times are in milliseconds, the round trip's in microseconds."""
_PROBES_AT, _UNACKED_AT, _LAST_ACK_AT, _ROUND_TRIP_AT, _ACKED_AT, _RECEIVED_AT, _PACKETS_AT, _UNSENT_AT = 3, 12, 20, 23, 34, 35, 37, 38


@dataclass(slots=True)
class DeadPeerCheck:
    """What is known of the acknowledgements of one connection."""

    since: float | None = None
    """Since when there has been something unacknowledged and no word; None if there is nothing."""
    looked: float = 0.0
    waits: bool = False
    """Whether anything was not acknowledged or not even sent when it was last looked at."""

    def check(self, connection: socket.socket, now: float) -> float | None:
        """Look, about every `LOOK_S`; return for how many seconds the other side has been silent if that is too long, else None."""
        fields = _fields(connection)
        late, self.looked = now - self.looked > 5 * LOOK_S, now
        self.waits = fields is not None and fields[_UNACKED_AT] + fields[_UNSENT_AT] > 0
        if fields is None or not (fields[_UNACKED_AT] or fields[_PROBES_AT] >= _PROBES):
            self.since = None
            return None
        # This machine itself may have been stopped meanwhile: that is nobody's silence.
        begun = now if self.since is None or late else self.since
        self.since = max(begun, now - fields[_LAST_ACK_AT] / 1e3)
        silent_s = now - self.since
        return silent_s if silent_s > max(_SILENCE_S, _ROUND_TRIPS * fields[_ROUND_TRIP_AT] / 1e6) else None


class TcpFacts(NamedTuple):
    """What the system knows of a connection; as it is here where there is none, or it does not tell."""

    acknowledged: int | None = None
    """How many bytes the other side has."""
    received: int = 0
    """How many bytes have come."""
    packets: int = 0
    """How many packets have come, those behind a lost one and acknowledgements too."""
    round_trip_s: float = 0.0
    """The seconds that a packet takes to the other side and back."""


def facts_of(connection: socket.socket) -> TcpFacts:
    """Return what is known of a connection."""
    if (fields := _fields(connection)) is None:
        return TcpFacts()
    return TcpFacts(fields[_ACKED_AT], fields[_RECEIVED_AT], fields[_PACKETS_AT], fields[_ROUND_TRIP_AT] / 1e6)


def facts_by(descriptor: int) -> TcpFacts:
    """Return the same of a connection that another library has; it may have closed it."""
    if sys.platform == "linux":
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
            return facts_of(connection)
    return TcpFacts()


def _fields(connection: socket.socket) -> tuple[int, ...] | None:
    """Return what the system knows of a connection; None if it does not tell."""
    if sys.platform == "linux":  # others have other fields
        with suppress(OSError, AttributeError):
            content = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO.size)
            return _INFO.unpack(content) if len(content) >= _INFO.size else None
    return None


def detect_dead_peer(connection: socket.socket) -> None:
    """Have messages sent at once, and an idle connection broken when the other side is gone without a word."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
