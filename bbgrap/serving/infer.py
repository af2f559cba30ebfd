"""One inference as the protocol asks for it, however it came; HTTP and gRPC both make an `Infer`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bbgrap.graph.types import Array
from bbgrap.serving.datatypes import BytesLike, of_bytes, of_list
from bbgrap.serving.refusals import malformed

_REFUSED = {
    "shared_memory_region": "tensors in shared memory are not taken; send them",
    "classification": "classes are not counted here; ask for the output and sort it",
    "sequence_id": "models here keep no state between requests",
}
"""Parameters that change what an answer means: to leave them out would be a wrong answer."""

MAX_TENSORS = 10_000


@dataclass(frozen=True, slots=True)
class Given:
    """An input: raw bytes, or a list."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    content: BytesLike | Sequence[Any]

    def array(self) -> Array:
        """Return the tensor.

        Raises:
            RefusedError: if the content is not what was announced.
        """
        if isinstance(self.content, bytes | bytearray | memoryview):
            return of_bytes(self.name, self.datatype, self.shape, self.content)
        return of_list(self.name, self.datatype, self.shape, self.content)


@dataclass(frozen=True, slots=True)
class Wanted:
    """An output that was asked for, and whether as raw bytes."""

    name: str
    binary: bool


@dataclass(frozen=True, slots=True)
class Infer:
    """A request; without `outputs` all are wanted."""

    id: str
    timeout_s: float | None
    inputs: tuple[Given, ...]
    outputs: tuple[Wanted, ...]
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


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Return the parameter `timeout`, microseconds, in seconds; None if there is none, or it is 0.

    Raises:
        RefusedError: if it is no number of microseconds.
    """
    timeout = parameters.get("timeout", 0)
    if type(timeout) is not int or not 0 <= timeout < 1 << 63:
        raise malformed("parameter 'timeout': expected whole microseconds")
    return timeout / 1e6 if timeout else None
