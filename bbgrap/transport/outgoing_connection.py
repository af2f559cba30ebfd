"""One address that a data plane sends to: its connection, and what waits for it. `bbgrap.transport.outbox` says when it does what."""

from __future__ import annotations

import errno
import math
import os
import selectors
import socket
import ssl
import struct
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.dead_peers import DeadPeerCheck
from bbgrap.transport.framing import GREETING, PIECE_BYTES, frame_head, frame_parts, is_bound, is_laid, rest_of
from bbgrap.transport.payload_memory import LEAST_BYTES, PayloadWriter
from bbgrap.transport.shared_memory import is_invitation
from bbgrap.transport.tls import HANDSHAKE_S, peer_of, reason_of

_MOST_PIECES = 512
"""Linux takes 1,024 pieces in one call."""
MAX_SECURE_BYTES = 128 << 30
"""After so many a connection is made anew: AES-GCM bears 2**24.5 full records with one key (RFC 8446, 5.5), 360 GiB."""
_ABORT = struct.pack("ii", 1, 0)
"""What has not been acknowledged is not sent any more when the connection is closed."""


@dataclass(slots=True, eq=False)
class OutgoingConnection:
    """Another data plane.

    Invariants: `ready` means that `socket` is connected and greeted, and the peer the one with `fingerprint`; `offset` bytes of `current`
    have been sent, and nothing goes before its rest; `waiting` are the bytes of that, `backlog` and `large`; `watched` are the events of
    the socket that the selector looks for; `carried` counts what was written for messages since the connection was made, in calls, and
    `seen` is what it was when it was last looked at.
    """

    address: str
    fingerprint: str = ""
    users: int = 1
    socket: socket.socket | None = None
    ready: bool = False
    wanted: int = selectors.EVENT_WRITE
    """What making the connection waits for."""
    leaving: bool = False
    """Whether nothing more goes over this connection: the peer ends it when it has read all, and the next one is made."""
    written: int = 0
    """Bytes of whole messages that went over this connection."""
    fault: str = ""
    """Why the connection is of no use any more, until it is shut."""
    lost: bool = False
    """Whether messages may be lost by that."""
    trouble: str = ""
    """Why there was no connection the last time."""
    naming: bool = False
    """Whether its name is being looked up."""
    current: Sequence[BytesLike] = ()
    """A message, or part of a large one."""
    backlog: deque[tuple[int, Sequence[BytesLike]]] = field(default_factory=deque)
    """Messages behind it, numbered as they were sent."""
    large: deque[tuple[int, deque[Sequence[BytesLike]]]] = field(default_factory=deque)
    """And those in parts, or laid in memory, or what is left of them: what is in `backlog` goes between."""
    number: int = 0
    overtaken: int = 0
    """Bytes that went before them since the last part."""
    offset: int = 0
    waiting: int = 0
    watched: int = 0
    carried: int = 0
    seen: int = 0
    dead_peer: DeadPeerCheck = field(default_factory=DeadPeerCheck)
    invitation: str = ""
    """Where memory for payloads may be offered to the other side: it is on this machine, and wants it."""
    memory: PayloadWriter | None = None
    due: float = 0.0
    """When to connect again."""
    due_by: float = 0.0
    """When connecting has taken too long."""
    tell_at: float = 0.0
    """When to tell that there is no connection, if there is none."""
    retry_s: float = 0.05

    @property
    def shakes_hands(self) -> bool:
        """Whether the other side has taken a connection that cannot be used yet: it may be busy."""
        return not self.ready and not self.leaving and isinstance(self.socket, ssl.SSLSocket)

    @property
    def told_by(self) -> float:
        """When it is told that there is no connection: a handshake that has begun ends before."""
        return max(self.tell_at, self.due_by) if self.shakes_hands else self.tell_at

    def establish(self, context: ssl.SSLContext | None) -> bool:
        """Go on with a connection that is being made; return whether it can be used now.

        With TLS the other side greets, once it has found this one's certificate good: until then it may still refuse.
        """
        connection = self.socket
        if connection is None:
            return False
        try:
            if code := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                self.fail(os.strerror(code))
                return False
            if context is None:
                return connection.send(GREETING) == len(GREETING)
            if not isinstance(connection, ssl.SSLSocket):
                connection.getpeername()
                connection = self.socket = context.wrap_socket(connection, do_handshake_on_connect=False)
                self.due_by = time.monotonic() + HANDSHAKE_S
            return self._shake_hands(connection)
        except ssl.SSLWantReadError:
            self.wanted = selectors.EVENT_READ
        except BlockingIOError:  # not made yet
            pass
        except OSError as error:
            if error.errno != errno.ENOTCONN:
                self.fail(reason_of(error))
        return False

    def _shake_hands(self, connection: ssl.SSLSocket) -> bool:
        connection.do_handshake()  # nothing, if it has been done
        if (found := peer_of(connection)) != self.fingerprint:
            self.fail(f"expected the node with certificate {self.fingerprint[:16]}, got {found[:16]}; has it just been restarted?")
            return False
        if (answer := connection.recv(len(GREETING))) != GREETING:
            self.fail("it answers as no data plane does" if answer else "it does not let this node in, or not yet")
        return answer == GREETING

    def use(self) -> None:
        """Begin to send over a connection that is established."""
        if not self.fault:
            self.ready, self.tell_at = True, math.inf

    def framed(self, header: BytesLike, payload: Sequence[BytesLike]) -> list[Sequence[BytesLike]]:
        """Return a message, in parts: a large payload is laid in memory that the other side has, if there is room."""
        nbytes = sum(map(len, payload))
        if self.memory is not None and self.ready and nbytes >= LEAST_BYTES and self.written < MAX_SECURE_BYTES:
            place = self.memory.put(payload, nbytes)
            if place is not None:
                self.carried += 1  # it is of no use over another connection
                return [[frame_head(header, nbytes, place)]]
        return frame_parts(header, payload, nbytes)

    def write(self, pieces: Sequence[BytesLike]) -> int:
        """Write what the network takes at once of a message; a broken connection takes nothing."""
        if self.socket is None or self.fault:
            return 0
        sent = 0
        try:
            if not isinstance(self.socket, ssl.SSLSocket):
                sent = self.socket.sendmsg(pieces[:_MOST_PIECES])
            else:
                for piece in pieces:
                    position = 0
                    while position < len(piece):
                        # What it has begun to write it wants again just so: the same bytes, to the end of the piece.
                        step = self.socket.send(memoryview(piece)[position:])
                        position += step
                        sent += step
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        except OSError as error:
            self.fail(reason_of(error))
            return 0
        self.carried += sent > 0
        return sent

    def passed(self, total: int) -> None:
        """Note that a whole message has been written; when this connection has carried enough, what waits goes over the next one.

        A message that names a place in memory cannot, for the next connection has other memory, nor the rest of one.
        """
        self.written += total
        has_enough = self.written >= MAX_SECURE_BYTES and not any(is_bound(rest[0][0]) for _, rest in self.large)
        if has_enough and isinstance(self.socket, ssl.SSLSocket) and not self.fault:
            self.ready, self.leaving, self.due_by = False, True, time.monotonic() + HANDSHAKE_S
            try:
                self.socket.shutdown(socket.SHUT_WR)
            except OSError as error:
                self.fail(reason_of(error))

    def queue(self, parts: Sequence[Sequence[BytesLike]], sent: int | None) -> None:
        """Keep a message until the network takes it, of which so many bytes have been sent; None: that was not tried."""
        rest = deque(parts)
        if sent is not None:
            while sent >= (size := sum(map(len, rest[0]))):
                sent -= size
                self.written += size
                rest.popleft()
            self.waiting += sum(map(len, rest[0]))
            self.current, self.offset = rest.popleft(), sent
        self.number += 1
        self.waiting += sum(len(piece) for part in rest for piece in part)
        if rest and (len(parts) > 1 or is_laid(rest[0][0])):
            self.large.append((self.number, rest))
        elif rest:
            self.backlog.append((self.number, rest[0]))

    def _next(self) -> Sequence[BytesLike]:
        """Take what is to be sent next: what is small goes before what is large, but half of the bytes, and what was sent after it."""
        if self.large and (not self.backlog or (self.overtaken >= PIECE_BYTES and self.backlog[0][0] > self.large[0][0])):
            self.overtaken, rest = 0, self.large[0][1]
            part = rest.popleft()
            if not rest:
                self.large.popleft()
            return part
        part = self.backlog.popleft()[1]
        self.overtaken += sum(map(len, part)) if self.large else 0
        return part

    def write_backlog(self) -> None:
        """Write what the network takes of what waits."""
        while self.waiting and self.ready:
            self.current = self.current or self._next()
            rest = rest_of(self.current, self.offset)
            sent = self.write(rest)
            if sent < sum(map(len, rest)):
                self.offset += sent
                return
            total = sum(map(len, self.current))
            self.current, self.offset = (), 0
            self.waiting -= total
            self.passed(total)

    def listen(self) -> None:
        """Find out why a connection is readable: nothing is ever received here but an invitation to share memory."""
        if self.socket is None:
            return
        try:
            if not (told := self.socket.recv(4096)):
                self.carried = 0 if self.leaving else self.carried
                self.fail("the other side closed the connection")
            elif not self.invitation and is_invitation(text := told[len(GREETING) :].decode("ascii", "replace")):
                self.invitation = text
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self.fail(reason_of(error))

    def fail(self, reason: str, *, lost: bool = False) -> None:
        """Note that the connection is of no use any more; messages are lost with it if it has carried any."""
        self.fault, self.lost, self.ready = self.fault or reason, self.lost or lost or self.carried > 0, False

    def shut(self) -> None:
        """Close the connection; if messages may be lost, nothing that the system still has of them arrives after later ones."""
        if self.socket is not None:
            if self.lost:
                with suppress(OSError):
                    self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ABORT)
            self.socket.close()
        self.socket, self.ready, self.watched, self.offset = None, False, 0, 0
        self.trouble, self.fault, self.lost = self.fault, "", False
        self.carried = self.seen = self.written = 0
        self.leaving, self.wanted = False, selectors.EVENT_WRITE
        self.invitation, self.memory = "", None
        self.dead_peer = DeadPeerCheck()

    def forget(self) -> None:
        """Forget what waits."""
        self.backlog.clear()
        self.large.clear()
        self.current = ()
        self.waiting = self.offset = self.overtaken = 0
