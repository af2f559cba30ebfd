"""The sending half of the data plane over TCP.

    send ── connection free? ── sendmsg ──► network
                └── no ──► backlog ── writer thread ──► network

Whoever sends writes into the connection itself, so the usual message costs one system call and no change of threads. What the network
does not take at once, the writer thread sends; it also opens connections, finds out that they are broken, and opens them anew. Little is
copied. What a system had accepted for a connection that broke may be lost, and nobody can know: so what waited for it is forgotten too, and
`on_broken` is told before the next message leaves. Laws: messages to one address leave in order, except that
small ones go between the parts of large ones that were sent before them, and without a gap that was not told of; a connection that has
carried no message breaks in silence, and what waited goes over the next one.
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
from bbgrap.transport.dead_peers import LOOK_S, detect_dead_peer, facts_of
from bbgrap.transport.framing import OnBroken
from bbgrap.transport.host_names import NameResolver
from bbgrap.transport.memory_broker import MemoryClient
from bbgrap.transport.outgoing_connection import OutgoingConnection
from bbgrap.transport.payload_memory import PayloadWriter
from bbgrap.transport.tls import HANDSHAKE_S
from bbgrap.transport.wakeup_queue import WakeupQueue

MAX_BACKLOG_BYTES = 64 << 20
"""What may wait for one address: half a second at 1 Gbit/s. Chosen."""
MAX_LARGE_MESSAGES = 16
"""So many messages may wait however large they are: those of a few requests in flight, of a model with huge tensors. Chosen."""
_JOINED_BYTES = 64 << 10
"""Messages up to here are one piece for TLS, of which each piece is a record with its system calls. Chosen: larger ones need several."""
_SLOW_S = 0.02
"""From such a round trip on, that of a full queue too, the system keeps little for later: nothing goes before what it has. Chosen."""
_UNSENT_BYTES = 128 << 10
"""Chosen: it limits what is kept, not what is on its way; always to do so makes 5 MiB twice as slow within a machine (measured)."""
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

    Invariants: outgoing connections are used under `_lock`, except closed ones, which the writer thread alone opens; it alone uses the
    selector; while `_looking` is false, no message has left for a while and all were acknowledged.
    """

    def __init__(self, on_broken: OnBroken, context: ssl.SSLContext | None, memories: MemoryClient | None) -> None:
        """Start without connections; `on_broken` is called from the writer thread. With a context they are those of TLS.

        `memories` is asked for memory that is shared with devices of this machine.
        """
        self._context = context
        self._memories = memories
        self.hosts: set[str] = set()
        """The addresses of hosts that it has connected to."""
        self._on_broken = on_broken
        self._outgoing: dict[str, OutgoingConnection] = {}
        self._gone: list[OutgoingConnection] = []
        self._heard: dict[OutgoingConnection, int] = {}
        """How many packets had come when that was asked last, over connections on which something had not arrived yet."""
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
        """Make `send` to an address possible, if that peer is there; calls are counted.

        Who called last says which peer it is; what was sent to another one is lost, which `on_broken` is told.
        """
        with self._lock:
            outgoing = self._outgoing.get(address)
            if outgoing is None:
                self._outgoing[address] = OutgoingConnection(address, fingerprint, tell_at=time.monotonic() + _CONNECT_S)
            else:
                outgoing.users += 1
                if self._context is None or (outgoing.ready and outgoing.fingerprint == fingerprint):
                    return
                if outgoing.fingerprint != fingerprint:
                    outgoing.fingerprint = fingerprint
                    outgoing.fail("another node is at this address now", lost=outgoing.waiting > 0)
                outgoing.due = 0.0  # it may have learned just now that this one is its peer
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="writer", daemon=True)
            self._thread.start()
        self._calls.put(None)

    def disconnect(self, address: str) -> None:
        """Undo one `connect`; what is queued after the last one may be lost."""
        with self._lock:
            outgoing = self._outgoing.get(address)
            if outgoing is None:
                return
            outgoing.users -= 1
            if outgoing.users:
                return
            del self._outgoing[address]
            outgoing.ready = False
            self._gone.append(outgoing)
        self._calls.put(None)

    def send(self, address: str, header: BytesLike, payload: Sequence[BytesLike]) -> None:
        """Send a message, now or as soon as the network takes it."""
        outgoing = self._outgoing.get(address)
        if outgoing is None:
            return
        with self._lock:
            parts = outgoing.framed(header, payload)
            pieces = parts[0] if len(parts) == 1 else [piece for part in parts for piece in part]
            total = sum(map(len, pieces))
            if self._context is not None and total <= _JOINED_BYTES:
                parts = [pieces := [b"".join(pieces)]]
            sent = outgoing.write(pieces) if outgoing.ready and not outgoing.waiting else None
            if sent == total:
                outgoing.passed(total)
                if self._looking:
                    return
                self._looking = True  # the first message after a pause: the writer thread sleeps
            elif outgoing.waiting > MAX_BACKLOG_BYTES and len(outgoing.backlog) + len(outgoing.large) >= MAX_LARGE_MESSAGES:
                outgoing.fail(
                    f"{outgoing.waiting >> 20} MiB wait, the most there may be: it reads too slowly, or the network is", lost=True
                )
            else:
                outgoing.queue(parts, sent)
        self._calls.put(None)

    def round_trip_s(self, address: str) -> float:
        """Return how many seconds packets take to an address and back, from any thread; 0: it has not taken a connection, or is here."""
        with self._lock:
            outgoing = self._outgoing.get(address)
            return 0.0 if outgoing is None or outgoing.socket is None else facts_of(outgoing.socket).round_trip_s

    def moving(self) -> set[str]:
        """Return the fingerprints of those to whom something is on its way, and who have acknowledged some since this was asked last."""
        with self._lock:
            waited = {each: each.socket for each in self._outgoing.values() if each.socket is not None and each.dead_peer.waits}
            before, self._heard = self._heard, {each: facts_of(connection).packets for each, connection in waited.items()}
            return {each.fingerprint for each, count in self._heard.items() if count > before.get(each, -1)}

    def lay_in(self, word: str, memory: PayloadWriter) -> None:
        """Lay payloads in memory that was asked for with a word; another connection than it was asked for has another word."""
        with self._lock:
            for outgoing in self._outgoing.values():
                if outgoing.ready and outgoing.invitation.endswith(f" {word}"):
                    outgoing.memory = memory

    def close(self) -> None:
        """Close all connections, after a fraction of a second at most."""
        self._closing = True
        self._calls.put(None)
        if self._thread is not None:
            self._thread.join(2 * _LINGER_S)
        for outgoing in (*self._outgoing.values(), *self._gone):
            if outgoing.socket is not None:
                outgoing.socket.close()
        self._outgoing = {}
        self._selector.close()
        self._calls.close()

    def _named(self) -> None:
        with self._lock:
            for outgoing in self._outgoing.values():
                outgoing.due = 0.0 if outgoing.naming else outgoing.due
        self._calls.put(None)

    # --- the writer thread ------------------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        last = float("inf")
        while time.monotonic() < last:
            now = time.monotonic()
            with self._lock:
                told = self._sweep(now)
                apart = [outgoing for outgoing in self._outgoing.values() if outgoing.socket is None]
            for address, reason in () if self._closing else told:
                self._on_broken(address, reason)
            for outgoing in apart:
                self._open(outgoing, now)
            with self._lock:
                due = self._due(now)
            wait = min((max(0.0, at - now) for at in due), default=None)
            if self._closing:
                last = min(last, now + _LINGER_S)
                wait = 0.01
                if not any(outgoing.waiting for outgoing in self._outgoing.values()):
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
        for outgoing in self._gone:
            self._shut(outgoing)
        self._gone = []
        if self._looking and now >= self._look_at:
            self._look(now)
        told = []
        for outgoing in self._outgoing.values():
            if not outgoing.ready and outgoing.socket is not None and now >= outgoing.due_by:
                late = (
                    f"the handshake was not over within {HANDSHAKE_S:g} s"
                    if outgoing.shakes_hands
                    else f"no answer within {_CONNECT_S:g} s"
                )
                outgoing.fail(late)
            if outgoing.fault:
                address, reason, lost, greeted = outgoing.address, outgoing.fault, outgoing.lost, outgoing.tell_at == math.inf
                self._shut(outgoing)
                if lost:
                    outgoing.forget()
                    told.append((address, reason))
                if greeted or lost:
                    outgoing.tell_at = now + (_CONNECT_S if greeted else _AGAIN_S)
            if not outgoing.ready and now >= outgoing.told_by:
                outgoing.forget()
                told.append((outgoing.address, f"no connection can be made: {outgoing.trouble}"))
                outgoing.tell_at = now + _AGAIN_S
            self._watch(outgoing)
        return told

    def _due(self, now: float) -> list[float]:
        """Return when the writer thread has something to do next that no event tells of."""
        due = [max(now, self._look_at)] if self._looking else []
        for outgoing in self._outgoing.values():
            if not outgoing.ready:
                due += [outgoing.told_by, outgoing.due if outgoing.socket is None else outgoing.due_by]
        return due

    def _look(self, now: float) -> None:
        """Find out who does not acknowledge what was sent."""
        self._look_at = now + LOOK_S
        waiting = False
        for outgoing in self._outgoing.values():
            if not outgoing.ready or outgoing.socket is None or (outgoing.carried == outgoing.seen and not outgoing.dead_peer.waits):
                continue
            if outgoing.carried != outgoing.seen:
                outgoing.seen, self._last_sent = outgoing.carried, now
            if hasattr(socket, "TCP_NOTSENT_LOWAT") and facts_of(outgoing.socket).round_trip_s > _SLOW_S:
                outgoing.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_BYTES)
            silent_s = outgoing.dead_peer.check(outgoing.socket, now)
            waiting = waiting or outgoing.dead_peer.waits
            if silent_s is not None:
                outgoing.fail(f"for {silent_s:.1f} s it has acknowledged nothing of what was sent")
        self._looking = waiting or now - self._last_sent < _QUIET_S

    def _watch(self, outgoing: OutgoingConnection) -> None:
        # Nothing is ever received here; readable means that the other side has closed the connection.
        making = not outgoing.ready and not outgoing.leaving
        wanted = outgoing.wanted if making else selectors.EVENT_READ | (selectors.EVENT_WRITE if outgoing.waiting else 0)
        if outgoing.socket is None or wanted == outgoing.watched:
            return
        if outgoing.watched:
            self._selector.modify(outgoing.socket, wanted, outgoing)
        else:
            self._selector.register(outgoing.socket, wanted, outgoing)
        outgoing.watched = wanted

    def _open(self, outgoing: OutgoingConnection, now: float) -> None:
        """Begin to connect, if it is time."""
        if now < outgoing.due:
            return
        host, port = split_address(outgoing.address)
        connection, trouble = None, outgoing.trouble
        try:
            # First, for the answer may be there before this line has ended.
            outgoing.trouble, outgoing.due, outgoing.naming = f"its name '{host}' is still being looked up", now + _LAST_RETRY_S, True
            place = self._names.look_up(host.strip("[]"), int(port))
            if place is None:
                return
            outgoing.trouble, outgoing.naming = trouble, False
            self.hosts.add(str(place[1][0]))
            connection = socket.socket(place[0], socket.SOCK_STREAM)
            connection.setblocking(False)
            detect_dead_peer(connection)
            code = connection.connect_ex(place[1])
            if code not in {0, errno.EINPROGRESS}:
                raise OSError(code, os.strerror(code))
        except (OSError, ValueError) as error:
            outgoing.trouble, outgoing.naming = (error.strerror if isinstance(error, OSError) else None) or str(error), False
            if connection is not None:
                connection.close()
        else:
            outgoing.socket, outgoing.due_by = connection, now + _CONNECT_S
            outgoing.trouble = outgoing.trouble or f"no answer within {_CONNECT_S:g} s"
            self._watch(outgoing)
        outgoing.due = now + outgoing.retry_s
        outgoing.retry_s = min(2 * outgoing.retry_s, _LAST_RETRY_S)

    def _establish(self, outgoing: OutgoingConnection) -> None:
        """Go on with making a connection, without the lock: a handshake takes a millisecond, and nobody else uses it yet."""
        if outgoing.socket is None or outgoing.fault or not outgoing.users:
            return
        if self._context is not None and not isinstance(outgoing.socket, ssl.SSLSocket) and outgoing.watched:
            self._selector.unregister(outgoing.socket)  # another object takes its place
            outgoing.watched = 0
        if outgoing.establish(self._context):
            with self._lock:
                outgoing.use()
                outgoing.retry_s = _FIRST_RETRY_S
                self._attend(outgoing, selectors.EVENT_WRITE)

    def _attend(self, outgoing: OutgoingConnection, events: int) -> None:
        if outgoing.socket is None or outgoing.fault or not outgoing.users:
            return
        if events & selectors.EVENT_READ:
            known = outgoing.invitation
            outgoing.listen()
            if self._memories is not None and outgoing.invitation != known:
                self._memories.ask(outgoing.invitation)
        if events & selectors.EVENT_WRITE and outgoing.ready:
            outgoing.write_backlog()
            self._looking = True

    def _shut(self, outgoing: OutgoingConnection) -> None:
        if outgoing.socket is not None and outgoing.watched:
            self._selector.unregister(outgoing.socket)
        outgoing.shut()
