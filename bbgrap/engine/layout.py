"""One segment compiled for the CPU of this machine: feature maps enter and leave it as its convolutions want them, in blocks of channels.

    skeleton ── front split off, stand-ins put in ──► onnxruntime, all optimisations ──► boundary cut ──► session, as it is

A segment loaded by itself converts every map that enters or leaves, and cannot fuse a convolution with a sum whose other part enters
from outside. What is made here is valid on this CPU and with this onnxruntime only, and is never stored nor sent.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime as ort

from bbgrap.engine.optimizing import optimized
from bbgrap.engine.sessions import JOINS_AXES, make_session, segments_without
from bbgrap.engine.told_numbers import run_alone
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_forms import common_form, shapes_at
from bbgrap.graph.onnx_io import OnnxModel
from bbgrap.graph.onnx_layout import Boundary, Front, boundary_of, cut_boundary, split_front, with_stand_ins
from bbgrap.graph.types import Array, DType, Graph, Node, TensorType
from bbgrap.runtime.blocked import aligned_empty

_DOMAIN = "com.microsoft.nchwc"
_WEIGHTS: WeakValueDictionary[tuple[tuple[int, ...], bytes], Array] = WeakValueDictionary()
"""The weights of compiled sessions, by their shapes and samples of their content; used by the thread that loads."""
_SAMPLES = 64
"""Elements of a weight by which others are found that may be equal to it: to compare two takes far less time than to hash one."""

_PROBED_CHANNELS = 64
"""More than any block has."""


@cache
def block_size() -> int | None:
    """Return how many channels this CPU's convolutions keep together; None if they do not."""
    shape = (1, _PROBED_CHANNELS, 1, 2)
    kind = TensorType(DType.FLOAT, shape)
    node = Node("reorder", "ReorderInput", ("x",), ("y",), {"channels_last": 0}, _DOMAIN)
    graph = Graph("probe", (node,), ("x",), ("y",), {}, {"x": kind, "y": kind}, {"": 17, _DOMAIN: 1})
    found = run_alone(graph, {"x": np.arange(2 * _PROBED_CHANNELS, dtype=np.float32).reshape(shape)})
    if found is None:  # a build or a CPU without the layout
        return None
    # In memory, column 1 of channel 0 (the value 1) follows column 0 of one block of channels.
    block = int(np.argmax(found[0].reshape(-1) == 1))
    return block if 1 < block < _PROBED_CHANNELS and _PROBED_CHANNELS % block == 0 else None


class SegmentCompiler:
    """Compiles one segment, for any choice of blocked inputs.

    Invariants: `candidates` are the inputs that have whole blocks of channels and are not only flattened, `hopeless` is true if there are
    none, and no output has whole blocks either. Segments of equal `key` and weights compile to the same, whatever the sizes of their
    moving axes.
    """

    def __init__(
        self,
        name: str,
        skeleton: bytes,
        weights: Mapping[str, Array],
        block: int,
        shapes: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        folder: Path | None = None,
    ) -> None:
        """Take a segment as it was shipped, with the shapes of its inputs and outputs, and its weights by name but for those in files.

        Raises:
            ModelError: if the segment is not one that can be compiled.
        """
        self.name = name
        self.block = block
        self.front: Front = split_front(skeleton, shapes)
        whole = {n for n, shape in self.front.maps.items() if shape[1] % block == 0} - self.front.flattened
        self.hopeless = not whole
        self.candidates = frozenset(whole.intersection(self.front.inputs))
        self._weights = {name: weights[name] for name in self.front.weights if name in weights}
        self.key = hashlib.sha256(common_form(self.front.data, self.front.moving)).hexdigest()
        self._optimized: tuple[frozenset[str], OnnxModel] | None = None
        self._folder = folder
        self._shipped = skeleton, weights

    def resized(self, shapes: Mapping[str, tuple[int, ...]]) -> SegmentCompiler:
        """Return the compiler of the same segment with inputs of other shapes, by name.

        Raises:
            ModelError: if it is not one that can be compiled and run with them.
        """
        skeleton, weights = self._shipped
        return SegmentCompiler(self.name, skeleton, weights, self.block, shapes_at(skeleton, shapes), self._folder)

    def boundary(self, wanted: frozenset[str]) -> Boundary:
        """Return which of the wanted inputs gain from being blocked, and which outputs can be blocked then.

        Raises:
            ModelError: if onnxruntime cannot load or write the model.
        """
        return boundary_of(self._optimize(wanted), wanted, self.block)

    def build(self, boundary: Boundary, *, threads: int, shared_pool: bool = False, spinning: bool | int = True) -> ort.InferenceSession:
        """Return a session with these inputs and outputs blocked; arguments as in `make_session`.

        Raises:
            ModelError: if they cannot be, or onnxruntime cannot load what was made.
        """
        model = self._optimize(boundary.inputs)
        data = cut_boundary(model, boundary, self.block, self.front.moving)
        weights = {name: _aligned(array) for name, array in model.weights.items()}
        return make_session(data, weights=weights, threads=threads, shared_pool=shared_pool, spinning=spinning, optimize=False)

    def forget(self) -> None:
        """Let go of what was optimised last."""
        self._optimized = None

    def _optimize(self, inputs: frozenset[str]) -> OnnxModel:
        if self._optimized is None or self._optimized[0] != inputs:
            if not inputs <= self.candidates:
                raise ModelError(f"segment '{self.name}': {sorted(inputs - self.candidates)} have no whole blocks of channels")
            data = with_stand_ins(self.front.data, inputs)
            level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
            without = (*segments_without(data), *((JOINS_AXES,) if any(self.front.moving.values()) else ()))
            self._optimized = inputs, optimized(data, self._weights, level, self.name, without, self._folder)
        return self._optimized[1]


def _aligned(array: Array) -> Array:
    """Return a copy in memory that vector registers like: the file it is mapped from is gone, and its offsets are odd.

    Equal weights of sessions that are there are one array.
    """
    if array.dtype != np.float32:
        return np.array(array)
    key = array.shape, array.reshape(-1)[:: 1 + array.size // _SAMPLES].tobytes()
    made = _WEIGHTS.get(key)
    if made is None or not np.array_equal(made.view(np.uint32), array.view(np.uint32)):
        made = _WEIGHTS[key] = aligned_empty(array.shape)
        made[...] = array
    return made
