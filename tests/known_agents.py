"""Local clusters whose agents are known: nobody measures them.

A coordinator measures agents of which it knows nothing as soon as it is idle: seven seconds of processor time for each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from bbgrap.cluster import NodeProfile
from bbgrap.cluster.types import Speed
from bbgrap.local import LocalCluster
from bbgrap.session import own_cluster

PLAIN = ("-m", "bbgrap_coordinator.main")
SPEED = Speed("conv3x3", flops_per_s=50e9)
MOST = 5


def tell_speeds(cluster: LocalCluster) -> None:
    """Tell a coordinator how fast its agents are, those that come later included."""
    for number in range(MOST):
        cluster.connection.add_profile(NodeProfile(f"agent{number}", work=(SPEED,)))


def make_whole(cluster: LocalCluster, agents: int) -> LocalCluster:
    """Start what a test has killed or ended: the coordinator, and agents up to this many."""
    for name in [name for name, process in cluster.processes.items() if process.poll() is not None]:
        cluster.kill(name)
    if "coordinator" not in cluster.processes:
        cluster.start_coordinator()
    for name in sorted({f"agent{number}" for number in range(agents)} - cluster.processes.keys()):
        cluster.add_agent(name)
    cluster._wait_joined([f"agent{number}" for number in range(agents)])
    return cluster


def planners_of(cluster: LocalCluster) -> tuple[psutil.Process, psutil.Process]:
    """Return the processes of a coordinator that make plans, and standbys."""
    children = psutil.Process(cluster.processes["coordinator"].pid).children()
    by_kind = {child.cmdline()[-2]: child for child in children if "bbgrap_coordinator.planner" in child.cmdline()}
    assert len(children) == 2
    return by_kind["plans"], by_kind["standbys"]


@contextmanager
def known_cluster(
    agents: int, cache_dir: Path | None = None, coordinator: Sequence[str] = PLAIN, *, pin: bool = True
) -> Iterator[LocalCluster]:
    """Start a cluster of known agents; what its processes said is shown if its user fails."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    with LocalCluster(0, cache_dir=cache_dir, coordinator_command=coordinator, pin=pin and agents <= cores) as cluster:
        tell_speeds(cluster)  # before there are agents: who joins unknown is measured at once
        try:
            yield make_whole(cluster, agents)
        except BaseException:
            for name in ("coordinator", *(f"agent{number}" for number in range(MOST))):
                print(f"--- {name}\n{cluster.log(name)}")  # noqa: T201 - pytest shows it with the failure
            raise


@contextmanager
def lasting_cluster(agents: int, cache_dir: Path, coordinator: Sequence[str] = PLAIN, *, pin: bool = False) -> Iterator[LocalCluster]:
    """Start a cluster of known agents for several tests: sessions that name no cluster are not for it, though it is there."""
    with known_cluster(agents, cache_dir, coordinator, pin=pin) as cluster:
        own_cluster._enclosing.remove(cluster.connection)
        yield cluster
