"""What is shipped: for every device its schedule and its stand-alone ONNX models, and the weight slices they use, by content.

A segment's `skeleton` is a complete ONNX model except that the bytes of its weights are left out: each initializer refers to external
data, and whoever loads it supplies the tensors by initializer name. Equal weight slices have equal digests on every device and in
every deployment, so they are sent and kept once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from bbgrap.graph.types import Array, DType, TensorType
from bbgrap.runtime.joined_requests import JoinedInput
from bbgrap.runtime.schedule import Schedule, reading_of

_PACKED = {(DType.FLOAT, 2), (DType.UINT8, 3)}
"""Types and numbers of axes of what kernels of products pack."""
MAP_AXES = 4
"""Of maps, [N, C, H, W], and of the weights of their convolutions."""
_MORE_COPIES = 3
"""Of the weights of a convolution of maps while onnxruntime lays them out anew, one convolution after the other: measured."""


def packed_bytes(weights: Iterable[TensorType]) -> int:
    """Return the bytes of weights as kernels pack them: float16 as float32, for hardly a processor has kernels for it."""
    return sum(kind.nbytes * (2 if kind.dtype is DType.FLOAT16 else 1) for kind in weights)


def bytes_while_loaded(weights: Collection[TensorType]) -> int:
    """Return the bytes of the weights of a segment that are in memory once more at the worst moment of loading it.

    Matrices of floats, and those of few bits, are packed one by one from the pages of their files, which kernels read here and there: the
    largest should be in memory. All others may be copied, all of them before the first is let go: those of convolutions are laid out anew,
    which takes further copies of the largest, those of float16 are converted.
    """
    copied = sum(kind.nbytes for kind in weights if not _is_packed(kind))
    laid_out = max((kind.nbytes for kind in weights if kind.dtype is DType.FLOAT and len(kind.shape or ()) == MAP_AXES), default=0)
    return max(copied + _MORE_COPIES * laid_out, max((kind.nbytes for kind in weights), default=0))


def _is_packed(kind: TensorType) -> bool:
    return kind.shape is not None and (kind.dtype, len(kind.shape)) in _PACKED


@dataclass(frozen=True, slots=True)
class WeightRef:
    """A weight slice by the digest of its content, with its element type and shape."""

    digest: str
    type: TensorType


@dataclass(frozen=True, slots=True)
class SegmentModel:
    """One stand-alone model of one device.

    `inputs` and `outputs` are the names in the model, in the order in which `Run` lists their buffers.
    `weights` maps initializer names to the slices that fill them. `digest` is the SHA-256 (hex) of `skeleton`. `whole`: it is a model as
    its file has it, to be optimised like one, and no part of one that was optimised before it was cut.
    """

    name: str
    digest: str
    skeleton: bytes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: Mapping[str, WeightRef]
    whole: bool = False

    @property
    def weight_bytes(self) -> int:
        """Bytes of its weights, as kernels pack them."""
        return packed_bytes(ref.type for ref in self.weights.values())

    @property
    def bytes_while_loaded(self) -> int:
        """Bytes of its weights that are in memory once more at the worst moment of loading it."""
        return bytes_while_loaded([ref.type for ref in self.weights.values()])


@dataclass(frozen=True, slots=True)
class DeviceArtifacts:
    """Everything one device needs, apart from the bytes of the weights.

    `further` is its schedule for requests after the first one of a sequence, over the same segments; None without state.
    """

    schedule: Schedule
    segments: tuple[SegmentModel, ...]
    further: Schedule | None = None

    @property
    def takes_part(self) -> bool:
        """Whether it does anything."""
        return bool(self.schedule.steps) or (self.further is not None and bool(self.further.steps))

    @property
    def weight_bytes(self) -> int:
        """Bytes of the distinct weight slices this device holds."""
        return sum({ref.digest: ref.type.nbytes for s in self.segments for ref in s.weights.values()}.values())

    @property
    def loading_bytes(self) -> int:
        """Bytes of its weights as kernels pack them, and the most that one segment has in memory once more while it is loaded."""
        kinds = {ref.digest: ref.type for segment in self.segments for ref in segment.weights.values()}
        return packed_bytes(kinds.values()) + max((segment.bytes_while_loaded for segment in self.segments), default=0)


@dataclass(frozen=True)
class Artifacts:
    """A whole deployment: devices 0..N-1, the host's schedule (device N), and the weight slices by digest (read-only arrays).

    `further` is the host's schedule for requests after the first one of a sequence; None without state. `joinings` are inputs by name: how
    those of several requests of a sequence become those of one; empty: they do not.
    """

    devices: tuple[DeviceArtifacts, ...]
    host: Schedule
    weights: Mapping[str, Array] = field(repr=False, compare=False)
    further: Schedule | None = None
    joinings: Mapping[str, JoinedInput] = field(default_factory=dict)

    @property
    def reading(self) -> Schedule | None:
        """What the host does to read the state of a sequence; None where no device has the model whole."""
        device = self.devices[0] if len(self.devices) == 1 else None
        further = None if device is None or not all(segment.whole for segment in device.segments) else device.further
        return None if further is None else reading_of(further)[1]
