"""What can happen to a coordinator."""

from __future__ import annotations

from dataclasses import dataclass

from bbgrap.control.planned_variant import PlannedVariant
from bbgrap.protocol.client_messages import ClientMessage
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.inspection import MachineFacts
from bbgrap.protocol.messages import AgentMessage, BytesLike, TensorHeader
from bbgrap.runtime.recording import Record

RoutingId = bytes
"""The routing id of an agent's or client's control connection."""


@dataclass(frozen=True, slots=True)
class FromPeer:
    """A control message arrived."""

    identity: RoutingId
    message: AgentMessage | ClientMessage


@dataclass(frozen=True, slots=True)
class Tick:
    """Time passed, and every message that had arrived before has been handled.

    `moving` are those from or to whom tensors were on their way since the last one, by fingerprint, as far as that is known.
    """

    moving: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class ChunkWritten:
    """Answer to `WriteChunk`: the file is here up to `received`; a `fault` says why it is not taken, `is_busy` that it may be soon.

    The files of the digests `gone` made room for it.
    """

    identity: RoutingId
    call: int
    digest: str
    received: int
    complete: bool
    fault: str = ""
    gone: tuple[str, ...] = ()
    is_busy: bool = False


@dataclass(frozen=True, slots=True)
class Planned:
    """Answer to `StartPlanning` and `StartStandby`: the ways to run the model, at least one; the first is loaded first.

    Each is for as many devices as the job was for; a standby is one, for one.
    """

    job: int
    variants: tuple[PlannedVariant, ...]


@dataclass(frozen=True, slots=True)
class PlanFailed:
    """Answer to `StartPlanning` and `StartStandby`: there is no plan. The files of the digests `gone` were stored, and are not any more."""

    job: int
    fault: Fault
    reason: str
    gone: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RequestDone:
    """The host's part of a request is finished; `record` is there if one was asked for."""

    request: int
    outputs: tuple[TensorHeader, ...]
    payload: tuple[BytesLike, ...]
    record: Record | None = None


@dataclass(frozen=True, slots=True)
class RequestBroke:
    """The host's part of a request failed."""

    request: int
    fault: Fault
    reason: str


@dataclass(frozen=True, slots=True)
class HostLinkBroken:
    """A connection of the host's data plane to this address broke: what was sent over it may be lost."""

    address: str


@dataclass(frozen=True, slots=True)
class Compared:
    """Answer to `Compare`: what is wrong with the last answer by each of those before it, nothing where they are the same.

    None: they could not be compared.
    """

    check: int
    faults: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Noticed:
    """Something happened that is the process's own affair, and that operators should see: keys."""

    text: str


@dataclass(frozen=True, slots=True)
class MachineRead:
    """Answer to `ReadMachine`: how the coordinator's machine is."""

    facts: MachineFacts


CoordinatorEvent = (
    FromPeer | Tick | ChunkWritten | Planned | PlanFailed | RequestDone | RequestBroke | HostLinkBroken | Compared | MachineRead | Noticed
)
