"""A coordinator and agents as processes that can be killed, stopped and started again, on hosts of their own where there is a network.

A machine keeps its name, its folder, its key and its address when it is started anew, as a real one does. The cluster is locked: agents
and clients are given tokens of the coordinator, as files. Laws: what was started ends with the context; logs are appended to, so that a
story can be read from its beginning.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from bbgrap.errors import ClusterUnavailableError
from bbgrap.local import end_of
from bbgrap.session import Connection, connect
from benchmarks.lan import Lan
from benchmarks.processes import tree

COORDINATOR = "coordinator"
_START_S = 60.0
_STOP_S = 5.0
_PORT = 7070


@dataclass
class Machines:
    """The machines of a cluster.

    Invariants: `processes` are those that were started and not seen to end, by machine; each leads a session of its own.
    """

    home: Path
    lan: Lan | None = None
    cores: dict[str, int] = field(default_factory=dict)
    """The core of a machine; those without one use what this process may use."""
    entry: dict[str, Sequence[str]] = field(default_factory=dict)
    """What a machine's command begins with, for example to enter a control group."""
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What it ends with."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    port: int = _PORT

    @property
    def address(self) -> str:
        """The coordinator's."""
        return f"tcp://{self.host(COORDINATOR)}:{self.port}"

    def host(self, machine: str) -> str:
        """Return the address of a machine's host."""
        return "127.0.0.1" if self.lan is None else self.lan.address(machine)

    def folder(self, machine: str) -> Path:
        """Return where a machine keeps its files."""
        return self.home / machine

    def token(self, name: str) -> Path:
        """Return the file with a token that the coordinator has made by itself: `local` (an admin's) or `join`."""
        return self.folder(COORDINATOR) / "keys" / f"{name}.token"

    def keys(self, agent: str) -> Path:
        """Return where an agent keeps its own key."""
        return self.folder(agent) / "keys"

    def connect(self, timeout_s: float = _START_S) -> Connection:
        """Connect as an admin.

        Raises:
            ClusterUnavailableError: if no coordinator answers.
        """
        return connect(self.address, timeout_s, token_file=self.token("local"))

    def log(self, machine: str) -> Path:
        """Return a machine's log."""
        return self.home / f"{machine}.log"

    def logged(self, machine: str) -> str:
        """Return the end of a machine's log."""
        return end_of(self.log(machine))

    # --- starting ---------------------------------------------------------------------------------------------------------------

    def start_coordinator(self) -> None:
        """Start the coordinator on its address; returns at once."""
        options = ["--bind", self.address, "--state-dir", str(self.folder(COORDINATOR)), "--ready-file", str(self.home / "address")]
        (self.home / "address").unlink(missing_ok=True)
        self._start(COORDINATOR, "bbgrap_coordinator.main", *options, "--until-eof")

    def wait_coordinator(self) -> None:
        """Wait until the coordinator listens.

        Raises:
            ClusterUnavailableError: if it ends instead.
        """
        self.wait(COORDINATOR, (self.home / "address").exists)

    def start_agent(self, name: str) -> None:
        """Start an agent with its name and its folder; returns at once."""
        options = ["--join", self.address, "--name", name, "--threads", "1", "--cache-dir", str(self.folder(name)), "--until-eof"]
        options += ["--token-file", str(self.token("join")), "--keys-dir", str(self.keys(name))]
        if name in self.cores:
            options += ["--cores", str(self.cores[name])]
        self._start(name, "bbgrap_agent.main", *options)

    def start(self, machine: str) -> None:
        """Start a machine by its name; returns at once."""
        if machine == COORDINATOR:
            self.start_coordinator()
        else:
            self.start_agent(machine)

    def _start(self, machine: str, module: str, *options: str) -> None:
        self.folder(machine).mkdir(parents=True, exist_ok=True)
        network = [] if self.lan is None else self.lan.prefix(machine)
        surroundings = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [*self.entry.get(machine, ()), *network, sys.executable, "-m", module, *options, *self.options.get(machine, ())]
        with self.log(machine).open("ab") as log:
            self.processes[machine] = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=surroundings, start_new_session=True
            )

    def wait(self, machine: str, done: Callable[[], bool], seconds: float = _START_S) -> None:
        """Wait for something while a machine runs.

        Raises:
            ClusterUnavailableError: if it ends, or it takes too long; the message has the end of its log.
        """
        deadline = time.monotonic() + seconds
        while not done():
            if not self.runs(machine) or time.monotonic() > deadline:
                raise ClusterUnavailableError(f"'{machine}' is not ready after {seconds:g} s; the end of its log:\n{self.logged(machine)}")
            time.sleep(0.02)

    # --- faults -----------------------------------------------------------------------------------------------------------------

    def runs(self, machine: str) -> bool:
        """Whether a machine's main process lives."""
        process = self.processes.get(machine)
        return process is not None and process.poll() is None

    def tree(self, machine: str) -> list[psutil.Process]:
        """Return a machine's processes that live: its main process first."""
        return tree(self.processes[machine].pid) if self.runs(machine) else []

    def kill(self, machine: str, *, whole: bool = True) -> None:
        """End a machine at once, as a power cut would: all its processes, or the main one only."""
        process = self.processes.pop(machine)
        for pid in self._members(machine, process) if whole else [process.pid]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def signal(self, machine: str, number: signal.Signals, *, part: str = "whole") -> None:
        """Send a signal to a machine's processes: `whole`, `nanny` (the main one) or `worker` (the others)."""
        process = self.processes.get(machine)
        if process is None:
            return
        members = self._members(machine, process)
        chosen = {"whole": members, "nanny": members[:1], "worker": members[1:]}[part]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def _members(self, machine: str, process: subprocess.Popen[bytes]) -> list[int]:
        return [process.pid, *(child.pid for child in self.tree(machine)[1:])]

    def close(self) -> None:
        """End everything: agents first, which say good-bye to a coordinator that still listens."""
        for machine in sorted(self.processes, key=lambda name: name == COORDINATOR):
            self.signal(machine, signal.SIGCONT)
            process = self.processes[machine]
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.kill(machine)
                continue
            if process.stdin is not None:
                process.stdin.close()
        self.processes = {}


@contextmanager
def machines_at(
    home: Path,
    lan: Lan | None,
    agents: Sequence[str],
    cores: dict[str, int] | None = None,
    options: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Machines]:
    """Start a coordinator and agents, and wait until all have joined; they are gone afterwards.

    Raises:
        ClusterUnavailableError: if one does not start.
    """
    with ExitStack() as stack:
        machines = Machines(home, lan, cores or {}, options=options or {}, port=_PORT if lan is not None else free_port())
        stack.callback(machines.close)
        machines.start_coordinator()
        machines.wait_coordinator()
        for name in agents:
            machines.start_agent(name)
        with machines.connect() as connection:
            for name in agents:
                machines.wait(name, lambda name=name: name in {node.name for node in connection.nodes()})  # type: ignore[misc]
        yield machines


def free_port(host: str = "127.0.0.1") -> int:
    """Return a port that nobody listened at just now."""
    import socket

    with socket.create_server((host, 0)) as server:
        return int(server.getsockname()[1])
