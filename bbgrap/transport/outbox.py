"""The sending half of the data plane over TCP.

    send ── connection free? ── sendmsg ──► network
                └── no ──► backlog ── writer thread ──► network

Whoever sends writes into the connection itself, so the usual message costs one system call and no change of threads. What the network
does not take at once, the writer thread sends; it also opens connections and opens broken ones anew. Nothing is copied. Laws: messages to
one address leave in order; a message that was sent in part when its connection broke is sent again from its beginning.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.framing import GREETING, frame_head
from bbgrap.transport.wakeup_queue import WakeupQueue

_LINGER_S = 0.2
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_MOST_PIECES = 512
"""Linux takes 1,024 pieces in one call."""


@dataclass(slots=True, eq=False)
class _Peer:
    """Another data plane.

    Invariants: `ready` means that `socket` is connected; `offset` bytes of the first message in `backlog` have been sent; `watched` are
    the events of the socket that the selector looks for.
    """

    address: str
    users: int = 1
    socket: socket.socket | None = None
    ready: bool = False
    broken: bool = False
    backlog: deque[Sequence[BytesLike]] = field(default_factory=deque)
    offset: int = 0
    due: float = 0.0
    retry_s: float = _FIRST_RETRY_S
    watched: int = 0


class Outbox:
    """Connections to other data planes.

    Invariants: peers are used under `_lock`, except those without connection, which the writer thread alone opens; it alone uses the
    selector.
    """

    def __init__(self) -> None:
        """Start without connections."""
        self._peers: dict[str, _Peer] = {}
        self._gone: list[_Peer] = []
        self._lock = threading.Lock()
        self._calls: WakeupQueue[None] = WakeupQueue()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._calls.fileno(), selectors.EVENT_READ)
        self._closing = False
        self._thread: threading.Thread | None = None

    def connect(self, address: str) -> None:
        """Make `send` to an address possible; calls are counted."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is not None:
                peer.users += 1
                return
            self._peers[address] = _Peer(address)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        self._calls.put(None)

    def disconnect(self, address: str) -> None:
        """Undo one `connect`."""
        with self._lock:
            peer = self._peers.get(address)
            if peer is None:
                return
            peer.users -= 1
            if peer.users:
                return
            del self._peers[address]
            peer.ready = False
            self._gone.append(peer)
        self._calls.put(None)

    def send(self, address: str, header: BytesLike, payload: Sequence[BytesLike]) -> None:
        """Send a message, now or as soon as the network takes it."""
        peer = self._peers.get(address)
        if peer is None:
            return
        total = sum(map(len, payload))
        pieces = [frame_head(header, total), *payload]
        with self._lock:
            sent = _write(peer, pieces) if peer.ready and not peer.backlog else 0
            if sent == len(pieces[0]) + total:
                return
            if not peer.backlog:
                peer.offset = sent
            peer.backlog.append(pieces)
        self._calls.put(None)

    def close(self) -> None:
        """Close all connections, after a fraction of a second at most."""
        self._closing = True
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(2 * _LINGER_S)
        for peer in (*self._peers.values(), *self._gone):
            if peer.socket is not None:
                peer.socket.close()
        self._peers = {}
        self._selector.close()
        self._calls.close()

    # --- the writer thread ------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        last = float("inf")
        while time.monotonic() < last:
            with self._lock:
                closed = self._sweep()
            for peer in closed:
                self._open(peer)
            wait = min((peer.due - time.monotonic() for peer in closed if peer.socket is None), default=None)
            if self._closing:
                last = min(last, time.monotonic() + _LINGER_S)
                wait = 0.01
                if not any(peer.backlog for peer in self._peers.values()):
                    return
            for key, events in self._selector.select(wait):
                if key.data is None:
                    self._calls.take()
                else:
                    with self._lock:
                        self._attend(key.data, events)

    def _sweep(self) -> list[_Peer]:
        """Shut what is broken or not wanted any more, and return the peers without connection."""
        for peer in self._gone:
            self._shut(peer)
        self._gone = []
        for peer in self._peers.values():
            if peer.broken:
                self._shut(peer)
            elif peer.socket is not None:
                self._watch(peer)
        return [peer for peer in self._peers.values() if peer.socket is None]

    def _watch(self, peer: _Peer) -> None:
        # Nothing is ever received here; readable means that the other side has closed the connection.
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.backlog or not peer.ready else 0)
        if peer.socket is None or wanted == peer.watched:
            return
        if peer.watched:
            self._selector.modify(peer.socket, wanted, peer)
        else:
            self._selector.register(peer.socket, wanted, peer)
        peer.watched = wanted

    def _open(self, peer: _Peer) -> None:
        """Begin to connect, if it is time; names are looked up without the lock, for that may take long."""
        if time.monotonic() < peer.due:
            return
        peer.due = time.monotonic() + peer.retry_s
        peer.retry_s = min(2 * peer.retry_s, _LAST_RETRY_S)
        host, port = split_address(peer.address)
        connection = None
        try:
            family, kind, protocol, _, target = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
            connection = socket.socket(family, kind, protocol)
            connection.setblocking(False)
            detect_silence(connection)
            connection.connect_ex(target)
        except (OSError, ValueError, OverflowError):
            if connection is not None:
                connection.close()
            return
        peer.socket = connection
        self._watch(peer)

    def _attend(self, peer: _Peer, events: int) -> None:
        if peer.socket is None or peer.broken:
            return
        if events & selectors.EVENT_READ and not _is_silent(peer.socket):
            peer.broken, peer.ready = True, False
        elif events & selectors.EVENT_WRITE:
            if not peer.ready:
                peer.ready, peer.retry_s = True, _FIRST_RETRY_S
                peer.backlog.appendleft([GREETING])
            while peer.backlog:
                rest = _rest(peer.backlog[0], peer.offset)
                sent = _write(peer, rest)
                if sent < sum(map(len, rest)):
                    peer.offset += sent
                    return
                peer.backlog.popleft()
                peer.offset = 0

    def _shut(self, peer: _Peer) -> None:
        if peer.socket is not None:
            if peer.watched:
                self._selector.unregister(peer.socket)
            peer.socket.close()
        peer.socket, peer.ready, peer.broken, peer.watched, peer.offset = None, False, False, 0, 0


def _write(peer: _Peer, pieces: Sequence[BytesLike]) -> int:
    """Write what the network takes at once; a broken connection takes nothing."""
    if peer.socket is None or peer.broken:
        return 0
    try:
        return peer.socket.sendmsg(pieces[:_MOST_PIECES])
    except BlockingIOError:
        return 0
    except OSError:  # it is opened anew
        peer.broken, peer.ready = True, False
        return 0


def _rest(pieces: Sequence[BytesLike], offset: int) -> list[BytesLike]:
    """Return what is left of a message of which `offset` bytes have been sent."""
    rest: list[BytesLike] = []
    for piece in pieces:
        if offset >= len(piece):
            offset -= len(piece)
        else:
            rest.append(memoryview(piece)[offset:])
            offset = 0
    return rest


def _is_silent(connection: socket.socket) -> bool:
    """Whether a readable connection is neither closed nor broken."""
    try:
        return bool(connection.recv(4096))
    except BlockingIOError:
        return True
    except OSError:
        return False


def detect_silence(connection: socket.socket) -> None:
    """Have messages sent at once, and an idle connection broken when the other side is gone without a word."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    # No TCP_USER_TIMEOUT: it would also break the connection to a machine that computes too long to read.
    for name, value in (("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
