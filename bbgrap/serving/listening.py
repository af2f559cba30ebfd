"""The socket where HTTP is spoken: whoever comes is let in, and where there are too many, who is silent for longest has to go.

A connection that says nothing costs its maker nothing, and has no deadline. Laws: a request that has begun is not ended for another one's
sake; where no descriptor is left, that is said once in a while. (asyncio tries the same connection two thousand times a second then, and
logs as many tracebacks.)
"""

from __future__ import annotations

import errno
import logging
import socket
import time
from collections.abc import Callable
from typing import Any

from bbgrap.transport.admission import MOST_OPEN
from bbgrap.transport.process import granted_descriptors

TOLD_EVERY_S = 60.0
_WAIT_S = 0.01
"""How long this thread sleeps where nobody can be let in, instead of looking again at once. Chosen."""
_NONE_LEFT = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}

_log = logging.getLogger("bbgrap.serving")


class HttpListener(socket.socket):
    """A listening socket that keeps descriptors free.

    Invariants: used by one thread, the event loop's.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - socket's
        """Make it as any socket."""
        super().__init__(*args, **kwargs)
        self.end_silent: Callable[[], bool] = lambda: False
        """Ends the connection that is silent for longest; returns whether there was one."""
        self.count: Callable[[], int] = lambda: 0
        """Returns how many connections there are that nobody ends yet."""
        self._is_full = False
        """Whether the connection taken last was one too many: the loop has a turn then before the next is taken, in which one ends."""
        self._told = -TOLD_EVERY_S

    def accept(self) -> tuple[socket.socket, Any]:
        """Take a connection, as any socket that does not block."""
        if self._is_full:
            self._is_full = False
            raise BlockingIOError(errno.EAGAIN, "it waits")
        try:
            connection, address = super().accept()
        except OSError as error:
            if error.errno not in _NONE_LEFT:
                raise
            self._tell(error.strerror or str(error))
            if not self.end_silent():
                time.sleep(_WAIT_S)
            raise BlockingIOError(errno.EAGAIN, "it waits") from None
        # Systems give the lowest number that is free, so as many are open at least: of those that were just taken nobody else knows yet.
        self._is_full = max(connection.fileno(), self.count()) >= most_descriptors()
        if self._is_full and self.end_silent():
            self._tell("")
        return connection, address

    def _tell(self, reason: str) -> None:
        now = time.monotonic()
        if now >= self._told + TOLD_EVERY_S:
            self._told = now
            why = f"; the system says: {reason}" if reason else ""
            _log.warning(
                "many connections: beyond %d descriptors those silent for longest are ended; the system grants %d (ulimit -Hn)%s",
                most_descriptors(),
                granted_descriptors(),
                why,
            )


def most_descriptors() -> int:
    """Return beyond how many descriptors of this process connections have to go: others are for answers, files and the coordinator."""
    return min(MOST_OPEN, granted_descriptors() // 2)
