"""A whole cluster on this machine: a coordinator and agents as child processes.

    with LocalCluster(agents=2) as cluster:
        session = InferenceSession("model.onnx")    # or, outside of the block, with cluster=cluster

Laws: the children do not outlive this process, however it ends; what goes wrong in a child is in the error, with the end of its log.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.observing.logs import LOG_FILE
from bbgrap.own_process import python_command
from bbgrap.session.connection import connect
from bbgrap.session.own_cluster import OwnCluster
from bbgrap.transport.temporary import folder_of

_START_S = 30.0
"""Starting a process and importing onnxruntime takes 1 s on a laptop, far longer on a busy or small machine."""
_STOP_S = 3.0
_FOR_CHILDREN = ("BBGRAP_CACHE_DIR", "BBGRAP_COMPILE", "BBGRAP_STATE_MEMORY")


class LocalCluster(OwnCluster):
    """Coordinator and agents on this machine.

    Invariants: `processes` holds the children by name, `coordinator` among them; `logs` is the folder with a file for each.
    """

    kind = "local"

    def __init__(
        self,
        agents: int = 2,
        threads: int = 1,
        *,
        pin: bool = True,
        host: str = "127.0.0.1",
        port: int = 0,
        cache_dir: Path | None = None,
        coordinator_command: Sequence[str] = ("-m", "bbgrap_coordinator.main"),
    ) -> None:
        """Start and wait until all agents have joined.

        Args:
            agents: How many agents, named agent0, agent1, ...
            threads: Threads of each agent.
            pin: Give each agent cores of its own, if there are enough.
            host: The address of this machine at which the coordinator listens.
            port: Port of the coordinator; 0 for a free one.
            cache_dir: Where agents keep weights; default as for `bbgrap-agent`.
            coordinator_command: What Python runs as the coordinator.

        Raises:
            ClusterUnavailableError: if a child does not start; the message has the end of its log.
        """
        if agents < 0 or threads < 1:
            raise UsageError(f"local cluster: expected at least 0 agents with 1 thread, got {agents} with {threads}")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._threads = threads
        self._host = host
        self._cache_dir = cache_dir
        self.logs = folder_of(self, "bbgrap-local-")
        cores = _cores_to_give()
        self._cores: dict[str, list[int]] = {}
        self._free_cores = cores if pin and len(cores) >= agents * threads else []
        try:
            self._command = tuple(coordinator_command)
            self.address = self.start_coordinator(port)
            # Its own token: what the environment says is for other clusters.
            self._connection = connect(self.address, _START_S, token_file=self.logs / "state" / "keys" / "local.token")
            names = [self._start_agent(f"agent{number}") for number in range(agents)]
            self._wait_joined(names)
        except BaseException:
            self.close()
            raise

    def add_agent(self, name: str | None = None) -> str:
        """Start one more agent, wait until it has joined, and return its name.

        Raises:
            UsageError: if there is one of this name, or a folder in it.
            ClusterUnavailableError: if it does not start.
        """
        if name and (name in self.processes or Path(name).name != name):
            raise UsageError(f"local cluster: expected the name of a new agent, got '{name}'; there are {', '.join(self.processes)}")
        count = len(self.processes)
        chosen = name or next(n for n in (f"agent{i}" for i in range(count)) if n not in self.processes)
        until = time.monotonic() + _START_S
        while any(node.name == chosen for node in self.connection.nodes()) and time.monotonic() < until:
            time.sleep(0.02)  # one that was killed is listed until it is missed
        self._start_agent(chosen)
        self._wait_joined([chosen])
        return chosen

    def kill(self, name: str) -> None:
        """End a child at once, as a power cut would."""
        if name not in self.processes:
            raise UsageError(f"local cluster: there is no '{name}', only {', '.join(self.processes)}")
        process = self.processes.pop(name)
        process.kill()
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
        self._free_cores += self._cores.pop(name, [])

    def log(self, name: str, lines: int = 20) -> str:
        """Return the last lines of a child's log."""
        return end_of(self.logs / f"{name}.log", lines)

    def end(self) -> None:
        """Stop all children."""
        for name, process in self.processes.items():
            if name != "coordinator":
                process.terminate()
        # Agents first: they say good-bye to a coordinator that still listens.
        for name in sorted(self.processes, key=lambda name: name == "coordinator"):
            process = self.processes[name]
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            if process.stdin is not None:
                process.stdin.close()
        self.processes = {}
        shutil.rmtree(self.logs, ignore_errors=True)

    def start_coordinator(self, port: int | None = None) -> str:
        """Start the coordinator, on the port it had before unless another is given, and return its address."""
        ready = self.logs / "address"
        ready.unlink(missing_ok=True)
        port = int(self.address.rpartition(":")[2]) if port is None else port
        options = ["--bind", f"tcp://{self._host}:{port}", "--state-dir", str(self.logs / "state"), "--ready-file", str(ready)]
        self._start("coordinator", [*self._command, *options, "--until-eof"])
        deadline = time.monotonic() + _START_S
        while not ready.exists():
            self._check_alive("coordinator", deadline)
            time.sleep(0.01)
        return ready.read_text()

    def _start_agent(self, name: str) -> str:
        options = ["--join", self.address, "--name", name, "--threads", str(self._threads), "--until-eof"]
        options += ["--keys-dir", str(self.logs / "keys")]
        if self._cache_dir is not None:
            options += ["--cache-dir", str(self._cache_dir)]
        if len(self._free_cores) >= self._threads:
            mine, self._free_cores = self._free_cores[: self._threads], self._free_cores[self._threads :]
            self._cores[name] = mine
            options += ["--cores", ",".join(map(str, mine))]
        self._start(name, ["-m", "bbgrap_agent.main", *options])
        return name

    def _start(self, name: str, command: Sequence[str]) -> None:
        file = self.logs / f"{name}.log"
        environment = {**_environment(), LOG_FILE: str(file)}
        with file.open("ab") as log:
            # Ctrl-C is for this process, which then ends them, or goes on with them.
            self.processes[name] = subprocess.Popen(
                [*python_command(), *command], stdin=subprocess.PIPE, stdout=log, stderr=log, env=environment, process_group=0
            )

    def _check_alive(self, name: str, deadline: float) -> None:
        status = self.processes[name].poll()
        if status is not None:
            raise ClusterUnavailableError(f"local cluster: '{name}' ended with status {status}; the end of its log:\n{self.log(name)}")
        if time.monotonic() > deadline:
            raise ClusterUnavailableError(
                f"local cluster: '{name}' is not ready after {_START_S:g} s; the end of its log:\n{self.log(name)}"
            )

    def _wait_joined(self, names: Sequence[str]) -> None:
        deadline = time.monotonic() + _START_S
        while missing := set(names) - {node.name for node in self.connection.nodes()}:
            for name in sorted(missing):
                self._check_alive(name, deadline)
            time.sleep(0.02)


def _cores_to_give() -> list[int]:
    """Return the cores that children can be bound to; none where the system has no such thing, or a sandbox forbids it."""
    if sys.platform != "linux":
        return []
    try:
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # changes nothing; what is refused here is refused to children, too
    except (OSError, AttributeError):
        return []
    return sorted(cores)


def end_of(log: Path, lines: int = 20) -> str:
    """Return the last lines of a log; nothing if it is not there."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:]) if log.exists() else ""


def _environment() -> Mapping[str, str]:
    """Return the children's environment: what is said of other agents and coordinators, as a port or a core, is not for these."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("BBGRAP_") or name in _FOR_CHILDREN}
    # Agents have as many threads as they are told; the libraries' own pools must not add to them.
    return {**own, "BBGRAP_CONFIG": os.devnull, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
