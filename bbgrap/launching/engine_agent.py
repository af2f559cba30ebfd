"""One agent on a machine of an engine (Ray, Dask), owned by a process of that engine.

    engine ── places, restarts, removes ──► owner's process ── standard input, a pipe ──► agent

Laws: the agent ends with its owner, however that ends (`--until-eof`); one that ends by itself is started again; one whose coordinator
is gone for good is stopped, so that nothing stays behind a driver that was killed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from bbgrap.local import end_of
from bbgrap.observing.logs import LOG_FILE
from bbgrap.own_process import python_command
from bbgrap.transport.control_client import is_listening
from bbgrap.transport.credentials import INSECURE, TOKEN, TOKEN_FILE

GONE_S = 30.0
"""How long a coordinator may be away; its restart takes a few seconds."""
AGAIN_S = 3.0
"""Until an agent that ended by itself is started again: one that is refused must not keep a core busy by its starts."""
_LOOK_S = 2.0
_STOP_S = 3.0
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class AgentSpec:
    """What agents are started with. It travels by the engine's own messages, and so never stands in arguments of a process."""

    address: str
    token: str = field(repr=False)
    threads: int
    cache_dir: str = ""
    """Where agents keep weights; empty: as for `bbgrap-agent`."""


@dataclass(frozen=True, slots=True)
class AgentView:
    """An agent as its owner sees it.

    `place` is its node or worker as the engine names it; `status` is how it ended, until it is started again.
    """

    name: str
    place: str
    status: int | None
    log: str


class OwnedAgent:
    """An agent, for as long as this object and its process live.

    Invariants: `_process` is replaced by the watching thread only, and not once `_stopping` is set.
    """

    def __init__(self, order: AgentSpec, name: str, place: str, host: str, folder: str | None = None) -> None:
        """Start it; `host` is what the engine reaches this machine by, `folder` where the engine keeps what may be lost."""
        self._order = order
        self._name = _UNSAFE.sub("-", name).strip("-") or "agent"
        self._place = place
        self._host = host
        self._home = tempfile.TemporaryDirectory(prefix="bbgrap-", dir=folder, ignore_cleanup_errors=True)
        self._log = Path(self._home.name) / "agent.log"
        self._status: int | None = None
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._process = self._start()
        threading.Thread(target=self._watch, name="bbgrap-agent", daemon=True).start()

    def look(self, lines: int = 20) -> AgentView:
        """Return how it is, with the last lines of its log."""
        return AgentView(self._name, self._place, self._status, end_of(self._log, lines))

    def kill(self) -> None:
        """End its process at once, as a power cut would; another one is started."""
        self._process.kill()

    def stop(self) -> None:
        """End it, politely if it listens."""
        self._stopping.set()
        with self._lock:
            self._process.terminate()
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _close_pipe(self._process)
        self._home.cleanup()

    def _start(self) -> subprocess.Popen[bytes]:
        order = self._order
        options = ["--join", order.address, "--name", self._name, "--threads", str(order.threads), "--advertise", self._host]
        options += ["--keys-dir", str(Path(self._home.name) / "keys"), "--until-eof"]
        options += ["--cache-dir", order.cache_dir] if order.cache_dir else []
        # A machine's own settings are for other clusters. The libraries' pools must not add to the agent's threads.
        kept = {name: value for name, value in os.environ.items() if name not in {TOKEN_FILE, INSECURE}}
        environment = {**kept, TOKEN: order.token, LOG_FILE: str(self._log), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # what cleans folders of temporary files may have removed it
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [*python_command(), "-m", "bbgrap_agent.main", *options], stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment
            )

    def _watch(self) -> None:
        heard = time.monotonic()
        while not self._stopping.is_set():
            try:
                self._status = self._process.wait(_LOOK_S)
            except subprocess.TimeoutExpired:
                pass
            else:
                self._stopping.wait(AGAIN_S)
                with self._lock:
                    if not self._stopping.is_set():
                        _close_pipe(self._process)
                        with suppress(OSError):  # no memory, disk or descriptors left: that may pass, and it is tried again
                            self._process, self._status = self._start(), None
            if is_listening(self._order.address, _LOOK_S):
                heard = time.monotonic()
            elif time.monotonic() - heard > GONE_S:
                self.stop()


def _close_pipe(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
