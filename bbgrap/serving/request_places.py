"""The places of requests that a server has let in, and who loses one: a client that stopped in the middle of a body, once all are taken.

Laws: a place is lost only by who has brought nothing of its body for as long as it may, to a request that finds no other; who has brought
all of it in time keeps it; each place is given back once.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from bbgrap.serving.refusals import Refusal, RefusedError

SILENT_S = 2.0
"""How long nothing of a body may come where others wait for a place. Chosen: ten times what TCP takes to send a lost packet again."""


class RequestPlace:
    """One place; what is not `give_up` is its request's."""

    def __init__(self, lock: threading.Lock) -> None:
        """Take it; the lock is that of all places."""
        self._lock = lock
        self._awaited: float | None = None
        self._patience_s = SILENT_S
        self._give_up: Callable[[], object] = lambda: None
        self.is_lost = False

    def await_body(self, give_up: Callable[[], object], patience_s: float | None = None) -> None:
        """Begin to receive; `give_up` ends that from any thread, after so long without a part at the earliest: `SILENT_S` if not given."""
        self._give_up, self._patience_s = give_up, SILENT_S if patience_s is None else patience_s
        self._awaited = time.monotonic()

    def has_part(self) -> None:
        """Something has come."""
        self._awaited = time.monotonic()

    def has_body(self) -> None:
        """All has come.

        Raises:
            RefusedError: if the place was lost before.
        """
        with self._lock:
            self._awaited = None
        self.check()

    def check(self) -> None:
        """Say so where the place is lost.

        Raises:
            RefusedError: if it is.
        """
        if self.is_lost:
            raise RefusedError(
                Refusal.SLOW_BODY, f"body: the next of it did not come within {self._patience_s:g} s, and others waited for its place"
            )

    def overdue(self, now: float) -> float:
        """Return for how much longer than it may nothing of its body has come, in seconds; below 0 if others cannot have the place."""
        awaited = self._awaited
        return -math.inf if awaited is None else now - awaited - self._patience_s

    def lose(self) -> None:
        """Let another request have it; the lock is held."""
        self.is_lost, self._awaited = True, None
        self._give_up()


class RequestPlaces:
    """All places of a server, in the order in which they were taken; used under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._taken: dict[RequestPlace, None] = {}

    def __len__(self) -> int:
        return len(self._taken)

    def take(self) -> RequestPlace:
        """Return one more."""
        place = RequestPlace(self.lock)
        self._taken[place] = None
        return place

    def give_back(self, place: RequestPlace) -> None:
        """Have it back, unless it was lost."""
        self._taken.pop(place, None)

    def free_one(self) -> bool:
        """Have the place back of who is silent for longest beyond what it may; return whether there was one."""
        now = time.monotonic()
        silent = max(self._taken, key=lambda place: place.overdue(now), default=None)
        if silent is None or silent.overdue(now) < 0:
            return False
        self._taken.pop(silent)
        silent.lose()
        return True


def ending(limit: asyncio.Timeout) -> Callable[[], object]:
    """Return what ends a wait of this event loop from any thread, and does nothing once that has ended."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        with suppress(RuntimeError):
            limit.reschedule(0.0)

    return lambda: loop.call_soon_threadsafe(end)
