"""What a coordinator keeps over a restart, as values: models, profiles, and the plans that are loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from bbgrap.cluster.types import NodeProfile
from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.limits import Digest, Name, Text


@dataclass(frozen=True, slots=True)
class StoredVariant:
    """A variant of a plan that is loaded: its epoch, and what it took when it was timed (0: it was not), in seconds.

    `place` says which one it is of what the job made: others may have been released since.
    `nodes` are the names of all devices of the plan and the places of their data planes, in device order.
    """

    epoch: int
    nodes: tuple[tuple[Name, Name], ...]
    median_s: float = 0.0
    place: int = 0


@dataclass(frozen=True, slots=True)
class StoredPlan:
    """What planning came to: `job` names its artifacts, `world` the agents and profiles it was made for.

    `options` are None for a model's standby, which has no shapes either; `variants` are those that are left. `host_address` is
    that of the coordinator's data plane. A plan with a `quarantine` is not tried again, for that reason.
    """

    job: int
    key: Digest
    model: Digest
    shapes: Mapping[Name, tuple[int, ...]]
    options: PlanOptions | None
    world: Name
    host_address: Name
    variants: tuple[StoredVariant, ...]
    quarantine: Text = ""

    def fits(self, planned: Sequence[PlannedVariant]) -> bool:
        """Whether its variants are among what its job made, on as many nodes as that has devices: a database may be damaged."""
        devices = {place: len(made.artifacts.devices) for place, made in enumerate(planned)}
        return all(devices.get(variant.place) == len(variant.nodes) == len(dict(variant.nodes)) for variant in self.variants)


@dataclass(frozen=True, slots=True)
class SavedState:
    """What an earlier coordinator has left: the sizes of complete files by digest, models by digest, profiles by node name.

    `plans` come with what they ship. `saw_agents`: this cluster has had agents, so that they may come back.
    """

    files: Mapping[str, int] = field(default_factory=dict)
    models: Mapping[str, tuple[ModelFile, ...]] = field(default_factory=dict)
    measured: Mapping[str, NodeProfile] = field(default_factory=dict)
    given: Mapping[str, NodeProfile] = field(default_factory=dict)
    plans: tuple[tuple[StoredPlan, tuple[PlannedVariant, ...]], ...] = ()
    saw_agents: bool = False
