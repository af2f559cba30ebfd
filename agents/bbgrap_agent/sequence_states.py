"""The state of sequences on one agent: what a request leaves here, and the next one of its sequence goes on from.

    request 7 ──► state by 7 ──► request 9 begins: whatever is not by 7 goes ──► request 9 ends ──► state by 7, and by 9

A request says which one it goes on from, and what it leaves bears its own number. So one that was interrupted, or whose answer was lost,
is repeated from the last whole state. Arrays are never changed, so sequences share them. Laws: bounded in bytes; beyond, the sequences
that were used least lately go first, and are remembered for a while as having had to; of the last one, what it went on from goes before it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence

from bbgrap.graph.types import Array

DEFAULT_BYTES = 1 << 30
"""Of all states, where nobody says. Chosen."""
PART = 0.25
"""Of the memory that an agent declares, what states may take. Chosen: weights, maps and the system need the rest."""
MAX_SEQUENCES = 65_536
"""However small they are. Each costs some hundred bytes."""
MAX_GONE = 1024
"""Sequences remembered that had to make room."""

Owner = tuple[int, int]
"""Epoch and sequence."""


Left = Mapping[int, tuple[Array, ...]]
"""What a sequence has here, by the number of the request that left it."""


def bytes_for_states(asked: int, memory_bytes: int) -> int:
    """Return what the states of an agent may take: what its user asked for, else (0) a part of the memory that it declares."""
    return asked or int(PART * memory_bytes)


class SequenceStates:
    """All states of one agent, the least lately used first.

    Invariants: `nbytes` is the sum over all of them, arrays that two sequences share counted twice.
    """

    def __init__(self, limit: int = DEFAULT_BYTES) -> None:
        """Hold none, and never more than `limit` bytes."""
        self.limit = limit
        self.nbytes = 0
        self._states: OrderedDict[Owner, Left] = OrderedDict()
        self._gone: OrderedDict[Owner, None] = OrderedDict()

    def begin(self, owner: Owner, before: int) -> tuple[Array, ...] | None:
        """Return the state that a request has left, for the next one; what others have left is forgotten. None if it is not here."""
        found = self._states.get(owner, {}).get(before)
        if found is None:
            self.drop(owner)
            return None
        self._put(owner, {before: found})
        return found

    def keep(self, owner: Owner, request: int, arrays: Sequence[Array]) -> None:
        """Take what a request leaves."""
        left = tuple(arrays)
        self._put(owner, {**self._states.get(owner, {}), request: left})
        while self.nbytes > self.limit or len(self._states) > MAX_SEQUENCES:
            oldest = next(iter(self._states))
            if len(self._states) == 1 and len(self._states[owner]) > 1:
                self._put(owner, {request: left})
                continue
            self.drop(oldest)
            self._gone[oldest] = None
            if len(self._gone) > MAX_GONE:
                self._gone.popitem(last=False)

    def share(self, owner: Owner, sequence: int) -> None:
        """Let another sequence have the same state, too; 0: forget it."""
        if not sequence:
            self.drop(owner)
        for request, arrays in self._states.get(owner, {}).items():
            self.keep((owner[0], sequence), request, arrays)

    def why(self, owner: Owner) -> str:
        """Return why a state is not here, as the end of a message; nothing if that is not known."""
        return (
            f": it made room for others, which may take {self.limit:,} bytes on this agent (--state-memory)" if owner in self._gone else ""
        )

    def drop(self, owner: Owner) -> None:
        """Forget a sequence's state, if there is any."""
        self.nbytes -= _nbytes(self._states.pop(owner, {}))

    def drop_all(self, epoch: int) -> None:
        """Forget the states of a deployment."""
        for owner in [owner for owner in self._states if owner[0] == epoch]:
            self.drop(owner)

    def _put(self, owner: Owner, left: Left) -> None:
        """Let a sequence be the one used last, with this and nothing else."""
        self.drop(owner)
        self._gone.pop(owner, None)
        self._states[owner] = left
        self.nbytes += _nbytes(left)


def _nbytes(left: Left) -> int:
    return sum(array.nbytes for arrays in left.values() for array in arrays)
