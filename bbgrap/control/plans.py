"""What the coordinator knows of models, their standbys and plans, and their variants; `request` has what runs on them.

    Model ── standby ── copies, each on one node        (a `ServedPlan` with a variant per copy)
      └──── plans ───── variants on the agents of a moment

A plan is a model with shapes and options, and the queue of its requests. A variant is one way to run it that is loaded somewhere, with an
epoch of its own; it is *parted* while one of its agents is away, and comes back with that agent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from bbgrap.cluster.types import COORDINATOR
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.coordinator_instructions import Base
from bbgrap.control.lifecycles import Tracker
from bbgrap.control.plan_trial import PlanTrial
from bbgrap.control.planned_variant import SCALED_FROM, PlannedVariant
from bbgrap.control.variants import SMOOTHING, InFlightQueue, LeastFinishTime, LowestLatency, Policy, Timing
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.addresses import split_place
from bbgrap.protocol.client_messages import ModelFile
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.messages import Deploy, EndedBy, Peer

Caller = tuple[RoutingId, int]
"""A client and the number of its call."""

MAX_DEATHS = 2
"""Workers that a plan may end; then it is not tried again."""
FIRST_AGAIN_S = 2.0
"""How soon what could not be planned or loaded is tried again: a planner may have been ended, a machine short of memory for a while."""
SLOWER_AGAIN_S = 60.0
"""How soon what was slower than the standby is made again at first. Chosen: the standby answers meanwhile."""
LAST_AGAIN_S = 600.0
IN_USE_S = 60.0
"""How long after its last request a plan follows the agents, and is not released for another one."""


@dataclass(eq=False, slots=True)
class Variant:
    """One way to run a plan, or a copy of a standby.

    Invariants: `parts` are the programs of the agents that take part, by name; `pending` are those that have been told and have not said
    `Deployed`, with when they were told last, in seconds; `away` are those that are not there.
    """

    plan: ServedPlan
    job: int
    world: str
    planned: PlannedVariant
    queue: InFlightQueue
    nodes: tuple[tuple[str, str], ...]
    """The names of all devices of the job, in device order, and the places of their data planes."""
    parts: dict[str, Deploy]
    tracker: Tracker
    used: float
    place: int = 0
    """Which one it is of what its job made."""
    is_spare: bool = False
    """Whether it was made for the loss of an agent, and serves only while it is the best of what is there."""
    is_untimed: bool = False
    """Whether it was away when the others of its plan were timed."""
    pending: dict[str, float] = field(default_factory=dict)
    away: dict[str, float] = field(default_factory=dict)
    emptied: int = 0
    """What runs with lower numbers have left is gone on an agent, which has lost all it had loaded."""
    suspects: set[str] = field(default_factory=set)
    """Agents whose links are being tried: nothing is started before that is known."""
    hurried: set[str] = field(default_factory=set)
    """Agents that were told that somebody waits for it."""
    hosted: bool = False
    stalls: int = 0
    """Requests that have stalled on it since one ended."""
    usual_s: float = 0.0
    """How long its requests took lately, in seconds; 0: none has ended."""
    answered: int = 0
    """Its requests of clients that ended well."""
    went_on: int = 0
    """Those of them that went on from state that was there."""
    packed: dict[str, dict[tuple[str, ...], int]] = field(init=False)
    """By agent, the bytes of the weights of each segment that it compiles; agents compile equal ones once."""

    def __post_init__(self) -> None:
        """Note what agents pack of it."""
        self.packed = {
            name: {(s.digest, *(r.digest for r in s.weights.values())): s.weight_bytes for s in part.segments}
            for name, part in self.parts.items()
        }

    @property
    def epoch(self) -> int:
        """The number that every message of the variant bears."""
        return self.queue.epoch

    @property
    def name(self) -> str:
        """What it is called in reports."""
        return self.planned.name

    @property
    def is_ready(self) -> bool:
        """Whether all its agents are there and have it loaded."""
        return self.tracker.state == "ready"

    @property
    def is_scaled(self) -> bool:
        """Whether it was made like one for other shapes."""
        return SCALED_FROM in self.planned.report

    @property
    def takes_requests(self) -> bool:
        """Whether a request may start on it."""
        return self.is_ready and not self.suspects

    @property
    def peers(self) -> tuple[Peer, ...]:
        """The devices that take part."""
        return tuple(Peer(device, name, *split_place(place)) for device, (name, place) in enumerate(self.nodes) if name in self.parts)

    @property
    def devices(self) -> dict[str, int]:
        """The agents that take part, and which devices they are."""
        return {name: part.schedule.device for name, part in self.parts.items()}

    @property
    def device_names(self) -> tuple[str, ...]:
        """What records of it speak of: the nodes, and the coordinator last."""
        return (*(name for name, _ in self.nodes), COORDINATOR)

    def weight_bytes(self, name: str) -> int:
        """Return the bytes of the weights that an agent holds of it."""
        part = self.parts.get(name)
        return 0 if part is None else sum(kind.nbytes for kind in part.weight_types.values())

    def took(self, seconds: float) -> None:
        """Learn how long a request took."""
        self.stalls = 0
        self.usual_s += (seconds - self.usual_s) * (SMOOTHING if self.usual_s else 1.0)


@dataclass(frozen=True, slots=True)
class Job:
    """Planning that goes on: over these agents; over none for a standby."""

    number: int
    world: str = ""
    names: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    spare_for: str = ""
    """The agent for whose loss it is made; empty: it is to serve."""
    bases: tuple[Base, ...] = ()
    """The variants that it is to be like one of."""
    is_ahead: bool = False
    """Whether nobody needs it yet: it was begun before the plan was earned, or is for a loss and has no room before that."""


@dataclass(frozen=True, slots=True)
class MadeAhead:
    """What a job has made of a plan that nobody needs yet: the coordinator holds it, and no agent has been told of it."""

    job: Job
    variants: tuple[PlannedVariant, ...]


@dataclass(frozen=True, slots=True)
class Death:
    """How an agent's worker was ended, and whether it loaded what is blamed for that, or computed it."""

    agent: str
    ended_by: EndedBy
    by_loading: bool
    reason: str


@dataclass(slots=True)
class PlanCaller:
    """Until when somebody waits for a plan, and when they said so or asked after it last, in seconds."""

    until: float
    asked: float


@dataclass(eq=False, slots=True)
class ServedPlan:
    """A model with shapes and options; without `options` it is the standby of the model, with a variant per copy.

    Invariants: `callers` wait for `ModelPrepared`; `waiting` are requests that wait for a variant with room;
    `timing` is there while the variants of a job are timed; while there is a `job`, nothing is made `ahead`.
    """

    key: str
    model: str
    files: tuple[ModelFile, ...]
    shapes: Mapping[str, tuple[int, ...]]
    options: PlanOptions | None
    standby: ServedPlan | None
    policy: Policy = field(init=False)
    variants: list[Variant] = field(default_factory=list)
    planned: tuple[PlannedVariant, ...] = ()
    """Of a standby: what every copy is."""
    job: Job | None = None
    ahead: MadeAhead | None = None
    latest: int = 0
    """The newest job that came to an end."""
    serves: bool = False
    """Whether its variants have been timed, or need not be."""
    timing: Timing | None = None
    callers: dict[Caller, PlanCaller] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    requests: int = 0
    """That were ever asked for."""
    first_asked: float = float("inf")
    """When it was asked for first, in seconds."""
    asked: float = float("-inf")
    """When it was last asked for, in seconds."""
    client: RoutingId = b""
    """Who asked for it last."""
    failed: dict[str, tuple[Fault, str]] = field(default_factory=dict)
    """Why there is no plan for a world."""
    latest_failure: str = ""
    """Why it could not be made when that was tried last; `failed` is forgotten when it may be tried again."""
    failures: int = 0
    """How often in a row it could not be made."""
    slower: int = 0
    """How often in a row it was made, and was slower than the standby."""
    again_at: float = float("inf")
    """When what `failed` may be tried again, in seconds."""
    uncovered: dict[str, str] = field(default_factory=dict)
    """Agents without which neither it nor a standby answers, and why."""
    held: dict[str, MadeAhead] = field(default_factory=dict)
    """By agent, what is loaded when it is lost, as there is no room for it before; without variants, nothing can be made."""
    refused: dict[str, str] = field(default_factory=dict)
    """Of a standby: the nodes that cannot load it, and why."""
    is_restored: bool = False
    """Of a standby: whether an earlier coordinator has left it on the disk."""
    refusals: Counter[str] = field(default_factory=Counter)
    """How often each node could not load it since `failed` was empty."""
    timed: int = 0
    """The newest job whose variants have been timed."""
    deaths: list[Death] = field(default_factory=list)
    """Of workers that it has ended."""
    latest_death: float = float("-inf")
    """When it ended the latest of them, in seconds."""
    deadly: int = 0
    """The run that has ended the latest of them."""
    quarantine: str = ""
    """Why it is not run: it has ended workers."""
    quarantine_ends: float = float("inf")
    """When it is tried again, in seconds."""
    quarantines: int = 0
    """How often it was not run for a while."""
    trial: PlanTrial = field(default_factory=PlanTrial)
    unlike: Mapping[int, str] = field(default_factory=dict)
    """The jobs whose variants it cannot be like, and why."""
    searched: float = float("-inf")
    """Of a standby: when a plan for further shapes was searched for last, in seconds."""
    is_dormant: bool = False
    """Of a standby: whether it has made room for others, or lacked memory; it is loaded again when somebody waits for a plan of it."""
    outstanding: int = 0
    """Its requests that are not answered, wherever they run; of a standby those of its model."""
    is_proven: bool = False
    """Whether a request on it has ended without ending its worker."""
    ran_late: bool = False
    """Of a standby: whether a request has run on it for too long before any has ended, or may have, before the coordinator came back."""
    state: tuple[tuple[str, str], ...] = ()
    """Inputs, and the outputs that they are in the next request of a sequence."""
    top: tuple[tuple[str, int], ...] = ()
    """Outputs of which only so many largest elements are answered."""

    def __post_init__(self) -> None:
        """Choose among its variants by what counts."""
        self.policy = LeastFinishTime() if self.is_standby or self.is_stream else LowestLatency()

    @property
    def is_condemned(self) -> bool:
        """Whether it is not run again, ever."""
        return bool(self.quarantine) and self.quarantine_ends == float("inf")

    @property
    def is_too_large(self) -> bool:
        """Of a standby: whether it is not run for want of memory to load it, so that parts of the model may fit where it does not."""
        lacked_memory = [death.by_loading and death.ended_by is EndedBy.MEMORY for death in self.deaths]
        return self.is_standby and bool(self.quarantine and lacked_memory) and all(lacked_memory)

    @property
    def is_standby(self) -> bool:
        """Whether it is the standby of its model."""
        return self.options is None

    @property
    def helper(self) -> ServedPlan | None:
        """The standby if it answers what this plan answers: not where a client gives inputs instead of weights."""
        known = () if self.standby is None else self.standby.planned
        return None if known and len(known[0].artifacts.host.feeds) != len(self.shapes) else self.standby

    @property
    def source(self) -> ServedPlan | None:
        """What answers its requests now: itself or its standby."""
        return self if self.serving else self.helper if self.helper is not None and self.helper.serving else None

    @property
    def is_stream(self) -> bool:
        """Whether what counts is how many requests are done, not how soon one is."""
        return self.options is not None and self.options.objective == "throughput"

    @property
    def is_wanted(self) -> bool:
        """Whether anybody waits for it."""
        return bool(self.callers or self.waiting)

    @property
    def running(self) -> list[int]:
        """The requests that are in flight on its variants."""
        return [number for variant in self.variants for number in variant.queue.running]

    @property
    def open_variants(self) -> list[Variant]:
        """The variants that take requests now; of a stream the newest over the same agents, which would have two queues otherwise."""
        ready = [variant for variant in self.variants if variant.takes_requests] if not self.quarantine else []
        if not self.is_stream or len(ready) < 2:
            return ready
        newest = {frozenset(variant.parts): variant for variant in sorted(ready, key=lambda variant: variant.job)}
        return [variant for variant in ready if newest[frozenset(variant.parts)] is variant]

    @property
    def answering(self) -> list[Variant]:
        """What its requests may run on now: its variants, once these serve, and the copies of its standby."""
        return [*(self.open_variants if self.serves else ()), *(self.helper.open_variants if self.helper is not None else ())]

    @property
    def serving(self) -> list[Variant]:
        """The variants that take the requests of the plan now: one, all of a stream, or none."""
        ready = self.open_variants if self.serves else []
        if not ready or isinstance(self.policy, LeastFinishTime):
            return ready
        epoch = self.policy.best([variant.epoch for variant in ready])
        return [variant for variant in ready if variant.epoch == epoch]

    @property
    def number(self) -> int:
        """What clients are told: another one than before means that another plan or variant serves them."""
        serving = self.serving
        return serving[0].epoch if serving and self.policy.serving is not None else self.latest

    @property
    def is_arriving(self) -> bool:
        """Whether variants of its newest job are being loaded, or will be; those that wait for an agent that is away are not."""
        newest = [variant for variant in self.variants if variant.job == self.latest]
        return any(variant.tracker.state in {"waiting", "loading"} and not variant.away for variant in newest)

    def fall_back(self) -> None:
        """Go on with what was made before the newest job, if nothing serves and of that nothing is there or comes."""
        ready = [variant.job for variant in self.variants if variant.takes_requests]
        if ready and self.latest not in ready and not self.serving and not self.is_arriving:
            self.latest = max(ready)

    def is_used(self, now: float) -> bool:
        """Whether it was asked for lately, or what was asked for waits."""
        return bool(self.waiting) or now - self.asked <= IN_USE_S

    def is_asked(self, client: RoutingId, now: float) -> None:
        """Note that it is asked for, and its model with it."""
        self.client, self.asked, self.first_asked = client, now, min(self.first_asked, now)
        if self.standby is not None:
            self.standby.client, self.standby.asked = client, now

    def fails(self, world: str, fault: Fault, reason: str, now: float) -> None:
        """Note that it cannot be made for a world, and when that may be tried again: later each time."""
        self.failed[world] = (fault, reason)
        self.latest_failure = reason
        self.wait(now)

    def wait(self, now: float) -> None:
        """Do not try again what has failed for a while, longer each time; what fails meanwhile, over other agents, counts with it."""
        self.failures = max(1, self.failures + (self.again_at == float("inf")))
        self.again_at = now + _later_s(FIRST_AGAIN_S, self.failures)

    def was_slower(self, now: float) -> None:
        """Note that it could be made, and is not worth its place: it is made again later each time."""
        self.failures, self.slower = 0, self.slower + 1
        self.again_at = now + _later_s(SLOWER_AGAIN_S, self.slower)

    def try_again(self, now: float) -> None:
        """Forget what has failed if it is time to."""
        if now < self.again_at:
            return
        self.failed = {}
        self.refused = {}
        self.refusals.clear()
        self.again_at = float("inf")

    def leave_uncovered(self, agent: str, reason: str) -> str:
        """Remember that requests wait for a new plan when an agent is lost, and why; return that in words."""
        self.uncovered[agent] = reason
        return f"{self.called} fits no node; when '{agent}' is lost, requests wait until there is a plan without it: {reason}"

    @property
    def called(self) -> str:
        """Its model, as people and logs call it: by its file's name, and the first eight digits of its digest."""
        return f"model '{self.files[0].name.removesuffix('.onnx')}' ({self.model[:8]})"


def _later_s(first_s: float, times: int) -> float:
    """Return how long what has happened so often in a row is waited for, in seconds: twice as long as the time before."""
    return min(LAST_AGAIN_S, first_s * 2.0 ** min(times - 1, 30))
