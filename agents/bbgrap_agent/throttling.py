"""Is this process held back? A quota of processor time (a container's limit), or others on the same cores, show as gaps in a busy loop.

    running ███████░░░░░░░███████░░░░░░░███████       ░ a gap: the process may not run
            stretch

A kernel that is shorter than a stretch is mostly timed between two gaps, as if nobody held the process back; over a whole request
it is. One that is longer has its share of gaps in its own time.
"""

from __future__ import annotations

import statistics
import threading
import time
import zlib
from dataclasses import dataclass

LOOK_S = 0.3
"""How long is looked."""

GAP_S = 200e-6
"""What a loop that does nothing else stops for at least: chosen, far above an interrupt."""

FREE = 0.9
"""A process that runs so much of the time is not held back: what else a machine does takes some."""


@dataclass(frozen=True, slots=True)
class Throttling:
    """The part of the time that a process runs, and for how many seconds at a stretch."""

    part: float
    stretch_s: float

    def sustained(self, seconds: float) -> float:
        """Return what a kernel takes on average that was measured to take so long at best."""
        return seconds if self.part >= FREE or seconds > self.stretch_s else seconds / self.part


def look(threads: int) -> Throttling:
    """Keep so many threads busy for a moment and look for gaps."""
    stop = threading.Event()
    ballast = bytes(1 << 20)

    def burn() -> None:
        while not stop.is_set():
            zlib.crc32(ballast)

    helpers = [threading.Thread(target=burn, daemon=True) for _ in range(threads - 1)]
    for helper in helpers:
        helper.start()
    try:
        return gaps_of(LOOK_S)
    finally:
        stop.set()
        for helper in helpers:
            helper.join()


def gaps_of(seconds: float) -> Throttling:
    """Loop for so long on this thread; a loop without gaps is one stretch."""
    begin = before = resumed = time.perf_counter()
    lost = 0.0
    stretches: list[float] = []
    while before - begin < seconds:
        now = time.perf_counter()
        if now - before > GAP_S:
            lost += now - before
            stretches.append(before - resumed)
            resumed = now
        before = now
    return Throttling(1 - lost / (before - begin), statistics.median(stretches) if stretches else before - begin)
