"""Questions about keys, answered one after the other: each begins from the keys that the last one has left.

    ask(who, question)   an answer at once, or none yet      a thread writes the keys -> KeysWritten, an event
    written(event)       its answer, and those of questions that waited

Laws: requests never wait for the disk, as every node that enrols has keys written; nobody is answered before the disk has what changed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from bbgrap.protocol.client_messages import Failed
from bbgrap.protocol.key_messages import Enrol, KeyMessage
from bbgrap.protocol.messages import Refused
from bbgrap.transport.control_server import key_of
from bbgrap.transport.strangers import Rate
from bbgrap_coordinator.key_refusals import not_written
from bbgrap_coordinator.keyring import KeyAnswer, KeyChange, KeyRing
from bbgrap_coordinator.no_keys import NoKeys

ENROLMENTS_PER_S = 5.0
ENROLMENTS_AT_ONCE = 32.0
"""By one token: each has all keys written anew. Chosen: a cluster that starts enrols at once."""
MAX_RATES = 4096
"""Keys whose enrolments are counted; then it begins again with those that come."""


@dataclass(frozen=True, slots=True)
class Answered:
    """An answer to a question about keys."""

    identity: bytes
    question: KeyMessage
    answer: KeyAnswer
    key_before: str = ""
    """Of the node that enrols: the key that the one of its name has had until now, in hex; empty if there was none."""

    @property
    def is_known(self) -> bool:
        """Whether the same node has had this answer before."""
        return isinstance(self.question, Enrol) and self.question.key == self.key_before

    @property
    def fault(self) -> str:
        """Why nothing came of it; empty if it did."""
        return self.answer.reason if isinstance(self.answer, Failed | Refused) else ""


@dataclass(frozen=True, slots=True)
class KeysWritten:
    """What an answer waited for is on the disk and shall hold; no change: it could not be written, as the answer says."""

    answered: Answered
    change: KeyChange | None


class KeyQuestions:
    """The questions of all peers, and the thread that writes.

    Invariants: used by one thread; something waits only while `_writing` is on its way to the disk.
    """

    def __init__(self, keys: KeyRing | NoKeys, connections: Callable[[bytes], int], put: Callable[[KeysWritten], None]) -> None:
        """Ask these keys; `put` is called from another thread."""
        self._keys = keys
        self._connections = connections
        self._put = put
        self._pool = ThreadPoolExecutor(1, "keys")
        self._writing: tuple[bytes, KeyMessage] | None = None
        self._waiting: deque[tuple[bytes, KeyMessage]] = deque()
        self._enrolments: dict[bytes, Rate] = {}
        """By the key of the token."""

    @property
    def writing(self) -> Set[tuple[bytes, int]]:
        """The calls of clients that wait for the disk."""
        asked = [*self._waiting, *([self._writing] if self._writing else [])]
        return {(identity, question.call) for identity, question in asked if not isinstance(question, Enrol)}

    def ask(self, identity: bytes, question: KeyMessage) -> list[Answered]:
        """Return the answer to an allowed question; none if it comes later, or never: who enrols asks again in a second."""
        if self._writing:
            if (identity, question) not in (self._writing, *self._waiting):
                self._waiting.append((identity, question))
            return []
        if isinstance(question, Enrol):
            if len(self._enrolments) >= MAX_RATES:  # nodes renew certificates, and may have another key whenever they start
                self._enrolments.clear()
            rate = self._enrolments.setdefault(key_of(identity), Rate(ENROLMENTS_PER_S, ENROLMENTS_AT_ONCE))
            if not rate.take(time.monotonic()):
                return []
        before = self._keys.key_of_node(question.name) if isinstance(question, Enrol) else ""
        answer, change = self._keys.answer(identity, question, self._connections)
        answered = Answered(identity, question, answer, before)
        if change is None:
            return [answered]
        self._writing = identity, question
        self._pool.submit(self._write, answered, change)
        return []

    def _write(self, answered: Answered, change: KeyChange) -> None:
        try:
            change.write()
        except OSError as error:
            self._put(KeysWritten(replace(answered, answer=not_written(answered.question, change.path, error)), None))
        else:
            self._put(KeysWritten(answered, change))

    def written(self, event: KeysWritten) -> list[Answered]:
        """Return the answer that waited for the disk, and those to what waited for that."""
        self._writing = None
        if event.change is not None and isinstance(self._keys, KeyRing):
            self._keys.take(event.change)
        answers = [event.answered]
        while self._waiting and not self._writing:
            identity, question = self._waiting.popleft()
            if not self._keys.refusal(identity, question):  # who has been shut out meanwhile was told so
                answers += self.ask(identity, question)
        return answers

    def close(self) -> None:
        """Write what was asked for, and end."""
        self._pool.shutdown()
