"""The end of a control connection that an agent or client has; its laws are those of `bbgrap.transport.control_sockets`."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Sequence
from typing import Self

import zmq

from bbgrap.errors import AccessError, ClusterUnavailableError, RemoteProtocolError, UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.limits import ROUND_TRIPS
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport import frame_pieces
from bbgrap.transport.channel import Channel, open_channel
from bbgrap.transport.control_sockets import SESSION_BYTES, is_ipv6, read_monitor, set_limits, why_unknown
from bbgrap.transport.dead_peers import facts_by
from bbgrap.transport.host_names import HostAddresses
from bbgrap.transport.locks import CLOSED, FAILED, ClientLock, FindLock, no_lock, refusal, was_closed

_TRIES = zmq.EVENT_CONNECTED | zmq.EVENT_CONNECT_DELAYED | zmq.EVENT_CONNECT_RETRIED
"""One of these is told as soon as the name of the host has been looked up, or could not be."""
_CONNECT_S = 1.0
"""How long an address of a named host may take no connection: the host may have others. The kernel repeats its first packet then, too."""

_NONE = -1
"""The descriptor of no connection."""
_DELIVERS_BYTES = 4 << 10
"""More than questions after calls take, between two looks. Chosen."""


class ControlClient:
    """The end of an agent or client; it reconnects for ever by itself.

    Invariants: the identity stays the same over reconnections.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        address: str,
        find_lock: FindLock = no_lock,
        *,
        closed_before_sure: float = CLOSED,
    ) -> None:
        """Begin to connect to `tcp://HOST:PORT`, with the keys that `find_lock` returns.

        After `closed_before_sure` handshakes that the other side has ended without a reason, the keys are taken for wrong.

        Raises:
            UsageError: if the address is malformed.
            AccessError: if `find_lock` does.
        """
        self._context = context
        self._session = secrets.token_bytes(SESSION_BYTES)
        self._find_lock = find_lock
        self._closed_before_sure = closed_before_sure
        self.lock: ClientLock | None = find_lock()
        self.address = address
        self._addresses = HostAddresses(address)
        self.channel: Channel | None = None
        self._broken = False
        self.socket = self._open()

    @property
    def files(self) -> tuple[zmq.Socket[bytes] | int, ...]:
        """What to poll: a message may wait when one of them is readable."""
        return (self.socket,) if self.channel is None else (self.socket, self.channel.fileno())

    def use_channel(self, invitation: str) -> None:
        """Open the channel that the coordinator invites to, if it is on this machine."""
        self._leave_channel()
        self.channel = open_channel(invitation)

    def _leave_channel(self) -> None:
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def _open(self) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        set_limits(socket)
        if self.lock is not None:
            self.lock.set_on(socket)
        socket.ipv6 = is_ipv6(self._addresses.current)
        if self._addresses.is_name:
            socket.connect_timeout = round(_CONNECT_S * 1000)
        socket.reconnect_ivl = 100
        socket.reconnect_ivl_max = 400  # else it comes seconds after its coordinator
        self._failures, self._refused, self._has_tried = 0, "", False
        self._connection, self._received, self._delivered = _NONE, 0, 0
        self._monitor = socket.get_monitor_socket(FAILED | zmq.EVENT_DISCONNECTED | _TRIES)
        try:
            socket.connect(self._addresses.current)
        except zmq.ZMQError as error:
            self._close(socket, 0)
            raise UsageError(f"address '{self.address}': expected tcp://HOST:PORT: {error.strerror}") from error
        return socket

    def _close(self, socket: zmq.Socket[bytes], linger_ms: int | None = None) -> None:
        socket.disable_monitor()
        self._monitor.close(0)
        socket.close(linger_ms)

    def looks_up(self, within_s: float) -> bool:
        """Whether the host is still looked up after so long; the first message is said when that has ended."""
        self._monitor.poll(0 if self._has_tried else round(within_s * 1000))
        self._look()
        return not self._has_tried

    @property
    def refused(self) -> str:
        """Why the coordinator does not take this side's connections, if it has said so; then there will be none before `reopen`."""
        self._look()
        return self._refused

    def was_broken(self) -> bool:
        """Whether a connection has ended since this was asked last: what was on its way may be lost."""
        self._look()
        broken, self._broken = self._broken, False
        return broken

    def has_received(self) -> bool:
        """Whether bytes have come since this was asked last: a large message is on its way, or a handshake; False where no system tells."""
        self._look()
        before, self._received = self._received, facts_by(self._connection).received
        return self._received > before

    def has_delivered(self) -> bool:
        """Whether much has arrived there since this was asked last: the other side may not have a large message yet.

        A process that does not read takes no more than its system holds for it.
        """
        self._look()
        before, self._delivered = self._delivered, facts_by(self._connection).acknowledged or 0
        return self._delivered - before > _DELIVERS_BYTES

    @property
    def far_s(self) -> float:
        """How long a first answer may be on its way alone, in seconds; 0 without a connection, or where the system does not tell."""
        self._look()
        return ROUND_TRIPS * facts_by(self._connection).round_trip_s

    def _look(self) -> None:
        """Note what ZeroMQ tells of the connection."""
        while self._monitor.poll(0):
            event, value, address = read_monitor(self._monitor)
            self._has_tried = True
            if event == zmq.EVENT_DISCONNECTED:
                self._broken, self._connection, self._received, self._delivered = True, _NONE, 0, 0
            self._failures += was_closed(event, value)
            if event == zmq.EVENT_CONNECT_RETRIED:
                self._addresses.failed(address)
            elif event == zmq.EVENT_CONNECTED:
                self._addresses.succeeded()
                self._connection = value
            why = refusal(self.lock, self.address, event, value, closed=self._failures >= self._closed_before_sure)
            self._refused = self._refused or why
        before = self._addresses.current
        if self._addresses.move_on():
            self.socket.disconnect(before)
            self.socket.ipv6 = is_ipv6(self._addresses.current)
            self.socket.connect(self._addresses.current)

    def has_new_lock(self) -> bool:
        """Whether the keys are others than those of this connection: a token was replaced."""
        return self._lock_now() != self.lock

    def _lock_now(self) -> ClientLock | None:
        try:
            return self._find_lock()
        except AccessError:  # a coordinator on this machine takes its token with it, and brings it back
            return self.lock

    def reopen(self) -> None:
        """Replace the connection, with the keys that there are now, or those of before while there are none; what was queued is lost.

        One for which the host is still looked up stays: with a name server that is away that takes seconds, and would begin anew.
        """
        if self.looks_up(0) and not self.has_new_lock():
            return
        self.lock = self._lock_now()
        self._leave_channel()
        self._close(self.socket, 0)
        self.socket = self._open()

    def send(self, frames: Sequence[BytesLike]) -> None:
        """Send a message; with a full queue it is lost, and the protocol says it again."""
        if self.channel is None or not self.channel.send(frames):
            frame_pieces.send(self.socket, frame_pieces.cut(self._session, frames))

    def receive(self) -> list[BytesLike] | None:
        """Take a waiting message, or None."""
        try:
            frames = None if self.channel is None else self.channel.receive()
        except (ConnectionError, RemoteProtocolError):  # the other connection says what is to be said
            self._leave_channel()
            self._broken = True
            frames = None
        if frames is not None:
            return frames
        while (received := frame_pieces.receive(self.socket, route=0)) is not None:
            self._failures = 0
            envelope, *wire = received[1]
            if frames := frame_pieces.join(envelope, wire):  # else it was too large, or only asked whether this side is there
                return frames
        return None

    def close(self) -> None:
        """Close the connection, after what is queued has gone out or half a second has passed."""
        self._leave_channel()
        self._close(self.socket)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_listening(address: str, within_s: float) -> bool:
    """Whether anything takes connections at an address."""
    host, port = split_address(address)
    try:
        socket.create_connection((host.strip("[]"), int(port)), within_s).close()
    except (OSError, UnicodeError, OverflowError):
        return False
    return True


def unavailable(address: str, within_s: float) -> ClusterUnavailableError:
    """Return the error for a coordinator that does not answer, or whose host has no address."""
    if reason := why_unknown(address):
        host = split_address(address)[0]
        return ClusterUnavailableError(f"no coordinator answers at {address}: host '{host}' cannot be found ({reason}); is its name right?")
    return ClusterUnavailableError(
        f"no coordinator answers at {address} within {within_s:g} s; start one with: bbgrap-coordinator --bind {address}"
    )
