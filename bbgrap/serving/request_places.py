"""The places of requests that a server has let in, what their inputs take, and who loses one: who stopped in the middle of a body.

Laws: a place is lost only by who has brought nothing of its body for as long as it may, to a request that finds no other, or no room;
who has brought all of it in time keeps it; each place is given back once. Inputs take `MOST_BYTES` and those of one request at most, small
ones aside: they count from when they are let in, as large as they say, and as they come where they do not.
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from bbgrap.serving.refusals import Refusal, RefusedError

SILENT_S = 2.0
"""How long nothing of a body may come where others wait for a place. Chosen: ten times what TCP takes to send a lost packet again."""


MOST_BYTES = 512 << 20
"""Of inputs, beyond which no more are read: their clients wait. Chosen: a cluster of small machines computes for seconds on as much."""

SMALL_BYTES = 1 << 20
"""Inputs up to here wait for no others': a picture of 224 x 224 has 0.6 MB."""


class RequestPlace:
    """One place; what is not `give_up` is its request's."""

    def __init__(self, places: RequestPlaces, nbytes: int = 0) -> None:
        """Take it, for inputs of so many bytes."""
        self._places = places
        self.nbytes = nbytes
        self._awaited: float | None = None
        self._patience_s = SILENT_S
        self._give_up: Callable[[], object] = lambda: None
        self._lost_after_s: float | None = None

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
        with self._places.lock:
            self._awaited = None
        self.check()

    def count(self, nbytes: int) -> None:
        """Count inputs that did not say how large they are.

        Raises:
            RefusedError: if there is no room for them.
        """
        with self._places.lock:
            self.nbytes = nbytes
            others = self._places.nbytes - nbytes
        if nbytes > SMALL_BYTES and others > MOST_BYTES:
            raise RefusedError(Refusal.BUSY, f"body: there is no room for {nbytes} bytes beside the {others} of other requests")

    def check(self) -> None:
        """Say so where the place is lost.

        Raises:
            RefusedError: if it is.
        """
        if self._lost_after_s is not None:
            waited = f"{self._lost_after_s:.1f} s"
            raise RefusedError(Refusal.SLOW_BODY, f"body: the next of it had not come after {waited}, and others waited for its place")

    def awaited_s(self, now: float) -> float:
        """Return for how long nothing of its body has come; below 0 if nothing is to."""
        awaited = self._awaited
        return -math.inf if awaited is None else now - awaited

    def overdue_s(self, now: float) -> float:
        """Return for how much longer than it may nothing of its body has come; below 0 if others cannot have the place."""
        return self.awaited_s(now) - self._patience_s

    def lose(self, now: float) -> None:
        """Let another request have it; the lock is held."""
        self._lost_after_s, self._awaited = self.awaited_s(now), None
        self._give_up()


class RequestPlaces:
    """All places of a server, in the order in which they were taken; used under `lock`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._taken: dict[RequestPlace, None] = {}

    def __len__(self) -> int:
        return len(self._taken)

    @property
    def nbytes(self) -> int:
        """What all inputs take."""
        return sum(place.nbytes for place in self._taken)

    def has_room(self, nbytes: int) -> bool:
        """Return whether inputs of so many bytes may be read."""
        return nbytes <= SMALL_BYTES or self.nbytes <= MOST_BYTES

    def take(self, nbytes: int = 0) -> RequestPlace:
        """Return one more, for inputs of so many bytes."""
        place = RequestPlace(self, nbytes)
        self._taken[place] = None
        return place

    @contextmanager
    def held(self, place: RequestPlace) -> Iterator[None]:
        """Have a place back behind the block, unless it was lost; the lock is not held."""
        try:
            yield
        finally:
            with self.lock:
                self._taken.pop(place, None)

    def free_one(self) -> bool:
        """Have the place back of who is silent for longest beyond what it may; return whether there was one."""
        now = time.monotonic()
        silent = max(self._taken, key=lambda place: place.overdue_s(now), default=None)
        if silent is None or silent.overdue_s(now) < 0:
            return False
        self._taken.pop(silent)
        silent.lose(now)
        return True


def ending(limit: asyncio.Timeout) -> Callable[[], object]:
    """Return what ends a wait of this event loop from any thread, and does nothing once that has ended."""
    loop = asyncio.get_running_loop()

    def end() -> None:
        with suppress(RuntimeError):
            limit.reschedule(0.0)

    return lambda: loop.call_soon_threadsafe(end)
