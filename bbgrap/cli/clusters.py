"""The cluster that a command works with: one that runs somewhere, or one started for the call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from bbgrap.cli.output import step
from bbgrap.errors import UsageError
from bbgrap.local import LocalCluster
from bbgrap.session import Connection, connect


@contextmanager
def open_cluster(coordinator: str, agents: int | None = None, threads: int = 1) -> Iterator[Connection]:
    """Connect to a coordinator, or start one with this many agents on this machine, which end with the call.

    Raises:
        UsageError: if neither is given.
        ClusterUnavailableError: if no coordinator answers, or a process does not start.
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
    with connect(coordinator) as connection:
        yield connection
