"""Messages for requests that have not begun here: a neighbour may be faster than the host.

They are bounded in bytes, for each sender and in all. Whoever brings too much pushes out only what it has brought itself, the oldest first,
so nobody can make another's messages disappear. A sender is a device as it says, at the address that its connection comes from.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.graph.types import Array

MAX_SENDER_BYTES = 64 << 20
"""What one neighbour may be ahead: half a second at 1 Gbit/s. Chosen."""
MAX_LARGE_MESSAGES = 16
"""So many messages of a sender are kept however large they are: those of a few requests in flight. Chosen."""
MAX_BYTES = 1 << 30
"""What all may be ahead; beyond, whoever has brought most makes room. Chosen."""
_BESIDES_BYTES = 1 << 10
"""What keeping a message takes beside its numbers; a thousand bytes are more than it is."""

RequestKey = tuple[int, int]
"""Epoch and request."""
Sender = tuple[str, int]
"""The address of the connection, and the device."""


@dataclass(slots=True)
class _Kept:
    message: int
    parts: list[Array]
    nbytes: int


@dataclass(slots=True)
class _Share:
    """What one sender has brought, the oldest request first."""

    kept: dict[RequestKey, list[_Kept]] = field(default_factory=dict)
    nbytes: int = 0
    count: int = 0


class EarlyMessages:
    """The early messages of one executor.

    Invariants: `nbytes` is the sum over all shares, and theirs over what they keep; no share is empty.
    """

    def __init__(self) -> None:
        self._shares: dict[Sender, _Share] = {}
        self.nbytes = 0

    def keep(self, key: RequestKey, sender: Sender, message: int, parts: list[Array], nbytes: int) -> tuple[RequestKey, ...]:
        """Keep a message; return the requests of which messages had to be forgotten."""
        share = self._shares.setdefault(sender, _Share())
        kept = _Kept(message, parts, max(nbytes, sum(part.nbytes for part in parts)) + _BESIDES_BYTES)
        share.kept.setdefault(key, []).append(kept)
        share.nbytes += kept.nbytes
        share.count += 1
        self.nbytes += kept.nbytes
        forgotten = []
        while share.nbytes > MAX_SENDER_BYTES and share.count > MAX_LARGE_MESSAGES:
            forgotten.append(self._forget_oldest(sender))
        while self.nbytes > MAX_BYTES:
            forgotten.append(self._forget_oldest(max(self._shares, key=lambda sender: self._shares[sender].nbytes)))
        return tuple(forgotten)

    def take(self, key: RequestKey) -> list[tuple[int, list[Array]]]:
        """Return what was kept for a request, with the numbers of the messages, and forget it."""
        taken = [kept for sender in tuple(self._shares) for kept in self._remove(sender, key)]
        return [(kept.message, kept.parts) for kept in taken]

    def drop_all(self, epoch: int) -> None:
        """Forget what was kept for the requests of a deployment."""
        for sender, share in tuple(self._shares.items()):
            for key in [key for key in share.kept if key[0] == epoch]:
                self._remove(sender, key)

    def _forget_oldest(self, sender: Sender) -> RequestKey:
        key = next(iter(self._shares[sender].kept))
        self._remove(sender, key)
        return key

    def _remove(self, sender: Sender, key: RequestKey) -> list[_Kept]:
        share = self._shares[sender]
        kept = share.kept.pop(key, [])
        nbytes = sum(each.nbytes for each in kept)
        share.nbytes -= nbytes
        share.count -= len(kept)
        self.nbytes -= nbytes
        if not share.kept:
            del self._shares[sender]
        return kept
