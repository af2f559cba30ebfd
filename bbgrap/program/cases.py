"""What each machine holds against what it needs, layer by layer: the cases of BBGraP's figure 5, told apart by name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from bbgrap.planners.plan import Plan
from bbgrap.program.steps import Apply, Program
from bbgrap.shapemap import ShapeMap


class Case(Enum):
    """How the needed region γ relates to the held region α (figure 5; `REDUCE`, `REMOTE` and `SCATTER` are not in the paper)."""

    FETCH_AND_CONCAT = "b: needs more than it holds: fetch the missing part and concatenate"
    IDENTICAL = "c: needs exactly what it holds: no crop, no concat, no transfer"
    CROP = "d: needs a part of what it holds: crop only"
    CROP_AND_FETCH = "e: needs a part of what it holds and something else: crop and fetch"
    REDUCE = "partial: holds a part of a sum, or none: fetch the other parts and add them up"
    REMOTE = "remote: holds nothing of what it needs: fetch all of it"
    SCATTER = "input: the coordinator sends what is needed of the model's input"


def classify(held: ShapeMap | None, needed: ShapeMap) -> Case:
    """Return the case of a held region α (None: nothing) and a needed, non-empty region γ of one value."""
    if held is None or held.intersect(needed).is_empty:
        return Case.REMOTE
    if held == needed:
        return Case.IDENTICAL
    if held.issuperset(needed):
        return Case.CROP
    return Case.FETCH_AND_CONCAT if needed.issuperset(held) else Case.CROP_AND_FETCH


@dataclass(frozen=True, slots=True)
class Need:
    """One machine's need of one value for one node."""

    node: str
    value: str
    device: int
    held: ShapeMap | None
    needed: ShapeMap
    case: Case

    @property
    def missing(self) -> tuple[ShapeMap, ...]:
        """The part of `needed` that is not held."""
        return (self.needed,) if self.held is None else self.needed.subtract(self.held)


def needs_of(plan: Plan, program: Program) -> Iterator[Need]:
    """Yield every need of a plan, by device and layer; `program` is the plan's program, before or after the passes."""
    graph = plan.graph
    for device in program.devices[: program.host]:
        applied = [op for op in device.ops if isinstance(op, Apply)]
        held_here = {device.buffers[b].value: device.buffers[b].region for op in applied for b in op.writes}
        for op in applied:
            node = graph.node_by_name[op.node]
            whole = [(name, ShapeMap.full(graph.types[name].shape or ())) for name in node.captured]
            for value, needed in [*zip(node.inputs, op.local.reads, strict=True), *whole]:
                if not value or needed is None or needed.is_empty or value in graph.weights:
                    continue
                held = held_here.get(value)
                case = Case.SCATTER if value in graph.inputs else classify(held, needed)
                if _is_partial(plan, value):
                    held, case = None, Case.REDUCE
                yield Need(node.name, value, device.device, held, needed, case)


def _is_partial(plan: Plan, value: str) -> bool:
    producer = plan.graph.producers.get(value)
    return producer is not None and plan.tiles[producer.name][0].part is not None
