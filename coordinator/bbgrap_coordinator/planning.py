"""Planning in processes of their own: requests are answered meanwhile, and a model that ends whoever reads it ends no coordinator.

    coordinator ── Task (pickled: it comes from us) ─────────────►  planner (`bbgrap_coordinator.planner`)
                ◄── Reply (JSON: done, or a fault in words) ──
                ◄── a folder of files, synced before the reply (`bbgrap_coordinator.artifacts`) ──

There are two such processes, one for plans and one for standbys, so that a standby waits for no plan. Laws: a job gets one answer, or none
if it is cancelled; jobs run in the order they came; one that takes longer than it may is ended with its process; a process that ended is
started anew; what it says is believed only as far as it was checked, for it has read strangers' models; it ends with its coordinator,
however that ends.
"""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from types import TracebackType
from typing import Self

from bbgrap.cluster.types import Cluster
from bbgrap.control.coordinator_events import PlanFailed, Planned, StartPlanning, StartStandby
from bbgrap.errors import BbgrapError, PlanError
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import Fault
from bbgrap_coordinator.artifacts import ArtifactFolders, read_artifacts
from bbgrap_coordinator.models import ModelStore

PLANNER = ("-m", "bbgrap_coordinator.planner")

LEAST_LIMIT_S = 60.0
"""How long any job may take, besides what it may search."""
SEARCHES = 3
"""How often a job searches at most: the second time with less room, and before that with a guess of what others do."""
STANDBY_BYTES_PER_S = 20 << 20
"""How fast a standby is made at least: its files are read, hashed and written. Chosen: a slow disk."""

_END_S = 1.0
"""How long a process may go on after it has closed its pipe."""

MAX_REPLY_BYTES = 1 << 20
MAX_WORDS = 4096
"""Of a fault; a traceback is cut in the middle."""

_log = logging.getLogger("bbgrap.coordinator")

Job = StartPlanning | StartStandby
Answer = Callable[[Planned | PlanFailed], None]


@dataclass(frozen=True, slots=True)
class Task:
    """What a planner is to do: the model's file, the empty folder to fill, and the rest of what `prepare` wants (None: a standby)."""

    model: Path
    folder: Path
    plan: tuple[Mapping[str, tuple[int, ...]], Cluster, PlanOptions] | None


@dataclass(frozen=True, slots=True)
class Reply:
    """What a planner says when its folder is filled; with a `fault`, why it is not. A `trace` belongs into the log."""

    fault: str = ""
    text: str = ""
    trace: str = ""

    def to_bytes(self) -> bytes:
        """Return it as JSON, cut to what may be sent."""
        return json.dumps([self.fault, _short(self.text), _short(self.trace)]).encode()

    @classmethod
    def of(cls, content: bytes) -> Reply:
        """Read what a process says that may say anything.

        Raises:
            PlanError: if it is no reply.
        """
        try:
            match json.loads(content):
                case [str(fault), str(text), str(trace)]:
                    return cls(fault and Fault(fault).value, _short(text), _short(trace))
                case _:
                    pass
        except (ValueError, RecursionError):  # no JSON, or no `Fault`
            pass
        raise PlanError(f"its answer of {len(content)} bytes is none")


def limit_s(job: Job) -> float:
    """Return how long a job may take, in seconds."""
    if isinstance(job, StartPlanning):
        return LEAST_LIMIT_S + SEARCHES * job.options.search_seconds
    return LEAST_LIMIT_S + sum(file.size for file in job.files) / STANDBY_BYTES_PER_S


class Planner:
    """A queue of jobs, the process that does them, and the thread that waits for it.

    Invariants: `_running` is the job that the thread works at, None once it is cancelled; `_waiting` are those after it, in order.
    """

    def __init__(self, kind: str, command: Sequence[str] = PLANNER, limit: Callable[[Job], float] = limit_s) -> None:
        """Start the process; its imports go on while others do what they have to. `kind` tells it from others in a list of processes."""
        self._kind = kind
        self._command = tuple(command)
        self._limit = limit
        self._lock = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._running: Job | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._process, self._channel = self._start()

    @property
    def pid(self) -> int:
        """The process's number now."""
        return self._process.pid

    def begin(self, models: ModelStore, folders: ArtifactFolders, answer: Answer) -> None:
        """Do jobs from now on; `answer` is called from another thread."""
        self._thread = threading.Thread(target=self._work, args=(models, folders, answer), name=f"planner of {self._kind}", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Do a job when those before it are done."""
        with self._lock:
            self._waiting.append(job)
            self._lock.notify()

    def cancel(self, number: int) -> None:
        """Forget a job; one that runs ends with its process, and what it had written is removed."""
        with self._lock:
            self._waiting = deque(job for job in self._waiting if job.job != number)
            if self._running is not None and self._running.job == number:
                self._running = None
                self._process.kill()

    def close(self) -> None:
        """End, whatever is being done."""
        with self._lock:
            self._closed, self._running = True, None
            self._waiting.clear()
            self._process.kill()
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()
        self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # --- the thread -----------------------------------------------------------------------------------------------------------------

    def _work(self, models: ModelStore, folders: ArtifactFolders, answer: Answer) -> None:
        while (job := self._next()) is not None:
            try:
                event = self._done(job, models, folders)
            except BbgrapError as error:
                event = PlanFailed(job.job, Fault.of(error), str(error))
            except Exception as error:
                # a bug here, or a full disk, ends this job, not all that come after it
                _log.exception("planning of job %d failed", job.job)
                event = PlanFailed(
                    job.job, Fault.PLAN, f"planner: {type(error).__name__}: {error}; the coordinator's log has the traceback"
                )
            with self._lock:
                wanted, self._running = self._running is job, None
                if not self._closed and self._process.poll() is not None:
                    self._restart()
            if not wanted or isinstance(event, PlanFailed):
                folders.remove(job.job)
            if wanted:
                answer(event)

    def _next(self) -> Job | None:
        with self._lock:
            while not self._waiting and not self._closed:
                self._lock.wait()
            if self._closed:
                return None
            self._running = self._waiting.popleft()
            return self._running

    def _done(self, job: Job, models: ModelStore, folders: ArtifactFolders) -> Planned | PlanFailed:
        plan = (job.shapes, job.cluster, job.options) if isinstance(job, StartPlanning) else None
        with models.folder(job.files) as path:
            folder = folders.make(job.job)
            reply = self._reply(job, Task(path, folder, plan))
        if reply.trace:
            _log.error("planning of job %d failed in its process:\n%s", job.job, reply.trace)
        if reply.fault:
            return PlanFailed(
                job.job, Fault(reply.fault), reply.text + ("; the coordinator's log has the traceback" if reply.trace else "")
            )
        return Planned(job.job, read_artifacts(folder).variants)

    def _reply(self, job: Job, task: Task) -> Reply:
        with self._lock:
            if self._running is not job:
                return Reply(Fault.PLAN.value, "planner: cancelled")
            if self._process.poll() is not None:
                self._restart()
            process, channel = self._process, self._channel
        limit, late = self._limit(job), threading.Event()

        def end() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit, end)
        timer.daemon = True
        timer.start()
        try:
            channel.send(task)
            return Reply.of(channel.recv_bytes(MAX_REPLY_BYTES))
        except (EOFError, OSError, PlanError) as error:
            name, why = task.model.name, str(error) if isinstance(error, PlanError) else _why(_ended(process))
            process.kill()  # where it only said what cannot be understood
            process.wait()
            if late.is_set():
                return Reply(Fault.PLAN.value, f"planner: '{name}' was not planned within {limit:g} s; give it less to search")
            return Reply(Fault.PLAN.value, f"planner: its process ended while it planned '{name}': {why}")
        finally:
            timer.cancel()

    # --- the process ----------------------------------------------------------------------------------------------------------------

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, its = Pipe()
        with its:
            command = (sys.executable, *self._command, self._kind, str(its.fileno()))
            # a session of its own: what a terminal says to interrupt the coordinator is not for it
            return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(its.fileno(),), start_new_session=True), ours

    def _restart(self) -> None:
        self._end()
        self._process, self._channel = self._start()

    def _end(self) -> None:
        self._process.wait()
        self._channel.close()
        assert self._process.stdin is not None, "a pipe"
        with suppress(BrokenPipeError):
            self._process.stdin.close()


class Planners:
    """One planner for plans and one for standbys.

    Invariants: `_wanted` are the jobs that have no answer yet and are not cancelled; used by one thread.
    """

    def __init__(self, command: Sequence[str] = PLANNER, limit: Callable[[Job], float] = limit_s) -> None:
        """Start their processes."""
        self.standbys = Planner("standbys", command, limit)
        self.plans = Planner("plans", command, limit)
        self._wanted: set[int] = set()

    def begin(self, models: ModelStore, folders: ArtifactFolders, answer: Answer) -> None:
        """Do jobs from now on; `answer` is called from other threads."""
        for planner in (self.standbys, self.plans):
            planner.begin(models, folders, answer)

    def submit(self, job: Job) -> None:
        """Do a job, after those before it that are of its kind."""
        self._wanted.add(job.job)
        (self.plans if isinstance(job, StartPlanning) else self.standbys).submit(job)

    def cancel(self, number: int) -> bool:
        """Forget a job; return whether it had no answer yet."""
        if number not in self._wanted:
            return False
        self._wanted.remove(number)
        for planner in (self.standbys, self.plans):
            planner.cancel(number)
        return True

    def wants(self, number: int) -> bool:
        """Whether an answer that has come is that of a job that was not cancelled; then it has its answer now."""
        wanted = number in self._wanted
        self._wanted.discard(number)
        return wanted

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.plans.close()
        self.standbys.close()


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Return the status of a process that has closed its pipe; one that does not end is ended."""
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _why(status: int) -> str:
    if status >= 0:
        return f"status {status}; the coordinator's log may say more"
    name = signal.Signals(-status).name
    return f"{name}, as when memory runs out" if name == "SIGKILL" else f"{name}; a library crashed on this model"


def _short(text: str) -> str:
    """Return a text without what does not belong into a line of a log, cut in the middle where it is too long."""
    clean = "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)
    return clean if len(clean) <= MAX_WORDS else f"{clean[: MAX_WORDS // 2]} ... {clean[-MAX_WORDS // 2 :]}"
