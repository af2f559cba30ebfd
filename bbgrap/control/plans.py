"""What the coordinator knows of a plan, its routes and its deployments.

A plan is what a client knows: model, shapes and options. A deployment is a plan on the agents of one moment, by one or more routes
(`coordinator_routes`), each with an epoch of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bbgrap.cluster.types import Cluster
from bbgrap.control.coordinator_events import Identity
from bbgrap.control.membership import Member
from bbgrap.control.states import Tracker
from bbgrap.control.variants import Lane, Measuring, Policy
from bbgrap.graph.types import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import ModelFile, ModelPrepared
from bbgrap.protocol.messages import Deploy, Peer
from bbgrap.protocol.tensors import Inputs
from bbgrap.runtime.schedule import Schedule

Caller = tuple[Identity, int]
"""A client and the number of its call."""


@dataclass(slots=True)
class Plan:
    """What a client asked to prepare; `epoch` is its current deployment, if it has one."""

    key: str
    files: tuple[ModelFile, ...]
    shapes: Mapping[str, tuple[int, ...]]
    options: PlanOptions
    epoch: int | None = None


@dataclass(slots=True)
class Route:
    """One way to run a deployment's model.

    Invariants: `pending` are agents that have been told (`begun`) and have not said `Deployed`; `weights` are kept until the route is
    `ready`, then the agents hold them.
    """

    name: str
    lane: Lane
    host: Schedule
    report: str
    parts: dict[Identity, Deploy]
    nodes: tuple[Peer, ...]
    """The devices that take part."""
    weights: Mapping[str, Array]
    pending: dict[Identity, float] = field(default_factory=dict)
    begun: bool = False
    ready: bool = False

    @property
    def epoch(self) -> int:
        """The number that every message of the route bears."""
        return self.lane.epoch

    @property
    def devices(self) -> dict[Identity, int]:
        """The agents that take part, and which devices they are."""
        return {identity: part.schedule.device for identity, part in self.parts.items()}


@dataclass(slots=True)
class Deployment:
    """A plan on the agents of one moment; its `epoch` is that of its first route.

    Invariants: `callers` wait for `ModelPrepared`, `waiting` requests for a route with room; `routes` is empty as long as it is planned;
    `measuring` is there if there was a choice.
    """

    epoch: int
    plan: Plan
    members: tuple[Member, ...]
    cluster: Cluster
    tracker: Tracker
    used: float
    policy: Policy
    routes: list[Route] = field(default_factory=list)
    measuring: Measuring | None = None
    inputs: Inputs | None = None
    """Of made-up requests, as long as they are made."""
    callers: list[Caller] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    @property
    def running(self) -> list[int]:
        """The requests that are on their way, by any route."""
        return [number for route in self.routes for number in route.lane.running]

    @property
    def serving(self) -> Route | None:
        """The route that takes the requests, if it is one."""
        return next((route for route in self.routes if route.epoch == self.policy.serving), None)

    @property
    def is_stream(self) -> bool:
        """Whether what counts is how many requests are done, not how soon one is."""
        return self.plan.options.objective == "throughput"

    @property
    def answer_epoch(self) -> int:
        """What clients are told: another one than before means that another plan or route serves them."""
        return self.epoch if self.policy.serving is None else self.policy.serving

    @property
    def load(self) -> int:
        """The largest number of routes that any agent has a part in."""
        return max((sum(m.identity in route.parts for route in self.routes) for m in self.members), default=0) or 1

    def concerns(self, member: Member) -> bool:
        """Whether an agent has a part in it."""
        return any(member.identity in route.parts for route in self.routes) if self.routes else any(m is member for m in self.members)

    def prepared(self, call: int) -> ModelPrepared:
        """Return the answer to `PrepareModel`."""
        return ModelPrepared(call, self.plan.key, self.answer_epoch, tuple(m.name for m in self.members), self.report())

    def report(self) -> str:
        """Return the report of what serves, and what was measured."""
        serving = [route for route in self.routes if self.policy.serving in {None, route.epoch}]
        measured = self.policy.medians
        if self.measuring is None or not measured:
            return serving[0].report
        used = {peer.name: None for route in serving for peer in route.nodes}
        content: dict[str, Any] = json.loads(serving[0].report)
        content |= {
            "nodes_used": [m.name for m in self.members if m.name in used],
            "measured": {
                "routes": [
                    {"name": route.name, "nodes": [peer.name for peer in route.nodes], "median_ms": 1e3 * measured[route.epoch]}
                    for route in self.routes
                    if route.epoch in measured
                ],
                "chosen": [route.name for route in serving],
            },
        }
        return json.dumps(content)

    def measured_text(self) -> str:
        """Return what was measured, for the operator."""
        times = [f"{r.name} {1e3 * self.policy.medians[r.epoch]:.1f} ms" for r in self.routes if r.epoch in self.policy.medians]
        serving = next((route.name for route in self.routes if route.epoch == self.policy.serving), "every route")
        return f"deployment {self.epoch}: {', '.join(times) or 'its routes could not be timed'}; {serving} serves"
