"""The data plane, one-way messages from device to device: over TCP, plain or with TLS, one connection per direction and pair of devices.

    Outbox ──► connections to others          the sender's thread, and a writer thread for what the network does not take at once
    connections of others ──► receive()       the receiver's thread

Of a large payload the system tells only when a good piece of it is there: each look would take its core from a kernel. And it takes in what
comes for somebody who computes: without being told that much is wanted, Linux stops to acknowledge what nobody reads (decision 23).

Laws (`tests/bbgrap/transport/check_transport.py`): messages of one sender to one receiver arrive in order (but small ones may pass large
ones), once, unchanged and without a gap, or the sender's `on_broken` has been told of the gap before anything arrives that was sent after
it; `send` never waits, and what does not fit into the network goes out by itself, whatever the sender does; `receive` returns at once when
a message or a wake-up is there; only `wake` may be called from another thread; whoever sends other bytes than messages loses its
connection, and takes no memory to speak of.
"""

from __future__ import annotations

import errno
import logging
import os
import selectors
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from bbgrap.errors import BbgrapError, RemoteProtocolError, UsageError
from bbgrap.protocol.addresses import split_address
from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.dead_peers import detect_dead_peer, facts_of
from bbgrap.transport.framing import Admit, Arrival, MessageReader, OnBroken, frame_head, nobody_listens
from bbgrap.transport.memory_broker import MADE, MemoryClient
from bbgrap.transport.outbox import Outbox
from bbgrap.transport.payload_memory import MEMORY_BYTES, PayloadReader, PayloadWriter
from bbgrap.transport.shared_memory import map_sealed
from bbgrap.transport.strangers import PeerWarnings
from bbgrap.transport.tls import RECORD_ON_WIRE, TlsIdentity, client_context, server_context
from bbgrap.transport.tls_accept import Acceptor
from bbgrap.transport.wakeup_queue import WakeupQueue

MAX_CONNECTIONS = 512
"""Incoming connections. Chosen: one per device of the largest clusters we know, several times over."""
MAX_PER_PEER = 4
"""Connections of one peer with TLS: it needs one, and may know this plane by several addresses."""
_MOST_RECORDS = 64
"""Of one connection that are read before another one has its turn: 1 MiB."""
_CHUNK_BYTES = 64 << 10
_PIECE_BYTES = 256 << 10
"""Of a large payload that the system tells of at once: 2 ms at 1 Gbit/s, and copied in 0.03 ms. Chosen."""
_SECURE_PIECE_BYTES = 64 << 10
"""The same with TLS: it is deciphered while the next piece comes, which makes 1 MiB 10 % faster (measured)."""
_UNREAD_BYTES = 4 << 20
"""That may come over a connection while its receiver computes: 34 ms at 1 Gbit/s. Chosen."""

_log = logging.getLogger("bbgrap.transport")


@dataclass(slots=True, eq=False)
class _Caller:
    """An incoming connection."""

    socket: socket.socket
    host: str
    reader: MessageReader
    invitation: str = ""
    """What it was told, if it is on this machine: where to offer memory for its payloads."""
    least: int = 1
    """The bytes that must be there for the system to tell."""


class TcpDataPlane:
    """The data plane over TCP.

    Invariants: `_callers` are the open incoming connections, in the order they came; `_arrived` is empty whenever the network is read;
    the selector looks for all of them; those that `_bring_much` have brought a large payload.
    """

    def __init__(
        self,
        bind: str | socket.socket,
        advertise: str,
        *,
        computes: bool = False,
        identity: TlsIdentity | None = None,
        memories: MemoryClient | None = None,
    ) -> None:
        """Listen on `tcp://HOST:PORT` (port 0: a free one; host `*`: all), or on what somebody else has opened with `listen_at`.

        `advertise` is the host others use. `computes` is for those who do other things between calls of `receive`, and do not poll
        `fileno`. With an identity every connection is one of TLS, and only those that are allowed may connect: at first nobody. With
        `memories` payloads from and to devices of this machine are laid in shared memory then.

        Raises:
            UsageError: if it is no such address.
            BbgrapError: if it cannot be listened on now; that may pass.
        """
        self._listener = listen_at(bind) if isinstance(bind, str) else bind
        port = self._listener.getsockname()[1]
        self.address = f"tcp://{advertise}:{port}"
        """Where others reach this one."""
        self.admit: Admit = lambda header, size, peer: True
        """Asked before memory is taken for a large payload; the payload of a message that is refused is read and forgotten."""
        self.on_broken: OnBroken = nobody_listens
        """Set before the first `connect`. It is told when a connection broke that had carried messages, when none can be made for a second
        (and again every 5 s), and when an address takes nothing while ever more waits for it."""
        self._memories = None if identity is None else memories
        client = None if identity is None else client_context(identity)
        self._outbox = Outbox(lambda address, reason: self.on_broken(address, reason), client, self._memories)
        self.connect, self.disconnect, self.round_trip_s = self._outbox.connect, self._outbox.disconnect, self._outbox.round_trip_s
        self._calls: WakeupQueue[None] = WakeupQueue()
        self._wake_lock = threading.Lock()
        self._closed = False
        self._selector = selectors.DefaultSelector()
        self._acceptor = None if identity is None else Acceptor(self._listener, server_context(identity), self._outbox.hosts)
        self._door = self._listener if self._acceptor is None else self._acceptor.arrived.fileno()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._selector.register(self._calls.fileno(), selectors.EVENT_READ)
        if self._memories is not None:
            self._selector.register(self._memories.socket, selectors.EVENT_READ)
        self._callers: dict[_Caller, None] = {}
        self._came: dict[_Caller, int] = {}
        """How many packets had come when that was asked last."""
        self._computes = computes
        self._bring_much: dict[_Caller, None] = {}
        self._arrived: deque[Arrival] = deque()
        self._chunk = memoryview(bytearray(_CHUNK_BYTES))
        self._warnings = PeerWarnings(_log)

    def fileno(self) -> int:
        """A file descriptor that is readable when there is something to receive; for a poller."""
        return self._selector.fileno()

    def allow(self, fingerprints: Iterable[str]) -> None:
        """Let these peers connect to this plane, and cut off all others at once; without certificates everybody may. Where it receives."""
        if self._acceptor is None:
            return
        self._acceptor.allowed = allowed = frozenset(fingerprints)
        for caller in [caller for caller in self._callers if caller.reader.peer not in allowed]:
            self._hang_up(caller)
        self._arrived = deque(arrival for arrival in self._arrived if arrival.peer in allowed)

    def send(self, address: str, header: BytesLike, *payload: BytesLike) -> None:
        """Send a message whose payload is given in pieces; they are kept until they are sent, and must not change any more.

        To an address that nobody has connected to it is lost.
        """
        self._outbox.send(address, header, payload)

    def moving(self) -> frozenset[str]:
        """Return who has sent something, or said what has come of what it is sent, since this was asked last: by fingerprint.

        Nobody on a plane without certificates, and on systems that do not tell; by the thread that receives.
        """
        before, self._came = self._came, {caller: facts_of(caller.socket).packets for caller in self._callers}
        came = {caller.reader.peer for caller, count in self._came.items() if count > before.get(caller, 0)}
        return frozenset(came | self._outbox.moving()) - {""}

    def receive(self, timeout_s: float | None, spin_s: float = 0.0) -> Arrival | None:
        """Return the next message; None after the timeout (None: never; 0: at once) or a wake-up.

        For the first `spin_s` seconds it waits busily: a core that has gone to sleep takes longer to wake than a message travels.
        """
        if not self._arrived:
            self._wait(timeout_s, spin_s)
        if not self._arrived:
            return None
        for caller in self._bring_much if self._computes else ():
            _tell_at(caller, _UNREAD_BYTES)
        return self._arrived.popleft()

    def wake(self) -> None:
        """Make `receive` return; from any thread."""
        with self._wake_lock:
            if not self._closed:
                self._calls.put(None)

    def close(self) -> None:
        """Close everything; what is queued has a fraction of a second to go out."""
        with self._wake_lock:
            self._closed = True
        self._outbox.close()
        if self._acceptor is not None:
            self._acceptor.close()
        for caller in self._callers:
            caller.socket.close()
        self._callers = {}
        self._listener.close()
        if self._memories is not None:
            self._memories.socket.close()
        self._selector.close()
        self._calls.close()

    def _wait(self, timeout_s: float | None, spin_s: float) -> None:
        """Wait for a message, a wake-up, or the timeout."""
        for caller in self._bring_much:
            _tell_of_pieces(caller)
        began = time.perf_counter()
        while not self._arrived:
            elapsed = time.perf_counter() - began
            rest = None if timeout_s is None else max(0.0, timeout_s - elapsed)
            if self._read(self._selector.select(0 if elapsed < spin_s else rest)) or rest == 0:
                return

    def _read(self, ready: list[tuple[selectors.SelectorKey, int]]) -> bool:
        """Read what is there; return whether somebody called `wake`."""
        woken = False
        for key, _ in ready:
            if key.data is not None:
                self._hear(key.data)
            elif key.fileobj == self._door:
                self._let_in()
            elif self._memories is not None and key.fileobj is self._memories.socket:
                self._take_memory(self._memories)
            else:
                self._calls.take()
                woken = True
        return woken

    def _hear(self, caller: _Caller) -> None:
        """Read a chunk, or as much of a large payload as is there."""
        try:
            if not isinstance(caller.socket, ssl.SSLSocket):
                self._take(caller)
            else:
                # It gives one record at a time, and the system knows nothing of what it has decrypted and not given yet.
                with suppress(ssl.SSLWantReadError):
                    left = _MOST_RECORDS
                    while self._take(caller) and (caller.socket.pending() or (caller.reader.missing and left > 0)):
                        left -= 1
            if caller in self._bring_much:
                _tell_of_pieces(caller)
        except BlockingIOError:
            return
        except OSError:
            self._hang_up(caller)
        except (RemoteProtocolError, MemoryError) as error:  # without memory for a message it is lost: then its sender has to know
            self._warnings.warn(caller.host, f"{str(error) or 'no memory is left for what it sends'}; the connection is closed")
            self._hang_up(caller)

    def _take(self, caller: _Caller) -> bool:
        """Read once; return whether the connection goes on."""
        reader = caller.reader
        room = reader.room
        count = caller.socket.recv_into(self._chunk if room is None else room)
        if count == 0:
            self._hang_up(caller)
            return False
        if room is None:
            self._arrived.extend(Arrival(*each, caller.host, reader.peer) for each in reader.feed(self._chunk[:count], self.admit))
            if reader.missing:
                self._bring_much[caller] = None
        elif (message := reader.filled(count)) is not None:
            self._arrived.append(Arrival(*message, caller.host, reader.peer))
        return True

    def _let_in(self) -> None:
        """Take in who has connected, or has shown who it is; a peer that connects again and again leaves its oldest connection."""
        if self._acceptor is None:
            self._accept()
            return
        for accepted in self._acceptor.arrived.take():
            same = [caller for caller in self._callers if caller.reader.peer == accepted.fingerprint]
            if len(same) >= MAX_PER_PEER:
                self._hang_up(same[0])
            if accepted.fingerprint not in self._acceptor.allowed:
                accepted.connection.close()
            else:
                caller = _Caller(accepted.connection, accepted.host, MessageReader(accepted.fingerprint))
                self._add(caller)
                self._invite(caller)

    def _invite(self, caller: _Caller) -> None:
        """Let a device of this machine offer memory for its payloads."""
        if self._memories is None:
            return
        with suppress(OSError):
            if caller.socket.getpeername()[0] == caller.socket.getsockname()[0]:
                caller.invitation = self._memories.new_word()
                caller.socket.send(frame_head(caller.invitation.encode(), 0))

    def _take_memory(self, memories: MemoryClient) -> None:
        """Use a memory that has come: for what this plane sends, or for what it gets."""
        try:
            came = memories.receive()
        except OSError:
            self._selector.unregister(memories.socket)
            return
        if came is None:
            return
        kind, word, descriptor = came
        try:
            memory = map_sealed(descriptor, MEMORY_BYTES)
        except (OSError, ValueError) as error:
            _log.info("payloads go over the network also to a device on this machine: %s", error)
            return
        finally:
            os.close(descriptor)
        if kind == MADE:
            self._outbox.lay_in(word, PayloadWriter(memory))
            return
        for caller in self._callers:
            if caller.invitation.endswith(f" {word}") and caller.reader.memory is None:
                caller.reader.memory = PayloadReader(memory)

    def _add(self, caller: _Caller) -> None:
        self._callers[caller] = None
        self._selector.register(caller.socket, selectors.EVENT_READ, caller)

    def _accept(self) -> None:
        try:
            connection, address = self._listener.accept()
        except OSError:
            return
        if len(self._callers) >= MAX_CONNECTIONS:
            self._warnings.warn(str(address[0]), f"data plane: {MAX_CONNECTIONS} connections are open, the most there may be")
            # Peers that have sent nothing yet connect again, and nothing is lost.
            dispensable = next((caller for caller in self._callers if not caller.reader.useful), None)
            if dispensable is None:
                connection.close()
                return
            self._hang_up(dispensable)
        connection.setblocking(False)
        detect_dead_peer(connection)
        self._add(_Caller(connection, str(address[0]), MessageReader()))

    def _hang_up(self, caller: _Caller) -> None:
        if caller in self._callers:
            del self._callers[caller]
            self._bring_much.pop(caller, None)
            self._selector.unregister(caller.socket)
            caller.socket.close()


def _tell_at(caller: _Caller, least: int) -> None:
    """Have the system say that a connection can be read when so many bytes are there, or its end."""
    if caller.least != least:
        caller.least = least
        with suppress(OSError, AttributeError):  # a system without: it tells of every byte
            caller.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least)


def _tell_of_pieces(caller: _Caller) -> None:
    """Have it say so when a good piece of a large payload is there, or anything at all where none is on its way."""
    missing, piece = caller.reader.missing, _PIECE_BYTES
    if isinstance(caller.socket, ssl.SSLSocket):
        # So much of it may have been taken from the system already: the record that is incomplete.
        missing, piece = missing - RECORD_ON_WIRE, _SECURE_PIECE_BYTES
    _tell_at(caller, max(1, min(missing, piece)))


def listen_at(bind: str) -> socket.socket:
    """Return a socket that listens on `tcp://HOST:PORT`, without waiting in `accept`; at `[::]` it takes IPv4, too, as control does.

    Raises:
        UsageError: if the address cannot be listened on.
        OSError: if the system grants no more descriptors.
    """
    host, port = split_address(bind)
    host = "" if host == "*" else host.strip("[]")
    if not port.isdigit() or int(port) > 65535:
        raise UsageError(f"data address {bind}: expected tcp://HOST:PORT; choose another port with --data-port")
    family, both = socket.AF_INET6 if ":" in host else socket.AF_INET, host == "::" and socket.has_dualstack_ipv6()
    try:
        listener = socket.create_server((host, int(port)), family=family, dualstack_ipv6=both)
    except OSError as error:
        if error.errno == errno.EMFILE:  # as at any other port
            raise
        raise BbgrapError(f"data address {bind}: {error.strerror}; choose another port with --data-port") from error
    listener.setblocking(False)
    return listener
