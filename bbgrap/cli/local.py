"""`bbgrap local`: a cluster on this machine, until it is interrupted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from bbgrap.cli.options import MAX_AGENTS, Threads
from bbgrap.cli.output import print_result, say, step
from bbgrap.errors import ClusterUnavailableError
from bbgrap.own_process import stop_signals

if TYPE_CHECKING:
    from bbgrap.local import LocalCluster

_LOOK_EVERY_S = 0.5


def local(
    agents: Annotated[int, typer.Option(min=1, max=MAX_AGENTS, help="How many agents.")] = 2,
    threads: Threads = 1,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the coordinator; 0: a free one.")] = 0,
) -> None:
    """Start a coordinator and agents on this machine, and keep them until Ctrl-C.

    Example:
        bbgrap local --agents 2
    """
    import signal
    import sys

    from bbgrap.local import LocalCluster

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    for number in stop_signals():  # a shell starts what it puts aside with interrupts ignored
        signal.signal(number, stop)
    with step(f"starting a coordinator and {agents} agent{'s' * (agents != 1)}"):
        cluster = LocalCluster(agents, threads, port=port)
    try:
        with cluster:
            print_result(cluster.address)
            sys.stdout.flush()
            say("next, in another terminal:")
            say(f"  export BBGRAP_COORDINATOR={cluster.address}")
            say("  bbgrap submit zoo:resnet50 --verify")
            say("Ctrl-C stops it")
            _watch(cluster)
    except KeyboardInterrupt:
        say("stopped")


def _watch(cluster: LocalCluster) -> None:
    """Wait until interrupted; say so if a process ends by itself.

    Raises:
        ClusterUnavailableError: if it is the coordinator.
    """
    import time

    ended: set[str] = set()
    while True:
        time.sleep(_LOOK_EVERY_S)
        for name, process in cluster.processes.items():
            if name in ended or process.poll() is None:
                continue
            ended.add(name)
            text = f"'{name}' ended with status {process.returncode}; the end of its log: {cluster.log(name)}"
            if name == "coordinator":
                raise ClusterUnavailableError(text)
            say(text)
