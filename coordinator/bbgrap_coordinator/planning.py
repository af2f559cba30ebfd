"""Planning in processes of their own: requests are answered meanwhile, and a model that ends whoever reads it ends no coordinator.

    coordinator ── Task (pickled: it comes from us) ─────────────►  planner (`bbgrap_coordinator.planner`)
                ◄── Reply (JSON: done, or a fault in words) ──
                ◄── a folder of files, synced before the reply (`bbgrap_coordinator.artifacts`) ──

There are two such processes, one for plans and one for standbys, so that a standby waits for no plan. Laws: a job gets one answer, or none
if it is cancelled before that is said; clients take turns, and the jobs of one run in the order they came; one that takes longer than it
may is ended with its process; a process that ended is started anew, and a job during which somebody killed it is done once more; what it
says is believed only as far as it was checked, for it has read strangers' models; it ends with its coordinator, however that ends.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Self

from bbgrap.control.coordinator_events import PlanFailed, Planned, RoutingId
from bbgrap.control.coordinator_instructions import StartPlanning, StartStandby
from bbgrap.doctor.cgroups import free_memory_bytes
from bbgrap.errors import BbgrapError, ExecutionError, PlanError
from bbgrap.planners.options import CLOCK_FACTOR
from bbgrap.protocol.faults import Fault
from bbgrap_coordinator.artifacts import ArtifactFolders, read_artifacts
from bbgrap_coordinator.models import ModelGoneError, ModelStore
from bbgrap_coordinator.planner_process import PlannerKilledError, PlannerProcess, PlannerReply, PlanTask, Task, fault_of

PLANNER = ("-m", "bbgrap_coordinator.planner")

LEAST_LIMIT_S = 60.0
"""How long any job may take, besides what it may search and what its model's size takes."""
SEARCHES = 3
"""How often a job searches at most: the second time with less room, and before that with a guess of what others do."""
BYTES_PER_S = 20 << 20
"""How fast a model's files are read and hashed at least, and what is made of them written. Chosen: a slow disk."""

MAX_VARIANTS = 4096
"""Of one plan: for streams there is one per node."""

_NEEDS = "on the coordinator's machine planning takes up to one and a half times a model's weights in each of two processes"
_SEE_LOG = "; the coordinator's log has the traceback"

_log = logging.getLogger("bbgrap.coordinator")

PlanningJob = StartPlanning | StartStandby
OnPlanned = Callable[[Planned | PlanFailed], None]


def limit_s(job: PlanningJob) -> float:
    """Return how long a job may take, in seconds."""
    search_s = SEARCHES * CLOCK_FACTOR * job.options.search_seconds if isinstance(job, StartPlanning) else 0.0
    return LEAST_LIMIT_S + search_s + sum(file.size for file in job.files) / BYTES_PER_S


class PlanningQueue:
    """A queue of jobs, the process that does them, and the thread that waits for it.

    Invariants: `_running` is the job that the thread works at, None once it is cancelled; `_waiting` are those after it, as they came; a
    child that is `_doomed` gets no further job.
    """

    def __init__(self, kind: str, command: Sequence[str] = PLANNER, limit: Callable[[PlanningJob], float] = limit_s) -> None:
        """Do nothing yet; `kind` tells the process from others in a list."""
        self._kind = kind
        self._command = tuple(command)
        self._limit = limit
        self._lock = threading.Condition()
        self._waiting: list[PlanningJob] = []
        self._numbers = count(1)
        self._turns: dict[RoutingId, int] = {}
        """When which client had its last turn, of those that wait for another one, and the latest."""
        self._running: PlanningJob | None = None
        self._closed = False
        self._thread: threading.Thread | None = None
        self._child: PlannerProcess | None = None
        self._doomed = False
        self._folders: tuple[int, ...] = ()
        """What tells the folders that the child is confined to from others of their names."""

    @property
    def pid(self) -> int:
        """The process's number now; 0 if there is none."""
        return 0 if self._child is None else self._child.process.pid

    def start(self) -> None:
        """Start the process, unless it is there; its imports go on while others do what they have to.

        Where that fails, as without room for its files, what is planned already can be served: the next job tries again.
        """
        try:
            self._renew()
        except OSError as error:
            _log.warning("no process for %s could be started yet: %s", self._kind, error.strerror)

    def begin(self, models: ModelStore, folders: ArtifactFolders, answer: OnPlanned) -> None:
        """Do jobs from now on; `answer` is called from another thread."""
        thread = threading.Thread(target=self._work, args=(models, folders, answer), name=f"planner of {self._kind}", daemon=True)
        thread.start()
        self._thread = thread

    def submit(self, job: PlanningJob) -> None:
        """Do a job when those of its client before it are done, and it is its client's turn."""
        with self._lock:
            self._waiting.append(job)
            self._lock.notify()

    def cancel(self, number: int) -> None:
        """Forget a job; one that runs ends with its process, and what it had written is removed."""
        with self._lock:
            self._waiting = [job for job in self._waiting if job.job != number]
            if self._running is not None and self._running.job == number:
                self._running = None
                self._kill()

    def close(self) -> None:
        """End, whatever is being done."""
        with self._lock:
            self._closed, self._running = True, None
            self._waiting.clear()
            self._kill()
            self._lock.notify()
        if self._thread is not None:
            self._thread.join()
        if self._child is not None:
            self._child.close()

    def _kill(self) -> None:
        if self._child is not None:
            self._child.process.kill()
            self._doomed = True

    def _renew(self) -> None:
        """Start a process, unless there is one that goes on. Nobody else waits for the end of the last: it may have much to give back."""
        with self._lock:
            ended, is_ended = self._child, self._doomed or (self._child is not None and self._child.process.poll() is not None)
            if is_ended:
                self._child, self._doomed = None, False
        if ended is not None and is_ended:
            ended.close()
        with self._lock:
            if self._child is None and not self._closed:
                self._child = PlannerProcess.start(self._command, self._kind)

    # --- the thread -----------------------------------------------------------------------------------------------------------------

    def _work(self, models: ModelStore, folders: ArtifactFolders, answer: OnPlanned) -> None:
        while (job := self._next()) is not None:
            try:
                event = self._done(job, models, folders)
            except ModelGoneError as error:
                _log.warning("%s", error)
                event = PlanFailed(job.job, Fault.UNKNOWN_MODEL, str(error), error.gone)
            except BbgrapError as error:
                event = PlanFailed(job.job, Fault.of(error), str(error))
            except Exception as error:
                # a bug here, or a full disk, ends this job, not all that come after it
                _log.exception("planning of job %d failed", job.job)
                event = PlanFailed(job.job, fault_of(error), f"planner: {type(error).__name__}: {error}{_SEE_LOG}")
            with self._lock:
                wanted, self._running = self._running is job, None
            with suppress(OSError, ExecutionError):  # it is tried again for the next job, which then fails
                self._renew()
            if not wanted or isinstance(event, PlanFailed):
                folders.remove(job.job)
            if wanted:
                answer(event)

    def _next(self) -> PlanningJob | None:
        with self._lock:
            while not self._waiting and not self._closed:
                self._lock.wait()
            if self._closed:
                return None
            job = min(self._waiting, key=lambda job: self._turns.get(job.client, 0))
            self._waiting.remove(job)
            left = {other.client for other in self._waiting}
            self._turns = {client: turn for client, turn in self._turns.items() if client in left} | {job.client: next(self._numbers)}
            self._running = job
            return job

    def _done(self, job: PlanningJob, models: ModelStore, folders: ArtifactFolders) -> Planned | PlanFailed:
        plan = None
        if isinstance(job, StartPlanning):
            bases = tuple((folders.path(base.job), base.place) for base in job.bases)
            plan = PlanTask(job.shapes, job.cluster, job.options, bases)
        with models.folder(job.files) as path:
            files = {file.name: file.digest for file in job.files}
            state, top = (job.state, job.top) if isinstance(job, StartStandby) else ((), ())

            def ask() -> PlannerReply:
                task = Task(path, files, folders.make(job.job), plan, state, top)
                return self._reply(job, task, (models.directory, folders.directory))

            try:
                reply = ask()
            except PlannerKilledError as error:
                if self._running is not job:
                    raise
                _log.warning("%s; it is tried once more", error)
                reply = self._once_more(ask)
        if reply.trace:
            _log.error("planning of job %d failed in its process:\n%s", job.job, reply.trace)
        if reply.fault:
            return PlanFailed(job.job, Fault(reply.fault), reply.text + (_SEE_LOG if reply.trace else ""))
        variants = read_artifacts(folders.path(job.job))
        devices, most = (len(job.cluster.nodes), MAX_VARIANTS) if isinstance(job, StartPlanning) else (1, 1)
        if len(variants) > most or any(len(variant.artifacts.devices) != devices for variant in variants):
            raise PlanError(f"planner: expected at most {most} variants for {devices} devices, got {len(variants)}, or for others")
        return Planned(job.job, variants)

    def _once_more(self, ask: Callable[[], PlannerReply]) -> PlannerReply:
        try:
            return ask()
        except PlannerKilledError as error:
            raise PlannerKilledError(f"{error}; {_NEEDS}, and {free_memory_bytes() >> 20:,} MiB are left here") from error

    def _reply(self, job: PlanningJob, task: Task, places: Sequence[Path]) -> PlannerReply:
        found = tuple(place.stat().st_ino for place in places)
        with self._lock:
            has_lost = self._child is not None and not Path(self._child.scratch.name).is_dir()  # to who tidies up what is old in /tmp
            if (has_lost or (self._folders and found != self._folders)) and self._running is job:
                self._kill()  # what was removed and made anew it may not open
        self._renew()
        with self._lock:
            child, self._folders = self._child, found
            if self._running is not job or child is None:
                return PlannerReply(Fault.PLAN.value, "planner: cancelled")
        return child.ask(task, self._limit(job))


class PlanningQueues:
    """One planner for plans and one for standbys."""

    def __init__(self, command: Sequence[str] = PLANNER, limit: Callable[[PlanningJob], float] = limit_s) -> None:
        """Start the process for standbys, which are wanted first; the other one starts when the coordinator has."""
        self.standbys = PlanningQueue("standbys", command, limit)
        self.standbys.start()
        self.plans = PlanningQueue("plans", command, limit)

    def begin(self, models: ModelStore, folders: ArtifactFolders, answer: OnPlanned) -> None:
        """Do jobs from now on; `answer` is called from other threads."""
        self.plans.start()
        for planner in (self.standbys, self.plans):
            planner.begin(models, folders, answer)

    def submit(self, job: PlanningJob) -> None:
        """Do a job beside those of the other kind."""
        (self.plans if isinstance(job, StartPlanning) else self.standbys).submit(job)

    def cancel(self, number: int) -> None:
        """Forget a job, if it has no answer yet."""
        for planner in (self.standbys, self.plans):
            planner.cancel(number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.plans.close()
        self.standbys.close()
