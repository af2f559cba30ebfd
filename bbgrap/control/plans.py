"""What the coordinator knows of a plan, its requests, its deployments and their variants.

A plan is what a client knows: model, shapes and options, with the queue of its requests. A deployment is a plan on the agents of one
moment, by one or more variants (`bbgrap.control.variants`), each with an epoch of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bbgrap.cluster.types import Cluster
from bbgrap.control.coordinator_events import Identity
from bbgrap.control.membership import Member
from bbgrap.control.states import Tracker
from bbgrap.control.variants import InFlightQueue, LeastFinishTime, Policy, Timing
from bbgrap.graph.types import Array
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import ModelFile, ModelPrepared, RunModel
from bbgrap.protocol.messages import Deploy, Peer
from bbgrap.protocol.tensors import Inputs
from bbgrap.runtime.schedule import Schedule

Caller = tuple[Identity, int]
"""A client and the number of its call."""


@dataclass(eq=False, slots=True)
class Plan:
    """What a client asked to prepare; `deployment` is the one that serves it, or is on its way to.

    `bbgrap.control.dispatch.Requests` alone changes `callers`, who wait for `ModelPrepared`, and `waiting`, the requests for a variant
    with room.
    """

    key: str
    files: tuple[ModelFile, ...]
    shapes: Mapping[str, tuple[int, ...]]
    options: PlanOptions
    deployment: Deployment | None = None
    callers: list[Caller] = field(default_factory=list)
    waiting: list[int] = field(default_factory=list)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
        return bool(self.callers or self.waiting)

    @property
    def is_stream(self) -> bool:
        """Whether what counts is how many requests are done, not how soon one is."""
        return self.options.objective == "throughput"


@dataclass(slots=True)
class Request:
    """A request of a client; `epoch` is that of the variant it runs on, 0 if it waits; `lost` are the agents that its runs have lost."""

    number: int
    caller: Caller
    message: RunModel
    plan: Plan
    deadline: float
    tracker: Tracker
    epoch: int = 0
    lost: list[str] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """What its inputs take while it waits."""
        return sum(len(part) for part in self.message.payload)


@dataclass(eq=False, slots=True)
class Variant:
    """One way to run a deployment's model.

    Invariants: `pending` are agents that have been told (`begun`) and have not said `Deployed`; `weights` are kept until the variant is
    `ready`, then the agents hold them.
    """

    name: str
    queue: InFlightQueue
    host: Schedule
    report: Mapping[str, Any]
    parts: dict[Identity, Deploy]
    nodes: tuple[Peer, ...]
    """The devices that take part."""
    weights: Mapping[str, Array]
    pending: dict[Identity, float] = field(default_factory=dict)
    """When each of them was last told, in seconds."""
    begun: bool = False
    ready: bool = False

    @property
    def epoch(self) -> int:
        """The number that every message of the variant bears."""
        return self.queue.epoch

    @property
    def devices(self) -> dict[Identity, int]:
        """The agents that take part, and which devices they are."""
        return {identity: part.schedule.device for identity, part in self.parts.items()}


@dataclass(eq=False, slots=True)
class Deployment:
    """A plan on the agents of one moment.

    Invariants: `variants` and `policy` are set when it is planned; `timing` is there if there was a choice.
    """

    epoch: int
    plan: Plan
    members: tuple[Member, ...]
    cluster: Cluster
    tracker: Tracker
    used: float
    policy: Policy = field(default_factory=LeastFinishTime)
    variants: list[Variant] = field(default_factory=list)
    timing: Timing | None = None
    inputs: Inputs | None = None
    """Of synthetic requests, as long as they are made."""

    @property
    def running(self) -> list[int]:
        """The requests that are in flight, by any variant."""
        return [number for variant in self.variants for number in variant.queue.running]

    @property
    def serving(self) -> Sequence[Variant]:
        """The variants that take the requests: one, or all of them."""
        return [variant for variant in self.variants if self.policy.serving in {None, variant.epoch}]

    @property
    def answer_epoch(self) -> int:
        """What clients are told: another one than before means that another plan or variant serves them."""
        return self.epoch if self.policy.serving is None else self.policy.serving

    @property
    def load(self) -> int:
        """The largest number of variants that any agent has a part in."""
        return max((sum(m.identity in variant.parts for variant in self.variants) for m in self.members), default=0) or 1

    def concerns(self, member: Member) -> bool:
        """Whether an agent has a part in it."""
        return any(member.identity in v.parts for v in self.variants) if self.variants else any(m is member for m in self.members)

    def prepared(self, call: int) -> ModelPrepared:
        """Return the answer to `PrepareModel`."""
        return ModelPrepared(call, self.plan.key, self.answer_epoch, tuple(m.name for m in self.members), json.dumps(self.report()))

    def report(self) -> Mapping[str, Any]:
        """Return the report of what serves, and what was measured."""
        serving, medians = self.serving, self.policy.medians
        report = serving[0].report
        if self.timing is None or not medians:
            return report
        used = {peer.name for variant in serving for peer in variant.nodes}
        timed = [
            {"name": variant.name, "nodes": [peer.name for peer in variant.nodes], "median_ms": 1e3 * medians[variant.epoch]}
            for variant in self.variants
            if variant.epoch in medians
        ]
        # "routes" is what "variants" were called before; it stays for one release.
        measured = {"variants": timed, "routes": timed, "chosen": [variant.name for variant in serving]}
        return {**report, "nodes_used": [m.name for m in self.members if m.name in used], "measured": measured}

    def measured_text(self) -> str:
        """Return what was measured, for the operator."""
        medians = self.policy.medians
        times = [f"{v.name} {1e3 * medians[v.epoch]:.1f} ms" for v in self.variants if v.epoch in medians]
        serving = "every variant" if self.policy.serving is None else self.serving[0].name
        return f"deployment {self.epoch}: {', '.join(times) or 'its variants could not be timed'}; {serving} serves"
