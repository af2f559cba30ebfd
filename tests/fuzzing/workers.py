"""Jobs in child processes with a time limit: a model that aborts onnxruntime, or never ends, costs one child and is a finding.

A child makes the model, too, where that may abort; it says what it is about to do, so what killed it is known.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

LIMIT_S = 90.0
"""Time of one job: a hundred times what models take here."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended: with its result, or with what it was doing when its process died or ran out of time."""

    job: Any
    result: Any = None
    doing: str = ""
    reason: str = ""


@dataclass
class _Child:
    process: Any
    pipe: Connection
    job: Any = None
    since: float = 0.0
    doing: str = field(default="starting")


Work = Callable[[Any, Callable[[str], None]], Any]
"""What a child does with a job; it is given a way to say what it is about to do."""


def _serve(pipe: Connection, work: Work) -> None:
    while (job := pipe.recv()) is not None:
        pipe.send(("done", work(job[0], lambda words: pipe.send(("doing", words)))))


class Workers:
    """Some child processes; `run` gives them jobs and yields how each ended, in the order in which they end."""

    def __init__(self, work: Work, count: int, limit_s: float = LIMIT_S) -> None:
        """Start nothing yet."""
        self.work = work
        self.count = count
        self.limit_s = limit_s
        self._context = multiprocessing.get_context("spawn")

    def run(self, jobs: Iterator[Any]) -> Iterator[Ended]:
        """Yield the end of every job; stop taking jobs when the iterator ends."""
        children = [self._child() for _ in range(self.count)]
        try:
            busy = {child.pipe: child for child in children if _next(child, jobs)}
            while busy:
                for pipe in wait(list(busy), timeout=1.0):
                    assert isinstance(pipe, Connection)
                    ended = _heard(busy[pipe])
                    if ended is not None:
                        yield ended
                        self._go_on(busy, pipe, jobs, alive=not ended.reason)
                for pipe, child in [(p, c) for p, c in busy.items() if time.monotonic() - c.since > self.limit_s]:
                    yield Ended(child.job, doing=child.doing, reason=f"no end after {self.limit_s:.0f} s")
                    self._go_on(busy, pipe, jobs, alive=False)
        finally:
            for child in busy.values():
                child.process.kill()

    def _go_on(self, busy: dict[Connection, _Child], pipe: Connection, jobs: Iterator[Any], *, alive: bool) -> None:
        child = busy.pop(pipe)
        if not alive:
            child.process.kill()
            child.process.join()
            child = self._child()
        if _next(child, jobs):
            busy[child.pipe] = child

    def _child(self) -> _Child:
        ours, theirs = self._context.Pipe()
        before = dict(os.environ)
        os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")
        process = self._context.Process(target=_serve, args=(theirs, self.work))
        process.start()
        os.environ.clear()
        os.environ.update(before)
        theirs.close()
        return _Child(process, ours)


def _next(child: _Child, jobs: Iterator[Any]) -> bool:
    """Give a child its next job; without one, let it end."""
    for job in jobs:
        child.job, child.since, child.doing = job, time.monotonic(), "starting"
        child.pipe.send((job,))
        return True
    child.pipe.send(None)
    return False


def _heard(child: _Child) -> Ended | None:
    """Read what a child says; its end, if it has one."""
    try:
        what, content = child.pipe.recv()
    except (EOFError, ConnectionResetError):
        child.process.join()
        return Ended(child.job, doing=child.doing, reason=f"the process ended with {child.process.exitcode}")
    if what == "done":
        return Ended(child.job, content)
    child.doing = content
    return None
