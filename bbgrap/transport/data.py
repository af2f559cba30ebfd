"""The data plane: one-way messages from device to device.

Each process binds one PULL and connects one PUSH to each peer it sends to. Laws (checked for every implementation by
`tests/bbgrap/transport/check_transport.py`): messages of one sender to one receiver arrive in order, once, unchanged; `send` never
waits, and what does not fit into the queues goes out while the sender is in `receive`; `receive` returns at once when a message or a
wake-up is there; only `wake` may be called from another thread.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from dataclasses import dataclass
from typing import Protocol

import zmq

from bbgrap.errors import UsageError
from bbgrap.protocol.limits import MAX_TENSOR_BYTES
from bbgrap.protocol.messages import Buffer

_QUEUE = 64
"""Messages in libzmq's queue per peer; more wait in `_Peer.backlog`, where they are visible."""
_ZERO_COPY_BYTES = 64 << 10
"""From here on handing over memory is cheaper than copying it (pyzmq's own threshold)."""
_LINGER_MS = 200
_WAKE = b""
_NOTHING = memoryview(b"")
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that came: its header and payload."""

    header: Buffer
    payload: Buffer
    frame: zmq.Frame | None = None

    @property
    def sender(self) -> str:
        """The network address of the sender, as far as the transport can tell; for log lines."""
        try:
            return str(self.frame.get("Peer-Address")) if self.frame is not None else "a peer"
        except zmq.ZMQError:
            return "a peer"


class DataPlane(Protocol):
    """What executors need of a transport."""

    address: str
    """Where others reach this one."""

    def connect(self, address: str) -> None:
        """Make `send` to an address possible; calls are counted."""

    def disconnect(self, address: str) -> None:
        """Undo one `connect`; what is queued after the last one may be lost."""

    def send(self, address: str, header: bytes, payload: Buffer = b"") -> None:
        """Send a message; the payload must not change afterwards. To an address without connection it is lost."""

    def receive(self, timeout_s: float | None) -> Arrival | None:
        """Return the next message; None after the timeout (None: never; 0: at once) or a wake-up."""

    def wake(self) -> None:
        """Make `receive` return; from any thread."""

    def close(self) -> None:
        """Close everything; what is queued has a fraction of a second to go out."""


@dataclass(slots=True)
class _Peer:
    socket: zmq.Socket[bytes]
    users: int
    backlog: deque[tuple[bytes, Buffer]]


class ZmqDataPlane:
    """The data plane over ZeroMQ's PUSH and PULL.

    Invariants: a peer with a backlog has a full queue in libzmq; messages leave the backlog in order.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], bind: str, advertise: str) -> None:
        """Listen on `tcp://HOST:PORT` (port 0: a free one); `advertise` is the host others use.

        Raises:
            UsageError: if the address cannot be listened on.
        """
        self._context = context
        self._pull = context.socket(zmq.PULL)
        self._pull.linger = 0
        self._pull.rcvhwm = 1_000
        self._pull.maxmsgsize = MAX_TENSOR_BYTES
        self._pull.heartbeat_ivl = 2_000
        self._pull.heartbeat_timeout = 6_000
        try:
            self._pull.bind(bind)
        except zmq.ZMQError as error:
            self._pull.close(0)
            raise UsageError(f"data address {bind}: {error.strerror}; choose another port with --data-port") from error
        port = self._pull.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0").rpartition(":")[2]
        self.address = f"tcp://{advertise}:{port}"
        inner = f"inproc://wake-{os.getpid()}-{next(_numbers)}"
        self._pull.bind(inner)
        self._waker = context.socket(zmq.PUSH)
        self._waker.linger = 0
        self._waker.connect(inner)
        self._wake_lock = threading.Lock()
        self._peers: dict[str, _Peer] = {}
        self._crowded: list[_Peer] = []

    @property
    def socket(self) -> zmq.Socket[bytes]:
        """The receiving socket, for a poller."""
        return self._pull

    def connect(self, address: str) -> None:
        """See `DataPlane.connect`."""
        peer = self._peers.get(address)
        if peer is not None:
            peer.users += 1
            return
        socket = self._context.socket(zmq.PUSH)
        socket.linger = _LINGER_MS
        socket.sndhwm = _QUEUE
        socket.reconnect_ivl_max = 1_000
        socket.connect(address)
        self._peers[address] = _Peer(socket, 1, deque())

    def disconnect(self, address: str) -> None:
        """See `DataPlane.disconnect`."""
        peer = self._peers.get(address)
        if peer is None:
            return
        peer.users -= 1
        if peer.users == 0:
            peer.socket.close()
            del self._peers[address]
            self._crowded = [other for other in self._crowded if other is not peer]

    def send(self, address: str, header: bytes, payload: Buffer = b"") -> None:
        """See `DataPlane.send`."""
        peer = self._peers.get(address)
        if peer is None:
            return
        if peer.backlog or not _push(peer.socket, header, payload):
            if not peer.backlog:
                self._crowded.append(peer)
            peer.backlog.append((header, payload))

    def receive(self, timeout_s: float | None) -> Arrival | None:
        """See `DataPlane.receive`."""
        if self._crowded:
            self.flush()
            timeout_s = 0.001 if timeout_s is None else min(timeout_s, 0.001)
        try:
            if timeout_s == 0:
                first = self._pull.recv(zmq.DONTWAIT, copy=False)
            else:
                self._pull.rcvtimeo = -1 if timeout_s is None else max(1, round(timeout_s * 1000))
                first = self._pull.recv(copy=False)
        except zmq.Again:
            return None
        header, payload = first.buffer, _NOTHING
        if first.more:
            second = self._pull.recv(copy=False)
            payload = second.buffer
            if second.more:
                header = self._skip_rest()
        return Arrival(header, payload, first) if len(header) else None

    def _skip_rest(self) -> memoryview:
        """Read a message of too many frames to its end; no valid header comes of it."""
        while self._pull.recv(copy=False).more:
            pass
        return memoryview(b"\0")

    def flush(self) -> None:
        """Send what had to wait, as far as there is room again."""
        for peer in self._crowded:
            while peer.backlog and _push(peer.socket, *peer.backlog[0]):
                peer.backlog.popleft()
        self._crowded = [peer for peer in self._crowded if peer.backlog]

    @property
    def crowded(self) -> bool:
        """Whether something waits to be flushed."""
        return bool(self._crowded)

    def wake(self) -> None:
        """See `DataPlane.wake`."""
        with self._wake_lock:
            try:
                self._waker.send(_WAKE, zmq.DONTWAIT)
            except zmq.ZMQError:
                return  # Full: wake-ups enough are on their way. Closed: nobody is left to wake.

    def close(self) -> None:
        """See `DataPlane.close`."""
        for peer in self._peers.values():
            peer.socket.close()
        self._peers = {}
        with self._wake_lock:
            self._waker.close()
        self._pull.close()


def _push(socket: zmq.Socket[bytes], header: bytes, payload: Buffer) -> bool:
    try:
        if len(payload) == 0:
            socket.send(header, zmq.DONTWAIT)
            return True
        socket.send(header, zmq.DONTWAIT | zmq.SNDMORE)
        socket.send(payload, zmq.DONTWAIT, copy=len(payload) < _ZERO_COPY_BYTES)
    except zmq.Again:
        return False
    return True
