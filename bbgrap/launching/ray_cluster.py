"""A cluster on the nodes of a Ray cluster.

    with RayCluster(agents=2) as cluster:
        session = InferenceSession("resnet50.onnx")

A placement group (STRICT_SPREAD) reserves processors on as many nodes as there are agents. An actor on each owns the agent. When a node
goes, Ray starts its actor again on another one, now or once there is one. Ray is imported when a cluster is made, not before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from bbgrap.errors import ClusterUnavailableError, UsageError
from bbgrap.launching.engine_agent import AgentSpec, AgentView, OwnedAgent
from bbgrap.launching.engine_cluster import EngineCluster, check_counts, join_token
from bbgrap.local import LocalCluster
from bbgrap.session.connection import connect

_ANSWER_S = 5.0
"""How long an actor is asked; one that Ray is starting again does not answer."""


class RayCluster(EngineCluster):
    """A coordinator where the driver runs, or in an actor, and agents on nodes of Ray, each on its own.

    Uses the Ray cluster that the program is connected to, or else the one that `ray.init()` finds or starts; it stays connected. Agents
    are called like their nodes.
    """

    kind = "ray"

    def __init__(
        self,
        agents: int = 2,
        threads: int = 1,
        *,
        resources: Mapping[str, float] | None = None,
        coordinator: Literal["driver", "actor"] = "driver",
        host: str = "",
        port: int = 0,
        cache_dir: Path | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """Start and wait until all agents have joined.

        Args:
            agents: How many agents, and nodes.
            threads: Threads of each agent, and processors that Ray reserves for it.
            resources: What else Ray reserves for each, for example `{"memory": 4e9}`, or a resource that some nodes have only.
            coordinator: Where it runs: beside the driver, or in an actor with one processor; both end with the driver.
            host: The address of the driver's machine at which the coordinator listens; default: Ray's of this node.
            port: Port of the coordinator; 0 for a free one.
            cache_dir: Where agents keep weights, on every node; default as for `bbgrap-agent`.
            timeout_s: How long Ray may take to find nodes and to start the agents.

        Raises:
            UsageError: if Ray is not installed, or a number cannot be.
            ClusterUnavailableError: if there are too few nodes, or an agent does not start; the message has the end of its log.
        """
        check_counts(self.kind, agents, threads, least_threads=1)
        if coordinator not in {"driver", "actor"}:
            raise UsageError(f"ray cluster: expected the coordinator in 'driver' or 'actor', got '{coordinator}'")
        if coordinator == "actor" and host:
            raise UsageError(
                "ray cluster: expected host= with the coordinator beside the driver only, got both; an actor's node is Ray's choice"
            )
        try:
            import ray
        except ImportError as error:
            raise UsageError("ray cluster: Ray is not installed here: pip install 'bbgrap[ray]'") from error
        self._ray = ray
        self._bundle = {"CPU": float(threads), **(resources or {})}
        self._timeout_s = timeout_s
        self._head: Any = None
        self._groups: list[Any] = []
        self._owners: list[Any] = []
        if not ray.is_initialized():
            ray.init()
        deadline = time.monotonic() + timeout_s
        try:
            if coordinator == "driver":
                self._local = LocalCluster(0, host=host or ray.util.get_node_ip_address(), port=port)
                self.address, self._connection, token = self._local.address, self._local.connection, join_token(self._local)
            else:
                self._head = ray.remote(CoordinatorActor).options(num_cpus=1).remote(port)
                try:
                    self.address, token, own = ray.get(self._head.facts.remote(), timeout=timeout_s)
                except ray.exceptions.RayError as error:
                    raise ClusterUnavailableError(f"ray cluster: the coordinator's actor does not answer: {error}") from error
                self._connection = connect(self.address, timeout_s, token=own)
            self._order = AgentSpec(self.address, token, threads, "" if cache_dir is None else str(cache_dir))
            self._place(agents, deadline)
            self.wait_joined(agents, deadline)
        except BaseException:
            self.close()
            raise

    def add_agent(self) -> str:
        """Start one more agent, on a node that has none; wait until it has joined, and return its name.

        Raises:
            ClusterUnavailableError: if there is no such node, or the agent does not start.
        """
        deadline = time.monotonic() + self._timeout_s
        looks = self.looks()
        self._place(1, deadline, [{"ray.io/node-id": f"!in({','.join(look.place for look in looks)})"}] if looks else None)
        (name,) = self.wait_joined(1, deadline, {look.name for look in looks})
        return name

    def looks(self, lines: int = 20) -> Sequence[AgentView]:
        """Return how the agents are whose actors live."""
        return [look for _, look in self._owned(lines)]

    def kill(self, name: str) -> None:
        """End an agent's process at once, as a power cut would; its actor starts another one.

        Raises:
            UsageError: if there is no such agent.
        """
        self.look_of(name)
        self._ray.get([owner.kill.remote() for owner, look in self._owned() if look.name == name], timeout=_ANSWER_S)

    def coordinator_log(self, lines: int) -> str:
        """Return the last lines of the coordinator's log."""
        if self._local is not None:
            return super().coordinator_log(lines)
        return str(self._ray.get(self._head.log.remote(lines), timeout=_ANSWER_S))

    def end(self) -> None:
        """Stop the agents, remove actors and placement groups, and stop the coordinator."""
        asked = [owner.stop.remote() for owner in self._owners]
        if asked:
            self._ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
        if self._head is not None:
            self._ray.wait([self._head.stop.remote()], timeout=_ANSWER_S)
            self._owners.append(self._head)
        for actor in self._owners:
            self._ray.kill(actor)
        for group in self._groups:
            self._ray.util.remove_placement_group(group)
        self._owners, self._groups, self._head = [], [], None
        if self._local is not None:
            self._local.close()

    def _place(self, count: int, deadline: float, where: list[dict[str, str]] | None = None) -> None:
        """Reserve room on so many nodes, and start an owner on each."""
        from ray.util.placement_group import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        chosen = {} if where is None else {"bundle_label_selector": where}
        group = placement_group([self._bundle] * count, strategy="STRICT_SPREAD", **chosen)
        if not group.wait(max(1.0, deadline - time.monotonic())):
            self._ray.util.remove_placement_group(group)
            alive = sum(node["Alive"] for node in self._ray.nodes())
            free = self._ray.available_resources()
            raise ClusterUnavailableError(
                f"ray cluster: expected {count} {'further ' if where else ''}nodes with {self._bundle} free on each,"
                f" got {alive} nodes in all, with { {name: free.get(name, 0.0) for name in self._bundle} } free together;"
                " add nodes, or ask for fewer agents"
            )
        self._groups.append(group)
        for bundle in range(count):
            options = self._ray.remote(AgentActor).options(
                num_cpus=self._bundle["CPU"],
                max_restarts=-1,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle),
            )
            self._owners.append(options.remote(self._order, len(self._groups)))

    def _owned(self, lines: int = 20) -> list[tuple[Any, AgentView]]:
        asked = {owner.look.remote(lines): owner for owner in self._owners}
        answered, _ = self._ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
        found = []
        for answer in answered:
            try:
                found.append((asked[answer], self._ray.get(answer)))
            except self._ray.exceptions.ActorDiedError as error:
                raise ClusterUnavailableError(f"ray cluster: an actor cannot own an agent: {error}") from error
            except self._ray.exceptions.RayActorError:  # it is being started again
                continue
        return found


class AgentActor(OwnedAgent):
    """An actor that owns the agent of its node."""

    def __init__(self, order: AgentSpec, group: int) -> None:
        """Start the agent; those of the second placement group and further ones may be beside one of the first, and get its number."""
        import ray

        here = ray.get_runtime_context().get_node_id()
        names = {node["NodeID"]: node["NodeName"] for node in ray.nodes() if node["Alive"]}
        name = names.pop(here)
        if name in names.values():
            name = f"{name}-{here[:6]}"
        super().__init__(order, name if group == 1 else f"{name}-{group}", here, ray.util.get_node_ip_address())


class CoordinatorActor:
    """An actor that owns the coordinator."""

    def __init__(self, port: int) -> None:
        import ray

        self._local = LocalCluster(0, host=ray.util.get_node_ip_address(), port=port)

    def facts(self) -> tuple[str, str, str]:
        """Return the address, the token for agents, and one for the driver, which may all that a coordinator's user may."""
        return self._local.address, join_token(self._local), self._local.connection.create_token("driver", "admin")

    def log(self, lines: int) -> str:
        """Return the last lines of the coordinator's log."""
        return self._local.log("coordinator", lines)

    def stop(self) -> None:
        """End the coordinator."""
        self._local.close()
