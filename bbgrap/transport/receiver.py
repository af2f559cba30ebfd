"""One address that a data plane sends to: its connection, and what waits for it. `bbgrap.transport.outbox` says when it does what."""

from __future__ import annotations

import math
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from bbgrap.protocol.messages import BytesLike
from bbgrap.transport.silence import Silence

_MOST_PIECES = 512
"""Linux takes 1,024 pieces in one call."""
_ABORT = struct.pack("ii", 1, 0)
"""What has not been acknowledged is not sent any more when the connection is closed."""


@dataclass(slots=True, eq=False)
class Receiver:
    """Another data plane.

    Invariants: `ready` means that `socket` is connected and greeted; `offset` bytes of the first message in `backlog` have been sent, and
    `waiting` are the bytes of all; `watched` are the events of the socket that the selector looks for; `carried` counts what was written
    for messages since the connection was made, in calls, and `seen` is what it was when it was last looked at.
    """

    address: str
    users: int = 1
    socket: socket.socket | None = None
    ready: bool = False
    fault: str = ""
    """Why the connection is of no use any more, until it is shut."""
    lost: bool = False
    """Whether messages may be lost by that."""
    trouble: str = ""
    """Why there was no connection the last time."""
    naming: bool = False
    """Whether its name is being looked up."""
    backlog: deque[Sequence[BytesLike]] = field(default_factory=deque)
    offset: int = 0
    waiting: int = 0
    watched: int = 0
    carried: int = 0
    seen: int = 0
    silence: Silence = field(default_factory=Silence)
    due: float = 0.0
    """When to connect again."""
    due_by: float = 0.0
    """When connecting has taken too long."""
    tell_at: float = 0.0
    """When to tell that there is no connection, if there is none."""
    retry_s: float = 0.05

    def greet(self, greeting: bytes) -> bool:
        """Begin to use a connection that has been made, or was refused; return whether it can be used."""
        if self.socket is None:
            return False
        code = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        try:
            self.ready = code == 0 and self.socket.send(greeting) == len(greeting)
        except BlockingIOError:  # not made yet
            return False
        except OSError as error:
            code = error.errno or code
        if self.ready:
            self.tell_at = math.inf
        else:
            self.fail(os.strerror(code))
        return self.ready

    def write(self, pieces: Sequence[BytesLike]) -> int:
        """Write what the network takes at once of a message; a broken connection takes nothing."""
        if self.socket is None or self.fault:
            return 0
        try:
            sent = self.socket.sendmsg(pieces[:_MOST_PIECES])
        except BlockingIOError:
            return 0
        except OSError as error:
            self.fail(error.strerror or str(error))
            return 0
        self.carried += 1
        return sent

    def queue(self, pieces: Sequence[BytesLike], total: int, sent: int) -> None:
        """Keep a message, of which so many bytes have been sent, until the network takes it."""
        if not self.backlog:
            self.offset = sent
        self.backlog.append(pieces)
        self.waiting += total

    def write_backlog(self) -> None:
        """Write what the network takes of what waits."""
        while self.backlog:
            rest = _rest(self.backlog[0], self.offset)
            sent = self.write(rest)
            if sent < sum(map(len, rest)):
                self.offset += sent
                return
            self.waiting -= sum(map(len, self.backlog.popleft()))
            self.offset = 0

    def listen(self) -> None:
        """Find out why a connection is readable: nothing is ever received here."""
        if self.socket is None:
            return
        try:
            if not self.socket.recv(4096):
                self.fail("the other side closed the connection")
        except BlockingIOError:
            return
        except OSError as error:
            self.fail(error.strerror or str(error))

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
        self.carried = self.seen = 0
        self.silence = Silence()

    def forget(self) -> None:
        """Forget what waits."""
        self.backlog.clear()
        self.waiting = self.offset = 0


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
