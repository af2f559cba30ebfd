"""How much of what is large may be on its way to one receiver: whatever else goes there waits behind it in the queues of the way.

Law: it is at most what arrives within `FLYING_S` and two round trips, as measured last, between the least and the most there may be.
"""

from __future__ import annotations

from dataclasses import dataclass

FLYING_S = 0.5
"""Beside two round trips. Chosen."""
RATED_OVER_S = 0.25
"""Over how long it is measured how fast it arrives, at least, and until half of what may be on its way has arrived."""
TURNS = 4
"""Or until so many times that has: over a fast way it is known within milliseconds."""
FIRST_WINDOW_BYTES, LEAST_WINDOW_BYTES, WINDOW_BYTES = 1 << 18, 1 << 16, 16 << 20
"""What is on its way before that is known, and the bounds of what is then; the upper one keeps a 10 Gb/s link busy over 10 ms."""
PIECES = 4
"""In which it is sent: while the receiver stores one, the next ones are on their way."""


@dataclass(slots=True)
class SendWindow:
    """What may be on its way to one receiver."""

    bytes: int = FIRST_WINDOW_BYTES
    most: int = WINDOW_BYTES
    _since: float = 0.0
    _arrived: int = 0
    """In bytes, since then."""

    def begin(self, now: float) -> None:
        """Measure from now on: nothing was on its way before."""
        self._since, self._arrived = now, 0

    def arrived(self, size: int, now: float, round_trip_s: float) -> None:
        """Note that so many bytes more have arrived; `round_trip_s` is that of the way when it is idle."""
        self._arrived += size
        took_s = now - self._since
        if self._arrived >= (self.bytes // 2 if took_s >= RATED_OVER_S else TURNS * self.bytes):
            bytes_s = self._arrived / max(took_s, 1e-3)
            self.bytes = min(max(LEAST_WINDOW_BYTES, round(bytes_s * (FLYING_S + 2 * round_trip_s))), self.most)
            self.begin(now)
