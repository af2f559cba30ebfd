"""Whether a compiled segment answers like the one that was shipped: both run on the same synthetic inputs.

    sizes of moving axes made small ──► they fit, and the key is the same ──► both forms run ──► every output agrees
              ▲ twice as large          otherwise
              └─────────────────────────────┘ up to the sizes of the deployment

A segment whose axes move is one model for all their sizes (`SegmentCompiler.key`): for the next shapes it is used without another look. So
it is compared where that is cheap. Laws: sizes are made small only where the key says that the compiled form is the same; the others are
compared as they are. Compared at small sizes, a size is found that the optimiser took from the deployment and wrote into the model. Not
found is what only large maps show: rounding that grows with them, and faults of onnxruntime's own kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import lcm

import numpy as np

from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.engine.layout import SegmentCompiler
from bbgrap.errors import ModelError
from bbgrap.graph.onnx_layout import Extents, Patch
from bbgrap.graph.types import Array, DType
from bbgrap.runtime.blocked import BlockedSlicePlan, blocked
from bbgrap.runtime.schedule import Box, BufferSpec, LocalJoin, LocalPart, LocalRun, Schedule
from bbgrap_agent.deployment import Segment

TOLERANCE = 1e-5
"""Of the largest magnitude in a tensor: a sum that is fused with a convolution is added in another order."""
SMALL = 8
"""What the largest size of a moving axis becomes first, about. Chosen: most windows reach over less, and kernels compute less of a row at
once; a segment of many windows and strides makes nothing of so little."""
_STRIDES = 4
"""A size that is more times smaller than the largest stays as it is: it is no map's that a stride has made, but a halo's. Chosen."""
_CHANNELS = 1
"""The axis of a map that blocks divide."""


@dataclass(frozen=True)
class SegmentPlace:
    """A segment in a schedule, its front split off.

    Invariants: `joins` and `run` replace the step that was shipped; `numbers` are the buffers of its inputs and outputs by name.
    """

    joins: tuple[LocalJoin, ...]
    run: LocalRun
    numbers: Mapping[str, int]


def placed(model: SegmentModel, compiler: SegmentCompiler, step: LocalRun, buffers: list[BufferSpec]) -> SegmentPlace:
    """Return where a segment is whose front was split off; adds buffers for what is joined."""
    numbers = dict(zip((*model.inputs, *model.outputs), (*step.inputs, *step.outputs), strict=True))
    joins = []
    for name, patches in compiler.front.joined.items():
        joins.append(LocalJoin(len(buffers), tuple((LocalPart(numbers[p.source], _box(p.start, p)), _box(p.at, p)) for p in patches)))
        numbers[name] = len(buffers)
        buffers.append(BufferSpec(name, DType.FLOAT, compiler.front.maps[name]))
    run = LocalRun(step.segment, tuple(numbers[name] for name in compiler.front.inputs), step.outputs)
    return SegmentPlace(tuple(joins), run, numbers)


def _box(start: Sequence[int], patch: Patch) -> Box:
    return tuple(((first, first + extent),) for first, extent in zip(start, patch.shape, strict=True))


@dataclass(frozen=True)
class SegmentCheck:
    """What is compared: `specs` are a segment's inputs and outputs as it is deployed, `maps` the names of what is blocked there."""

    model: SegmentModel
    compiler: SegmentCompiler
    specs: Mapping[str, BufferSpec]
    maps: frozenset[str]

    def difference(self, compiled: Segment, portable: Segment) -> str:
        """Return what differs between two forms, or an empty text."""
        shapes: dict[str, Extents] = {}
        for name in self.model.inputs:
            spec = self.specs[name]
            if spec.shape is None:
                return f"the shape of '{spec.name}' is not known before the run"
            shapes[name] = spec.shape
        for small in _smaller_ones(shapes, self.compiler.front.moving):
            if (found := self._compared(small, compiled, portable)) is not None:
                return found
        feeds = self._feeds(shapes)
        return self._at(feeds, self.compiler, compiled, portable(feeds))

    def _compared(self, shapes: Mapping[str, Extents], compiled: Segment, portable: Segment) -> str | None:
        """Compare at other sizes; None if these do not fit together, or the compiled form is not the one for them."""
        try:
            compiler = self.compiler.resized(shapes)
        except ModelError:
            return None
        if (compiler.key, compiler.front.inputs) != (self.compiler.key, self.compiler.front.inputs):
            return None
        feeds = self._feeds(shapes)
        try:
            wanted = portable(feeds)
        except Exception:  # noqa: BLE001,RUF100 - onnxruntime's exceptions have no common base, and the shipped form is never at fault
            return None
        return self._at(feeds, compiler, compiled, wanted)

    def _feeds(self, shapes: Mapping[str, Extents]) -> list[Array]:
        """Return the same random inputs for the same shapes; ones where they are no floats, for integers may be divisors or indices."""
        random = np.random.default_rng(0)
        kinds = [self.specs[name].dtype.numpy for name in self.model.inputs]
        each = zip(self.model.inputs, kinds, strict=True)
        return [
            random.standard_normal(shapes[name], np.float32).astype(kind, copy=False) if kind.kind == "f" else np.ones(shapes[name], kind)
            for name, kind in each
        ]

    def _at(self, feeds: Sequence[Array], compiler: SegmentCompiler, compiled: Segment, wanted: Sequence[Array]) -> str:
        """Run the compiled form on inputs, joined and blocked as deployed; return which output is not the wanted one."""
        inputs, outputs = self.model.inputs, self.model.outputs
        buffers = [BufferSpec(name, self.specs[name].dtype, tuple(array.shape)) for name, array in zip(inputs, feeds, strict=True)]
        buffers += [BufferSpec(name, self.specs[name].dtype, tuple(array.shape)) for name, array in zip(outputs, wanted, strict=True)]
        numbers = range(len(buffers))
        place = placed(self.model, compiler, LocalRun(0, tuple(numbers[: len(inputs)]), tuple(numbers[len(inputs) :])), buffers)
        schedule = Schedule(0, 1, tuple(buffers), (*place.joins, place.run))
        slices = BlockedSlicePlan(schedule, compiler.block, {place.numbers[name] for name in self.maps})
        held = {number: blocked(array, slices.block) if number in slices.blocked else array for number, array in enumerate(feeds)}
        for join in place.joins:
            held[join.output] = slices.join(join, held)
        found = compiled([held[number] for number in place.run.inputs])
        for name, number, want, got in zip(outputs, place.run.outputs, wanted, found, strict=True):
            if not _agree(slices.part(LocalPart(number, None), got), want):
                return f"compiled, its '{self.specs[name].name}' differs"
        return ""


def _smaller_ones(shapes: Mapping[str, Extents], moving: Mapping[str, frozenset[int]]) -> Iterator[dict[str, Extents]]:
    """Yield ever larger shapes below the given ones: of each size some that are odd where these are, for strides leave odd ones over."""
    size, tried = SMALL, [dict(shapes)]
    while (small := smaller(shapes, moving, size)) != shapes:
        for made in (small, smaller(shapes, moving, size, 2)):
            if made not in tried:
                tried.append(made)
                yield made
        size *= 2


def smaller(shapes: Mapping[str, Extents], moving: Mapping[str, frozenset[int]], size: int = SMALL, step: int = 1) -> dict[str, Extents]:
    """Return shapes with sizes of moving axes up to about `size`, which are likely to fit together as the given ones do.

    A map of 122 rows and one of 61, which a stride of 2 has made of the like, become 8 and 4; a halo of 3 rows stays. What the sizes lose
    are multiples of `step`.
    """
    made = {name: list(shape) for name, shape in shapes.items()}
    for axis in {axis for axes in moving.values() for axis in axes} - {_CHANNELS}:
        sizes = {shapes[name][axis] for name in shapes if axis in moving.get(name, ())}
        strides = {extent: stride for extent in sizes if extent and (stride := round(max(sizes) / extent)) <= _STRIDES}
        unit = lcm(*strides.values(), step)
        less = max(0, min(((extent - size // stride) * stride for extent, stride in strides.items()), default=0)) // unit * unit
        for name, shape in shapes.items():
            if axis in moving.get(name, ()) and shape[axis] in strides:
                made[name][axis] -= less // strides[shape[axis]]
    return {name: tuple(shape) for name, shape in made.items()}


def _agree(got: Array, want: Array) -> bool:
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if want.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    scale = float(np.abs(want).max(initial=0.0, where=np.isfinite(want)))
    return bool(np.allclose(got, want, rtol=0.0, atol=TOLERANCE * scale, equal_nan=True))
