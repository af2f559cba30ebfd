"""What a session makes of the coordinator's answers: outputs, times, plans."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from bbgrap.costmodel.timeline import Timeline
from bbgrap.errors import InputError
from bbgrap.planners.options import undivided_note
from bbgrap.protocol.client_messages import ModelPrepared, RunResult
from bbgrap.protocol.tensors import decode_array
from bbgrap.report.trace import timeline_of
from bbgrap.session.signature import Signature
from bbgrap.session.values import unpacked_output


class PreparedPlan:
    """What was planned for one combination of input shapes.

    `report` is the object that `bbgrap plan --json` prints; `agents` are the names of its devices, in order. `is_current` is whether
    it was waited for, and requests have been answered by nobody else since.
    """

    def __init__(self, answer: ModelPrepared, *, is_current: bool = True) -> None:
        self.is_current = is_current
        self.key = answer.plan
        self.epoch = answer.epoch
        self.agents = answer.agents
        self.report: Mapping[str, Any] = json.loads(answer.report)

    def summary(self) -> str:
        """Return a few lines for people."""
        used: Sequence[str] = self.report.get("nodes_used") or self.agents
        of_all = f"{len(used)} of " if len(used) < len(self.agents) else ""
        nodes = f"{of_all}{len(self.agents)} node{'s' * (len(self.agents) != 1)}"
        planner = self.report.get("planner", "plan")
        lines = [f"{planner} on {nodes}: {', '.join(used)}"]
        lines += filter(None, [undivided_note(planner, len(used), len(self.agents))])
        times = {key: self.report.get(key) for key in ("predicted_ms", "predicted_single_node_ms")}
        lines += [f"{key.removesuffix('_ms').replace('_', ' ')}: {ms:.2f} ms" for key, ms in times.items() if isinstance(ms, int | float)]
        for stage in ("initial", "optimized"):
            counts = self.report.get(stage)
            if isinstance(counts, Mapping):
                lines.append(f"{stage}: " + ", ".join(f"{count:,} {name}" for name, count in counts.items() if isinstance(count, int)))
        return "\n".join(lines)


def outputs_of(result: RunResult, signature: Signature, chosen: Sequence[int], name: str) -> list[Any]:
    """Return the outputs at these places of a model's signature, as arrays that may be written to; lists and the like where it says so.

    Raises:
        InputError: if the answer has another number of outputs than the signature.
    """
    if len(result.outputs) != len(signature.outputs):
        raise InputError(f"model '{name}': expected {len(signature.outputs)} outputs, got {len(result.outputs)}")
    return [_output(result, index, signature) for index in chosen]


def _output(result: RunResult, index: int, signature: Signature) -> Any:  # noqa: ANN401 - a list, a dictionary or None where the model says so
    header = result.outputs[index]
    array = decode_array(header.dtype, header.shape, result.payload[index])
    if signature.outputs[index].is_packed:
        return unpacked_output(array)
    return array if array.flags.writeable else array.copy()


def recorded_timeline(result: RunResult) -> Timeline | None:
    """Return when every node did what for a recorded request; None if nobody told in time."""
    return timeline_of(result.records, result.devices) if result.devices else None
