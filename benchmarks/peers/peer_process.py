"""A peer in a process of its own on the first node, which does what it is told when it is its turn.

Laws: who fails or does not answer in time is ended with all that it started, and nobody else notices; the answers are looked at outside of
what is timed.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from typing import Any

import psutil

from bbgrap.comparison import Comparison, Judge
from bbgrap.engine.spread import ReferenceAnswers
from bbgrap.errors import ExecutionError
from bbgrap.graph import Array
from benchmarks.peers.known import ALL
from benchmarks.peers.peer import Answers, Peer, Running, Setting, Waiter
from benchmarks.processes import tree
from benchmarks.testbed import enter, terminable

WARM_UP = 3
"""Requests that everybody answers before the first round."""

IN_FLIGHT = 8
"""Requests on their way at once in a stream."""

_OPEN_S = 600.0
_TURN_S = 300.0
_CLOSE_S = 60.0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Single:
    """Answer so many requests, one after the other; the answer is the seconds of each."""

    requests: int


@dataclass(frozen=True, slots=True)
class Stream:
    """Answer so many requests, `IN_FLIGHT` of them on their way; the answer is how many seconds that took."""

    requests: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """Say what all answers were like; the answer is a `Comparison`."""


Turn = Single | Stream | Judgement


class PeerProcess:
    """The handle of a peer's process."""

    def __init__(self, peer: Peer, setting: Setting, expected: Sequence[Array]) -> None:
        """Open the peer.

        Raises:
            ExecutionError: if it cannot be opened; the message says why.
        """
        self.peer = peer
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, peer.name, setting, expected))
        self._process.start()
        theirs.close()
        try:
            self.facts: dict[str, Any] = self._answer(_OPEN_S)
        except BaseException:
            self.close()
            raise

    def ask(self, turn: Turn) -> Any:  # noqa: ANN401 - what the turn's class says
        """Let it have a turn.

        Raises:
            ExecutionError: if it fails or takes too long.
        """
        with suppress(OSError):  # it has ended: what it said last is to be read
            self._pipe.send(turn)
        return self._answer(_TURN_S)

    def processes(self) -> list[psutil.Process]:
        """Return its process and all that this one has started."""
        return [] if self._process.pid is None else tree(self._process.pid)

    def close(self) -> None:
        """Let it end, and end it if it does not."""
        self._pipe.close()
        self._process.join(_CLOSE_S)
        if self._process.is_alive():
            leftover = psutil.Process(self._process.pid).children(recursive=True)
            self._process.kill()
            self._process.join()
            _end(leftover)

    def _answer(self, seconds: float) -> Any:  # noqa: ANN401 - what the turn's class says
        try:
            if not self._pipe.poll(seconds):
                raise ExecutionError(f"{self.peer.name}: no answer within {seconds:g} s")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join(_CLOSE_S)
            raise ExecutionError(f"{self.peer.name}: its process ended with status {self._process.exitcode}") from None
        if isinstance(answer, ExecutionError):
            raise answer
        return answer


def _serve(pipe: Pipe, name: str, setting: Setting, expected: Sequence[Array]) -> None:
    """Open a peer and let it have turns, until the other end of the pipe is closed."""
    # Daemons that a peer leaves behind become this process's children, and end with it.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of Ctrl-C this process learns by its pipe
    try:
        with terminable():
            enter(setting.places[0])
            with ALL[name].open(setting) as running:
                _take_turns(pipe, running, setting, Judge(expected))
    except KeyboardInterrupt:
        pass
    except Exception as error:  # whatever it is, the others go on
        with suppress(OSError):
            pipe.send(ExecutionError(f"{name}: {type(error).__name__}: {error}"))
    finally:
        _end(psutil.Process().children(recursive=True))
        os._exit(0)  # threads that a library left behind keep nobody waiting


def _take_turns(pipe: Pipe, running: Running, setting: Setting, judge: Judge) -> None:
    for _ in range(WARM_UP):
        judge.count(running.run(setting.feeds))
    _stream(running, setting, 2 * IN_FLIGHT, judge)
    pipe.send(dict(running.facts))
    while True:
        try:
            turn: Turn = pipe.recv()
        except EOFError:
            return
        match turn:
            case Single(requests):
                pipe.send(_single(running, setting, requests, judge))
            case Stream(requests):
                pipe.send(_stream(running, setting, requests, judge))
            case Judgement():
                pipe.send(_judgement(setting, judge))


def _single(running: Running, setting: Setting, requests: int, judge: Judge) -> list[float]:
    times = []
    running.run(setting.feeds)  # cores that have slept are slow at first
    for _ in range(requests):
        began = time.perf_counter()
        answers = running.run(setting.feeds)
        times.append(time.perf_counter() - began)
        judge.count(answers)
    return times


def _stream(running: Running, setting: Setting, requests: int, judge: Judge) -> float:
    waiting: deque[Waiter] = deque()
    found: list[Answers] = []
    began = time.perf_counter()
    for _ in range(requests):
        if len(waiting) == IN_FLIGHT:
            found.append(waiting.popleft()())
        waiting.append(running.begin(setting.feeds))
    found += [wait() for wait in waiting]
    took = time.perf_counter() - began
    for answers in found:
        judge.count(answers)
    return took


def _judgement(setting: Setting, judge: Judge) -> Comparison:
    return judge.verdict(ReferenceAnswers(setting.path, setting.feeds))


def _end(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(processes, timeout=5)
