"""Warnings about peers, one for each: whoever sends nonsense without end fills no log."""

from __future__ import annotations

import logging

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
