"""A second core that works as long as a device is measured on the first: two machines that are two cores of one share its memory.

    measuring process                   companion, on the other core
    with company.at_work(): ──go──►     walks its device again and again
        measure              ◄─busy──
    afterwards              ◄─idle──    waits

Of real machines nobody shares the memory, so only the comparison with two real agents on two cores needs it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from bbgrap.errors import ClusterUnavailableError
from benchmarks.testbed import Place, enter

_START_S = 120.0
"""Chosen: planning and loading VGG16 takes 10 s."""
_WALK_S = 60.0
_STOP_S = 5.0

Work = Callable[[], object]
"""One turn of the companion."""


class Company:
    """A companion process.

    Invariants: it works only inside `at_work`.
    """

    def __init__(self, go: Event, busy: Event, idle: Event) -> None:
        """Take over the events of a companion that runs."""
        self._go, self._busy, self._idle = go, busy, idle

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Have it work meanwhile.

        Raises:
            ClusterUnavailableError: if it does not begin.
        """
        self._go.set()
        try:
            _await(self._busy, _WALK_S)
            yield
        finally:
            self._go.clear()
            _await(self._idle, _WALK_S)


@contextmanager
def company(place: Place, make: Callable[..., Work], *arguments: Any) -> Iterator[Company]:  # noqa: ANN401 - whatever `make` takes
    """Start a companion at a place, which calls `make(*arguments)` once, and what that returns whenever it is to work.

    Raises:
        ClusterUnavailableError: if it does not get ready.
    """
    context = multiprocessing.get_context("spawn")
    go, busy, idle = context.Event(), context.Event(), context.Event()
    process = context.Process(target=_accompany, args=(place, make, arguments, go, busy, idle), daemon=True)
    with ExitStack() as stack:
        process.start()
        stack.callback(process.join, _STOP_S)
        stack.callback(process.terminate)
        _await(idle, _START_S)
        yield Company(go, busy, idle)


def _accompany(place: Place, make: Callable[..., Work], arguments: tuple[Any, ...], go: Event, busy: Event, idle: Event) -> None:
    enter(place)
    work = make(*arguments)
    while True:
        busy.clear()
        idle.set()
        go.wait()
        idle.clear()
        work()
        busy.set()
        while go.is_set():
            work()


def _await(event: Event, seconds: float) -> None:
    if not event.wait(seconds):
        raise ClusterUnavailableError(f"measuring: the process on the other core did not answer in {seconds:g} s")
