"""Simulated time: what happens when, and processes that can be stopped and ended."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count

Action = Callable[[], None]


class Clock:
    """An event queue; equal times are in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Action]] = []
        self._count = count()

    def after(self, seconds: float, action: Action) -> None:
        """Do something later."""
        heapq.heappush(self._heap, (self.now + seconds, next(self._count), action))

    def run(self, until: float) -> None:
        """Let time pass."""
        heap = self._heap
        while heap and heap[0][0] <= until:
            self.now, _, action = heapq.heappop(heap)
            self.events += 1
            action()
        self.now = until


class Process:
    """Something that can be stopped, resumed and ended; what happens to it while it is stopped happens when it goes on."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.alive = True
        self.paused = False
        self._held: list[Action] = []
        self._held_ticks: list[Action] = []

    def do(self, action: Action) -> None:
        """Let the process do something, now or when it goes on."""
        if self.paused:
            self._held.append(action)
        elif self.alive:
            action()

    def later(self, seconds: float, action: Action) -> None:
        """Let the process do something after a while."""
        self.clock.after(seconds, lambda: self.do(action))

    def tick_later(self, seconds: float, action: Action) -> None:
        """Like `later`, but after all that has arrived while it was stopped: a process looks at its sockets before it looks at the time."""

        def due() -> None:
            if self.paused:
                self._held_ticks.append(action)
            elif self.alive:
                action()

        self.clock.after(seconds, due)

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
