"""A worker as its nanny sees it: started, talked to, watched, ended, and started again.

    start() ... WorkerReady, answers ... -> events        its end -> Ended, at once

Laws: nothing here waits for a worker; an event of a worker comes before the news of its end, and none comes after; a worker does not
outlive this process.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bbgrap.control import agent_events as events
from bbgrap.doctor.cgroups import free_memory_bytes
from bbgrap.errors import RemoteProtocolError
from bbgrap.own_code import own_code, replaced_code
from bbgrap.own_process import python_command
from bbgrap.protocol.messages import Abandon, Deploy, Heartbeat, Release, WorkerLost
from bbgrap.transport.credentials import TOKEN, TOKEN_FILE
from bbgrap.transport.memory_broker import start_broker
from bbgrap.transport.tls import TlsIdentity
from bbgrap_agent.exit_causes import cause_of, oom_kills, sentence_of
from bbgrap_agent.pipe import FROM_WORKER, TO_WORKER, Pipe
from bbgrap_agent.progress import WorkerProgress, shared_memory
from bbgrap_agent.weight_files import DeployedFiles
from bbgrap_agent.worker_settings import WorkerSettings
from bbgrap_agent.worker_timeouts import WorkerTimeouts

FIRST_BACKOFF_S = 0.1
"""How long to wait before a worker is started again that was never ready; twice as long each time."""
MAX_BACKOFF_S = 5.0
MAX_FIRST_TRIES = 3
"""Workers that end with a status before one was ever ready: then something is wrong with this installation, and the agent ends."""
START_S = 120.0
"""How long a worker may take until it is ready. Chosen: a hundred times what it takes on a laptop."""
MEMORY_EVERY_S = 1.0
"""How often it is looked how much memory is left."""
CODE_EVERY_S = 5.0
"""How often it is looked, while a coordinator speaks another version, whether other code was installed: it takes 20 ms. Chosen."""
_STOP_S = 2.5
"""How long a worker may take to end when it is told to."""
_REAP_S = 1.0
"""How long after its pipe has ended a worker may live on."""

_log = logging.getLogger("bbgrap.agent")


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A worker's pipe has ended, and the process too: with this code, as `subprocess` says it."""

    worker: int
    returncode: int
    fault: str
    """What it said that no worker says."""
    damaged: str = ""
    """Which files of its weights cache have ended it, in words."""


def _filled_pipe(content: bytes) -> int:
    """Return the end to read from of a pipe with some bytes: unlike arguments and environment, nobody else can read it."""
    ours, theirs = os.pipe()
    os.write(theirs, content)  # two kilobytes, less than any pipe holds
    os.close(theirs)
    return ours


class _Child:
    """One worker's process and what belongs to it."""

    def __init__(
        self,
        number: int,
        listener: socket.socket,
        settings: WorkerSettings,
        put: Callable[[events.FromWorker | WorkerEnded], None],
        identity: TlsIdentity | None,
    ) -> None:
        """Start it, and the threads that write to it and listen to it; it is the worker of this number.

        Raises:
            OSError, RuntimeError: if the system has no memory, processes, descriptors or threads left; nothing of it stays then.
        """
        with ExitStack() as undo, ExitStack() as passed:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            passed.callback(theirs.close)
            memory = shared_memory()
            passed.callback(os.close, memory)
            told = replace(settings, nanny=os.getpid(), pipe=theirs.fileno(), listener=listener.fileno(), progress=memory)
            if identity is not None:
                told = replace(told, identity=_filled_pipe(identity.to_bytes()))
                passed.callback(os.close, told.identity)
                memories = start_broker()
                if memories is not None:
                    passed.callback(memories.socket.close)  # the worker has it then; with its end the broker ends
                    told = replace(told, memories=memories.socket.fileno(), memory_name=memories.name)
            self.oom_kills = oom_kills()
            # A worker that is taken over could let others join, with a token.
            known = {name: value for name, value in os.environ.items() if name not in {TOKEN, TOKEN_FILE}}
            self.process = subprocess.Popen(
                [*python_command(), "-m", "bbgrap_agent.worker", told.argument()],
                stdin=subprocess.DEVNULL,
                # onnxruntime computes, with as many threads as it is told. A thread that numpy had started would not be confined.
                env={**known, "OPENBLAS_NUM_THREADS": "1"},
                pass_fds=[each for each in (told.pipe, told.listener, told.progress, told.identity, told.memories) if each >= 0],
            )
            undo.callback(self.process.wait)
            undo.callback(self.process.kill)
            self.progress = WorkerProgress(memory)
            undo.callback(self.progress.close)
            self.pipe = Pipe(ours, TO_WORKER)
            undo.callback(self.pipe.close)
            self.began = time.monotonic()
            self.timeouts = WorkerTimeouts(self.began)
            self.files = DeployedFiles(Path(settings.cache_dir))
            self.ready = False
            self.ended_because = ""
            threading.Thread(target=self._listen, args=(number, put), name="worker", daemon=True).start()
            undo.pop_all()

    @property
    def stopped(self) -> bool:
        """Whether the process is stopped by a signal."""
        try:
            return Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] in {"T", "t"}
        except (OSError, IndexError):
            return False

    @property
    def used_bytes(self) -> int:
        """The memory it takes."""
        try:
            return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except (OSError, IndexError, ValueError):
            return 0

    def _listen(self, number: int, put: Callable[[events.FromWorker | WorkerEnded], None]) -> None:
        """Hand on what it says, and its end; in a thread of its own."""
        fault = ""
        try:
            while (frames := self.pipe.receive()) is not None:
                put(FROM_WORKER.decode(frames))
        except RemoteProtocolError as error:
            fault = str(error)
            self.process.kill()
        try:
            code = self.process.wait(_REAP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        put(WorkerEnded(number, code, fault, self.files.drop_damaged() if code == -signal.SIGBUS else ""))


class Nanny:
    """Keeps one worker running.

    Invariants: used by one thread, which must be the main one; `_child` is the worker that runs, or None until `due`.
    """

    def __init__(
        self,
        listener: socket.socket,
        settings: WorkerSettings,
        put: Callable[[events.FromWorker | WorkerEnded], None],
        identity: TlsIdentity | None = None,
    ) -> None:
        """Start nothing yet; what workers say, and their ends, go to `put`, from another thread. `listener` is that of their data plane.

        With an `identity` that is locked: it is what they show to peers.
        """
        self._identity = identity
        self._listener = listener
        self._settings = settings
        self._put = put
        self._child: _Child | None = None
        self._started = 0
        self._backoff_s = FIRST_BACKOFF_S
        self._due = 0.0
        self._was_ready = False
        self._failures = 0
        self.replaced = ""
        """Why no other worker is started, where other code lies on the disk than this process runs."""
        self._code_due = 0.0
        own_code()  # what is on the disk is what this process runs, yet
        self._looked = float("-inf")
        self._free_bytes = 0

    def start_if_due(self, now: float) -> None:
        """Start a worker if there is none, and the last one is long enough ago."""
        if self._child is None and now >= self._due:
            self.replaced = replaced_code()
            if self.replaced:
                return
            self._started += 1
            try:
                self._child = _Child(self._started, self._listener, self._settings, self._put, self._identity)
            except (OSError, RuntimeError) as error:  # no memory, processes, descriptors or threads left: that may pass
                _log.warning("no worker can be started: %s; the next try is in %.1f s", error, self._backoff_s)
                self._back_off(now)

    def look_for_code(self, now: float) -> None:
        """Look whether other code was installed, some seconds after the last time at the earliest."""
        if now >= self._code_due:
            self._code_due = now + CODE_EVERY_S
            self.replaced = replaced_code()

    def ready(self) -> None:
        """Note that the worker is ready."""
        if self._child is not None:
            self._child.ready = self._was_ready = True
            self._backoff_s = FIRST_BACKOFF_S

    def tell(self, message: events.ToWorker) -> None:
        """Send an instruction; without a worker it is lost."""
        child = self._child
        if child is None:
            return
        if isinstance(message, Abandon):
            child.timeouts.drop(message.epoch, message.request, message.patience_s)
        elif isinstance(message, events.DropBefore):
            child.timeouts.drop_before(message.request)
        elif isinstance(message, Deploy):
            child.timeouts.allow(message)
            child.files.note(message)
        elif isinstance(message, Release):
            child.files.forget(message.epoch)
        child.pipe.send(message)

    def look(self, now: float) -> Heartbeat | None:
        """Look after the worker, end it where it does not end; return what it does, None while it is stopped by a signal."""
        child = self._child
        if child is None:
            return Heartbeat()
        doing, stopped = child.progress.read(), child.stopped
        reason = child.timeouts.look(doing, now, stopped=stopped)
        if not child.ready and now - child.began > START_S:
            reason = f"it was not ready after {START_S:.0f} s"
        if reason:
            self.end_worker(reason)
        if stopped and child.ready:
            return None
        seconds = max(0.0, now - doing.since_ns / 1e9) if doing.request else 0.0
        if now - self._looked >= MEMORY_EVERY_S:
            self._looked, self._free_bytes = now, free_memory_bytes()
        return Heartbeat(
            doing.epoch, doing.request, seconds, doing.steps, child.used_bytes, self._free_bytes, doing.busy_ns / 1e9 + seconds
        )

    def end_worker(self, reason: str) -> None:
        """End the worker; the next one starts when it has ended."""
        if self._child is not None and not self._child.ended_because:
            self._child.ended_because = reason
            self._child.process.kill()

    def ended(self, event: WorkerEnded, now: float) -> WorkerLost | None:
        """Take the end of a worker; return it in words, if it was ready."""
        child = self._child
        if child is None or event.worker != self._started:
            return None
        doing = child.progress.read()
        because = child.ended_because or (f"it said what no worker says: {event.fault}" if event.fault else "")
        killed = oom_kills() - child.oom_kills
        cause = cause_of(event.returncode, ended_because=because, oom_kills=killed, damaged=event.damaged)
        reason = sentence_of(cause, doing)
        child.pipe.close()
        child.progress.close()
        self._child = None
        self._due = now
        if child.ready:
            return WorkerLost(reason, doing.epoch, doing.request, cause.ended_by, doing.loading)
        self._failures += event.returncode > 0
        _log.warning("%s before it was ready; the next one starts in %.1f s", reason, self._backoff_s)
        self._back_off(now)
        return None

    def _back_off(self, now: float) -> None:
        self._due = now + self._backoff_s
        self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_S)

    @property
    def fault(self) -> str:
        """Why no worker will ever be ready, or an empty text."""
        if self._was_ready or self._failures < MAX_FIRST_TRIES:
            return ""
        return f"the worker cannot be started: {self._failures} of them ended before they were ready; their errors are above"

    def stop(self) -> None:
        """End the worker, politely at first."""
        child, self._child = self._child, None
        if child is None:
            return
        self._due = float("inf")
        child.pipe.finish()
        with suppress(ProcessLookupError):
            child.process.send_signal(signal.SIGCONT)
        try:
            child.process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            child.process.kill()
            child.process.wait()
        child.pipe.close()
