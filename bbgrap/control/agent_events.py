"""What can happen to an agent, and what it can ask its process to do."""

from __future__ import annotations

from dataclasses import dataclass, field

from bbgrap.control.to_coordinator import Reconnect, ToCoordinator
from bbgrap.protocol.inspection import Inspect, Inspected
from bbgrap.protocol.limits import Digest
from bbgrap.protocol.messages import (
    Abandon,
    AgentCommand,
    AgentMessage,
    AnswerPings,
    Deploy,
    EndMeasuring,
    Heartbeat,
    Join,
    LinkBroken,
    LinksMeasured,
    LinksTried,
    Measure,
    Measured,
    MeasureLinks,
    Recorded,
    Release,
    RequestFailed,
    TryLinks,
    WeightChunk,
    WorkerLost,
)

# --- events ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A message of the coordinator arrived."""

    message: AgentCommand


@dataclass(frozen=True, slots=True)
class AgentTick:
    """Time passed; `heartbeat` says what the worker does. None: the worker is stopped, so that nobody shall take this agent for alive."""

    heartbeat: Heartbeat | None = field(default_factory=Heartbeat)
    is_receiving: bool = False
    """Whether bytes have come since the last one: what is on a slow or far way is no silence."""


@dataclass(frozen=True, slots=True)
class WeightsChecked:
    """Answer to `CheckWeights`: these are not in the store."""

    epoch: int
    missing: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class WeightArrived:
    """A chunk was stored: up to `received` bytes of a weight are here; `fault` says that its content is not what it claims."""

    digest: str
    received: int
    complete: bool
    fault: str = ""


@dataclass(frozen=True, slots=True)
class DeploymentLoaded:
    """Answer to `Deploy`: it is loaded, or `fault`; or these weights are `missing`, which were here when it was checked.

    `unreachable` are the devices that it sends to and that gave no answer, where that is the fault.
    """

    epoch: int
    fault: str = ""
    missing: tuple[str, ...] = ()
    unreachable: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerReady:
    """A worker takes instructions; `introduction` is what it found out about this machine."""

    introduction: Join


@dataclass(frozen=True, slots=True)
class Stop:
    """The operator ends this agent."""

    reason: str


Outcome = RequestFailed | Recorded | Measured | LinksMeasured | LinksTried | LinkBroken
"""A request failed on this agent or its records are there, or the answer to `Measuring`: what the coordinator is told of it."""

FromWorker = WorkerReady | WeightsChecked | WeightArrived | DeploymentLoaded | Outcome
"""What the worker says."""

AgentEvent = Received | AgentTick | FromWorker | WorkerLost | Inspected | Stop
"""`WorkerLost`: the worker ended, and with it all that it had loaded; a new one is being started."""


# --- instructions ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckWeights:
    """Look these digests up in the store."""

    epoch: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class DropBefore:
    """Forget all requests with lower numbers."""

    request: int


@dataclass(frozen=True, slots=True)
class LogLine:
    """Write a line for the operator."""

    text: str


@dataclass(frozen=True, slots=True)
class Quit:
    """End the process; an empty `fault` is a polite end."""

    fault: str


Measuring = Measure | MeasureLinks | EndMeasuring | TryLinks | AnswerPings
"""To measure this machine or its links and answer with an `Outcome`, to end that, or to let peers measure theirs."""

ToWorker = CheckWeights | WeightChunk | Deploy | Release | Abandon | DropBefore | Measuring
"""What the worker is told: mostly in the coordinator's own words."""

AgentInstruction = ToCoordinator[AgentMessage] | ToWorker | Inspect | Reconnect | LogLine | Quit
"""`Inspect`: find out how this machine is, without the worker, and answer with `Inspected`."""
