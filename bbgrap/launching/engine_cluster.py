"""A coordinator here, and agents where an engine (Ray, Dask) places them; what is the same for both engines.

    with RayCluster(agents=2) as cluster:
        session = InferenceSession("model.onnx")

The engine starts, restarts and removes agents. Requests and tensors do not pass through it. It gets the token for agents, and is trusted
with it.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Collection, Sequence

from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.launching.engine_agent import AgentView
from bbgrap.local import LocalCluster
from bbgrap.session.own_cluster import OwnCluster

_LOOK_S = 0.2


class EngineCluster(OwnCluster):
    """A cluster whose agents are an engine's; `kind` is the engine's name. Ending it gives back what the engine lent; that goes on."""

    _local: LocalCluster | None = None
    """The coordinator, where it is on this machine."""

    @abstractmethod
    def looks(self, lines: int = 20) -> Sequence[AgentView]:
        """Return how the agents are whose owners live, each with the end of its log."""

    def coordinator_log(self, lines: int) -> str:
        """Return the last lines of the coordinator's log."""
        return "" if self._local is None else self._local.log("coordinator", lines)

    def log(self, name: str, lines: int = 20) -> str:
        """Return the last lines of the log of an agent, or of `coordinator`.

        Raises:
            UsageError: if there is no such agent.
        """
        return self.coordinator_log(lines) if name == "coordinator" else self.look_of(name, lines).log

    def look_of(self, name: str, lines: int = 20) -> AgentView:
        """Return how an agent is.

        Raises:
            UsageError: if there is no such agent.
        """
        found = {look.name: look for look in self.looks(lines)}
        if name not in found:
            raise UsageError(f"{self.kind} cluster: expected an agent of {sorted(found)}, got '{name}'")
        return found[name]

    def wait_joined(self, agents: int, deadline: float, known: Collection[str] = ()) -> tuple[str, ...]:
        """Wait until so many agents have joined beside those that are known, and return their names.

        Raises:
            ClusterUnavailableError: if one ends or the time is over; with the end of its log.
        """
        while True:
            looks = [look for look in self.looks() if look.name not in known]
            joined = {node.name for node in self.connection.nodes()}
            if len(looks) >= agents and all(look.name in joined for look in looks):
                return tuple(look.name for look in looks)
            late = next((look for look in looks if look.name not in joined), None)
            for look in looks:
                if look.status is not None and look.name not in joined:
                    raise ClusterUnavailableError(
                        f"{self.kind} cluster: agent '{look.name}' ended with status {look.status}; the end of its log:\n{look.log}"
                    )
            if time.monotonic() > deadline:
                log = f"; the end of the log of '{late.name}':\n{late.log}" if late else ""
                raise ClusterUnavailableError(
                    f"{self.kind} cluster: expected {agents} agents to join {self.address}, got {sorted(joined)}{log}"
                )
            time.sleep(_LOOK_S)


def join_token(coordinator: LocalCluster) -> str:
    """Return the token that lets agents enrol, and nothing else."""
    return (coordinator.logs / "state" / "keys" / "join.token").read_text()


def check_counts(engine: str, agents: int, threads: int, least_threads: int) -> None:
    """Refuse numbers that cannot be.

    Raises:
        UsageError: if so.
    """
    if agents < 1 or threads < least_threads:
        raise UsageError(f"{engine} cluster: expected at least 1 agent with {least_threads} or more threads, got {agents} with {threads}")
