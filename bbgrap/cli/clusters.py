"""The cluster that a command works with: one that runs somewhere, or one started for the call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bbgrap.cli.output import say, step
from bbgrap.errors import UsageError
from bbgrap.local import LocalCluster
from bbgrap.protocol.status_messages import NodeStatus
from bbgrap.session import Connection, connect


@contextmanager
def open_cluster(
    coordinator: str, agents: int | None = None, threads: int = 1, *, token_file: Path | None = None, insecure: bool = False
) -> Iterator[Connection]:
    """Connect to a coordinator, or start one with this many agents on this machine, which end with the call.

    What is odd about the agents that are there is said on stderr.

    Raises:
        UsageError: if neither is given.
        ClusterUnavailableError: if no coordinator answers, or a process does not start.
        AccessError: if it refuses the token, or there is none.
    """
    if agents is not None:
        with step(f"starting a coordinator and {agents} agent{'s' * (agents != 1)} on this machine"):
            cluster = LocalCluster(agents, threads)
        with cluster:
            yield cluster.connection
        return
    if not coordinator:
        ways = "give --coordinator tcp://HOST:PORT or set BBGRAP_COORDINATOR; 'bbgrap local --agents 2' starts a cluster on this machine"
        raise UsageError(f"which cluster? {ways}")
    with connect(coordinator, token_file=token_file, insecure=insecure) as connection:
        if connection.credentials.is_insecure():
            say(f"insecure: whoever answers at {connection.address} is believed, and all that is sent can be read on the network")
        if text := different_versions(connection.nodes()):
            say(text)
        yield connection


def different_versions(nodes: Iterable[NodeStatus]) -> str:
    """Return what is to be said of agents whose kernels may round differently; empty if they run one version of onnxruntime."""
    names: dict[str, list[str]] = {}
    for node in nodes:
        names.setdefault(node.onnxruntime, []).append(node.name)
    if len(names) < 2:
        return ""
    versions = "; ".join(f"{version}: {', '.join(sorted(of))}" for version, of in sorted(names.items()))
    return f"agents run different versions of onnxruntime ({versions}): answers may differ from plan to plan in the last bits"
