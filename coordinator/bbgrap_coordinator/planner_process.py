"""A planner's process (`bbgrap_coordinator.planner`) as its coordinator sees it: a task goes in, a reply comes out, or it ends.

The task is pickled, for it comes from us. The reply is JSON, and checked: who says it has read strangers' models.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path

import psutil

from bbgrap.cluster.types import Cluster
from bbgrap.errors import ExecutionError, PlanError, shortened
from bbgrap.own_code import replaced_code
from bbgrap.own_process import python_command
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.faults import Fault
from bbgrap.report.printable import printable
from bbgrap.transport.temporary import remove_left
from bbgrap_coordinator.artifacts import NO_ROOM

_END_S = 1.0
"""How long a process may go on after it has closed its pipe."""

_LOOK_S = 1.0
"""How often it is looked whether somebody has stopped a process that works; one that is stopped twice in a row is ended. Chosen."""

_MOST_BY_CLOCK = 10.0
"""Times what a job may take that go by at most. Chosen: beside busy programs a planner has a tenth of a core."""

FAULTS = frozenset({Fault.MODEL, Fault.INPUT, Fault.PLAN, Fault.PROGRAM, Fault.USAGE, Fault.CLUSTER_FILE, Fault.EXECUTION, Fault.BUSY})
"""What a planner may say; others would have clients bring the model again, or are none of its affair."""

SCRATCH = "bbgrap-planner-"
"""How the name begins of the folder where a planner keeps files while it works."""
MAX_REPLY_BYTES = 1 << 20
MAX_TRACE = 4096
"""Letters of a traceback, which is cut in the middle."""
MAX_REASON = 1200
"""Letters of a fault, likewise: names of a model are of any length."""


_log = logging.getLogger("bbgrap.coordinator")


@dataclass(frozen=True, slots=True)
class PlanTask:
    """What a plan is to be for; `bases` are the folders and places of the variants that it is to be like one of."""

    shapes: Mapping[str, tuple[int, ...]]
    cluster: Cluster
    options: PlanOptions
    bases: tuple[tuple[Path, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """What a planner is to do: the model, digests of its files by name, the empty folder to fill, and the plan wanted (None: a standby).

    `state` and `top` are those of a standby.
    """

    model: Path
    files: Mapping[str, str]
    folder: Path
    plan: PlanTask | None
    state: tuple[tuple[str, str], ...] = ()
    top: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PlannerReply:
    """What a planner says when its folder is filled; with a `fault`, why it is not. A `trace` belongs into the log."""

    fault: str = ""
    text: str = ""
    trace: str = ""

    def to_bytes(self) -> bytes:
        """Return it as JSON, cut to what may be sent."""
        return json.dumps([self.fault, _short(self.text, MAX_REASON), _short(self.trace, MAX_TRACE)]).encode()

    @classmethod
    def of(cls, content: bytes) -> PlannerReply:
        """Read what a process says that may say anything.

        Raises:
            PlanError: if it is no reply.
        """
        try:
            match json.loads(content):
                case [str(fault), str(text), str(trace)]:
                    if not fault or Fault(fault) in FAULTS:
                        return cls(fault, _short(text, MAX_REASON), _short(trace, MAX_TRACE))
                case _:
                    pass
        except (ValueError, RecursionError):  # no JSON, or no `Fault`
            pass
        raise PlanError(f"its answer of {len(content)} bytes is none")


class PlannerKilledError(ExecutionError):
    """Somebody ended a planner's process while it worked: the system, which was short of memory, or a person."""


@dataclass(frozen=True, slots=True)
class PlannerProcess:
    """A planner's process, and the pipe to it.

    Invariants: one thread asks; any thread may end the process meanwhile.
    """

    process: subprocess.Popen[bytes]
    channel: Connection
    scratch: tempfile.TemporaryDirectory[str]
    """The only place where it changes and removes files."""

    @classmethod
    def start(cls, command: Sequence[str], kind: str) -> PlannerProcess:
        """Start one that makes plans or standbys.

        Raises:
            OSError: if the system does not start it, or has no room for its files.
            ExecutionError: if it would run other code than this process.
        """
        if replaced := replaced_code():
            raise ExecutionError(f"coordinator: nothing new can be planned: {replaced}")
        scratch = _scratch()
        ours, its = Pipe()
        known = {name: value for name, value in os.environ.items() if not name.startswith("BBGRAP_")}  # no token, above all
        told = {"TMPDIR": scratch.name, "OPENBLAS_NUM_THREADS": "1"}  # threads that are there early could not be confined
        with its:
            # a session of its own: what a terminal says to interrupt the coordinator is not for it
            words, given = (*python_command(), *command, kind, str(its.fileno())), (its.fileno(),)
            process = subprocess.Popen(words, stdin=subprocess.PIPE, pass_fds=given, start_new_session=True, env={**known, **told})
        return cls(process, ours, scratch)

    def ask(self, task: Task, limit_s: float) -> PlannerReply:
        """Have a task done; the process ends if it takes longer than it may, and if what it says cannot be understood.

        Raises:
            PlannerKilledError: if somebody else has ended it.
        """
        late, done = list[float](), threading.Event()
        threading.Thread(target=self._watch, args=(limit_s, late, done), name="planner's limit", daemon=True).start()
        try:
            self.channel.send(task)
            return PlannerReply.of(self.channel.recv_bytes(MAX_REPLY_BYTES))
        except PlanError as error:
            self.process.kill()
            self.process.wait()
            return PlannerReply(Fault.EXECUTION.value, f"planner: what it says of '{task.model.name}' cannot be understood: {error}")
        except (EOFError, OSError) as error:
            status, was_ended = _end(self.process)
            if late:
                what = f"'{task.model.name}' was not planned within {limit_s:.3g} s, in which it had {late[0]:.1f} s of a processor"
                return PlannerReply(Fault.EXECUTION.value, f"planner: {what}; end other programs here, or give it less to search")
            reason = f"planner: its process ended while it planned '{task.model.name}': {_why(status)}"
            if status == -signal.SIGKILL and not was_ended:
                raise PlannerKilledError(reason) from error
            return PlannerReply(Fault.EXECUTION.value, reason)
        finally:
            done.set()

    def _watch(self, limit_s: float, late: list[float], done: threading.Event) -> None:
        """End the process where it takes longer than it may, and where somebody has stopped it: nothing says that it ever goes on.

        It is nice to others: what it waits for a processor does not count, up to `_MOST_BY_CLOCK` times what it may take. Of one that is
        `late` it says how many seconds it had of a processor.
        """
        pid, began, was_stopped = self.process.pid, time.monotonic(), False
        worked_s, waited_s = _worked_s(pid), _waited_s(pid)

        def left_s() -> float:
            spared_s = min(_waited_s(pid) - waited_s, (_MOST_BY_CLOCK - 1) * limit_s)
            return max(0.0, began + limit_s + spared_s - time.monotonic())

        while not done.wait(min(_LOOK_S, left_s())):
            if not left_s():
                late.append(_worked_s(pid) - worked_s)
                self.process.kill()
                return
            if (is_stopped := _is_stopped(pid)) and was_stopped:
                _log.warning("planner: process %d was stopped, by SIGSTOP or the like, and is ended: its job waits", pid)
                self.process.kill()
                return
            was_stopped = is_stopped

    def close(self) -> None:
        """Forget one that has ended, or is about to."""
        self.process.wait()
        self.channel.close()
        assert self.process.stdin is not None, "a pipe"
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.scratch.cleanup()


def _worked_s(pid: int) -> float:
    try:
        return sum(psutil.Process(pid).cpu_times()[:2])
    except psutil.Error:
        return 0.0


def _waited_s(pid: int) -> float:
    """Return how many seconds a process has waited for processors that others had; 0 where the system does not tell."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False


def _scratch() -> tempfile.TemporaryDirectory[str]:
    try:
        remove_left(Path(tempfile.gettempdir()), SCRATCH)  # a planner that outlives its coordinator may empty its own, and no more
        return tempfile.TemporaryDirectory(prefix=SCRATCH, ignore_cleanup_errors=True)
    except FileNotFoundError as error:  # all places were tried; it does not say why none takes a file
        raise OSError(errno.ENOSPC, f"{error.strerror}; make room in one of them, or set TMPDIR to a folder that has some") from None


def fault_of(error: Exception) -> Fault:
    """Return what it means to clients that planning has failed so: a full disk may have room soon, and sessions repeat what is busy."""
    is_full = isinstance(error, OSError) and error.errno in NO_ROOM
    return Fault.BUSY if is_full else Fault.PLAN


def _end(process: subprocess.Popen[bytes]) -> tuple[int, bool]:
    """Return the status of a process that has closed its pipe, and whether it had to be ended for that."""
    try:
        return process.wait(_END_S), False
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait(), True


def _why(status: int) -> str:
    if status >= 0:
        return f"status {status}; the coordinator's log may say more"
    name = signal.Signals(-status).name
    return f"{name}, as when memory runs out" if name == "SIGKILL" else f"{name}; a library crashed on this model"


def _short(text: str, length: int) -> str:
    """Return a text without what does not belong into a line of a log, cut in the middle where it is longer."""
    return shortened(printable(text, also="\n"), length)
