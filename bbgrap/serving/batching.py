"""Requests of one model that wait together go as one, one behind the other along their first axis.

At most so many batches of a model are on their way; who comes meanwhile waits for the next one, at most `rows` rows in each. A batch that
fails is run again one request at a time, so that nobody fails for what another one sent. All of this happens on the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bbgrap.graph.types import Array

Feed = Mapping[str, Array]
Run = Callable[[Feed, Sequence[str] | None, Callable[[], bool]], Awaitable[list[Array]]]
"""Runs a feed for some outputs, until told to stop."""

_Key = tuple[tuple[str, ...] | None, tuple[tuple[str, str, tuple[int, ...]], ...]]


@dataclass(eq=False, slots=True)
class _Member:
    feed: Feed
    rows: int
    names: tuple[str, ...] | None
    answer: asyncio.Future[list[Array]] = field(default_factory=lambda: asyncio.get_running_loop().create_future())
    began_ns: int = field(default_factory=time.perf_counter_ns)
    """When it ran for the last time, by `time.perf_counter_ns`; before that, when it came."""


class Batcher:
    """The requests of one model.

    Invariants: `_waiting` has no empty queue; members of one queue differ in nothing but their first size.
    """

    def __init__(self, run: Run, rows: int, delay_s: float, at_once: Callable[[], int]) -> None:
        """Make batches of at most `rows` rows, which wait `delay_s` to be filled; `at_once()` of them may be on their way."""
        self._run = run
        self._rows = rows
        self._delay_s = delay_s
        self._at_once = at_once
        self._waiting: dict[_Key, deque[_Member]] = {}
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, feed: Feed, names: tuple[str, ...] | None) -> tuple[list[Array], int]:
        """Return the outputs for a feed, and when it began to run; who gives up takes its request out of its batch if that waits."""
        sizes = {array.shape[0] if array.ndim else 0 for array in feed.values()}
        rows = next(iter(sizes)) if len(sizes) == 1 else 0
        member = _Member(feed, rows, names)
        if not 0 < rows < self._rows:
            try:
                return await self._run(feed, names, member.answer.done), member.began_ns
            finally:
                member.answer.cancel()
        key = (names, tuple((name, array.dtype.str, array.shape[1:]) for name, array in sorted(feed.items())))
        self._waiting.setdefault(key, deque()).append(member)
        if self._delay_s and sum(other.rows for other in self._waiting[key]) < self._rows:
            asyncio.get_running_loop().call_later(self._delay_s, self._go_on)
        else:
            self._go_on()
        return await member.answer, member.began_ns

    def _go_on(self) -> None:
        while self._waiting and len(self._running) < self._at_once():
            key = next(iter(self._waiting))
            queue = self._waiting[key]
            batch, rows = [], 0
            while queue and rows + queue[0].rows <= self._rows:
                member = queue.popleft()
                if not member.answer.done():
                    batch.append(member)
                    rows += member.rows
            if not queue:
                del self._waiting[key]
            if batch:
                task = asyncio.get_running_loop().create_task(self._together(batch))
                self._running.add(task)
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._go_on()

    async def _together(self, batch: list[_Member]) -> None:
        if len(batch) == 1:
            await self._alone(batch[0])
            return
        joined = {name: np.concatenate([member.feed[name] for member in batch]) for name in batch[0].feed}
        total = sum(member.rows for member in batch)
        began_ns = time.perf_counter_ns()
        try:
            outputs = await self._run(joined, batch[0].names, lambda: all(member.answer.done() for member in batch))
        except Exception:  # whatever it is, each hears it of its own request
            outputs = []
        if not outputs or any(array.ndim == 0 or array.shape[0] != total for array in outputs):
            await asyncio.gather(*(self._alone(member) for member in batch if not member.answer.done()))
            return
        start = 0
        for member in batch:
            if not member.answer.done():
                member.began_ns = began_ns
                member.answer.set_result([array[start : start + member.rows] for array in outputs])
            start += member.rows

    async def _alone(self, member: _Member) -> None:
        member.began_ns = time.perf_counter_ns()
        try:
            outputs = await self._run(member.feed, member.names, member.answer.done)
        except Exception as error:  # whatever it is, its sender must learn of it
            if not member.answer.done():
                member.answer.set_exception(error)
        else:
            if not member.answer.done():
                member.answer.set_result(outputs)
