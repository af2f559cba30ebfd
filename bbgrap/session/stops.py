"""Threads that are told to give up what they wait for: by `RunOptions.terminate`, a cancelled connection, or a server that ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_TICK_S = 0.25
_STOP_TICK_S = 0.05
"""How often a thread that may be told to stop looks whether it was: 10 ms took a fifth of the time that `bbgrap serve` computes."""


class StoppedError(Exception):
    """A call was given up because its caller was told to stop."""


class Stops(threading.local):
    """Whether this thread's calls shall end; None: they go on until they are answered."""

    asked: Callable[[], bool] | None = None

    @property
    def tick_s(self) -> float:
        """How long this thread may wait until it looks again."""
        return _TICK_S if self.asked is None else _STOP_TICK_S

    def check(self) -> None:
        """Go on, unless this thread's calls shall end.

        Raises:
            StoppedError: if they shall.
        """
        if self.asked is not None and self.asked():
            raise StoppedError

    @contextmanager
    def when(self, asked: Callable[[], bool]) -> Iterator[None]:
        """Give up this thread's calls with `StoppedError` as soon as `asked()` is true; the coordinator drops what they wait for."""
        before, self.asked = self.asked, asked
        try:
            yield
        finally:
            self.asked = before

    @contextmanager
    def holding(self, lock: threading.Lock, left_s: Callable[[], float]) -> Iterator[None]:
        """Hold a lock that threads hold while they ask the coordinator; waiting for it ends as a call does.

        Raises:
            TimeoutError: if it is not free while `left_s()` seconds are left.
        """
        while not lock.acquire(timeout=self.tick_s):
            self.check()
            if left_s() <= 0:
                raise TimeoutError
        try:
            yield
        finally:
            lock.release()

    def pause(self, seconds: float) -> None:
        """Wait; also this ends when this thread's calls shall."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.check()
            time.sleep(min(left, self.tick_s))
