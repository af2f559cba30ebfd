"""The sending half of the data plane over TCP.

    send ── connection free? ── sendmsg ──► network
                └── no ──► backlog ── writer thread ──► network

Whoever sends writes into the connection itself, so the usual message costs one system call and no change of threads. What the network
does not take at once, the writer thread sends; it also opens connections, finds out that they are broken, and opens them anew. Nothing is
copied. What a system had accepted for a connection that broke may be lost, and nobody can know: so what waited for it is forgotten too, and
`on_broken` is told before the next message leaves. Laws: messages to one address leave in order, without a gap that was not told of; a
connection that has carried no message breaks in silence, and what waited goes over the next one.
"""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Sequence

from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.data import OnBroken, nobody_listens
from bbgrap.transport.dead_peers import LOOK_S, detect_dead_peer
from bbgrap.transport.framing import frame_head
from bbgrap.transport.name_resolver import NameResolver
from bbgrap.transport.receiver import Receiver
from bbgrap.transport.tls import records
from bbgrap.transport.wakeup_queue import WakeupQueue

MAX_BACKLOG_BYTES = 64 << 20
"""What may wait for one address: half a second at 1 Gbit/s. Chosen."""
MAX_LARGE_MESSAGES = 16
"""So many messages may wait however large they are: those of a few requests in flight, of a model with huge tensors. Chosen."""
_LINGER_S = 0.2
_FIRST_RETRY_S = 0.05
_LAST_RETRY_S = 1.0
_CONNECT_S = 1.0
"""How long connecting may take, in one attempt or several, until it is told of."""
_AGAIN_S = 5.0
"""And how long until it is told of again."""
_QUIET_S = 2.0
"""So long after the last message connections are not looked at any more."""


class Outbox:
    """Connections to other data planes.

    Invariants: receivers are used under `_lock`, except those without connection, which the writer thread alone opens; it alone uses the
    selector; while `_looking` is false, no message has left for a while and all were acknowledged.
    """

    def __init__(self, on_broken: OnBroken = nobody_listens, context: ssl.SSLContext | None = None) -> None:
        """Start without connections; `on_broken` is called from the writer thread. With a context they are those of TLS."""
        self._context = context
        self.hosts: set[str] = set()
        """The addresses of hosts that it has connected to."""
        self._on_broken = on_broken
        self._receivers: dict[str, Receiver] = {}
        self._gone: list[Receiver] = []
        self._lock = threading.Lock()
        self._calls: WakeupQueue[None] = WakeupQueue()
        self._names = NameResolver(self._named)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._calls.fileno(), selectors.EVENT_READ)
        self._closing = False
        self._looking = False
        self._look_at = self._last_sent = 0.0
        self._thread: threading.Thread | None = None

    def connect(self, address: str, fingerprint: str = "") -> None:
        """See `DataPlane.connect`."""
        with self._lock:
            receiver = self._receivers.get(address)
            if receiver is None:
                self._receivers[address] = Receiver(address, fingerprint, tell_at=time.monotonic() + _CONNECT_S)
            else:
                receiver.users += 1
                if self._context is None or (receiver.ready and receiver.fingerprint == fingerprint):
                    return
                if receiver.fingerprint != fingerprint:
                    receiver.fingerprint = fingerprint
                    receiver.fail("another node is at this address now", lost=bool(receiver.backlog))
                receiver.due = 0.0  # it may have learned just now that this one is its peer
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        self._calls.put(None)

    def disconnect(self, address: str) -> None:
        """Undo one `connect`."""
        with self._lock:
            receiver = self._receivers.get(address)
            if receiver is None:
                return
            receiver.users -= 1
            if receiver.users:
                return
            del self._receivers[address]
            receiver.ready = False
            self._gone.append(receiver)
        self._calls.put(None)

    def send(self, address: str, header: BytesLike, payload: Sequence[BytesLike]) -> None:
        """Send a message, now or as soon as the network takes it."""
        receiver = self._receivers.get(address)
        if receiver is None:
            return
        total = sum(map(len, payload))
        pieces: Sequence[BytesLike] = [frame_head(header, total), *payload]
        total += len(pieces[0])
        if self._context is not None:
            pieces = records(pieces)
        with self._lock:
            sent = receiver.write(pieces) if receiver.ready and not receiver.backlog else 0
            if sent == total:
                receiver.passed(total)
                if self._looking:
                    return
                self._looking = True  # the first message after a pause: the writer thread sleeps
            elif receiver.waiting > MAX_BACKLOG_BYTES and len(receiver.backlog) >= MAX_LARGE_MESSAGES:
                receiver.fail(
                    f"{receiver.waiting >> 20} MiB wait, the most there may be: it reads too slowly, or the network is", lost=True
                )
            else:
                receiver.queue(pieces, total, sent)
        self._calls.put(None)

    def close(self) -> None:
        """Close all connections, after a fraction of a second at most."""
        self._closing = True
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(2 * _LINGER_S)
        for receiver in (*self._receivers.values(), *self._gone):
            if receiver.socket is not None:
                receiver.socket.close()
        self._receivers = {}
        self._names.close()
        self._selector.close()
        self._calls.close()

    def _named(self) -> None:
        with self._lock:
            for receiver in self._receivers.values():
                receiver.due = 0.0 if receiver.naming else receiver.due
        self._calls.put(None)

    # --- the writer thread ------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        last = float("inf")
        while time.monotonic() < last:
            now = time.monotonic()
            with self._lock:
                told = self._sweep(now)
                apart = [receiver for receiver in self._receivers.values() if receiver.socket is None]
            for address, reason in () if self._closing else told:
                self._on_broken(address, reason)
            for receiver in apart:
                self._open(receiver, now)
            with self._lock:
                due = self._due(now)
            wait = min((max(0.0, at - now) for at in due), default=None)
            if self._closing:
                last = min(last, now + _LINGER_S)
                wait = 0.01
                if not any(receiver.backlog for receiver in self._receivers.values()):
                    return
            for key, events in self._selector.select(wait):
                if key.data is None:
                    self._calls.take()
                elif not key.data.ready and not key.data.leaving:
                    self._establish(key.data)
                else:
                    with self._lock:
                        self._attend(key.data, events)

    def _sweep(self, now: float) -> list[tuple[str, str]]:
        """Shut what is broken or not wanted any more; return what is to be told of that, and of those that cannot be reached."""
        for receiver in self._gone:
            self._shut(receiver)
        self._gone = []
        if self._looking and now >= self._look_at:
            self._look(now)
        told = []
        for receiver in self._receivers.values():
            if not receiver.ready and receiver.socket is not None and now >= receiver.due_by:
                receiver.fail(f"no answer within {_CONNECT_S:g} s")
            if receiver.fault:
                address, reason, lost, greeted = receiver.address, receiver.fault, receiver.lost, receiver.tell_at == math.inf
                self._shut(receiver)
                if lost:
                    receiver.forget()
                    told.append((address, reason))
                if greeted or lost:
                    receiver.tell_at = now + (_CONNECT_S if greeted else _AGAIN_S)
            if not receiver.ready and now >= receiver.tell_at:
                receiver.forget()
                told.append((receiver.address, f"no connection can be made: {receiver.trouble}"))
                receiver.tell_at = now + _AGAIN_S
            self._watch(receiver)
        return told

    def _due(self, now: float) -> list[float]:
        """Return when the writer thread has something to do next that no event tells of."""
        due = [max(now, self._look_at)] if self._looking else []
        for receiver in self._receivers.values():
            if not receiver.ready:
                due += [receiver.tell_at, receiver.due if receiver.socket is None else receiver.due_by]
        return due

    def _look(self, now: float) -> None:
        """Find out who does not acknowledge what was sent."""
        self._look_at = now + LOOK_S
        waiting = False
        for receiver in self._receivers.values():
            if not receiver.ready or receiver.socket is None or (receiver.carried == receiver.seen and not receiver.dead_peer.waits):
                continue
            if receiver.carried != receiver.seen:
                receiver.seen, self._last_sent = receiver.carried, now
            silent_s = receiver.dead_peer.check(receiver.socket, now)
            waiting = waiting or receiver.dead_peer.waits
            if silent_s is not None:
                receiver.fail(f"for {silent_s:.1f} s it has acknowledged nothing of what was sent")
        self._looking = waiting or now - self._last_sent < _QUIET_S

    def _watch(self, receiver: Receiver) -> None:
        # Nothing is ever received here; readable means that the other side has closed the connection.
        making = not receiver.ready and not receiver.leaving
        wanted = receiver.wanted if making else selectors.EVENT_READ | (selectors.EVENT_WRITE if receiver.backlog else 0)
        if receiver.socket is None or wanted == receiver.watched:
            return
        if receiver.watched:
            self._selector.modify(receiver.socket, wanted, receiver)
        else:
            self._selector.register(receiver.socket, wanted, receiver)
        receiver.watched = wanted

    def _open(self, receiver: Receiver, now: float) -> None:
        """Begin to connect, if it is time."""
        if now < receiver.due:
            return
        host, port = split_address(receiver.address)
        connection, trouble = None, receiver.trouble
        try:
            # First, for the answer may be there before this line has ended.
            receiver.trouble, receiver.due, receiver.naming = f"its name '{host}' is still being looked up", now + _LAST_RETRY_S, True
            place = self._names.look_up(host.strip("[]"), int(port))
            if place is None:
                return
            receiver.trouble, receiver.naming = trouble, False
            self.hosts.add(str(place[1][0]))
            connection = socket.socket(place[0], socket.SOCK_STREAM)
            connection.setblocking(False)
            detect_dead_peer(connection)
            code = connection.connect_ex(place[1])
            if code not in {0, errno.EINPROGRESS}:
                raise OSError(code, os.strerror(code))
        except (OSError, ValueError) as error:
            receiver.trouble, receiver.naming = (error.strerror if isinstance(error, OSError) else None) or str(error), False
            if connection is not None:
                connection.close()
        else:
            receiver.socket, receiver.due_by = connection, now + _CONNECT_S
            receiver.trouble = receiver.trouble or f"no answer within {_CONNECT_S:g} s"
            self._watch(receiver)
        receiver.due = now + receiver.retry_s
        receiver.retry_s = min(2 * receiver.retry_s, _LAST_RETRY_S)

    def _establish(self, receiver: Receiver) -> None:
        """Go on with making a connection, without the lock: a handshake takes a millisecond, and nobody else uses it yet."""
        if receiver.socket is None or receiver.fault or not receiver.users:
            return
        if self._context is not None and not isinstance(receiver.socket, ssl.SSLSocket) and receiver.watched:
            self._selector.unregister(receiver.socket)  # another object takes its place
            receiver.watched = 0
        if receiver.establish(self._context):
            with self._lock:
                receiver.use()
                receiver.retry_s = _FIRST_RETRY_S
                self._attend(receiver, selectors.EVENT_WRITE)

    def _attend(self, receiver: Receiver, events: int) -> None:
        if receiver.socket is None or receiver.fault or not receiver.users:
            return
        if events & selectors.EVENT_READ:
            receiver.listen()
        if events & selectors.EVENT_WRITE and receiver.ready:
            receiver.write_backlog()
            self._looking = True

    def _shut(self, receiver: Receiver) -> None:
        if receiver.socket is not None and receiver.watched:
            self._selector.unregister(receiver.socket)
        receiver.shut()
