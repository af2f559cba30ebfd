"""A cluster on the workers of a Dask cluster.

    with DaskCluster("tcp://scheduler:8786", agents=2) as cluster:
        session = InferenceSession("resnet50.onnx")

A worker plugin gives each worker an agent: those that Dask adds, by `scale` or `adapt`, too; a worker that goes takes its agent with it.
Dask is imported when a cluster is made, not before.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.launching.engine_agent import AgentSpec, AgentView
from bbgrap.launching.engine_cluster import EngineCluster, check_counts, join_token
from bbgrap.local import LocalCluster

if TYPE_CHECKING:
    from distributed import Client


class DaskCluster(EngineCluster):
    """A coordinator beside the driver, and an agent beside each worker of Dask, called like it."""

    kind = "dask"

    def __init__(
        self,
        client: Client | str,
        agents: int = 1,
        threads: int = 0,
        *,
        host: str = "",
        port: int = 0,
        cache_dir: Path | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Start and wait until the agents of all workers have joined.

        Args:
            client: A client of Dask, or the address of its scheduler.
            agents: How many workers to wait for; all get an agent, later ones, too.
            threads: Threads of each agent; 0: as many as its worker has.
            host: The address of this machine at which the coordinator listens; default: that on the way to the scheduler.
            port: Port of the coordinator; 0 for a free one.
            cache_dir: Where agents keep weights, on every machine; default as for `bbgrap-agent`.
            timeout_s: How long Dask may take to have workers, and to start the agents.

        Raises:
            UsageError: if Dask is not installed, the client is asynchronous, or a number cannot be.
            ClusterUnavailableError: if there are too few workers, or an agent does not start; the message has the end of its log.
        """
        check_counts(self.kind, agents, threads, least_threads=0)
        try:
            from distributed import Client
        except ImportError as error:
            raise UsageError("dask cluster: Dask is not installed here: pip install 'bbgrap[dask]'") from error
        self._plugin = ""
        deadline = time.monotonic() + timeout_s
        given: Any = client
        self._owns_client = not isinstance(given, Client)
        try:
            self._client = Client(given, timeout=timeout_s) if self._owns_client else given
        except (OSError, ValueError) as error:
            raise ClusterUnavailableError(f"dask cluster: no scheduler answers at '{client}': {error}") from error
        if self._client.asynchronous:
            raise UsageError("dask cluster: expected a client that waits, got an asynchronous one; make it without asynchronous=True")
        try:
            try:
                self._client.wait_for_workers(agents, timeout=timeout_s)
            except TimeoutError as error:
                raise ClusterUnavailableError(f"dask cluster: {error}; add workers, or ask for fewer agents") from error
            self._local = LocalCluster(0, host=host or _own_host(self._client.scheduler.address), port=port)
            self.address, self._connection = self._local.address, self._local.connection
            self._register(AgentSpec(self.address, join_token(self._local), threads, "" if cache_dir is None else str(cache_dir)))
            self.wait_joined(agents, deadline)
        except BaseException:
            self.close()
            raise

    def looks(self, lines: int = 20) -> Sequence[AgentView]:
        """Return how the agents are whose workers live."""
        from bbgrap.launching.dask_plugin import look

        found = self._client.run(look, self._plugin, lines, on_error="ignore")
        return [look for look in found.values() if look is not None]

    def kill(self, name: str) -> None:
        """End an agent's process at once, as a power cut would; its worker starts another one.

        Raises:
            UsageError: if there is no such agent.
        """
        from bbgrap.launching.dask_plugin import kill

        self._client.run(kill, self._plugin, workers=[self.look_of(name).place])

    def end(self) -> None:
        """Take the plugin, and with it the agents, from all workers, and stop the coordinator."""
        try:
            if self._plugin:
                self._client.unregister_worker_plugin(self._plugin)
            self._plugin = ""
        finally:
            if self._local is not None:
                self._local.close()
            if self._owns_client:
                self._client.close()

    def _register(self, order: AgentSpec) -> None:
        from bbgrap.launching.dask_plugin import AgentPlugin

        name = f"bbgrap-{order.address}"
        try:
            self._client.register_plugin(AgentPlugin(order), name=name)
        except Exception as error:  # whatever a worker raises comes here as it is
            with suppress(Exception):  # workers that have none say so
                self._client.unregister_worker_plugin(name)
            raise ClusterUnavailableError(f"dask cluster: a worker cannot own an agent: {type(error).__name__}: {error}") from error
        self._plugin = name


def _own_host(scheduler: str) -> str:
    """Return this machine's address on the way to the scheduler."""
    from distributed.comm.addressing import get_address_host
    from distributed.utils import get_ip

    return str(get_ip(get_address_host(scheduler)))
