"""Who comes in by a control port: ZeroMQ asks about each key here, and nobody is heard while too many wait to show theirs.

ZeroMQ takes every connection, as long as there are descriptors: the coordinator would have none left for its files, and its thread would
do nothing but try (it asks again and again). So a `ThrottledListener` is shut while too many are open, or too many show wrong keys: the
system then drops what would begin a connection, and whoever is known tries again after 1 s, 3 s ... Connections that are made are not
touched.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import zmq
from zmq.utils import z85

from bbgrap.errors import BbgrapError
from bbgrap.transport.listener_filter import CANNOT_SHUT, hear_all, hear_only
from bbgrap.transport.process import granted_descriptors

_ZAP = "inproc://zeromq.zap.01"
"""Where ZeroMQ asks, by RFC 27."""
_STOP = [b"stop"]
_YES = b"200"
REFUSED_PER_S, REFUSED_AT_ONCE = 250.0, 500.0
"""Handshakes of keys that are not known; more of them shut the door. Each costs 0.6 ms, so that is 15 % of a core. Chosen."""
MOST_OPEN = 8192
"""Descriptors until the door is shut, or half of those that the system grants. Chosen: twice what keeps from 5,000 strangers."""
FEW = 4096
"""Descriptors of which a crowd can take the most between two looks; it is said at the start that more are better."""
ROOM = 16
"""Descriptors beyond those of a coordinator that nobody uses: for an agent, a client and what they bring. Chosen."""
TOLD_EVERY_S = 60.0

_log = logging.getLogger("bbgrap.transport")


class KeyCheck:
    """Answers ZeroMQ whether a key may connect, in a thread of its own; the key becomes the `User-Id` of what its owner says.

    pyzmq has one, too; it takes 0.5 ms of the interpreter for each handshake, which strangers may begin as often as they like.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], admits: Callable[[bytes], bool]) -> None:
        """Start; a context has one at most."""
        self.refused = 0
        """How often that was answered with no; read by other threads."""
        self._context, self._admits = context, admits
        self._socket = context.socket(zmq.REP)
        self._socket.linger = 0
        self._socket.bind(_ZAP)
        self._thread = threading.Thread(target=self._run, name="keys", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there is no room for one: a context waits for all its sockets
            self._socket.close()
            raise

    def stop(self) -> None:
        """Answer nothing more."""
        with self._context.socket(zmq.REQ) as asker:
            asker.linger = 0
            asker.connect(_ZAP)
            asker.send_multipart(_STOP)
            self._thread.join()

    def _run(self) -> None:
        with self._socket:
            while (request := self._socket.recv_multipart()) != _STOP:
                said = answer(request, self._admits)
                self.refused += said[2] != _YES
                self._socket.send_multipart(said)
            self._socket.unbind(_ZAP)


def answer(request: list[bytes], admits: Callable[[bytes], bool]) -> list[bytes]:
    """Return what to say to ZeroMQ's question about a handshake; whatever is not a known key is refused."""
    version, number, mechanism, key = (*request[:2], *request[5:7]) if len(request) == 7 else (b"1.0", b"", b"", b"")
    if mechanism == b"CURVE" and len(key) == 32 and admits(key):
        return [version, number, _YES, b"OK", z85.encode(key), b""]
    return [version, number, b"400", b"unknown key", b"", b""]


class ThrottledListener:
    """A listening socket that is shut while too many strangers come.

    Invariants: the descriptor is the listener's, as long as it is open.
    """

    def __init__(self, listener: int) -> None:
        """Look after a listener by its descriptor."""
        self._listener = listener
        self._shut = False
        self._told = -TOLD_EVERY_S
        self._told_cannot = False
        self._refused = 0
        self._left = REFUSED_AT_ONCE
        self._looked = time.monotonic()
        self._most = min(MOST_OPEN, granted_descriptors() // 2)
        if granted_descriptors() < FEW:
            _log.warning(
                "the system grants %d descriptors: a crowd of strangers can use them up, and nodes too; %d are better (ulimit -Hn)",
                granted_descriptors(),
                FEW,
            )

    def check_room(self) -> None:
        """Look whether this would be shut for ever: nobody has come yet, and what is open now stays open.

        Raises:
            BbgrapError: if so.
        """
        needed = 2 * (_open_now() + ROOM)
        if granted_descriptors() < needed:
            raise BbgrapError(
                f"the system grants {granted_descriptors()} descriptors, files and connections, and nobody could be let in: "
                f"expected {needed} at least, better {FEW}; raise it (ulimit -Hn, LimitNOFILE= of systemd, --ulimit nofile= of containers)"
            )

    def throttle(self, refused: int = 0) -> None:
        """Shut the listener, or open it again; to be called some times a second, with the number of those that were refused so far."""
        now = time.monotonic()
        self._left = min(REFUSED_AT_ONCE, self._left + (now - self._looked) * REFUSED_PER_S) - (refused - self._refused)
        self._looked, self._refused = now, refused
        found = _open_now()
        shut = self._left < 0 or found > self._most
        if shut == self._shut:
            return
        self._shut = shut
        if shut and now > self._told + TOLD_EVERY_S:
            self._told = now
            _log.warning("%s", self._why_shut(found))
        with suppress(OSError), socket.socket(fileno=os.dup(self._listener)) as listener:
            if not shut:
                hear_all(listener)
            elif not hear_only(listener, ()) and not self._told_cannot:
                self._told_cannot = True
                _log.warning("%s", CANNOT_SHUT)

    def _why_shut(self, found: int) -> str:
        if self._left < 0:
            return f"more than {REFUSED_PER_S:g} unknown keys a second: new connections wait until strangers have gone"
        # Where few are granted, nodes and files take them: nobody is to look for strangers.
        few = f"; the system grants {granted_descriptors()}, {FEW} are better (ulimit -Hn)" if granted_descriptors() < FEW else ""
        return f"{found} descriptors are open, files and connections: new connections wait until there are {self._most} at most{few}"


def _open_now() -> int:
    """Return how many descriptors are open; 0 where the system does not say."""
    try:
        return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - twice as fast
    except FileNotFoundError:
        return 0
    except OSError:  # there is none left to look with
        return 2 * MOST_OPEN
