"""What a coordinator tells of itself: nodes, links, models and what serves them, counters, and what happened lately.

Laws: counters begin at 0 when a coordinator starts (`Status.incarnation` says which start it is) and never fall until its next start; what
is kept for them is bounded; a time is seconds since 1970 by the coordinator's clock as it was at its start.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from bbgrap.cluster.profiles import NodeProfile
from bbgrap.protocol.limits import MAX_REPORT_BYTES, Digest, Length, Name, Text
from bbgrap.runtime.recording import Record

LATENCY_BUCKETS_S = tuple(
    mantissa * 10.0**exponent for exponent in (-4, -3, -2, -1, 0, 1) for mantissa in (1, 1.25, 1.6, 2, 2.5, 3.15, 4, 5, 6.3, 8)
)
"""Upper bounds of the buckets of `Latency`, in seconds; what takes longer has one more. Ten a decade: percentiles may be a quarter off."""

EventKind = Literal[
    "joined",
    "left",
    "lost",
    "refused",
    "worker lost",
    "link lost",
    "link back",
    "loaded",
    "serves",
    "no plan",
    "given up",
    "stalled",
    "differed",
    "key",
]
"""What happens to a cluster, as operators see it."""
LOSSES: frozenset[EventKind] = frozenset(
    {"lost", "refused", "worker lost", "link lost", "no plan", "stalled", "differed"},
)
"""What an operator may have to do something about, always; what is given up may only have been slower than the standby."""


@dataclass(frozen=True, slots=True)
class ReadStatus:
    """How is the cluster? Of what happened, only events with numbers above `events_after` are wanted."""

    call: int
    events_after: int = 0


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """What does the plan of this key do, and what did its latest recorded request do?"""

    call: int
    plan: Digest


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """An agent as the coordinator sees it; `unreachable` are the agents that it cannot exchange tensors with.

    `state` is `alive`, or, of one that is gone, `left` or `lost`. `used_bytes` is the memory that its worker takes, `standby_bytes` the
    weights of standbys in it, `free_bytes` what its machine or container has left. `verified` of its requests were compared with runs on
    other nodes; `differed` are those in which it may be what answered wrongly. `since` is when it joined, or went; `busy` is the part of
    the last second in which its worker computed, 0 to 1; `running` are the requests in flight in which it has a part. One that `reloads`
    has a new worker, which has not yet all that the lost one had.
    """

    name: Name
    address: Name
    state: Name
    threads: int
    cores: int
    memory_bytes: int
    version: Name
    onnxruntime: Name
    max_opset: int
    profile: NodeProfile | None
    used_bytes: int = 0
    standby_bytes: int = 0
    unreachable: tuple[Name, ...] = ()
    verified: int = 0
    differed: int = 0
    since: float = 0.0
    free_bytes: int = 0
    busy: float = 0.0
    running: int = 0
    reloads: bool = False

    @property
    def condition(self) -> str:
        """Its state in words."""
        return "loads again" if self.reloads else self.state


@dataclass(frozen=True, slots=True)
class LinkStatus:
    """A link from one node to another one, or to the coordinator, as it was measured; zeros: it was not."""

    source: Name
    destination: Name
    bandwidth_bytes_per_s: float
    round_trip_s: float
    is_up: bool


@dataclass(frozen=True, slots=True)
class Latency:
    """How long answered requests took from their arrival at the coordinator on: how many lie in each bucket, and the sum."""

    counts: tuple[int, ...]
    sum_s: float


@dataclass(frozen=True, slots=True)
class VariantStatus:
    """One way to run a plan that is loaded somewhere; times are of a request in seconds, 0 where nothing is known.

    `measured_s` is of the latest requests, the later the more; before there are any, of its turns beside the other variants. `predicted_s`
    is there for the one that planning made first. `answered` are the requests that ended well on it.
    """

    name: Name
    epoch: int
    state: Name
    nodes: tuple[Name, ...]
    running: int
    answered: int
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class SegmentStatus:
    """How long a segment took on its node in the latest recorded request, and what was predicted; 0 where nothing is."""

    node: Name
    segment: int
    predicted_s: float
    measured_s: float


@dataclass(frozen=True, slots=True)
class PlanStatus:
    """A plan: a model for concrete shapes and options.

    `serves` says what answers its requests now, `plan` (its own variants), `standby` (the model whole, on one node) or `nobody`, and `why`
    says so in words. `nodes` and `epoch` are of what serves. `weight_bytes` is what each of these nodes has in memory of it.
    """

    plan: Digest
    shapes: Mapping[Name, tuple[int, ...]]
    planner: Name
    objective: Name
    serves: Literal["plan", "standby", "nobody"]
    variant: Name
    why: Text
    epoch: int
    nodes: tuple[Name, ...]
    weight_bytes: Mapping[Name, int]
    predicted_s: float
    measured_s: float
    requests: int
    waiting: int
    running: int
    variants: tuple[VariantStatus, ...]
    segments: tuple[SegmentStatus, ...]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model, and what became of its requests: `done`, `failed`, `cancelled`, `refused`.

    `latency` and `queued_s`, the seconds that they waited until they ran, are of those that are done. `standby` are the nodes that have the
    model whole. The digest of all models beyond those that are counted one by one is zeros. Of its `sequences` that are open, and of those
    before, the state of `recovered` was lost and computed anew, by running `replayed` requests again.
    """

    model: Digest
    name: Name
    requests: Mapping[Name, int]
    latency: Latency
    queued_s: float
    waiting: int
    running: int
    standby: tuple[Name, ...]
    plans: tuple[PlanStatus, ...]
    sequences: int = 0
    recovered: int = 0
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class ExchangeStatus:
    """Bytes of tensors that went from one device to another for requests that ended well: the plan's counts times the requests.

    Exact for these, but that inputs with dictionaries count as a byte a number, and sizes that only the run tells do not count.
    """

    source: Name
    destination: Name
    bytes: int


@dataclass(frozen=True, slots=True)
class ClusterEvent:
    """Something that happened; numbers grow by one."""

    number: int
    at: float
    kind: EventKind
    text: Text
    node: Name = ""
    model: Name = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Status:
    """Answer to `ReadStatus`. The nodes' profiles are left out: `ListNodes` has them.

    `started` and `now` are seconds since 1970; `uptime_s` is what lies between. Among the nodes are those that went lately.
    """

    call: int
    version: Name
    incarnation: int
    started: float
    now: float
    nodes: tuple[NodeStatus, ...]
    links: tuple[LinkStatus, ...]
    models: tuple[ModelStatus, ...]
    exchanges: tuple[ExchangeStatus, ...]
    events: tuple[ClusterEvent, ...]

    @property
    def uptime_s(self) -> float:
        """How long the coordinator has been there, in seconds."""
        return self.now - self.started

    @property
    def lost_for_s(self) -> Mapping[str, float]:
        """The agents that are away without having left, and for how long, in seconds."""
        return {node.name: self.now - node.since for node in self.nodes if node.state == "lost"}


@dataclass(frozen=True, slots=True)
class PlanShown:
    """Answer to `ReadPlan`: the report of what serves (JSON, as `plan --json` prints it), and the latest request that was recorded on it.

    `devices` are the names of the devices that the records speak of, the coordinator's last; `records` are empty if none was recorded.
    """

    call: int
    report: Annotated[str, Length(MAX_REPORT_BYTES)]
    devices: tuple[Name, ...]
    records: tuple[Record, ...]
    recorded_at: float


StatusCall = ReadStatus | ReadPlan
StatusAnswer = Status | PlanShown
