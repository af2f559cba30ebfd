"""What a coordinator can ask its process to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from bbgrap.cluster.types import Cluster, NodeProfile
from bbgrap.control.coordinator_events import RoutingId
from bbgrap.control.saved_state import StoredPlan
from bbgrap.planners.options import PlanOptions, TransferType
from bbgrap.protocol.client_messages import ClientAnswer, ModelChunk, ModelFile
from bbgrap.protocol.messages import AgentCommand, BytesLike, Peer, TensorHeader
from bbgrap.protocol.status_messages import LOSSES, EventKind
from bbgrap.runtime.schedule import Schedule


@dataclass(frozen=True, slots=True)
class ToAgent:
    """Send a message to an agent."""

    identity: RoutingId
    message: AgentCommand


@dataclass(frozen=True, slots=True)
class ToClient:
    """Send a message to a client."""

    identity: RoutingId
    message: ClientAnswer


@dataclass(frozen=True, slots=True)
class WriteChunk:
    """Store a piece of a file of `size` bytes, which is one of the files of a `model`."""

    identity: RoutingId
    chunk: ModelChunk
    size: int
    model: tuple[ModelFile, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class Base:
    """A variant that another plan is scaled from: what job made it, and which one it is of that."""

    job: int
    place: int


@dataclass(frozen=True, slots=True)
class StartPlanning:
    """Plan a model over a cluster, in the background; answer with `Planned` or `PlanFailed`. `job` names what is made.

    With `bases` it is to be like one of these, for other shapes, and nothing is searched. `client` has asked for it last.
    """

    job: int
    files: tuple[ModelFile, ...]
    shapes: Mapping[str, tuple[int, ...]]
    cluster: Cluster
    options: PlanOptions
    bases: tuple[Base, ...] = ()
    client: RoutingId = b""


@dataclass(frozen=True, slots=True)
class StartStandby:
    """Make the whole model ready for one device, with its free dimensions, in the background; answered as `StartPlanning` is."""

    job: int
    files: tuple[ModelFile, ...]
    state: tuple[tuple[str, str], ...] = ()
    top: tuple[tuple[str, int], ...] = ()
    client: RoutingId = b""


@dataclass(frozen=True, slots=True)
class CancelPlanning:
    """Stop a job, whatever it does; nothing of it is wanted any more, and no answer."""

    job: int


@dataclass(frozen=True, slots=True)
class SaveModel:
    """Keep what files a model has, over a restart."""

    model: str
    files: tuple[ModelFile, ...]


@dataclass(frozen=True, slots=True)
class SaveProfile:
    """Keep what was measured of a node, or given by hand, over a restart."""

    profile: NodeProfile
    by_hand: bool


@dataclass(frozen=True, slots=True)
class RemoveProfile:
    """Keep no longer what was measured of a node, or given by hand."""

    node: str
    by_hand: bool


@dataclass(frozen=True, slots=True)
class SavePlan:
    """Keep a plan with its artifacts over a restart, or what has changed of it."""

    plan: StoredPlan


@dataclass(frozen=True, slots=True)
class ForgetPlan:
    """Remove what a job made, and the plan that was kept of it."""

    job: int


@dataclass(frozen=True, slots=True)
class HostDeploy:
    """Be the host of a deployment: connect to the devices that take part.

    `further` is its part in a sequence's further requests, `reading` that in reading a state.
    """

    epoch: int
    schedule: Schedule
    peers: tuple[Peer, ...]
    further: Schedule | None = None
    reading: Schedule | None = None


@dataclass(frozen=True, slots=True)
class HostRelease:
    """End the host's part of a deployment, with all its requests."""

    epoch: int


@dataclass(frozen=True, slots=True)
class HostPings:
    """Answer measuring messages of these peers, and of no others."""

    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """Run the host's schedule for a request; answer with `RequestDone` or `RequestBroke`. With `record`, note when, there and here.

    One of a `sequence` leaves state behind, and goes on from what request `before` has left; 0: state is among its inputs. One that `reads`
    tells that state, and leaves it as it is.
    """

    epoch: int
    request: int
    inputs: Sequence[TensorHeader]
    payload: Sequence[BytesLike]
    record: bool = False
    sequence: int = 0
    before: int = 0
    reads: bool = False


@dataclass(frozen=True, slots=True)
class KeepState:
    """Have the devices of a deployment know the state of a sequence as that of another one, too; 0: forget it."""

    epoch: int
    sequence: int
    other: int = 0


@dataclass(frozen=True, slots=True)
class DropRequest:
    """Forget the host's part of a request."""

    epoch: int
    request: int


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs of one run of a request."""

    outputs: tuple[TensorHeader, ...]
    payload: tuple[BytesLike, ...]

    @property
    def nbytes(self) -> int:
        """What the outputs take."""
        return sum(map(len, self.payload))


@dataclass(frozen=True, slots=True)
class Compare:
    """Compare the last of some answers to the same inputs with each of those before it, beside the requests; answer with `Compared`.

    `transfers` is what floats were on their way.
    """

    check: int
    answers: tuple[Answer, ...]
    transfers: TransferType


@dataclass(frozen=True, slots=True)
class ReadMachine:
    """Find out how this machine is, beside the requests; answer with `MachineRead`."""


@dataclass(frozen=True, slots=True)
class Log:
    """Write a line for the operator, and what it speaks of beside it; with `event` it is kept and told to who reads the status."""

    text: str
    is_warning: bool = False
    event: EventKind | None = None
    node: str = ""
    model: str = ""
    """Its digest."""
    epoch: int = 0
    request: int = 0

    @property
    def warns(self) -> bool:
        """Whether it is a warning: it says so itself, or what happened is one of `LOSSES`."""
        return self.is_warning or self.event in LOSSES


AuditEvent = Literal[
    "started",
    "stopped",
    "joined",
    "left",
    "lost",
    "enrolled",
    "refused",
    "brought",
    "prepared",
    "ran",
    "profile set",
    "profile removed",
    "measured",
    "token created",
    "token revoked",
    "token rotated",
    "verified",
    "differed",
    "omitted",
]
"""What the audit log tells of. `omitted` counts the lines that were too many in a minute, or found no room on the disk."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Write a line to the audit log: what happened, who did it, and more about it. It must hold neither secrets nor tensors.

    `detail` is of texts, numbers, and lists and mappings of such; peers may have chosen the texts.
    """

    event: AuditEvent
    who: Mapping[str, str]
    detail: Mapping[str, Any] = field(default_factory=dict)


CoordinatorInstruction = (
    ToAgent
    | ToClient
    | WriteChunk
    | StartPlanning
    | StartStandby
    | CancelPlanning
    | SaveModel
    | SaveProfile
    | RemoveProfile
    | SavePlan
    | ForgetPlan
    | HostDeploy
    | HostRelease
    | HostPings
    | StartRequest
    | KeepState
    | DropRequest
    | Compare
    | ReadMachine
    | Log
    | Audit
)
