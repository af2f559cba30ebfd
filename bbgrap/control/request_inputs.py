"""The inputs of a request of a sequence, and how they are kept."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from dataclasses import dataclass

from bbgrap.protocol.client_messages import RunModel
from bbgrap.protocol.messages import BytesLike, TensorHeader

_BESIDES_BYTES = 512
"""What keeping a request takes beside its inputs."""
DISK_FOR_MEMORY = 32
"""Bytes on disk that are kept where one of memory may be: 8 GiB for 256 MiB. Chosen: states of two networks like VGG, and their samples."""


def keep(inputs: Sequence[BytesLike]) -> tuple[BytesLike, ...]:
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
