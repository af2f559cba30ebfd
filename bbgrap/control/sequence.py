"""One sequence of requests: how far it is, where its state is, and what that was made of: inputs, and how they are kept."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from dataclasses import dataclass

from bbgrap.control.coordinator_events import RoutingId
from bbgrap.protocol.client_messages import RunModel
from bbgrap.protocol.messages import BytesLike, TensorHeader

_BESIDES_BYTES = 512
"""What keeping a request takes beside its inputs."""
DISK_FOR_MEMORY = 32
"""Bytes on disk that are kept where one of memory may be: 8 GiB for 256 MiB. Chosen: states of two networks like VGG, and their samples."""


def keep(inputs: Iterable[BytesLike]) -> tuple[BytesLike, ...]:
    """Return a request's inputs as they can stay: what is in a file as it is, a copy in memory of all else."""
    return tuple(each if isinstance(each, memoryview) and isinstance(each.obj, mmap.mmap) else bytes(each) for each in inputs)


@dataclass(frozen=True, slots=True)
class RequestInputs:
    """The inputs of one request."""

    inputs: tuple[TensorHeader, ...]
    payload: tuple[BytesLike, ...]

    @property
    def price(self) -> int:
        """What it takes to keep them, in bytes of memory; some bytes on disk count as one."""
        return sum(len(each) if isinstance(each, bytes) else len(each) // DISK_FOR_MEMORY for each in self.payload) + _BESIDES_BYTES


def given_of(message: RunModel) -> RequestInputs:
    """Return the inputs of a request."""
    return RequestInputs(message.inputs, tuple(message.payload))


@dataclass(eq=False, slots=True)
class Sequence:
    """One sequence.

    Invariants: `steps` of its requests are answered, and `given` are their inputs; None: they are not kept. The variant of `epoch` has the
    `state` after `seen` of them, or after one more that is not answered yet, and that `before`, as (state, seen).
    """

    number: int
    client: RoutingId
    name: int
    """What the client calls it."""
    plan: str
    """The key of its plan."""
    model: str
    used: float
    given: list[RequestInputs] | None
    steps: int = 0
    epoch: int = 0
    state: int = 0
    seen: int = 0
    running: int = 0
    """How many of its requests the run that began last stands for; 0: it reads the state."""
    arriving_bytes: int = 0
    """Inputs that the run that began last brings and usual ones do not: state, or what is joined."""
    before: tuple[int, int] = (0, 0)
    is_open: bool = False
    """Whether a request of it is not answered."""
    is_repeated: bool = False
    """Whether that one was answered before, which its client may have heard."""
    losses: int = 0
    """How often an agent had no room for its state since its latest request came."""
    joins: bool = True
    """Whether several of its requests may run again as one: not after that was refused, as by operators that take one sequence only, or
    ended a worker."""

    @property
    def label(self) -> str:
        """What messages call it."""
        return f"sequence {self.name} of model {self.model[:8]}"

    @property
    def is_made_anew(self) -> bool:
        """Whether a request waits for the state, which is nowhere, or not up to here."""
        return self.is_open and self.seen < self.steps

    def place(self, epoch: int) -> None:
        """Let its home be one where nothing of it is."""
        self.epoch, self.state, self.seen, self.before = epoch, 0, 0, (0, 0)

    def go_back(self) -> None:
        """Forget what a request that is not part of it has left."""
        if self.seen > self.steps:
            self.state, self.seen = self.before

    def coming(self, message: RunModel, *, at_home: bool) -> list[RequestInputs]:
        """Return the inputs of all requests that are to run: from where the state is, or from the beginning, to this one."""
        return [*(self.given or ())[self.seen if at_home else 0 :], *([] if message.reads else [given_of(message)])]
