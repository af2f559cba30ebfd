"""The messages by which somebody finds out what a cluster's machines have left, and what keeps it from being faster.

    client -- InspectNodes --> coordinator -- Inspect --> agents -- Inspected --> coordinator -- Inspection --> client

See `messages` for the laws. What is not known is 0 or empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.cluster.types import NodeProfile
from bbgrap.protocol.limits import Name, Text


@dataclass(frozen=True, slots=True)
class MachineFacts:
    """What a process finds out about its machine in a quarter of a second.

    `clock_s` are seconds since 1970, `usable_cores` those it is bound to, `quota_cores` what its control groups leave it. `throttled` is
    the part of their periods in which they stopped it, `stolen` the part of the time that a hypervisor took. `busy_cores` are in use by
    anybody, `own_cores` by this process and its children. `folder` is where it keeps weights or plans; `card_bits_per_s` is
    what the network card says that has the address others reach it by.
    """

    clock_s: float
    cores: int
    usable_cores: int
    quota_cores: float
    throttled: float
    stolen: float
    busy_cores: float
    own_cores: float
    memory_bytes: int
    free_memory_bytes: int
    folder: Name
    free_disk_bytes: int
    card_bits_per_s: float


@dataclass(frozen=True, slots=True)
class Inspect:
    """To an agent: what has your machine left?"""

    inspection: int


@dataclass(frozen=True, slots=True)
class Inspected:
    """Answer to `Inspect`."""

    inspection: int
    facts: MachineFacts


@dataclass(frozen=True, slots=True)
class InspectNodes:
    """What have the machines of the agents and of the coordinator left, and who serves the models?"""

    call: int


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """An agent's machine; its clock is `ahead_s` before the coordinator's, give or take `within_s`."""

    name: Name
    facts: MachineFacts
    ahead_s: float
    within_s: float


@dataclass(frozen=True, slots=True)
class RequestedPlan:
    """A plan that was asked for lately: of which model (its digest) and shapes, who serves it, and why no plan does (empty: one does).

    `waiting` requests have not been started.
    """

    model: Name
    shapes: Name
    nodes: tuple[Name, ...]
    why_not: Text
    waiting: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Answer to `InspectNodes`; agents that said nothing in time are `silent`."""

    call: int
    coordinator: MachineFacts | None
    nodes: tuple[NodeFacts, ...]
    silent: tuple[Name, ...]
    models: tuple[RequestedPlan, ...]


@dataclass(frozen=True, slots=True)
class ListProfiles:
    """Which profiles are known, also of nodes that are not there?"""

    call: int


@dataclass(frozen=True, slots=True)
class ForgetProfile:
    """Forget what was given by hand of the node of that name, and with `measured` what was measured, too."""

    call: int
    name: Name
    measured: bool


@dataclass(frozen=True, slots=True)
class KnownProfiles:
    """Answer to `ListProfiles`, and to `ForgetProfile` with what was forgotten."""

    call: int
    measured: tuple[NodeProfile, ...]
    by_hand: tuple[NodeProfile, ...]
