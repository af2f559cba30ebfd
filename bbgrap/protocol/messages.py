"""The control messages between agents and coordinator, as frozen values; one tagged union per direction.

    agent  -- AgentMessage  --> coordinator -- AgentCommand --> agent
    client -- ClientMessage --> coordinator -- ClientAnswer --> client       (in `client_messages`)

Laws: all integers are 0 <= n < 2**63 and all floats finite; sizes are bytes and times seconds; a field marked `Payload` travels in
frames of its own, uncopied. A message may arrive twice or not at all, so every one of them may be sent again.
`PROTOCOL_VERSION` grows when an older peer could misunderstand a message.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Annotated

from bbgrap.cluster.types import LinkProfile, NodeProfile
from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.graph.types import DType, TensorType
from bbgrap.protocol.inspection import Inspect, Inspected
from bbgrap.protocol.limits import MAX_CHUNK_BYTES, MAX_PAYLOAD_FRAMES, MAX_TENSOR_BYTES, Digest, Name, Payload, Text
from bbgrap.runtime.recording import Record
from bbgrap.runtime.schedule import Schedule

PROTOCOL_VERSION = 20

BytesLike = bytes | memoryview
Chunk = Annotated[tuple[BytesLike, ...], Payload(frames=1, frame_bytes=MAX_CHUNK_BYTES)]
Tensors = Annotated[tuple[BytesLike, ...], Payload(frames=MAX_PAYLOAD_FRAMES, frame_bytes=MAX_TENSOR_BYTES)]


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """One tensor of a request or an answer; its content is the payload frame at the same place."""

    name: Name
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Peer:
    """A device of a deployment, where its data plane listens and what it is called.

    `fingerprint` is the SHA-256 of its certificate (DER) in hex; "" where the data plane is plain.
    """

    device: int
    name: Name
    address: Name
    fingerprint: Name = ""


# --- agent -> coordinator -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Join:
    """The first word of an agent, repeated until it is answered; `holds` are the epochs that it has loaded from an earlier membership.

    `fingerprint` is that of the certificate that its data plane shows; "" where it is plain. Agents of one machine share `memory_bytes` if
    their `memory_group`, which limits it, is the same; "" is the whole machine.
    """

    name: Name
    version: Name
    onnxruntime: Name
    max_opset: int
    threads: int
    cores: int
    memory_bytes: int
    data_address: Name
    profile: NodeProfile | None
    holds: tuple[int, ...] = ()
    fingerprint: Name = ""
    memory_group: Name = ""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """The agent lives. Its worker has run `steps` segments in all, and computes for this request since `seconds` (zeros: for none).

    `used_bytes` is the memory that the worker takes, `free_bytes` what its machine or container has left (0: unknown); `busy_s` is how long
    the worker has computed in all.
    """

    epoch: int = 0
    request: int = 0
    seconds: float = 0.0
    steps: int = 0
    used_bytes: int = 0
    free_bytes: int = 0
    busy_s: float = 0.0


@dataclass(frozen=True, slots=True)
class WeightsMissing:
    """Answer to `Deploy`: send these weights; repeated when nothing came for a while."""

    epoch: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class WeightStored:
    """The first `received` bytes of a weight are here: permission to send more."""

    digest: Digest
    received: int


@dataclass(frozen=True, slots=True)
class Deployed:
    """The deployment is loaded, warmed up and connected."""

    epoch: int


@dataclass(frozen=True, slots=True)
class DeploymentFailed:
    """The deployment cannot be used on this agent, or no longer; `unreachable` are devices of it that gave no answer for seconds."""

    epoch: int
    reason: Text
    unreachable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request broke on this agent; the agent itself is well. `lost`: the state that it goes on from is not here."""

    epoch: int
    request: int
    reason: Text
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """When this agent did what for a request that is over, in the coordinator's time."""

    epoch: int
    request: int
    record: Record


@dataclass(frozen=True, slots=True)
class Measured:
    """Answer to `Measure`: the profile, still without links, or why there is none."""

    measurement: int
    profile: NodeProfile | None
    reason: Text


@dataclass(frozen=True, slots=True)
class LinksMeasured:
    """Answer to `MeasureLinks`: the links to the peers that answered, or why there are none."""

    measurement: int
    links: tuple[LinkProfile, ...]
    reason: Text


@dataclass(frozen=True, slots=True)
class LinksTried:
    """Answer to `TryLinks`: the devices of it that did not answer."""

    trial: int
    unreachable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """A connection of the data plane to this address broke, or cannot be made: what was sent over it may be lost."""

    address: Name
    reason: Text


class EndedBy(Enum):
    """What ended a worker: what it did (a crash, memory, its nanny when that took too long), or something from outside."""

    CRASH = "crash"
    MEMORY = "memory"
    NANNY = "nanny"
    OUTSIDE = "outside"

    @property
    def guilty(self) -> bool:
        """Whether what the worker did ended it."""
        return self is not EndedBy.OUTSIDE


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The process that computes ended, and all that ran on it; `reason` says how, in words.

    `epoch` and `request` are what it computed then, `loading` is the epoch that it loaded (zeros: nothing).
    Deployments that it had loaded are loaded again by themselves, and told as `Deployed`.
    """

    reason: Text
    epoch: int
    request: int
    ended_by: EndedBy
    loading: int = 0


@dataclass(frozen=True, slots=True)
class Leave:
    """The agent stops on purpose."""

    reason: Text


AgentMessage = (
    Join
    | Heartbeat
    | WeightsMissing
    | WeightStored
    | Deployed
    | DeploymentFailed
    | RequestFailed
    | Recorded
    | Measured
    | LinksMeasured
    | LinksTried
    | LinkBroken
    | WorkerLost
    | Inspected
    | Leave
)


# --- coordinator -> agent -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Welcome:
    """Accepted. With a new `membership` number, what was deployed before is void but for the epochs to `keep`.

    Requests on those with numbers below `first_request` are void, too: nobody waits for them any more.
    """

    membership: int
    heartbeat_s: float
    dead_after_s: float
    keep: tuple[int, ...] = ()
    first_request: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """Not accepted; `retry` says whether waiting may help.

    `unable`: the coordinator can accept nobody now, whatever is asked of it; it is waited for like one that is away.
    """

    reason: Text
    retry: bool
    unable: bool = False


@dataclass(frozen=True, slots=True)
class Rejoin:
    """The coordinator does not know the sender (any more): say `Join` again."""


@dataclass(frozen=True, slots=True)
class HeartbeatSeen:
    """Answer to `Heartbeat`: the coordinator lives."""


@dataclass(frozen=True, slots=True)
class Deploy:
    """Be device `schedule.device` of deployment `epoch`; repeated until there is an answer.

    `further` is what it does for requests of a sequence after the first one: they go on from the state that the one before has left.
    """

    epoch: int
    peers: tuple[Peer, ...]
    schedule: Schedule
    segments: tuple[SegmentModel, ...]
    further: Schedule | None = None

    @property
    def weight_types(self) -> dict[str, TensorType]:
        """Its weights, each once: their digests and types."""
        return {ref.digest: ref.type for segment in self.segments for ref in segment.weights.values()}

    @property
    def is_whole(self) -> bool:
        """Whether the agent has the model whole, as its file is: a standby."""
        return bool(self.segments) and all(segment.whole for segment in self.segments)


@dataclass(frozen=True, slots=True)
class WeightChunk:
    """Bytes of a weight slice from `offset` on; the slice is complete when `offset` and the chunk reach its size."""

    digest: Digest
    type: TensorType
    offset: int
    size: int
    payload: Chunk


@dataclass(frozen=True, slots=True)
class Abandon:
    """Forget a request: it failed elsewhere, ran out of time or is not wanted any more.

    A kernel that goes on with it for `patience_s` is taken for endless: its worker is ended, and guilty.
    """

    epoch: int
    request: int
    patience_s: float


@dataclass(frozen=True, slots=True)
class LoadNext:
    """Load a deployment before those that nobody waits for."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Release:
    """End a deployment."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure how fast this machine works."""

    measurement: int


@dataclass(frozen=True, slots=True)
class MeasureLinks:
    """Measure the links to the peers."""

    measurement: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class EndMeasuring:
    """End a measurement of this machine or its links, which disturbs what is to be done: nobody waits for its answer any more."""

    measurement: int


@dataclass(frozen=True, slots=True)
class TryLinks:
    """Find out which of these peers answer on the data plane."""

    trial: int
    peers: tuple[Peer, ...]


@dataclass(frozen=True, slots=True)
class AnswerPings:
    """Answer measuring messages of these peers, and of no others."""

    peers: tuple[Peer, ...]


AgentCommand = (
    Welcome
    | Refused
    | Rejoin
    | HeartbeatSeen
    | Deploy
    | WeightChunk
    | Abandon
    | LoadNext
    | Release
    | Measure
    | MeasureLinks
    | EndMeasuring
    | TryLinks
    | AnswerPings
    | Inspect
)
