"""Processes with all that they started, and what they compute."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import psutil


def tree(number: int) -> list[psutil.Process]:
    """Return a process, first, and those that it started; none if it has ended."""
    with suppress(psutil.NoSuchProcess):
        main = psutil.Process(number)
        return [main, *main.children(recursive=True)]
    return []


def used_s(processes: Iterable[psutil.Process]) -> float:
    """Return the seconds that processes have computed, without those that have ended."""
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total
