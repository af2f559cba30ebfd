"""The inputs of a request of a sequence, and how they are kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bbgrap.protocol.client_messages import RunModel
from bbgrap.protocol.messages import BytesLike, TensorHeader

_BESIDES_BYTES = 512
"""What keeping a request takes beside its inputs."""
DISK_FOR_MEMORY = 32
"""Bytes on disk that are kept where one of memory may be: 8 GiB for 256 MiB. Chosen: states of two networks like VGG, and their samples."""

Keep = Callable[[Sequence[BytesLike]], tuple[BytesLike, ...]]
"""Returns copies of a request's inputs; what is no `bytes` is on disk."""


def in_memory(inputs: Sequence[BytesLike]) -> tuple[bytes, ...]:
    """Copy inputs to memory."""
    return tuple(map(bytes, inputs))


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
