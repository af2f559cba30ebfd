"""A deployment as the executor needs it: its programs, and what computes their segments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bbgrap.errors import ExecutionError
from bbgrap.graph.types import Array
from bbgrap.transport.local_program import LocalProgram

Segment = Callable[[Sequence[Array]], Sequence[Array]]
"""A loaded segment; its inputs and outputs are in the order of `Run`."""


@dataclass(frozen=True)
class Deployment(LocalProgram):
    """A deployment as the executor needs it.

    Invariants: `further` is what it is for requests of a sequence that go on from state, `reading` for those that tell it. `received` has
    the messages of `further`, too: they may come before it is known which of the two a request is.
    """

    segments: tuple[Segment, ...]
    names: tuple[str, ...]
    further: Deployment | None = None
    reading: Deployment | None = None

    def __post_init__(self) -> None:
        """Look up what every message is, of whichever program."""
        super().__post_init__()
        if self.further is not None:
            object.__setattr__(self, "received", {**self.further.received, **self.received})

    @property
    def destinations(self) -> tuple[int, ...]:
        """The devices it sends to."""
        also = () if self.further is None else self.further.destinations
        return tuple(sorted({*also, *(layout.peer for layout in self.sent.values())}))

    def compute(self, segment: int, inputs: Sequence[Array]) -> Sequence[Array]:
        """Run a segment.

        Raises:
            ExecutionError: if it fails; the message names the segment.
        """
        try:
            return self.segments[segment](inputs)
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise ExecutionError(f"segment '{self.names[segment]}': {' '.join(str(error).split())[:2000]}") from error
