"""A deployment's schedule and segments, compiled for this machine: maps that only its own segments read stay blocked between them.

What was shipped is portable. Here every segment is compiled (`bbgrap.engine.layout`), the assemblies at its front become `LocalJoin` steps
of the schedule, and it is decided which buffers are blocked. A buffer is, if it is

    written   by a segment that can make it in blocks, or by a `LocalJoin` most of whose elements come from blocked buffers
    read      by no segment that wants it plain, and by at least one segment or `LocalJoin` in blocks

A segment of which less is blocked than it offered is asked again, until nothing changes. Laws: what other devices send and are sent does
not change; a segment whose compiled form fails, or answers otherwise than the portable one, keeps the portable form.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path

from bbgrap.compiler.artifacts import SegmentModel
from bbgrap.engine.layout import SegmentCompiler, block_size
from bbgrap.errors import ExecutionError, ModelError
from bbgrap.graph.onnx_layout import Boundary
from bbgrap.graph.types import Array
from bbgrap.runtime.blocked import BlockedSlicePlan
from bbgrap.runtime.execution import SlicePlan
from bbgrap.runtime.schedule import BufferSpec, LocalJoin, LocalRun, LocalStep, Schedule, box_shape
from bbgrap_agent.deployment import Segment
from bbgrap_agent.segment_checks import SegmentCheck, SegmentPlace, placed
from bbgrap_agent.shared_segments import KnownSegment, SharedSegments, weights_key

_log = logging.getLogger("bbgrap.agent")


@dataclass(frozen=True)
class SegmentLoader:
    """How this agent makes sessions of segments."""

    filed: Callable[[SegmentModel], tuple[bytes, Mapping[str, Array], Path | None]]
    """Returns a segment that refers to files for its large weights, its other weights, and the files' folder, if there are any.

    Raises:
        ModelError: if a weight is gone.
    """
    portable: Callable[[SegmentModel], Segment]
    compiled: Callable[[SegmentCompiler, Boundary, SegmentModel], Segment]
    reference: Callable[[SegmentModel], Segment]
    """Makes what compiled forms are compared with: answers like the portable form, and is sooner made."""
    shared: SharedSegments = field(default_factory=SharedSegments)
    """What other deployments have, to be used instead of being made again."""

    def share_portable(self, model: SegmentModel) -> Segment:
        """Return a segment as it was shipped."""
        key = ("portable", model.digest, model.whole, model.inputs, model.outputs, weights_key(model))
        return self.shared.get(key, lambda: self.portable(model))


@dataclass(frozen=True)
class CompiledDeployment:
    """What the executor needs of a deployment."""

    schedule: Schedule
    slices: SlicePlan
    segments: tuple[Segment, ...]


@dataclass
class _Draft:
    """A segment under compilation.

    Invariants: `place` is where it is in the schedule.
    """

    model: SegmentModel
    compiler: SegmentCompiler
    known: KnownSegment
    place: SegmentPlace
    offer: Boundary
    """Inputs that it wants blocked, and outputs that it can make so."""
    checked: tuple[Boundary, Segment] | None = None
    """The boundary it was built for last, and what was built."""

    def boundary(self, maps: frozenset[int]) -> Boundary:
        """Return what of it is blocked, if these buffers are."""
        inputs, outputs = (
            frozenset(name for name in side if self.place.numbers[name] in maps) for side in (self.offer.inputs, self.offer.outputs)
        )
        return Boundary(inputs, outputs)


def load_portable(schedule: Schedule, models: Sequence[SegmentModel], loader: SegmentLoader) -> CompiledDeployment:
    """Load the segments of a deployment as they were shipped."""
    used = _run(schedule)
    segments = (loader.share_portable(model) if number in used else _not_run for number, model in enumerate(models))
    return CompiledDeployment(schedule, SlicePlan(schedule), tuple(segments))


def _run(schedule: Schedule) -> frozenset[int]:
    """Return the segments that a schedule runs; those of a deployment's other program are not made for it."""
    return frozenset(step.segment for step in schedule.steps if isinstance(step, LocalRun))


def _not_run(inputs: Sequence[Array]) -> Sequence[Array]:
    raise ExecutionError(f"a segment of another program was to run, on {len(inputs)} inputs")


def load_compiled(schedule: Schedule, models: Sequence[SegmentModel], loader: SegmentLoader) -> CompiledDeployment:
    """Load the segments of a deployment, compiled where that is possible."""
    block = block_size()
    if block is None:
        return load_portable(schedule, models, loader)
    drafts: dict[int, _Draft] = {}
    buffers = list(schedule.buffers)
    for step in schedule.steps:
        if isinstance(step, LocalRun) and (draft := _begin(models[step.segment], step, buffers, loader, block)) is not None:
            drafts[step.segment] = draft
    portable: dict[int, Segment] = {}
    while True:
        now, maps = _settle(replace(schedule, buffers=tuple(buffers)), drafts, block)
        slices = BlockedSlicePlan(now, block, maps)
        refused = {number: kept for number, draft in drafts.items() if (kept := _refused(draft, slices, loader)) is not None}
        if not refused:
            break
        portable.update(refused)
        for number in refused:
            del drafts[number]
    segments: list[Segment] = []
    used = _run(schedule)
    for number, model in enumerate(models):
        if number not in used:
            segments.append(_not_run)
            continue
        checked = drafts[number].checked if number in drafts else None
        segments.append(portable.get(number) or loader.share_portable(model) if checked is None else checked[1])
    _log.info("%d of %d segments compiled for this machine", len(drafts), len(models))
    return CompiledDeployment(now, slices, tuple(segments))


def _begin(model: SegmentModel, step: LocalRun, buffers: list[BufferSpec], loader: SegmentLoader, block: int) -> _Draft | None:
    """Split a segment's front off and ask for everything blocked; adds buffers for what is joined; None if nothing can be."""
    if model.whole:
        return None  # onnxruntime itself optimises it for this machine
    numbers = zip((*model.inputs, *model.outputs), (*step.inputs, *step.outputs), strict=True)
    shapes = {name: shape for name, number in numbers if (shape := buffers[number].shape) is not None}
    try:
        skeleton, weights, folder = loader.filed(model)
        compiler = SegmentCompiler(model.name, skeleton, weights, block, shapes, folder)
    except ModelError as error:
        _log.info("segment '%s' stays portable: %s", model.name, error)
        return None
    known = loader.shared.known(compiled_key(compiler, model))
    offer = None if compiler.hopeless else _offer(compiler, known, compiler.candidates)
    if offer is None:
        return None
    return _Draft(model, compiler, known, placed(model, compiler, step, buffers), offer)


def compiled_key(compiler: SegmentCompiler, model: SegmentModel) -> tuple[object, ...]:
    """Return what decides about what a segment is compiled to, but for its boundary."""
    return ("compiled", compiler.key, compiler.front.inputs, model.outputs, weights_key(model))


def _offer(compiler: SegmentCompiler, known: KnownSegment, inputs: frozenset[str]) -> Boundary | None:
    offer = known.offers.get(inputs)
    if offer is not None:
        return offer
    try:
        offer = known.offers[inputs] = compiler.boundary(inputs)
    except ModelError as error:
        _log.info("segment '%s' stays portable: %s", compiler.name, error)
        return None
    return offer


def _settle(shipped: Schedule, drafts: dict[int, _Draft], block: int) -> tuple[Schedule, frozenset[int]]:
    """Return the compiled schedule and its blocked buffers; drafts of which nothing is blocked go."""
    while True:
        schedule = _with_drafts(shipped, drafts)
        maps = _blocked_buffers(schedule, drafts, block)
        settled = True
        for number, draft in list(drafts.items()):
            now = draft.boundary(maps)
            if now.inputs == draft.offer.inputs and (now.inputs or now.outputs):
                continue
            settled = False
            offer = _offer(draft.compiler, draft.known, now.inputs) if now.inputs or now.outputs else None
            if offer is None:
                del drafts[number]
            else:
                draft.offer = offer
        if settled:
            return schedule, maps


def _with_drafts(shipped: Schedule, drafts: Mapping[int, _Draft]) -> Schedule:
    steps: list[LocalStep] = []
    for step in shipped.steps:
        draft = drafts.get(step.segment) if isinstance(step, LocalRun) else None
        steps += [step] if draft is None else [*draft.place.joins, draft.place.run]
    return replace(shipped, steps=tuple(steps))


def _blocked_buffers(schedule: Schedule, drafts: Mapping[int, _Draft], block: int) -> frozenset[int]:
    joins = {step.output: step for step in schedule.steps if isinstance(step, LocalJoin)}
    made = {draft.place.numbers[name] for draft in drafts.values() for name in draft.offer.outputs}
    wanted = {draft.place.numbers[name] for draft in drafts.values() for name in draft.offer.inputs}
    refused = {
        buffer
        for step in schedule.steps
        if isinstance(step, LocalRun)
        for buffer in step.inputs
        if step.segment not in drafts or buffer not in {drafts[step.segment].place.numbers[n] for n in drafts[step.segment].offer.inputs}
    }
    found = (made | joins.keys()) - refused - set(schedule.results)
    while True:
        read = wanted | {part.buffer for output in joins.keys() & found for part, _ in joins[output].pieces}
        less = {buffer for buffer in found & read if buffer not in joins or _mostly_blocked(joins[buffer], found, block)}
        if less == found:
            return frozenset(found)
        found = less


def _mostly_blocked(join: LocalJoin, maps: Collection[int], block: int) -> bool:
    """Whether most elements of a join come from blocked buffers."""
    sizes = {True: 0, False: 0}
    for part, box in join.pieces:
        assert box is not None
        assert part.box is not None
        if any(bound % block for bound in (*box[1][0], *part.box[1][0])):
            return False
        sizes[part.buffer in maps] += prod(box_shape(box))
    return sizes[True] > sizes[False]


def _refused(draft: _Draft, slices: BlockedSlicePlan, loader: SegmentLoader) -> Segment | None:
    """Build a draft, unless it is there, and compare it with the portable form; return this if it is to be kept."""
    boundary = draft.boundary(slices.blocked)
    if draft.checked is not None and draft.checked[0] == boundary:
        return None
    key = (*compiled_key(draft.compiler, draft.model), boundary)
    if (found := loader.shared.find(key)) is not None:
        draft.checked = boundary, found
        return None
    if boundary in draft.known.refused:
        return loader.share_portable(draft.model)
    reference = loader.reference(draft.model)
    try:
        compiled = loader.compiled(draft.compiler, boundary, draft.model)
        draft.checked = boundary, compiled
        fault = _check(draft, slices).difference(compiled, reference)
        if not fault:
            loader.shared.get(key, lambda: compiled)
            loader.shared.warmed(compiled)
    except Exception as error:  # noqa: BLE001,RUF100 - whatever fails here, the portable form is as good as without compiling
        fault = " ".join(str(error).split())
    draft.compiler.forget()
    if not fault:
        return None
    draft.known.refused.add(boundary)
    _log.info("segment '%s' stays portable: %s", draft.model.name, fault)
    return loader.share_portable(draft.model)


def _check(draft: _Draft, slices: BlockedSlicePlan) -> SegmentCheck:
    names = draft.place.numbers.items()
    specs = {name: slices.schedule.buffers[number] for name, number in names}
    return SegmentCheck(draft.model, draft.compiler, specs, frozenset(name for name, number in names if number in slices.blocked))
