"""How tests wait for what other threads and processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(look: Callable[[], T], within_s: float = 60.0, why: Callable[[], object] = str, every_s: float = 0.02) -> T:
    """Look again and again until something is found, and return it; fail when nothing is found within this time, and say why."""
    deadline = time.monotonic() + within_s
    while not (found := look()):
        assert time.monotonic() < deadline, why()
        time.sleep(every_s)
    return found
