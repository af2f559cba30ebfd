"""The part of a `DaskCluster` that runs in Dask's workers. Apart, as its class needs Dask when it is defined."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from distributed import Worker, WorkerPlugin
from distributed.comm.addressing import get_address_host

from bbgrap.launching.engine_agent import AgentSpec, AgentView, OwnedAgent


class AgentPlugin(WorkerPlugin):
    """Gives a worker an agent: every worker that there is when it is registered, and every one that comes."""

    def __init__(self, order: AgentSpec) -> None:
        self._order = order
        self.agent: OwnedAgent | None = None

    def __getstate__(self) -> AgentSpec:
        # Only what is ordered travels.
        return self._order

    def __setstate__(self, order: AgentSpec) -> None:
        self._order, self.agent = order, None

    def setup(self, worker: Worker) -> None:
        """Start the agent, with the worker's threads unless another number is ordered; it is called like the worker."""
        name = f"worker-{worker.name}" if isinstance(worker.name, int) else str(worker.name).removeprefix("tcp://").removeprefix("tls://")
        order = self._order if self._order.threads else replace(self._order, threads=worker.state.nthreads)
        self.agent = OwnedAgent(order, name, worker.address, get_address_host(worker.address), worker.local_directory)

    async def teardown(self, worker: Worker) -> None:
        """Stop the agent, when the worker ends or the cluster is closed."""
        if self.agent is not None:
            await asyncio.to_thread(self.agent.stop)


def look(plugin: str, lines: int, dask_worker: Worker) -> AgentView | None:
    """Return how a worker's agent is; None before it has one."""
    mine = dask_worker.plugins.get(plugin)
    return mine.agent.look(lines) if isinstance(mine, AgentPlugin) and mine.agent is not None else None


def kill(plugin: str, dask_worker: Worker) -> None:
    """End the process of a worker's agent at once."""
    dask_worker.plugins[plugin].agent.kill()
