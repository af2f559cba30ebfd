"""One inference as the protocol asks for it, however it came; HTTP and gRPC both make an `InferRequest`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bbgrap.graph.types import Array
from bbgrap.serving.datatypes import BodyBytes, of_bytes, of_list
from bbgrap.serving.refusals import malformed

_REFUSED = {
    "shared_memory_region": "tensors in shared memory are not taken; send them",
    "classification": "classes are not counted here; ask for the output and sort it",
}
"""Parameters that change what an answer means: to leave them out would be a wrong answer."""

MAX_TENSORS = 10_000

_MAX_ID = 128
"""Letters of a sequence's name, as Triton has it."""


@dataclass(frozen=True, slots=True)
class InputTensor:
    """An input: raw bytes, a list, or the array that was made of one."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: BodyBytes | Sequence[Any] | Array

    def array(self) -> Array:
        """Return the tensor.

        Raises:
            RefusedError: if the content is not what was announced.
        """
        if isinstance(self.content, np.ndarray):
            return self.content
        if isinstance(self.content, bytes | bytearray | memoryview):
            return of_bytes(self.name, self.datatype, self.shape, self.content)
        return of_list(self.name, self.datatype, self.shape, self.content)


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """An output that was asked for, and whether as raw bytes."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class SequenceParameters:
    """Which sequence of its model a request is part of, and whether it is the first one of it, or the last."""

    sequence: int | str
    is_first: bool
    is_last: bool


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A request; without `outputs` all are wanted."""

    id: str
    part: SequenceParameters | None
    timeout_s: float | None
    inputs: tuple[InputTensor, ...]
    outputs: tuple[RequestedOutput, ...]
    binary: bool
    """Whether outputs are raw bytes if nothing else is said of them."""

    @property
    def output_names(self) -> tuple[str, ...] | None:
        """The names of the outputs that are wanted; None for all."""
        return tuple(wanted.name for wanted in self.outputs) or None

    def feed(self) -> dict[str, Array]:
        """Return the inputs.

        Raises:
            RefusedError: if one is not what was announced, or is there twice.
        """
        feed = {given.name: given.array() for given in self.inputs}
        if len(feed) != len(self.inputs):
            raise malformed("inputs: a name is there twice")
        return feed


def refuse_parameters(parameters: Mapping[str, Any]) -> None:
    """Look for parameters that cannot be left out.

    Raises:
        RefusedError: if there are some.
    """
    for name, why in _REFUSED.items():
        if parameters.get(name):
            raise malformed(f"parameter '{name}': {why}")


def part_of(parameters: Mapping[str, Any]) -> SequenceParameters | None:
    """Return what the parameters `sequence_id`, `sequence_start` and `sequence_end` say; None if the request is part of no sequence.

    Raises:
        RefusedError: if the first is neither a number below 2^64 nor a text, one of the others is no truth value, or the first is missing.
    """
    sequence = parameters.get("sequence_id", 0)
    flags = [parameters.get(f"sequence_{name}", False) for name in ("start", "end")]
    is_number = type(sequence) is int and 0 <= sequence < 1 << 64
    if not is_number and not (isinstance(sequence, str) and len(sequence) <= _MAX_ID):
        raise malformed(f"parameter 'sequence_id': expected a number below 2^64, or a text of at most {_MAX_ID} letters")
    if not all(isinstance(flag, bool) for flag in flags):
        raise malformed("parameters 'sequence_start' and 'sequence_end': expected true or false")
    if sequence:
        return SequenceParameters(sequence, *flags)
    if any(flags):
        raise malformed("parameters 'sequence_start' and 'sequence_end': of which sequence? 'sequence_id' is missing, 0 or empty")
    return None


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Return the parameter `timeout`, microseconds, in seconds; None if there is none, or it is 0.

    Raises:
        RefusedError: if it is no number of microseconds.
    """
    timeout = parameters.get("timeout", 0)
    if type(timeout) is not int or not 0 <= timeout < 1 << 63:
        raise malformed("parameter 'timeout': expected whole microseconds")
    return timeout / 1e6 if timeout else None
