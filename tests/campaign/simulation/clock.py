"""Simulated time: what happens when, and processes that can be stopped and ended."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

Action = Callable[..., None]


class Clock:
    """An event queue; equal times are in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._count = count()

    def after(self, seconds: float, action: Action, *arguments: Any) -> None:  # noqa: ANN401
        """Do something later."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._count), action, arguments))

    def run(self, until: float) -> None:
        """Let time pass."""
        heap, pop, events = self._heap, heapq.heappop, 0
        while heap and heap[0][0] <= until:
            self.now, _, action, arguments = pop(heap)
            events += 1
            action(*arguments)
        self.now = until
        self.events += events


class Process:
    """Something that can be stopped, resumed and ended; what happens to it while it is stopped happens when it goes on."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alive = True
        self.paused = False
        self._held: list[Callable[[], None]] = []
        self._held_ticks: list[Callable[[], None]] = []

    def do(self, action: Action, *arguments: Any) -> None:  # noqa: ANN401
        """Let the process do something, now or when it goes on."""
        if self.paused:
            self._held.append(partial(action, *arguments))
        elif self.alive:
            action(*arguments)

    def later(self, seconds: float, action: Action, *arguments: Any) -> None:  # noqa: ANN401
        """Let the process do something after a while."""
        self.clock.after(seconds, self.do, action, *arguments)

    def tick_later(self, seconds: float, action: Callable[[], None]) -> None:
        """Like `later`, but after all that has arrived while it was stopped: a process looks at its sockets before it looks at the time."""
        self.clock.after(seconds, self._due, action)

    def _due(self, action: Callable[[], None]) -> None:
        if self.paused:
            self._held_ticks.append(action)
        elif self.alive:
            action()

    def pause(self) -> None:
        """Stop it."""
        self.paused = True

    def resume(self) -> None:
        """Let it go on."""
        self.paused = False
        held, self._held, ticks, self._held_ticks = self._held, [], self._held_ticks, []
        for action in (*held, *ticks):
            self.do(action)

    def end(self) -> None:
        """End it."""
        self.alive, self.paused = False, False
        self._held, self._held_ticks = [], []
