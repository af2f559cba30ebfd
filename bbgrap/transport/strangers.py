"""What bounds what strangers cost: how often something may be, and one warning for each, so that nonsense without end fills no log."""

from __future__ import annotations

import logging
import time


class Rate:
    """At most `at_once` without a pause, and `per_s` in the long run."""

    def __init__(self, per_s: float, at_once: float) -> None:
        self._per_s, self._most = per_s, at_once
        self._left, self._then = at_once, time.monotonic()

    def take(self, now: float) -> bool:
        """Whether one more is within it."""
        self._left = min(self._most, self._left + (now - self._then) * self._per_s)
        self._then = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


MOST_PEERS = 1000
"""That are told apart; of further ones nothing is said. Chosen: far more than a cluster has."""


class PeerWarnings:
    """The warnings of one part of this process, used by its thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._peers: set[str] = set()

    def warn(self, peer: str, text: str) -> None:
        """Warn about a peer, unless that was done before."""
        if peer not in self._peers and len(self._peers) < MOST_PEERS:
            self._peers.add(peer)
            self._log.warning("%s: %s", peer, text)
