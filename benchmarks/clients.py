"""A process with clients, told by lines on its standard input; what they ask and what comes of it goes into a history file.

    python -m benchmarks.clients --cluster tcp://HOST:PORT --history FILE --folder DIR

    send TASK CLIENTS DEADLINE [PER_S]   clients that ask one request after the other, each with a session and a connection of its own
    ask TASK COUNT DEADLINE      one client that asks so often, and no more
    watch TASK                   note who serves a task, ten times a second
    stop                         end, when what was asked is answered

Each line of the history is an object with `t`, seconds of the machine's monotonic clock, and `what`:

    sent {id, task, input, deadline}      failed {id, kind, text}     serving {task, by, nodes, standby}
    answered {id, digest, off}            ready {task}                stopped {}

Law: what is known of a request is in the file before the client goes on, so that a client which is killed leaves a true history.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from bbgrap.errors import BbgrapError
from bbgrap.session import InferenceSession, connect
from benchmarks.tasks import Asked, asked

_LOOK_S = 0.1
_PAUSE_S = 0.02
"""After a failure: a client that is refused at once must not do nothing else."""


class History:
    """A file of events; any thread may note one."""

    def __init__(self, path: Path) -> None:
        """Append to a file."""
        self._file = path.open("ab", buffering=0)

    def note(self, what: str, **facts: object) -> None:
        """Write an event with the time."""
        # One write, which the kernel appends whole: neither threads nor a kill mix or cut lines.
        line = json.dumps({"t": round(time.monotonic(), 4), "what": what, **facts}, separators=(",", ":"))
        self._file.write(line.encode() + b"\n")

    def close(self) -> None:
        """Note nothing more."""
        self._file.close()


class Clients:
    """The clients of this process."""

    def __init__(self, address: str, history: History, folder: Path) -> None:
        """Ask nothing yet."""
        self.stopping = threading.Event()
        self._address = address
        self._history = history
        self._folder = folder
        self._tasks: dict[str, Asked] = {}
        self._watched: dict[str, InferenceSession] = {}
        self._threads: list[threading.Thread] = []
        self._count = 0
        self._lock = threading.Lock()

    def obey(self, line: str) -> None:
        """Do what a line says."""
        match line.split():
            case ["send", task, clients, deadline, *rate]:
                for _ in range(int(clients)):
                    self._begin(self._send, task, float(deadline), None, float(rate[0]) if rate else 0.0)
            case ["ask", task, count, deadline]:
                self._begin(self._send, task, float(deadline), int(count), 0.0)
            case ["watch", task]:
                self._begin(self._watch, task)
            case ["stop"]:
                self.stopping.set()
            case _:
                raise SystemExit(f"clients: expected send, ask, watch or stop, got '{line}'")

    def _begin(self, work: Any, task: str, *arguments: object) -> None:  # noqa: ANN401 - a method of this class
        self._count += 1
        thread = threading.Thread(target=work, args=(f"{os.getpid()}.{self._count}", task, *arguments))
        self._threads.append(thread)
        thread.start()

    def join(self) -> None:
        """Wait until all clients have ended."""
        for thread in self._threads:
            thread.join()

    def _about(self, task: str) -> Asked:
        """Return a task that several clients have; what is asked a few times is not kept."""
        with self._lock:
            if task not in self._tasks:
                self._tasks[task] = asked(task, self._folder)
            return self._tasks[task]

    def _send(self, client: str, task: str, deadline: float, count: int | None, rate: float) -> None:
        about = self._about(task) if count is None else asked(task, self._folder)
        with connect(self._address, 60.0) as connection:
            session = InferenceSession(about.model, cluster=connection, deadline_s=deadline)
            self._history.note("ready", task=task)
            number, due = 0, time.monotonic()
            while not self.stopping.is_set() and number != count:
                self._ask(session, about, f"{client}.{number}", task, number % len(about.feeds), deadline)
                number += 1
                if count is None:
                    self._watched.setdefault(task, session)
                if rate:
                    due = max(due + 1 / rate, time.monotonic() - 1.0)
                    self.stopping.wait(max(0.0, due - time.monotonic()))

    def _ask(self, session: InferenceSession, about: Asked, name: str, task: str, which: int, deadline: float) -> None:
        self._history.note("sent", id=name, task=task, input=which, deadline=deadline)
        try:
            got = session.run(None, about.feeds[which])
        except Exception as error:  # whatever it is, the history must have it
            kind = type(error).__name__
            self._history.note("failed", id=name, kind=kind, text=str(error), ours=isinstance(error, BbgrapError))
            time.sleep(_PAUSE_S)
            return
        digest = hashlib.sha256(b"".join(array.tobytes() for array in got)).hexdigest()[:16]
        off = 0.0 if about.answers is None else about.distance(which, got)
        self._history.note("answered", id=name, digest=digest, off=round(off, 4) if off < 1e9 else 1e9)

    def _watch(self, client: str, task: str) -> None:
        del client
        while not self.stopping.wait(_LOOK_S):
            session = self._watched.get(task)
            if session is None:
                continue
            try:
                plan = session.plan
            except BbgrapError as error:
                self._history.note("serving", task=task, by="", nodes=[], standby=[], fault=str(error))
                continue
            report = plan.report
            by, standby = report.get("serving", ""), report.get("standby", [])
            used = report.get("nodes_used", [])
            self._history.note("serving", task=task, by=by, nodes=list(plan.agents), standby=standby, used=used, epoch=plan.epoch)


def main() -> int:
    """Obey standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--history", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    history = History(given.history)
    clients = Clients(given.cluster, history, given.folder)
    for line in sys.stdin:
        clients.obey(line)
        if clients.stopping.is_set():
            break
    clients.stopping.set()
    clients.join()
    history.note("stopped")
    return 0


if __name__ == "__main__":
    sys.exit(main())
