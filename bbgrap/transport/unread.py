"""What a peer has not read of what it was sent: ZeroMQ keeps it, by messages and not by bytes.

Law: what is kept for one connection is at most `MAX_UNREAD_BYTES`, what was sent between two looks, and one message.
"""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from dataclasses import dataclass

from bbgrap.transport.dead_peers import acknowledged_bytes

MAX_UNREAD_BYTES = 1 << 30
"""Beyond it, messages to a connection are lost. Chosen: one of the largest tensors."""
LOOK_BYTES = 64 << 20
"""The system is asked anew when so much has been sent: a call of a microsecond."""


@dataclass(slots=True)
class Unread:
    """What was sent over one connection of ZeroMQ and has not been acknowledged, by the descriptor below it."""

    descriptor: int
    bytes: int = 0
    """As of the last look, and all that was sent since."""
    _acknowledged: int = 0
    _looked_bytes: int = 0

    def sent(self, size: int) -> None:
        """Note that so many bytes go their way."""
        self.bytes += size

    def is_full(self) -> bool:
        """Find out whether nothing more is to be sent; what encryption adds is acknowledged, too, and makes it a little less than it is."""
        if self.bytes - self._looked_bytes >= LOOK_BYTES or self._looked_bytes > MAX_UNREAD_BYTES:
            now = self._look()
            # Where the system does not tell, everything counts as read.
            self.bytes = 0 if now is None else max(0, self.bytes - (now - self._acknowledged))
            self._acknowledged, self._looked_bytes = now or 0, self.bytes
        return self._looked_bytes > MAX_UNREAD_BYTES

    def _look(self) -> int | None:
        with suppress(OSError), socket.socket(fileno=os.dup(self.descriptor)) as connection:
            return acknowledged_bytes(connection)
        return None
