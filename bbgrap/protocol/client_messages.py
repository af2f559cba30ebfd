"""The control messages between clients and coordinator; see `messages` for the laws."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from bbgrap.cluster.types import NodeProfile
from bbgrap.planners.options import PlanOptions
from bbgrap.protocol.faults import Fault
from bbgrap.protocol.inspection import ForgetProfile, Inspection, InspectNodes, KnownProfiles, ListProfiles
from bbgrap.protocol.key_messages import TokenCall, TokenMade, Tokens
from bbgrap.protocol.limits import MAX_ASKED, MAX_REPORT_BYTES, Digest, FileName, Length, Name, Text
from bbgrap.protocol.messages import Chunk, TensorHeader, Tensors
from bbgrap.protocol.status_messages import NodeStatus, StatusAnswer, StatusCall
from bbgrap.runtime.recording import Record

CallNumbers = Annotated[tuple[int, ...], Length(MAX_ASKED)]

# --- client -> coordinator: all but `Ask`, `Cancel`, `ForkSequence` and `EndSequence` are calls that get one final answer ---------


@dataclass(frozen=True, slots=True)
class Hello:
    """The first word of a client."""

    call: int


@dataclass(frozen=True, slots=True)
class ListNodes:
    """Which agents are there?"""

    call: int


@dataclass(frozen=True, slots=True)
class ModelFile:
    """A file of a model: the .onnx file, or a file of external data beside it or in folders there."""

    name: FileName
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class OfferModel:
    """Which of these files are missing? The first one is the model; `model` is the digest of the whole offer."""

    call: int
    model: Digest
    files: tuple[ModelFile, ...]


@dataclass(frozen=True, slots=True)
class ModelChunk:
    """Bytes of an offered file from `offset` on."""

    call: int
    digest: Digest
    offset: int
    payload: Chunk


@dataclass(frozen=True, slots=True)
class PrepareModel:
    """Plan a model for concrete input shapes over the agents that are there, and deploy it.

    With `wait`, the answer comes when the plan is ready, an error if that is not so within `deadline_s`; without, at once: requests are
    answered by the model's standby meanwhile.
    """

    call: int
    model: Digest
    shapes: Mapping[Name, tuple[int, ...]]
    options: PlanOptions
    wait: bool = True
    deadline_s: float = 300.0


@dataclass(frozen=True, slots=True)
class RunModel:
    """Run one request on a plan; inputs in the model's order; an error if there is no answer within `deadline_s`.

    With `record`, the answer tells when every device did what. A request of a `sequence` (the client numbers them from 1; 0: of none) goes
    on from the state that `step` requests before it have left; the first one, step 0, has that state among its inputs, others do not. One
    that `reads` has no inputs, is answered by that state, and is no part of the sequence.
    """

    call: int
    plan: Digest
    deadline_s: float
    inputs: tuple[TensorHeader, ...]
    payload: Tensors
    record: bool = False
    sequence: int = 0
    step: int = 0
    reads: bool = False


@dataclass(frozen=True, slots=True)
class ForkSequence:
    """From here on another sequence has the same state, too; the next request of each goes on from there. There is no answer."""

    sequence: int
    other: int


@dataclass(frozen=True, slots=True)
class EndSequence:
    """Nobody wants the state of this sequence any more. There is no answer; one that is idle for long ends by itself."""

    sequence: int


@dataclass(frozen=True, slots=True)
class MeasureNodes:
    """Measure one agent and its links, or all of them (empty name)."""

    call: int
    name: Annotated[str, Length(200)]


@dataclass(frozen=True, slots=True)
class MeasureUnknown:
    """Measure the agents that nothing is known of, unless that has failed lately: what a coordinator does by itself once it is idle."""

    call: int


@dataclass(frozen=True, slots=True)
class SetProfile:
    """Use this profile for the node of that name from now on."""

    call: int
    profile: NodeProfile


@dataclass(frozen=True, slots=True)
class Cancel:
    """The answer to a call is not wanted any more."""

    call: int


@dataclass(frozen=True, slots=True)
class Ask:
    """Which of these calls are you still working on?"""

    calls: CallNumbers


ClusterCall = (
    Hello
    | ListNodes
    | OfferModel
    | ModelChunk
    | PrepareModel
    | RunModel
    | MeasureNodes
    | MeasureUnknown
    | SetProfile
    | ListProfiles
    | ForgetProfile
    | InspectNodes
    | StatusCall
)
Call = ClusterCall | TokenCall
ClientMessage = ClusterCall | ForkSequence | EndSequence | Cancel | Ask
"""What a client says, but for calls about tokens: those are among the messages about keys."""


# --- coordinator -> client ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Greeting:
    """Answer to `Hello`. `channel` is where clients on its machine offer shared memory; empty: none can."""

    call: int
    version: Name
    channel: Name = ""


@dataclass(frozen=True, slots=True)
class Nodes:
    """Answer to `ListNodes`."""

    call: int
    nodes: tuple[NodeStatus, ...]


@dataclass(frozen=True, slots=True)
class ModelMissing:
    """Answer to `OfferModel`: these files are not here yet (none: the model can be prepared)."""

    call: int
    digests: tuple[Digest, ...]


@dataclass(frozen=True, slots=True)
class ModelStored:
    """Answer to `ModelChunk`: the file is here up to `received`; go on from there."""

    call: int
    received: int
    complete: bool


BRINGING, FEEDING = "bringing the model", "sending weights"
IN_BYTES = (BRINGING, FEEDING)


@dataclass(frozen=True, slots=True)
class Progress:
    """What is done for a call now; not a final answer. `done` and `total` are bytes for the stages of `IN_BYTES`, 0 if none is counted."""

    call: int
    stage: Name
    done: int
    total: int

    @property
    def text(self) -> str:
        """What people read."""
        if self.stage in IN_BYTES:
            return f"{self.stage} {self.done / 1e6:,.1f} of {self.total / 1e6:,.1f} MB"
        return f"{self.stage} {self.done} of {self.total}" if self.total else self.stage


@dataclass(frozen=True, slots=True)
class ModelPrepared:
    """Answer to `PrepareModel`. `report` is JSON; `agents` are the names of devices 0, 1, ..."""

    call: int
    plan: Digest
    epoch: int
    agents: tuple[Name, ...]
    report: Annotated[str, Length(MAX_REPORT_BYTES)]


@dataclass(frozen=True, slots=True)
class RunResult:
    """Answer to `RunModel`; an `epoch` other than the prepared one says that the model was planned anew.

    `records` are those of all devices that took part, the host's last; empty if none were asked for. `devices` are the names of all
    devices of what the request ran on, which is not always what was prepared: while variants of a plan are timed, each has its turn.
    """

    call: int
    epoch: int
    outputs: tuple[TensorHeader, ...]
    payload: Tensors
    records: tuple[Record, ...] = ()
    devices: tuple[Name, ...] = ()


@dataclass(frozen=True, slots=True)
class Profiles:
    """Answer to `MeasureNodes`, `MeasureUnknown` and `SetProfile`."""

    call: int
    profiles: tuple[NodeProfile, ...]


@dataclass(frozen=True, slots=True)
class Failed:
    """Final answer to any call: it did not work, and why."""

    call: int
    fault: Fault
    reason: Text


@dataclass(frozen=True, slots=True)
class StillWorking:
    """Answer to `Ask`: those of the calls that will still be answered."""

    asked: CallNumbers
    known: CallNumbers


FinalAnswer = (
    Greeting
    | Nodes
    | ModelMissing
    | ModelStored
    | ModelPrepared
    | RunResult
    | Profiles
    | KnownProfiles
    | Inspection
    | StatusAnswer
    | TokenMade
    | Tokens
    | Failed
)
ClientAnswer = FinalAnswer | Progress | StillWorking
