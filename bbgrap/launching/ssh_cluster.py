"""A cluster on the machines of a hosts file, started over ssh for one program.

    with SSHCluster("hosts.yaml") as cluster:
        session = InferenceSession("resnet50.onnx")

`bbgrap up` starts the same, and leaves it running.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from bbgrap.cluster.types import COORDINATOR
from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.launching.hosts import read_hosts
from bbgrap.launching.launch import HostState, Launch
from bbgrap.session.own_cluster import OwnCluster

_log = logging.getLogger("bbgrap.launching")


class SSHCluster(OwnCluster):
    """Coordinator and agents on the hosts of a file.

    What runs already is used as it is, and goes on when the cluster is closed; what was started is stopped then, but not if this process
    is killed: `bbgrap down` stops it.

    Invariants: `_started` are the names of what was started, the coordinator's among them.
    """

    kind = "ssh"

    def __init__(
        self,
        hosts: str | os.PathLike[str],
        agents: int | None = None,
        *,
        token_file: str | os.PathLike[str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Start what does not run, and wait until the agents have joined.

        Args:
            hosts: The hosts file.
            agents: How many of its hosts, the first ones; None: all. `add_agent` starts further ones.
            token_file: A token for a coordinator that runs already, where it is not this user's own on this machine.
            timeout_s: How long agents have to join.

        Raises:
            ClusterFileError: with every fault of the file.
            UsageError: if there are fewer hosts.
            ClusterUnavailableError: if one does not start or join; the message has the end of its log.
            AccessError: if there is no token for agents.
        """
        self._file = read_hosts(Path(hosts))
        names = [host.name for host in self._file.hosts]
        if agents is not None and not 1 <= agents <= len(names):
            raise UsageError(f"ssh cluster: expected 1 to {len(names)} agents, as '{self._file.path}' has hosts, got {agents}")
        self._token_file = None if token_file is None else Path(token_file)
        self._timeout_s = timeout_s
        self._started: list[str] = []
        self.address = self._file.coordinator.address
        try:
            self._start(names[:agents])
            self._connection = self._launch().connect()
        except BaseException:
            self.close()
            raise

    def add_agent(self, name: str | None = None) -> str:
        """Start the agent of one more host, the next one that has none or that of this name; wait until it has joined, return its name.

        Raises:
            UsageError: if the file has no such host, or no further one.
            ClusterUnavailableError: if it does not start or join; the message has the end of its log.
        """
        there = {node.name for node in self.connection.nodes()}
        chosen = name or next((host.name for host in self._file.hosts if host.name not in there), None)
        if chosen is None:
            raise UsageError(f"ssh cluster: all hosts of '{self._file.path}' have an agent: {', '.join(sorted(there))}")
        self._start([chosen])
        return chosen

    def kill(self, name: str) -> None:
        """End the process of a host, or `coordinator`, at once, as a power cut would.

        Raises:
            UsageError: if the file has no such host.
            ClusterUnavailableError: if it does not run, or its host cannot be reached.
        """
        self._launch().kill(name)

    def log(self, name: str, lines: int = 20) -> str:
        """Return the last lines of the log of a host, or of `coordinator`.

        Raises:
            UsageError: if the file has no such host.
            ClusterUnavailableError: if its host cannot be reached.
        """
        return self._launch().log(name, lines)

    def end(self) -> None:
        """Stop what was started; what cannot be stopped is named in the log."""
        started, self._started = self._started, []
        for state in self._launch(started).stop() if started else ():
            if state.fault:
                _log.warning("ssh cluster: '%s' at %s was not stopped: %s", state.name, state.where, state.fault)

    def _launch(self, names: Sequence[str] = ()) -> Launch:
        return Launch(self._file, names, self._token_file)

    def _start(self, names: Sequence[str]) -> None:
        states = self._launch(names).start(self._timeout_s, lambda progress: None)
        self._started += [state.name for state in states if state.process == "started"]
        if faults := [state for state in states if state.fault]:
            raise ClusterUnavailableError("\n".join(_told(state) for state in faults))


def _told(state: HostState) -> str:
    """Return what is wrong with a host."""
    who = "the coordinator" if state.name == COORDINATOR else f"'{state.name}'"
    end = ["; the end of its log:", *(f"    {line}" for line in state.log)] if state.log else []
    return f"ssh cluster: {who} at {state.where}: {state.fault}" + "\n".join(end)
